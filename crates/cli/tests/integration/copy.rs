//! What COPY and INSERT leave behind when they are interrupted, killed, or run out of disk.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::Shell;

/// More rows than any test waits for.
const ENDLESS: &str = "SELECT value AS k, value % 3 AS p, repeat('x', 200) AS s FROM range(1000000000)";

/// The statements that write `ENDLESS` rows, and how the names of what they write begin.
fn endless() -> [(String, &'static str); 5] {
    [
        (format!("COPY ({ENDLESS}) TO 'x.csv'"), "x.csv"),
        (format!("COPY ({ENDLESS}) TO 'new/folder/' STORED AS CSV"), "new"),
        (format!("COPY ({ENDLESS}) TO 'parts/' STORED AS CSV PARTITIONED BY (p) OPTIONS (overwrite true)"), "parts"),
        (
            format!(
                "CREATE EXTERNAL TABLE t (k BIGINT, p BIGINT, s VARCHAR) STORED AS CSV LOCATION 'table/'; \
                 INSERT INTO t {ENDLESS}"
            ),
            "table",
        ),
        (format!("INSERT INTO 'folder[1]' {ENDLESS}"), "folder"),
    ]
}

fn names(folder: &Path) -> Vec<String> {
    let mut names = vec![];
    let Ok(entries) = fs::read_dir(folder) else { return names };
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            names.extend(self::names(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
        }
        names.push(name);
    }
    names.sort();
    names
}

/// A shell whose folder has files at the places that the statements write to.
fn with_files() -> Shell {
    let shell = Shell::new();
    shell.write("x.csv", "before");
    shell.write("parts/p=0/old.csv", "k,s\n1,x\n");
    shell.write("table/old.csv", "k,p,s\n1,2,x\n");
    shell.write("folder[1]/old.csv", "k,p,s\n1,2,x\n");
    // What the name would match as a pattern.
    shell.write("folder1/old.csv", "k,p,s\n1,2,x\n");
    shell
}

/// Starts a statement and waits until it has written something.
fn writing(shell: &Shell, sql: &str) -> Child {
    // Small writes, so that the first comes soon.
    let buffer = "datafusion.execution.objectstore_writer_buffer_size=100000";
    let child = shell.command().args(["--temp-dir", "/tmp", "--set", buffer, "-c", sql]).spawn().unwrap();
    let start = Instant::now();
    while !names(shell.folder()).iter().any(|name| name.ends_with(".part")) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn control_c_leaves_what_was_there() {
    let shell = with_files();
    let before = names(shell.folder());
    for (sql, _) in endless() {
        let child = writing(&shell, &sql);
        assert!(
            names(shell.folder()).iter().filter(|name| !before.contains(name)).all(|name| name.contains(".overspill-"))
        );
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130), "{sql}");
        assert_eq!(names(shell.folder()), before, "{sql}");
        assert_eq!(shell.read("x.csv"), "before");
    }
}

#[test]
fn a_killed_process_leaves_hidden_files_that_the_next_removes() {
    let shell = with_files();
    let before = names(shell.folder());
    for (sql, target) in endless() {
        let mut child = writing(&shell, &sql);
        child.kill().unwrap();
        child.wait().unwrap();
        let left = names(shell.folder());
        let left: Vec<_> = left.iter().filter(|name| !before.contains(name)).collect();
        assert!(!left.is_empty() && left.iter().all(|name| name.contains(".overspill-write-")), "{left:?}");
        // Queries do not see them.
        assert_eq!(shell.rows("SELECT count(*) AS c FROM 'parts/'"), ["{\"c\":1}"]);
        shell.succeed(&["-c", "COPY (SELECT 1 AS k) TO 'y.csv'"]);
        fs::remove_file(shell.folder().join("y.csv")).unwrap();
        assert_eq!(names(shell.folder()), before, "{target}");
    }
}

#[test]
fn a_full_disk_is_told_and_leaves_what_was_there() {
    let shell = with_files();
    let before = names(shell.folder());
    let binary = env!("CARGO_BIN_EXE_overspill");
    for (sql, target) in endless() {
        // No file may have more than some kilobytes, and the signal for that is ignored: writes fail as on a full disk.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh", binary, "--temp-dir", "/tmp", "-c", &sql]);
        let output = command.current_dir(shell.folder()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{sql}: {error}");
        assert!(
            error.contains(target) && error.contains("cannot be written") && error.contains("unchanged"),
            "{error}"
        );
        assert_eq!(names(shell.folder()), before, "{sql}");
        assert_eq!(shell.read("x.csv"), "before");
    }
}

#[test]
fn a_copy_that_fails_leaves_what_was_there() {
    let shell = with_files();
    let before = names(shell.folder());
    shell.fail(&["-c", "COPY (SELECT 1 / (900 - value) AS k FROM range(1000)) TO 'x.csv'"]);
    shell.fail(&["-c", "COPY (SELECT value FROM range(10)) TO 'table/' STORED AS CSV"]);
    assert_eq!(names(shell.folder()), before);
    assert_eq!(shell.read("x.csv"), "before");
}

#[test]
fn rows_are_written_in_the_order_of_a_column_that_is_not() {
    let shell = Shell::new();
    let table = "COPY (SELECT value AS a, 100 - value AS b FROM range(0, 100)) TO 't.parquet'";
    let copy = "COPY (SELECT a FROM 't.parquet' ORDER BY b) TO 'x.csv'";
    shell.succeed(&["-q", "-c", table, "-c", copy]);
    let written = shell.read("x.csv");
    assert!(written.lines().skip(1).map(|line| line.parse::<i32>().unwrap()).eq((0..100).rev()), "{written}");
}
