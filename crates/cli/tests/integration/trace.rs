//! Timelines: the file of `--trace`.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::shell::Shell;

/// Of 200,000 and 300,000 rows, some 50 MB.
const JOIN: &str = "SELECT count(*), max(length(a.v || b.w)) \
     FROM (SELECT value AS k, repeat('x', 100) || value AS v FROM range(200000)) a \
     JOIN (SELECT value AS k, repeat('y', 100) || value AS w FROM range(300000)) b ON a.k = b.k";

/// Times are in nanoseconds.
#[derive(Debug, Clone)]
struct Slice {
    group: String,
    lane: String,
    name: String,
    begin: u64,
    end: u64,
    figures: Value,
}

impl Slice {
    fn figure(&self, name: &str) -> u64 {
        self.figures[name].as_u64().unwrap_or_else(|| panic!("{self:?} has no {name}"))
    }
}

/// Reads a timeline, which must be whole, with a name for each lane and nothing on it that only half overlaps.
fn timeline(shell: &Shell, name: &str) -> Vec<Slice> {
    let events: Vec<Value> = serde_json::from_str(&shell.read(name)).unwrap();
    let id = |event: &Value, name: &str| event[name].as_u64().unwrap();
    let mut names = HashMap::new();
    for event in events.iter().filter(|event| event["ph"] == "M") {
        let of_lane = match event["name"].as_str().unwrap() {
            "process_name" => false,
            "thread_name" => true,
            _ => continue,
        };
        let key = (of_lane, id(event, "pid"), if of_lane { id(event, "tid") } else { 0 });
        assert_eq!(names.insert(key, event["args"]["name"].as_str().unwrap().to_string()), None, "{event}");
    }
    let nanoseconds = |event: &Value, name: &str| (event[name].as_f64().unwrap() * 1e3).round() as u64;
    let slices: Vec<_> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| Slice {
            group: names[&(false, id(event, "pid"), 0)].clone(),
            lane: names[&(true, id(event, "pid"), id(event, "tid"))].clone(),
            name: event["name"].as_str().unwrap().to_string(),
            begin: nanoseconds(event, "ts"),
            end: nanoseconds(event, "ts") + nanoseconds(event, "dur"),
            figures: event["args"].clone(),
        })
        .collect();
    let mut lanes: HashMap<_, Vec<&Slice>> = HashMap::new();
    for slice in &slices {
        lanes.entry((&slice.group, &slice.lane)).or_default().push(slice);
    }
    for lane in lanes.values_mut() {
        lane.sort_by_key(|slice| (slice.begin, std::cmp::Reverse(slice.end)));
        let mut around: Vec<&Slice> = Vec::new();
        for slice in lane {
            around.retain(|before| before.end > slice.begin);
            assert!(around.iter().all(|before| slice.end <= before.end), "{slice:?} is not within {around:?}");
            around.push(slice);
        }
    }
    slices
}

fn on<'a>(slices: &'a [Slice], group: &str, lane: &str) -> Vec<&'a Slice> {
    slices.iter().filter(|slice| slice.group.starts_with(group) && slice.lane.starts_with(lane)).collect()
}

fn named<'a>(slices: &[&'a Slice], name: &str) -> Vec<&'a Slice> {
    slices.iter().copied().filter(|slice| slice.name.starts_with(name)).collect()
}

/// The slice of a statement.
fn statement<'a>(slices: &'a [Slice], sql: &str) -> &'a Slice {
    let of_statements = on(slices, "statements", "statements");
    of_statements.into_iter().find(|slice| slice.figures["sql"] == sql).unwrap_or_else(|| panic!("no {sql}"))
}

fn sum(slices: &[&Slice], figure: &str) -> u64 {
    slices.iter().map(|slice| slice.figure(figure)).sum()
}

