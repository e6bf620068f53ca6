use std::io::Read;
use std::process::Stdio;

use crate::shell::Shell;

#[test]
fn zero_needs_every_statement() {
    let shell = Shell::new();
    assert_eq!(shell.run(&["-c", "SELECT 1; SELECT 2"]).status, 0);
    assert_eq!(shell.run(&["-c", "SELECT 1; SELEC 2; SELECT 3"]).status, 1);
}

#[test]
fn a_script_stops_at_an_error_unless_told() {
    let shell = Shell::new();
    let sql = "SELECT 1 AS a; SELEC 2; SELECT 3 AS a";
    let stopped = shell.run(&["--format", "ndjson", "-c", sql, "-c", "SELECT 4 AS a"]);
    assert_eq!((stopped.out.as_str(), stopped.status), ("{\"a\":1}\n", 1));
    assert!(stopped.err.starts_with("error: statement 2: "), "{}", stopped.err);
    let continued = shell.run(&["--format", "ndjson", "--on-error", "continue", "-c", sql, "-c", "SELECT 4 AS a"]);
    assert_eq!((continued.out.as_str(), continued.status), ("{\"a\":1}\n{\"a\":3}\n{\"a\":4}\n", 1));
}

#[test]
fn usage_is_two() {
    let shell = Shell::new();
    for arguments in [
        &["--memory-limit", "lots"][..],
        &["--memory-limit", "-1"],
        &["--temp-limit", "x"],
        &["--threads", "0"],
        &["--threads", "many"],
        &["--format", "xml"],
        &["--set", "novalue"],
        &["--on-error", "shrug"],
        &["--unheard-of"],
        &["stray"],
    ] {
        let run = shell.run(arguments);
        assert_eq!((run.status, run.out.as_str()), (2, ""), "{arguments:?} gave {run:?}");
        assert!(!run.err.is_empty());
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let shell = Shell::new();
    for format in ["table", "csv", "json", "ndjson", "arrow", "parquet"] {
        let mut child = shell
            .command()
            .args(["--format", format, "-c", "SELECT value, value::varchar AS v FROM range(1000000000)"])
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 4]).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{format}");
        assert_eq!(output.status.code(), Some(141), "{format}");
    }
}

#[test]
fn errors_that_nobody_reads_change_nothing() {
    let shell = Shell::new();
    let mut child = shell.command().args(["--on-error", "continue", "--timing"]).stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut child = shell.command().args(["--timing", "-c", "SELEC 1"]).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
