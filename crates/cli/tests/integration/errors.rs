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
        ("SUMMARIZE", "needs a table"),
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
            "SELECT count(*) FROM (SELECT DISTINCT CAST(value % 100000 AS DOUBLE) FROM range(1000000))",
        ]);
        assert!(error.contains("--memory-limit"), "{limit}: {error}");
        assert!(error.contains("emory"), "{limit}: {error}");
    }
    assert_eq!(shell.run(&["--memory-limit", "1", "-c", "SELECT 1"]).status, 0);
}

/// Words that belong to the planner's developers.
const FOREIGN: [&str; 14] = [
    "Internal error",
    "bug report",
    "bug in DataFusion",
    "Error during planning",
    "Schema error",
    "Execution error",
    "DFSchema",
    "ParserError",
    "Ident {",
    "BinaryOp {",
    "Span(",
    "Field {",
    "failed to match any signature",
    "Optimizer rule",
];

#[test]
fn errors_are_sentences() {
    let shell = Shell::new();
    let wrong: Vec<_> = include_str!("wrong_statements.sql").lines().filter(|line| !line.is_empty()).collect();
    shell.write("wrong.sql", wrong.join("\n"));
    shell.write("a.csv", "k\n1\n");
    let run = shell.run(&["--on-error", "continue", "--format", "ndjson", "-f", "wrong.sql"]);
    assert_eq!(run.status, 1);
    for word in FOREIGN {
        let found: Vec<_> = run.err.lines().filter(|line| line.contains(word)).collect();
        assert!(found.is_empty(), "{word}: {found:#?}");
    }
    // What is wrong today may be right one day, but hardly most of it. Each error shows its place.
    let errors = run.err.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(errors > wrong.len() * 3 / 4, "{}", run.err);
    assert_eq!(run.err.lines().filter(|line| line.starts_with("  --> wrong.sql:")).count(), errors, "{}", run.err);
}

#[test]
fn the_facts_stay_in_the_sentence() {
    let shell = Shell::new();
    let table = "CREATE TABLE t (a INT, b VARCHAR); ";
    for (sql, words) in [
        ("SELECT sum('a')", &["'sum'", "Utf8", "sum(Float64)"][..]),
        ("SELECT date_trunc('day')", &["date_trunc", "Timestamp"]),
        ("SELECT * FROM t SEMI JOIN t u ON t.a = u.a", &["LEFT SEMI JOIN"]),
        ("SELECT * FROM t PIVOT (sum(a) FOR b IN ('x'))", &["PIVOT", "FILTER"]),
        ("SELECT cout(*) FROM t", &["'cout'", "'count'"]),
        ("SELECT uper(b) FROM t", &["'upper'"]),
        ("SELECT aa FROM t", &["aa", "Did you mean t.a?"]),
        ("SELECT * FROM tt", &["'tt'", "Did you mean 't'?"]),
        ("SELECT a FROM t WHERE row_number() OVER () = 1", &["QUALIFY"]),
        ("SELECT count(*) FROM t GROUP BY count(*)", &["aggregate"]),
        ("SELECT TOP 3 * FROM t", &["TOP", "not supported"]),
    ] {
        let error = shell.fail(&["-c", &format!("{table}{sql}")]);
        for word in words {
            assert!(error.contains(word), "{sql}: {error}");
        }
        for _ in 0..3 {
            assert_eq!(shell.fail(&["-c", &format!("{table}{sql}")]), error, "the same answer each time");
        }
    }
}

#[test]
fn errors_of_scripts_show_their_place() {
    let shell = Shell::new();
    shell.write(
        "report.sql",
        "-- a report\nSELECT 1 AS k;\n.timer off\nSELECT\n  k, nope\nFROM (VALUES (1)) t(k);\nSELECT 2;\n",
    );
    let error = shell.fail(&["-f", "report.sql"]);
    assert!(error.contains("  --> report.sql:5:6\n   |   k, nope\n   |      ^\n"), "{error}");
    for (sql, place) in [
        ("SELECT 1; SELECT 2 +* 3", "  --> -c:1:21\n"),
        ("SELECT 1 FROM", "  --> -c:1:14\n"),
        ("SELECT 'open", "  --> -c:1:8\n"),
        ("SELECT 1;\n SELECT cout(1)", "  --> -c:2:9\n"),
        ("SELECT * FROM nothing_here", "  --> -c:1:15\n"),
        ("SELECT CAST('x' AS INT)", "  --> -c:1:13\n"),
    ] {
        let error = shell.fail(&["-c", sql]);
        assert!(error.contains(place), "{sql}: {error}");
    }
    let run = shell.run_with_input(&[], b"SELECT 1;\n\\nonsense\n");
    assert!(run.err.contains("  --> standard input:2:1\n"), "{}", run.err);
    shell.write("outer.sql", "SELECT 1;\n.read report.sql\n");
    assert!(shell.fail(&["-f", "outer.sql"]).contains("  --> report.sql:5:6\n"));
}

#[test]
fn a_place_without_permission_is_not_a_place_that_is_not_there() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;

    let shell = Shell::new();
    shell.write("locked/script.sql", "SELECT 1");
    let locked = shell.folder().join("locked");
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o600)).unwrap();
    let folder = shell.folder().to_path_buf();
    let owner = std::fs::metadata(&folder).unwrap().uid();
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    // The folder of the build may be closed to others.
    let binary = folder.join("overspill");
    let built = env!("CARGO_BIN_EXE_overspill");
    std::fs::hard_link(built, &binary).or_else(|_| std::fs::copy(built, &binary).map(|_| ())).unwrap();
    for arguments in [["-c", ".read locked/script.sql"], ["-f", "locked/script.sql"], ["--output", "locked/out.csv"]] {
        let mut command = shell.command_at(&binary);
        command.args(arguments);
        if arguments[0] == "--output" {
            command.args(["-c", "SELECT 1"]);
        }
        if owner == 0 {
            // Root may read everything, so the test runs as the user `nobody`.
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("ermission denied") && !error.contains("not exist"), "{arguments:?}: {error}");
    }
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o700)).unwrap();
}