/// A figure of a join in bytes, as EXPLAIN ANALYZE rounds it, those of its own metrics as it does counts; and half of its last digit.
fn bytes_told(plan: &str, metric: &str) -> (f64, f64) {
    let (_, join) = plan.split_once("HybridJoinExec").unwrap_or_else(|| panic!("no join in {plan}"));
    let (_, text) = join.split_once(&format!("{metric}=")).unwrap_or_else(|| panic!("no {metric} in {plan}"));
    let text = text.split([',', ']']).next().unwrap();
    let (number, unit) = text.split_once(' ').unwrap();
    let unit = match unit {
        "B" => 1.0,
        "KB" => 1024.0,
        "MB" => 1048576.0,
        "K" => 1e3,
        "M" => 1e6,
        other => panic!("{other}"),
    };
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    (number.parse::<f64>().unwrap() * unit, 0.501 * unit / 10_f64.powi(decimals as i32))
}

#[test]
fn a_join_that_spills_has_lanes_for_streams_spilling_and_threads() {
    let shell = Shell::new();
    let sql = format!("EXPLAIN ANALYZE {JOIN}");
    let arguments = ["--threads", "2", "--memory-limit", "16MB", "--trace", "t.json", "-c", &sql];
    let plan = shell.succeed(&arguments);
    let slices = timeline(&shell, "t.json");

    let statement = statement(&slices, &sql);
    assert!(statement.name.starts_with("EXPLAIN ANALYZE SELECT count(*), max"), "{statement:?}");
    assert!(slices.iter().all(|slice| slice.begin >= statement.begin), "nothing comes before the statement");

    // Every row of the join is in a phase, and every phase is run by threads.
    let join = on(&slices, "join 1", "");
    let (builds, probes) = (named(&join, "build ("), named(&join, "probe ("));
    assert!(builds[0].name.contains("k@0 = k@0"), "{:?}", builds[0]);
    assert_eq!(sum(&builds, "rows") + sum(&probes, "rows"), 500_000);
    assert!(probes.iter().all(|probe| probe.lane.starts_with("stream ")), "{probes:?}");
    for phase in builds.iter().chain(&probes) {
        let runs = slices.iter().filter(|slice| slice.group == "CPU threads" && slice.name == phase.name);
        let lane = phase.lane.as_str();
        let runs = runs.filter(|slice| slice.figures["lane"] == lane && slice.figures["group"] == "join 1");
        let inside = runs.filter(|run| phase.begin <= run.begin && run.end <= phase.end);
        assert!(inside.count() > 0, "{phase:?} was run by nobody");
    }
    assert!(!named(&on(&slices, "CPU threads", "tokio"), "make hash table").is_empty());
    assert!(on(&slices, "join 2", "").is_empty());

    // All bytes written were read again, and are those that EXPLAIN ANALYZE shows.
    let (writes, reads) = (named(&join, "write"), named(&join, "read"));
    assert!(writes.iter().all(|write| write.lane.starts_with("spill writing")), "{writes:?}");
    assert!(reads.iter().all(|read| read.lane.starts_with("spill reading")), "{reads:?}");
    let (written, read) = (sum(&writes, "bytes"), sum(&reads, "bytes"));
    assert_eq!(written, read);
    for (metric, bytes) in [("spilled_bytes", written), ("spill_read_bytes", read)] {
        let (told, precision) = bytes_told(&plan, metric);
        let off = (bytes as f64 - told).abs();
        assert!(off <= precision, "{metric} of {told}, and {bytes} in the timeline");
    }
    assert!(written > 1 << 20, "{written} bytes were spilled");
    let pairs = named(&join, "pair of partitions");
    assert!(!pairs.is_empty() && pairs.iter().all(|pair| pair.figure("depth") >= 1), "{pairs:?}");
}

#[test]
fn passes_over_few_keys_are_told_apart() {
    let shell = Shell::new();
    let side = |rows| format!("(SELECT value % 2 AS k, repeat('x', 200) || value AS v FROM range({rows}))");
    let sql = format!("SELECT count(*), max(a.v), max(b.v) FROM {} a JOIN {} b ON a.k = b.k", side(100_000), side(10));
    // Else the small side would be the build side.
    let keeps = "datafusion.optimizer.join_reordering=false";
    let limits = ["--threads", "1", "--memory-limit", "8MB", "--set", keeps];
    let out = shell.succeed(&[&limits[..], &["--trace", "t.json", "--format", "csv", "-c", &sql]].concat());
    assert!(out.contains("\n500000,"), "{out}");
    let slices = timeline(&shell, "t.json");
    let passes = named(&on(&slices, "join 1", "stream "), "pass");
    let most = passes.iter().map(|pass| pass.figure("number")).max();
    assert!(most > Some(1), "{passes:?}");
}

