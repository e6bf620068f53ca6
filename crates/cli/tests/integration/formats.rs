use serde_json::{Value, json};

use crate::shell::Shell;

const ROWS: &str = "SELECT * FROM (VALUES (1, 'a,b'), (2, NULL)) t(k, v) ORDER BY k";

#[test]
fn a_table_aligns_its_columns_and_counts_its_rows() {
    let out = Shell::new().succeed(&["-c", ROWS]);
    assert_eq!(out, " k | v\n---+------\n 1 | a,b\n 2 | NULL\n(2 rows)\n");
}

#[test]
fn quiet_leaves_the_count_out() {
    assert_eq!(Shell::new().succeed(&["--quiet", "-c", "SELECT 1 AS k"]), " k\n---\n 1\n");
}

#[test]
fn csv_quotes_what_needs_it() {
    assert_eq!(Shell::new().succeed(&["--format", "csv", "-c", ROWS]), "k,v\n1,\"a,b\"\n2,\n");
}

#[test]
fn csv_of_no_rows_has_its_header() {
    assert_eq!(Shell::new().succeed(&["--format", "csv", "-c", "SELECT 1 AS k, 2 AS v WHERE false"]), "k,v\n");
}

#[test]
fn json_is_one_array_with_nulls_spelled_out() {
    let out = Shell::new().succeed(&["--format", "json", "-c", ROWS]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value, json!([{"k": 1, "v": "a,b"}, {"k": 2, "v": null}]));
    assert!(out.ends_with("]\n"));
}

#[test]
fn json_of_no_rows_is_an_empty_array_and_ndjson_is_nothing() {
    let shell = Shell::new();
    assert_eq!(shell.succeed(&["--format", "json", "-c", "SELECT 1 WHERE false"]), "[]\n");
    assert_eq!(shell.succeed(&["--format", "ndjson", "-c", "SELECT 1 WHERE false"]), "");
}

#[test]
fn ndjson_rows_of_several_statements_follow_one_another() {
    let out = Shell::new().succeed(&[
        "--format",
        "ndjson",
        "-c",
        "CREATE TABLE t AS SELECT * FROM range(2) r(k); SELECT k FROM t ORDER BY k; SELECT 'x' AS s;",
    ]);
    assert_eq!(out, "{\"k\":0}\n{\"k\":1}\n{\"s\":\"x\"}\n");
}

#[test]
fn every_type_has_a_text() {
    let shell = Shell::new();
    let sql = "SELECT interval '1 day' AS i, [1, 2] AS l, {a: 1} AS s, x'ff' AS b, map {'a': 1} AS m, NULL AS z, \
               arrow_cast(5, 'Duration(Second)') AS d, 1.5::decimal(10, 2) AS n, 'NaN'::double AS f, true AS t, \
               timestamp '2020-01-02 03:04:05' AS ts, arrow_cast('x', 'Dictionary(Int32, Utf8)') AS di";
    assert_eq!(
        shell.succeed(&["--format", "csv", "-c", sql]),
        "i,l,s,b,m,z,d,n,f,t,ts,di\n1 days,\"[1, 2]\",{a: 1},ff,{a: 1},,PT5S,1.50,NaN,true,2020-01-02T03:04:05,x\n"
    );
    let row: Value = serde_json::from_str(&shell.succeed(&["--format", "ndjson", "-c", sql])).unwrap();
    assert_eq!(row["l"], json!([1, 2]));
    assert_eq!(row["m"], json!({"a": 1}));
    assert_eq!(row["i"], json!("1 days"));
    assert_eq!(row["f"], Value::Null);
    assert!(shell.succeed(&["-c", sql]).contains("{a: 1}"));
}

#[test]
fn parquet_and_arrow_come_out_of_a_pipe_whole() {
    let shell = Shell::new();
    for format in ["parquet", "arrow"] {
        let output =
            shell.command().args(["--format", format, "-c", "SELECT * FROM range(100000) r(k)"]).output().unwrap();
        assert!(output.status.success());
        let name = format!("piped.{format}");
        shell.write(&name, &output.stdout);
        assert_eq!(
            shell.rows(&format!("SELECT count(*) AS c, sum(k) AS s FROM '{name}'")),
            ["{\"c\":100000,\"s\":4999950000}"]
        );
    }
}

#[test]
fn a_parquet_output_holds_one_result() {
    let run = Shell::new().command().args(["--format", "parquet", "-c", "SELECT 1; SELECT 2"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&run.stderr).contains("COPY"));
}

#[test]
fn explain_prints_plans_as_lines() {
    let out = Shell::new().succeed(&["-c", "EXPLAIN SELECT count(*) FROM range(10)"]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[0], "logical_plan");
    assert!(lines.contains(&"physical_plan"), "{out}");
    assert!(lines.iter().skip(1).all(|line| line.starts_with("  ") || *line == "physical_plan"), "{out}");
}

#[test]
fn control_characters_cannot_steer_the_terminal() {
    let out = Shell::new().succeed(&["-c", "SELECT chr(27) || '[2J' AS x, 'a' || chr(10) || 'b' AS y"]);
    assert!(!out.contains('\u{1b}'));
    assert!(out.contains("a\\nb"));
}
