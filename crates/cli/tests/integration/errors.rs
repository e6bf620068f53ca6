use crate::shell::Shell;

#[test]
fn bad_sql_is_told_in_a_sentence() {
    let shell = Shell::new();
    for (sql, words) in [
        ("SELEC 1", "SELEC"),
        ("SELECT 'open", "nterminated"),
        ("SELECT nope FROM (VALUES (1)) t(x)", "nope"),
        ("SELECT 1 FROM", "EOF"),
        ("SELECT 1 / 0", "ivide by zero"),
        ("SELECT * FROM (VALUES (1)) a(x) JOIN (VALUES ([1])) b(y) ON x = y", "Int64"),
        ("SUMMARIZE", "wants a table"),
        ("SUMMARIZE nothing_here", "nothing_here"),
        ("CREATE EXTERNAL TABLE t STORED AS XLSX LOCATION 'x'", "XLSX"),
        ("\\x", "\\?"),
        (".read gone.sql", "gone.sql"),
    ] {
        let error = shell.fail(&["-c", sql]);
        assert!(error.contains(words), "{sql}: {error}");
        assert_eq!(shell.run(&["-c", sql]).out, "", "{sql} wrote to standard output");
    }
}

#[test]
fn places_that_cannot_be_used_are_named() {
    let shell = Shell::new();
    let folder = shell.folder().to_str().unwrap();
    for arguments in [
        ["--output", "gone/x.csv"],
        ["--output", folder],
        ["-f", folder],
        ["-f", "gone.sql"],
        ["--temp-dir", "/proc/overspill"],
        ["--temp-dir", "/dev/null"],
    ] {
        let error = shell.fail(&[arguments[0], arguments[1], "-c", "SELECT 1"]);
        assert!(error.contains(arguments[1]), "{arguments:?}: {error}");
    }
}

#[test]
fn text_that_is_not_utf8_is_told_with_its_line() {
    let shell = Shell::new();
    let run = shell.run_with_input(&["--format", "csv"], b"SELECT 1 AS a;\nSELECT '\xff';\n");
    assert_eq!((run.status, run.out.as_str()), (1, "a\n1\n"));
    assert!(run.err.contains("line 2"), "{}", run.err);
    shell.write("bad.sql", b"\xff\xfe");
    assert!(shell.fail(&["-f", "bad.sql"]).contains("bad.sql"));
}

#[test]
fn a_csv_with_a_wrong_column_names_the_file() {
    let shell = Shell::new();
    let rows: String = (0..2000).map(|key| format!("{key},1\n")).collect();
    shell.write("wrong.csv", format!("k,v\n{rows}2000,2000,2000\n"));
    let run = shell.run(&["--format", "csv", "-c", "SELECT sum(k) FROM 'wrong.csv'"]);
    assert_eq!((run.status, run.out.as_str()), (1, ""));
    assert!(run.err.contains("columns") || run.err.contains("fields"), "{}", run.err);
}

#[test]
fn a_failure_after_some_rows_is_a_failure() {
    let shell = Shell::new();
    shell.write("bad.csv", format!("k\n{}x\n", "1\n".repeat(100_000)));
    let run = shell.run(&["--format", "json", "-c", "SELECT arrow_cast(k, 'Int64') FROM 'bad.csv'"]);
    assert_eq!(run.status, 1);
    assert!(!run.out.ends_with("]\n"), "a result that is cut must not look whole");
}

#[test]
fn a_memory_error_names_the_limit_and_the_setting() {
    let shell = Shell::new();
    for limit in ["0", "1", "10kB"] {
        let error = shell.fail(&[
            "--memory-limit",
            limit,
            "--threads",
            "1",
            "-c",
            "SELECT count(*) FROM (SELECT DISTINCT value % 100000 FROM range(1000000))",
        ]);
        assert!(error.contains("--memory-limit"), "{limit}: {error}");
        assert!(error.contains("emory"), "{limit}: {error}");
    }
    assert_eq!(shell.run(&["--memory-limit", "1", "-c", "SELECT 1"]).status, 0);
}
