//! Clusters of processes on this machine.

mod tls;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::{Run, Shell};

/// The executors' directory for spilled state and for rows between tasks.
const TEMPORARY: &str = "temporary";

/// A scheduler and executors, which end with it.
struct Cluster {
    shell: Shell,
    scheduler: Child,
    executors: Vec<Child>,
    address: String,
    /// The certificates of all processes.
    tls: &'static [&'static str],
}

/// A process of a cluster, and the line that says that it has started.
fn start(shell: &Shell, arguments: &[&str]) -> (Child, String) {
    let mut command = shell.command();
    let mut child = command.arg("cluster").args(arguments).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

impl Cluster {
    /// Three executors of 64 MB, and tables of TPC-H in the folder `data`.
    fn start(scale: &str) -> Self {
        Self::in_folder_of(Shell::new(), scale, &[])
    }

    /// The same, in the folder of a shell that has the files of certificates.
    fn in_folder_of(shell: Shell, scale: &str, tls: &'static [&'static str]) -> Self {
        shell.run(&["datagen", "tpch", "--scale", scale, "--dir", "data"]);
        std::fs::create_dir(shell.folder().join(TEMPORARY)).unwrap();
        let (scheduler, line) = start(&shell, &[&["scheduler", "--bind", "127.0.0.1:0"], tls].concat());
        let address = line.strip_prefix("scheduler ").unwrap().to_owned();
        let mut cluster = Self { shell, scheduler, executors: Vec::new(), address, tls };
        for _ in 0..3 {
            cluster.add();
        }
        // They register a moment after they have started.
        std::thread::sleep(Duration::from_millis(1500));
        cluster
    }

    fn add(&mut self) {
        let arguments = ["executor", "--scheduler", &self.address, "--memory-limit", "64MB", "--threads", "2"];
        let (executor, _) = start(&self.shell, &[&arguments[..], &["--temp-dir", TEMPORARY], self.tls].concat());
        self.executors.push(executor);
    }

    /// Kills an executor as a lost machine would, at once.
    fn kill(&mut self, which: usize) {
        let mut executor = self.executors.remove(which);
        executor.kill().unwrap();
        executor.wait().unwrap();
    }

    fn arguments<'a>(&'a self, sql: &'a str) -> Vec<&'a str> {
        [&["--cluster", &self.address, "--format", "csv", "-c", sql], self.tls].concat()
    }

    fn run(&self, sql: &str) -> Run {
        self.shell.run(&self.arguments(sql))
    }

    fn spawn(&self, sql: &str) -> Child {
        self.shell.command().args(self.arguments(sql)).spawn().unwrap()
    }

    /// The rows of a query, which must succeed.
    fn rows(&self, sql: &str) -> String {
        let run = self.run(sql);
        assert_eq!((run.status, run.err.as_str()), (0, ""), "{sql} gave {run:?}");
        run.out
    }

    /// The same where the user is, without the cluster.
    fn rows_here(&self, sql: &str) -> String {
        self.shell.succeed(&["--format", "csv", "-c", sql])
    }

    /// The error of a query, which must fail.
    fn fails(&self, sql: &str) -> String {
        self.shell.fail(&self.arguments(sql))
    }

    /// The files of executors that are there.
    fn left(&self) -> Vec<String> {
        fn below(folder: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.path().is_dir() {
                    true => below(&entry.path(), found),
                    false => found.push(entry.path().display().to_string()),
                }
            }
        }
        let mut found = Vec::new();
        below(&self.shell.folder().join(TEMPORARY), &mut found);
        found.retain(|path| !path.ends_with(".overspill.lock"));
        found
    }

    fn nothing_is_left(&self) {
        let start = Instant::now();
        while !self.left().is_empty() {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", self.left());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.executors.iter_mut().chain([&mut self.scheduler]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_cluster_gives_the_rows_of_one_process() {
    let cluster = Cluster::start("0.01");
    let queries = [
        "SELECT o_orderpriority, count(*) n, sum(l_extendedprice) s FROM 'data/orders.parquet' \
         JOIN 'data/lineitem.parquet' ON l_orderkey = o_orderkey GROUP BY 1 ORDER BY 1",
        // Sides that a join keeps, without an equality: every task would return them.
        "SELECT count(*), count(n_name) FROM 'data/region.parquet' r LEFT JOIN 'data/nation.parquet' ON n_nationkey < r_regionkey - 2",
        "SELECT r_name FROM 'data/region.parquet' WHERE EXISTS (SELECT 1 FROM 'data/nation.parquet' WHERE n_nationkey > r_regionkey + 20) ORDER BY 1",
        // A null among the values makes NOT IN unknown.
        "SELECT count(*) FROM 'data/customer.parquet' WHERE c_custkey NOT IN \
         (SELECT CASE WHEN o_custkey = 1 THEN NULL ELSE o_custkey END FROM 'data/orders.parquet')",
        "SELECT count(*) FROM 'data/customer.parquet' WHERE c_custkey NOT IN (SELECT o_custkey FROM 'data/orders.parquet')",
        // IN as a value, and grouping sets.
        "SELECT c_nationkey IN (SELECT n_nationkey FROM 'data/nation.parquet' WHERE n_regionkey = 1) i, count(*) \
         FROM 'data/customer.parquet' GROUP BY 1 ORDER BY 1",
        "SELECT n_regionkey, n_name, count(*) FROM 'data/nation.parquet' JOIN 'data/customer.parquet' ON c_nationkey = n_nationkey \
         GROUP BY ROLLUP(n_regionkey, n_name) ORDER BY 1 NULLS FIRST, 2 NULLS FIRST",
        // Order above a join, and windows.
        "SELECT o_orderkey, row_number() OVER (PARTITION BY o_custkey ORDER BY o_orderkey) r, sum(o_totalprice) OVER (ORDER BY o_orderkey) s \
         FROM 'data/orders.parquet' JOIN 'data/customer.parquet' ON o_custkey = c_custkey ORDER BY 1 LIMIT 50",
        "SELECT o_orderkey k FROM 'data/orders.parquet' WHERE o_orderkey < 20 UNION ALL \
         SELECT l_orderkey FROM 'data/lineitem.parquet' WHERE l_orderkey < 9 ORDER BY 1",
        "SELECT count(*) FROM 'data/orders.parquet' WHERE o_totalprice > (SELECT avg(o_totalprice) FROM 'data/orders.parquet')",
        "SELECT max(c_acctbal), min(c_acctbal), sum(c_custkey + 1) FROM 'data/customer.parquet' WHERE CAST(c_acctbal AS INT) = 121",
    ];
    for sql in queries {
        assert_eq!(cluster.rows(sql), cluster.rows_here(sql), "{sql}");
    }
    let analyzed = cluster.rows(&format!("EXPLAIN ANALYZE {}", queries[0]));
    assert!(analyzed.contains("HybridJoinExec") && analyzed.contains("build_input_rows"), "{analyzed}");
    assert!(analyzed.contains("block_bytes"), "{analyzed}");
    // Settings reach the executors.
    let analyzed = cluster.rows(
        "SET overspill.join_memory_limit = 1000000; EXPLAIN ANALYZE SELECT max(a.l_comment), max(b.l_comment) \
         FROM 'data/lineitem.parquet' a JOIN 'data/lineitem.parquet' b ON a.l_orderkey = b.l_orderkey AND a.l_linenumber = b.l_linenumber",
    );
    let spills = analyzed.lines().find(|line| line.contains("HybridJoinExec")).unwrap();
    assert!(spills.contains("spilled_rows=") && !spills.contains("spilled_rows=0"), "{analyzed}");
    let off = format!("SET overspill.shuffle_compression = off; EXPLAIN ANALYZE {}", queries[0]);
    assert!(!cluster.rows(&off).contains("block_bytes"));
    cluster.nothing_is_left();
}

#[test]
fn rows_go_where_the_user_is() {
    let cluster = Cluster::start("0.01");
    let sql = "COPY (SELECT o_custkey, count(*) n FROM 'data/orders.parquet' JOIN 'data/lineitem.parquet' ON l_orderkey = o_orderkey \
               GROUP BY 1) TO 'copied.parquet'; \
               CREATE TABLE t AS SELECT c_custkey k FROM 'data/customer.parquet' JOIN 'data/nation.parquet' ON c_nationkey = n_nationkey; \
               SELECT count(*) FROM t; SELECT count(*) FROM t JOIN 'data/orders.parquet' ON k = o_custkey";
    let rows = cluster.rows(sql);
    assert_eq!(rows, cluster.rows_here(&sql.replace("copied", "copied_here")));
    let sums = |name: &str| cluster.rows_here(&format!("SELECT count(*) c, sum(o_custkey) k, sum(n) n FROM '{name}'"));
    assert_eq!(sums("copied.parquet"), sums("copied_here.parquet"));
}

#[test]
fn files_of_all_kinds_are_read_by_executors() {
    let cluster = Cluster::start("0.01");
    for name in ["o.csv", "o.csv.gz", "o.json", "o.json.zst", "o.arrow"] {
        cluster.rows_here(&format!(
            "COPY (SELECT o_orderkey k, o_orderdate d, o_comment, o_custkey % 7 c FROM 'data/orders.parquet') TO '{name}'"
        ));
        let sql = format!(
            "SELECT c, count(*) n, sum(k) s, min(d) d, max(o_comment) t FROM '{name}' JOIN 'data/lineitem.parquet' ON l_orderkey = k \
             WHERE d > DATE '1993-05-01' GROUP BY c ORDER BY c"
        );
        assert_eq!(cluster.rows(&sql), cluster.rows_here(&sql), "{name}");
    }
    // Options of a table, folders as columns, and records that hold line breaks.
    std::fs::create_dir_all(cluster.shell.folder().join("parts/p=1")).unwrap();
    std::fs::create_dir_all(cluster.shell.folder().join("parts/p=2")).unwrap();
    cluster.shell.write("parts/p=1/a.csv", "k|t\n1|\"x\ny\"\n2|-\n");
    cluster.shell.write("parts/p=2/b.csv", "t|k\nz|3\n");
    let table = "CREATE EXTERNAL TABLE parts (k BIGINT, t VARCHAR, p INT) STORED AS CSV PARTITIONED BY (p) LOCATION 'parts/' \
                 OPTIONS ('format.delimiter' '|', 'format.has_header' 'true', 'format.null_regex' '-');";
    let sql = format!("{table} SELECT p, k, t FROM parts ORDER BY k");
    assert_eq!(cluster.rows(&sql), cluster.rows_here(&sql));
    assert!(cluster.rows(&sql).contains("2,3,z"));
    cluster.shell.write("damaged.csv", "k,t\n1,2,3\n");
    let sql = "SELECT max(k) FROM 'damaged.csv'";
    assert_eq!(cluster.fails(sql), cluster.shell.fail(&["-c", sql]));
}

#[test]
fn what_a_cluster_does_not_run_is_refused_in_a_sentence() {
    let cluster = Cluster::start("0.01");
    let error =
        cluster.fails("SET ballista.planner.adaptive.enabled = true; SELECT sum(o_custkey) FROM 'data/orders.parquet'");
    assert!(error.contains("adaptive planner"), "{error}");
    // One batch, as the first row to overflow is named.
    let sql = "SELECT sum(CAST(9223372036854775807 AS BIGINT) - 10 + n_nationkey) FROM 'data/nation.parquet'";
    assert_eq!(cluster.fails(sql), cluster.shell.fail(&["-c", sql]));
    let shell = Shell::new();
    let error = shell.fail(&["cluster", "scheduler", "--bind", "0.0.0.0:0", "--insecure"]);
    assert!(error.contains("0.0.0.0 is no address"), "{error}");
    let error = shell.fail(&["cluster", "scheduler", "--bind", "10.0.0.1:0"]);
    assert!(error.contains("--insecure"), "{error}");
    for (sql, words) in [
        ("SELECT r_name, (SELECT n_name FROM 'data/nation.parquet') FROM 'data/region.parquet'", "several rows"),
        (
            "SELECT sum(n_nationkey) FILTER (WHERE n_nationkey > 3) OVER (PARTITION BY n_regionkey) FROM 'data/nation.parquet'",
            "FILTER",
        ),
        ("SELECT lag(n_name) IGNORE NULLS OVER (ORDER BY n_nationkey) FROM 'data/nation.parquet'", "IGNORE NULLS"),
        (
            "SELECT lag(n_name) OVER (ORDER BY n_nationkey), lag(n_name) OVER (ORDER BY n_nationkey DESC) FROM 'data/nation.parquet'",
            "both directions",
        ),
        ("SELECT n_name FROM 'data/nation.parquet' WHERE n_nationkey > 3 LIMIT 4294967296", "LIMIT and OFFSET"),
        (
            "SELECT n_name FROM 'data/nation.parquet' WHERE n_nationkey > 3 LIMIT 10 OFFSET 4294967296",
            "LIMIT and OFFSET",
        ),
        (
            "SET overspill.enabled = false; SELECT sum(n_nationkey) FROM 'data/nation.parquet'",
            "overspill.enabled = true",
        ),
    ] {
        let error = cluster.fails(sql);
        assert!(error.contains(words), "{sql} gave {error}");
    }
    let error = shell.fail(&["cluster", "executor", "--set", "overspill.join_memory_limit=1"]);
    assert!(error.contains("travels with each query"), "{error}");
    let error = shell.fail(&["cluster", "scheduler", "--bind", &cluster.address]);
    assert!(error.contains("cannot listen") && error.contains("--bind"), "{error}");
    let error = shell.fail(&["cluster", "executor", "--scheduler", "127.0.0.1:1"]);
    assert!(error.contains("There is no scheduler at 127.0.0.1:1"), "{error}");
}

/// A query of some seconds.
const LONG: &str = "SELECT sum(a.l_quantity + c.l_quantity) FROM 'data/lineitem.parquet' a \
                    JOIN 'data/lineitem.parquet' b ON a.l_partkey = b.l_partkey \
                    JOIN 'data/lineitem.parquet' c ON a.l_partkey = c.l_partkey";

#[test]
fn a_killed_executor_does_not_change_the_answer() {
    let mut cluster = Cluster::start("0.1");
    let expected = cluster.rows_here(LONG);
    for round in 0..2 {
        let child = cluster.spawn(LONG);
        std::thread::sleep(Duration::from_millis(400 + 1400 * round));
        cluster.kill(round as usize % 3);
        let start = Instant::now();
        let run = Run::from(child.wait_with_output().unwrap());
        assert_eq!((run.out.as_str(), run.err.as_str()), (expected.as_str(), ""), "round {round}");
        assert!(start.elapsed() < Duration::from_secs(60), "round {round} took {:?}", start.elapsed());
        // Its start removes what the killed one has left.
        cluster.add();
    }
    cluster.nothing_is_left();
}

#[test]
fn without_executors_or_scheduler_a_query_fails_in_time() {
    let mut cluster = Cluster::start("0.1");
    let child = cluster.spawn(LONG);
    std::thread::sleep(Duration::from_millis(1000));
    for _ in 0..3 {
        cluster.kill(0);
    }
    let run = Run::from(child.wait_with_output().unwrap());
    assert!(run.err.contains("no executor is connected"), "{run:?}");
    cluster.add();
    std::thread::sleep(Duration::from_millis(1500));
    let child = cluster.spawn(LONG);
    std::thread::sleep(Duration::from_millis(1000));
    cluster.scheduler.kill().unwrap();
    let start = Instant::now();
    let run = Run::from(child.wait_with_output().unwrap());
    assert!(run.err.contains("is lost"), "{run:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
    let error = cluster.fails("SELECT sum(o_custkey) FROM 'data/orders.parquet'");
    assert!(error.contains("There is no scheduler at"), "{error}");
    cluster.nothing_is_left();
}

#[test]
fn control_c_stops_tasks_and_removes_their_files() {
    let cluster = Cluster::start("0.1");
    let child = cluster.spawn(LONG);
    std::thread::sleep(Duration::from_millis(1500));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    cluster.nothing_is_left();
    // The executors are free again.
    assert_eq!(cluster.rows("SELECT sum(n_nationkey) n FROM 'data/nation.parquet'"), "n\n300\n");
}

#[test]
fn one_command_starts_a_cluster_and_ends_it() {
    let shell = Shell::new();
    shell.run(&["datagen", "tpch", "--scale", "0.01", "--dir", "data"]);
    let (mut local, line) = start(&shell, &["local", "--executors", "2", "--port", "0", "--memory-limit", "64MB"]);
    let address = line.strip_prefix("cluster ").unwrap_or_else(|| panic!("{line}")).to_owned();
    let rows = shell.succeed(&[
        "--cluster",
        &address,
        "--format",
        "csv",
        "-c",
        "SELECT sum(n_nationkey) n FROM 'data/nation.parquet'",
    ]);
    assert_eq!(rows, "n\n300\n");
    // Also when it is killed its processes end with it.
    local.kill().unwrap();
    local.wait().unwrap();
    let start = Instant::now();
    while std::net::TcpStream::connect(&address).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(10), "the scheduler outlives the command that started it");
        std::thread::sleep(Duration::from_millis(100));
    }
}
