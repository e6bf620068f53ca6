//! JSON files of any layout and size.

use std::fmt::Write as _;

use crate::shell::Shell;

const ROWS: usize = 30_000;

fn sum_of(shell: &Shell, name: &str) -> String {
    let sql = format!("SELECT count(*) AS c, sum(k) AS s, max(v) AS m FROM '{name}'");
    // Cuts small files for several threads as well.
    let cut = "datafusion.optimizer.repartition_file_min_size=1000";
    shell.succeed(&["--format", "ndjson", "--threads", "5", "--set", cut, "-c", &sql])
}

#[test]
fn what_is_written_as_json_is_read_back_whatever_its_size() {
    let shell = Shell::new();
    let sql = format!("SELECT k, '],[' || k AS v FROM range({ROWS}) r(k)");
    let expected = format!("{{\"c\":{ROWS},\"s\":{},\"m\":\"],[9999\"}}\n", (0..ROWS).sum::<usize>());
    for name in ["x.json", "x.json.gz", "x.ndjson", "x.ndjson.zst"] {
        shell.succeed(&["--output", name, "-c", &sql]);
        assert_eq!(sum_of(&shell, name), expected, "{name}");
    }
}

#[test]
fn objects_may_take_several_lines() {
    let shell = Shell::new();
    let mut values = String::new();
    (0..ROWS).for_each(|row| write!(values, "{{\n  \"k\": {row},\n  \"v\": \"{row}\"\n}}\n").unwrap());
    let expected = format!("{{\"c\":{ROWS},\"s\":{},\"m\":\"9999\"}}\n", (0..ROWS).sum::<usize>());
    shell.write("values.json", &values);
    shell.write("array.json", format!("\u{feff}[\n{}\n]\n", values.trim_end().replace("}\n{", "},\n{")));
    for name in ["values.json", "array.json"] {
        assert_eq!(sum_of(&shell, name), expected, "{name}");
    }
}

#[test]
fn an_array_that_is_cut_short_is_an_error() {
    let shell = Shell::new();
    shell.write("array.json", "[{\"k\":1},\n{\"k\":2}");
    shell.write("values.json", "{\"k\":1}\n{\"k\":");
    for name in ["array.json", "values.json"] {
        let error = shell.fail(&["-c", &format!("SELECT count(*) FROM '{name}'")]);
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn copy_keeps_the_keys_of_null() {
    let shell = Shell::new();
    shell.succeed(&["-c", "COPY (SELECT 1 AS a, CAST(NULL AS BIGINT) AS b) TO 'x.json'"]);
    assert_eq!(shell.read("x.json"), "{\"a\":1,\"b\":null}\n");
}

#[test]
fn a_fraction_is_not_cut_off_where_integers_are_expected() {
    let shell = Shell::new();
    shell.write("x.ndjson", "{\"a\":1,\"b\":[2],\"c\":{\"d\":3}}\n{\"a\":1.9,\"b\":[2.5],\"c\":{\"d\":3.5}}\n");
    for (column, value) in [("a BIGINT", "1.9"), ("b BIGINT[]", "2.5"), ("c STRUCT<d BIGINT>", "3.5")] {
        let sql = format!("CREATE EXTERNAL TABLE t ({column}) STORED AS JSON LOCATION 'x.ndjson'; SELECT * FROM t");
        let error = shell.fail(&["-c", &sql]);
        assert!(error.contains(value) && error.contains("x.ndjson"), "{column}: {error}");
    }
    assert_eq!(shell.rows("SELECT sum(a) AS a FROM 'x.ndjson'"), ["{\"a\":2.9}"]);
}