#[test]
fn each_join_of_a_query_has_a_group_of_its_own() {
    let shell = Shell::new();
    let table = |name: &str| format!("(SELECT value AS k FROM range(1000)) {name}");
    let sql = format!(
        "SELECT count(*) FROM {} JOIN {} ON a.k = b.k JOIN {} ON b.k = c.k",
        table("a"),
        table("b"),
        table("c")
    );
    shell.succeed(&["--threads", "1", "--trace", "t.json", "-c", &sql, "-c", "SELECT 1", "-c", &sql]);
    let slices = timeline(&shell, "t.json");
    let builds: Vec<_> =
        slices.iter().filter(|slice| slice.name.starts_with("build (") && slice.group != "CPU threads").collect();
    let statements =
        on(&slices, "statements", "statements").into_iter().filter(|slice| slice.figures["sql"].is_string());
    let statements: Vec<_> = statements.collect();
    assert_eq!(statements.iter().map(|slice| &slice.figures["sql"]).collect::<Vec<_>>(), [&sql, "SELECT 1", &sql]);
    for (statement, joins) in statements.iter().zip([2, 0, 2]) {
        let within = builds.iter().filter(|build| statement.begin < build.begin && build.end < statement.end);
        let groups: Vec<_> = within.map(|build| &build.group).collect();
        assert_eq!(groups.len(), joins, "{groups:?}");
        assert!(joins == 0 || groups[0] != groups[1], "{groups:?}");
    }
}

#[test]
fn kernels_and_copies_of_the_emulated_device_lie_on_the_lanes_of_its_streams() {
    let shell = Shell::new();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_overspill"));
    let library = program.with_file_name("deps").join("liboverspill_emulated_driver.so");
    let sql = "SELECT count(*), sum(a.k) FROM (SELECT value AS k FROM range(20000)) a \
               JOIN (SELECT value % 30000 AS k FROM range(60000)) b ON a.k = b.k";
    for (strategy, method, kernel) in [
        ("gpu_no_partition", "pinned-copy", "probe"),
        ("triton", "auto", "partition"),
        ("cpu_partitioned", "auto", "partition"),
    ] {
        let settings = [
            "overspill.device=emulated".to_string(),
            format!("overspill.strategy={strategy}"),
            format!("overspill.transfer_method={method}"),
        ];
        let mut command = shell.command();
        command.env("OVERSPILL_EMULATED_DRIVER", &library).args(["--threads", "2", "--trace", "t.json"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting])).args(["--format", "csv", "-c", sql]);
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(out.contains("\n40000,"), "{strategy}: {out} {err}");
        let slices = timeline(&shell, "t.json");
        let device = on(&slices, "GPU 0", "stream ");
        let (copies, kernels): (Vec<_>, Vec<_>) = device
            .iter()
            .copied()
            .filter(|slice| slice.name != "fill")
            .partition(|slice| slice.name.starts_with("copy"));
        assert!(kernels.iter().any(|slice| slice.name.contains(kernel)), "{strategy}: {kernels:?}");
        assert!(!named(&copies, "copy to CPU").is_empty() && sum(&copies, "bytes") > 0, "{strategy}: {copies:?}");
        if method == "pinned-copy" {
            assert!(sum(&named(&copies, "copy to GPU"), "bytes") >= 60_000 * 8, "{copies:?}");
        }
        // The device's clock is not that of the CPU, but a wait ends after the work that it waits for.
        let statement = statement(&slices, sql);
        for slice in &device {
            assert!(statement.begin <= slice.begin && slice.end <= statement.end, "{strategy}: {slice:?}");
        }
        let threads = on(&slices, "CPU threads", "");
        for what in ["give build side to the GPU", "join on the GPU", "wait for the GPU"] {
            assert!(!named(&threads, what).is_empty(), "{strategy}: nobody did {what}");
        }
    }
}

