//! Columns that folders named `key=value` give.

use crate::shell::Shell;

fn shell_with_partitions() -> Shell {
    let shell = Shell::new();
    for (folder, key) in [("y=0/m=01", 1), ("y=2024/m=02", 2), ("y=__HIVE_DEFAULT_PARTITION__/m=03", 3)] {
        shell.write(&format!("d/{folder}/a.csv"), format!("k\n{key}\n"));
        shell.succeed(&["-c", &format!("COPY (SELECT {key} AS k) TO 'p/{folder}/a.parquet'")]);
    }
    shell
}

#[test]
fn the_folder_of_null_is_null() {
    let shell = shell_with_partitions();
    for path in ["d", "d/*/*/*.csv", "p", "p/**/*.parquet"] {
        let rows = |filter: &str| shell.rows(&format!("SELECT k FROM '{path}' WHERE {filter} ORDER BY k")).concat();
        assert_eq!(rows("y IS NULL"), "{\"k\":3}", "{path}");
        assert_eq!(rows("y = 0"), "{\"k\":1}", "{path}");
        assert_eq!(rows("y <> 5"), "{\"k\":1}{\"k\":2}", "{path}");
        assert_eq!(rows("NOT (y > 100)"), "{\"k\":1}", "{path}");
        assert_eq!(rows("y > 999"), "{\"k\":2}", "{path}");
        let sql = format!("SELECT count(y) AS c, min(y) AS l, max(y) AS g, count(*) AS n FROM '{path}'");
        assert_eq!(shell.rows(&sql), ["{\"c\":2,\"l\":0,\"g\":2024,\"n\":3}"], "{path}");
    }
}

#[test]
fn values_have_the_type_that_all_of_them_have() {
    let shell = shell_with_partitions();
    shell.write("t/a=2024-01-31/b=x%20y/c=1/x.csv", "k\n1\n");
    shell.write("t/a=2024-02-01/b=2/c=z/x.csv", "k\n2\n");
    let sql = "SELECT arrow_typeof(a) AS a, b, c FROM 't' ORDER BY k";
    assert_eq!(
        shell.rows(sql),
        ["{\"a\":\"Date32\",\"b\":\"x y\",\"c\":\"1\"}", "{\"a\":\"Date32\",\"b\":\"2\",\"c\":\"z\"}"]
    );
    assert_eq!(shell.rows("SELECT sum(m) AS s FROM 'd'"), ["{\"s\":6}"]);
}

#[test]
fn folders_that_do_not_agree_are_refused() {
    let shell = shell_with_partitions();
    shell.write("d/b.csv", "k\n4\n");
    let error = shell.fail(&["-c", "SELECT * FROM 'd'"]);
    assert!(error.contains("d/b.csv") && error.contains("(y, m)"), "{error}");
}

#[test]
fn only_files_of_folders_that_pass_are_read() {
    let shell = shell_with_partitions();
    shell.write("d/y=7/m=1/a.csv", "k\n1,2,3\n");
    assert_eq!(shell.rows("SELECT k FROM 'p' WHERE y = 2024 AND m < 3"), ["{\"k\":2}"]);
    let plan = shell.succeed(&["-c", "EXPLAIN SELECT k FROM 'p' WHERE y = 2024"]);
    assert!(plan.contains("y=2024") && !plan.contains("y=0"), "{plan}");
}

#[test]
fn what_copy_partitions_is_read_back() {
    let shell = Shell::new();
    let rows = "SELECT * FROM (VALUES (1, 5, 'x'), (2, NULL, NULL), (3, 0, 'a/b c')) t(k, p, q)";
    shell.succeed(&["-c", &format!("COPY ({rows}) TO 'd' STORED AS PARQUET PARTITIONED BY (p, q)")]);
    assert_eq!(
        shell.rows("SELECT k, p, q FROM 'd' ORDER BY k"),
        ["{\"k\":1,\"p\":5,\"q\":\"x\"}", "{\"k\":2,\"p\":null,\"q\":null}", "{\"k\":3,\"p\":0,\"q\":\"a/b c\"}"]
    );
}
