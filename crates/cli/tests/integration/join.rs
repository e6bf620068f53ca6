//! `overspill join`.

use crate::shell::Shell;

/// Two tables with a key, a column that both have, and one that has the name of a function.
fn with_tables() -> Shell {
    let shell = Shell::new();
    shell.succeed(&[
        "-q",
        "-c",
        "COPY (SELECT value AS k, value % 7 AS \"count\", 'l' || value AS note FROM range(0, 100)) TO 'left.parquet'",
        "-c",
        "COPY (SELECT value * 2 AS k, CAST(value * 2 AS INTEGER) AS id, 'r' || value AS note FROM range(0, 100)) \
         TO 'right/a.csv'",
        "-c",
        "COPY (SELECT 4 AS k, 4 AS id, 'again' AS note) TO 'right/b.csv'",
    ]);
    shell
}

#[test]
fn joined_rows_are_counted() {
    let shell = with_tables();
    let run = shell.run(&["join", "--left", "left.parquet", "--right", "right/*.csv", "--on", "k"]);
    assert!(run.status == 0 && run.out.contains(" 51\n"), "{run:?}");
    assert!(run.err.starts_with("joined in "), "{run:?}");
    let quiet =
        ["join", "-q", "--left", "left.parquet", "--right", "right/", "--on", "k=id,k", "--memory-limit", "64MB"];
    assert!(shell.succeed(&quiet).ends_with(" 51\n"));
}

#[test]
fn joined_rows_are_written() {
    let shell = with_tables();
    for (format, extension) in [("parquet", "parquet"), ("csv", "csv"), ("json", "json"), ("arrow", "arrow")] {
        let join = ["join", "--left", "left.parquet", "--right", "right/", "--on", "k=k", "--output", extension];
        let run = shell.run(&[&join[..], &["--format", format]].concat());
        assert_eq!((run.status, run.out.as_str()), (0, ""), "{run:?}");
        assert!(run.err.starts_with("51 rows written in "), "{run:?}");
        let query =
            format!("SELECT k, count, note, id, note_right FROM '{extension}/' ORDER BY k, id, note_right LIMIT 4");
        let expected = [
            "{\"k\":0,\"count\":0,\"note\":\"l0\",\"id\":0,\"note_right\":\"r0\"}",
            "{\"k\":2,\"count\":2,\"note\":\"l2\",\"id\":2,\"note_right\":\"r1\"}",
            "{\"k\":4,\"count\":4,\"note\":\"l4\",\"id\":4,\"note_right\":\"again\"}",
            "{\"k\":4,\"count\":4,\"note\":\"l4\",\"id\":4,\"note_right\":\"r2\"}",
        ];
        assert_eq!(shell.rows(&query), expected, "{format}");
        // Files are not replaced.
        let error = shell.fail(&[&join[..], &["--format", format]].concat());
        assert!(error.contains("there are files in it already"), "{error}");
    }
}

#[test]
fn what_cannot_be_joined_is_said() {
    let shell = with_tables();
    let join = |right: &str, on: &str| shell.fail(&["join", "--left", "left.parquet", "--right", right, "--on", on]);
    let error = join("right/", "k=key");
    assert!(error.contains("right/ has no column key; it has k, id, note"), "{error}");
    let error = join("none.parquet", "k");
    assert!(error.contains("none.parquet"), "{error}");
    assert_eq!(shell.run(&["join", "--left", "left.parquet", "--right", "right/"]).status, 2);
    assert_eq!(shell.run(&["join", "--left", "left.parquet", "--right", "right/", "--on", "=k"]).status, 2);
    let error = shell.fail(&["join", "--left", "left.parquet", "--right", "right/", "--on", "k", "--device", "abacus"]);
    assert!(error.contains("overspill.device = 'abacus'"), "{error}");
    let error =
        shell.fail(&["join", "--left", "left.parquet", "--right", "right/", "--on", "k", "--ranks-per-node", "2"]);
    assert!(error.contains("mpirun"), "{error}");
}