#[test]
fn a_query_that_fails_is_in_the_timeline() {
    let shell = Shell::new();
    let sql = "SELECT sum(1 / (a.k - 900)) FROM (SELECT value AS k FROM range(1000)) a \
               JOIN (SELECT value AS k FROM range(1000)) b ON a.k = b.k";
    let error = shell.fail(&["--trace", "t.json", "-c", sql]);
    assert!(error.contains("ivide by zero"), "{error}");
    let slices = timeline(&shell, "t.json");
    let statement = statement(&slices, sql);
    assert!(statement.figures["error"].as_str().unwrap().contains("ivide by zero"), "{statement:?}");
    assert!(!named(&on(&slices, "join 1", ""), "build (").is_empty());
}

#[test]
fn a_query_that_is_cancelled_is_in_the_timeline() {
    let shell = Shell::new();
    let endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.value * b.value % 7 = 3";
    let mut command = shell.command();
    command.args(["--trace", "t.json", "-c", JOIN, "-c", endless]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The rows of the first statement come while the second runs.
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let slices = timeline(&shell, "t.json");
    assert_eq!(statement(&slices, endless).figures["error"], "interrupted");
}

#[test]
fn a_timeline_that_cannot_be_written_is_an_error_before_anything_runs() {
    let shell = Shell::new();
    let folder = shell.folder().to_str().unwrap();
    for place in ["gone/t.json", folder, "/dev/full"] {
        let run = shell.run(&["--trace", place, "-c", "SELECT 1"]);
        assert_eq!((run.status, run.out.as_str()), (1, ""), "{run:?}");
        assert!(run.err.starts_with(&format!("error: cannot write to {place}: ")), "{run:?}");
    }
    let error = shell.fail(&["--trace", "x.json", "--output", "x.json", "-c", "SELECT 1"]);
    assert!(error.contains("--output and --trace"), "{error}");
    assert!(!shell.folder().join("x.json").exists());
}

#[test]
fn nothing_but_a_timeline_is_overwritten_by_one() {
    let shell = Shell::new();
    let array = "[{\"a\": 1},\n {\"a\": 2}]\n";
    let lines = "[\n{\"a\": 1}\n]\n";
    for (name, text) in
        [("q.sql", "SELECT 1;\n"), ("t.csv", "a,b\n1,2\n"), ("t.json", array), ("u.json", lines), ("v.json", "[1]\n")]
    {
        let path = shell.folder().join(name);
        std::fs::write(&path, text).unwrap();
        // By another name, too.
        let link = shell.folder().join(format!("link-to-{name}"));
        std::fs::hard_link(&path, &link).unwrap();
        for file in [&path, &link] {
            let run = shell.run(&["--trace", file.to_str().unwrap(), "-c", &format!("SELECT * FROM '{name}'")]);
            assert_eq!((run.status, run.out.as_str()), (1, ""), "{run:?}");
            assert!(run.err.contains("it is there and is no timeline"), "{run:?}");
            assert_eq!(shell.read(name), text, "{name}");
        }
    }
    let run = shell.run(&["--trace", "q.sql", "-f", "q.sql"]);
    assert_eq!((run.status, shell.read("q.sql").as_str()), (1, "SELECT 1;\n"), "{run:?}");
    // An empty file, a timeline, also one whose end is missing, and one of nothing are.
    let begun = |length| shell.read("x.json").as_bytes()[..length].to_vec();
    std::fs::write(shell.folder().join("x.json"), "").unwrap();
    shell.succeed(&["--trace", "x.json", "-c", "SELECT 1"]);
    for length in [shell.read("x.json").len(), 400, 1] {
        std::fs::write(shell.folder().join("x.json"), begun(length)).unwrap();
        shell.succeed(&["--trace", "x.json", "-c", "SELECT 2"]);
        statement(&timeline(&shell, "x.json"), "SELECT 2");
    }
    std::fs::write(shell.folder().join("x.json"), "[\n]\n").unwrap();
    shell.succeed(&["--trace", "x.json", "-c", "SELECT 2"]);
}
