use crate::shell::Shell;

#[test]
fn commands_and_files_run_in_the_order_they_are_written() {
    let shell = Shell::new();
    shell.write("two.sql", "SELECT 2 AS n;\nSELECT 3 AS n");
    let out = shell.succeed(&["--format", "ndjson", "-c", "SELECT 1 AS n", "-f", "two.sql", "-c", "SELECT 4 AS n"]);
    assert_eq!(out, "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n{\"n\":4}\n");
}

#[test]
fn piped_input_is_a_script() {
    let run = Shell::new().run_with_input(&["--format", "csv"], "SELECT ';' AS a -- ;\n; SELECT 'ž' AS b".as_bytes());
    assert_eq!((run.out.as_str(), run.status), ("a\n;\nb\nž\n", 0));
}

#[test]
fn a_dash_is_standard_input() {
    let run = Shell::new().run_with_input(&["--format", "csv", "-c", "SELECT 1 AS a", "-f", "-"], b"SELECT 2 AS b");
    assert_eq!((run.out.as_str(), run.status), ("a\n1\nb\n2\n", 0));
}

#[test]
fn statements_without_rows_print_nothing() {
    let shell = Shell::new();
    let out = shell.succeed(&[
        "-c",
        "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2); SET datafusion.execution.batch_size = 100; \
         CREATE VIEW v AS SELECT * FROM t; COPY t TO 'copied.csv'; DROP VIEW v; PREPARE p AS SELECT 1; DEALLOCATE p",
    ]);
    assert_eq!(out, "");
    assert_eq!(shell.read("copied.csv"), "a\n1\n2\n");
}

#[test]
fn no_statement_is_no_error() {
    let shell = Shell::new();
    assert_eq!(shell.succeed(&["-c", " -- nothing\n ;; /* here */"]), "");
    assert_eq!(shell.run_with_input(&[], b"").status, 0);
}

#[test]
fn a_script_may_read_another_and_use_the_shells_commands() {
    let shell = Shell::new();
    shell.write("inner.sql", "SELECT 'inner' AS s;\n");
    shell.write(
        "outer.sql",
        ".read inner.sql\nCREATE TABLE t AS SELECT 1 AS a;\n\\d\n\\d t\nCREATE INDEX i ON t (a);\n\\d t\n\\q\nSELECT 'never' AS s;\n",
    );
    let out = shell.succeed(&["--format", "ndjson", "-f", "outer.sql"]);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[0], "{\"s\":\"inner\"}");
    assert!(lines[1].contains("\"name\":\"t\""), "{out}");
    assert!(lines[2].contains("\"column_name\":\"a\""), "{out}");
    assert_eq!(lines[3], lines[2], "{out}");
    assert!(lines[4].contains("\"name\":\"i\",\"table\":\"t\",\"column\":\"a\""), "{out}");
    assert_eq!(lines.len(), 5, "{out}");
}

#[test]
fn a_join_gives_its_rows() {
    let sql = "SELECT a.k, b.v FROM (VALUES (1), (2), (2)) a(k) JOIN (VALUES (2, 'x'), (3, 'y')) b(k, v) ON a.k = b.k";
    assert_eq!(Shell::new().rows(sql), ["{\"k\":2,\"v\":\"x\"}", "{\"k\":2,\"v\":\"x\"}"]);
}

#[test]
fn tables_describe_themselves() {
    let shell = Shell::new();
    let create = "CREATE TABLE t AS SELECT 1::bigint AS a, 'x' AS b;";
    assert_eq!(shell.rows(&format!("{create} DESCRIBE t")).len(), 2);
    assert!(shell.rows(&format!("{create} SHOW TABLES")).iter().any(|row| row.contains("\"table_name\":\"t\"")));
    assert_eq!(shell.rows("SELECT count(*) > 0 AS some FROM information_schema.df_settings"), ["{\"some\":true}"]);
}

#[test]
fn summarize_gives_a_line_a_column() {
    let rows = Shell::new().rows(
        "CREATE TABLE t AS SELECT * FROM (VALUES (1, 'b', 1.5, [1]), (3, NULL, 2.5, NULL), (2, 'a', NULL, [2])) \
         t(k, \"Name\", x, l); SUMMARIZE t",
    );
    assert_eq!(
        rows,
        [
            "{\"column\":\"k\",\"type\":\"Int64\",\"min\":\"1\",\"max\":\"3\",\"approx_distinct\":3,\"avg\":2.0,\"std\":1.0,\
         \"count\":3,\"null_percentage\":0.0}",
            "{\"column\":\"Name\",\"type\":\"Utf8\",\"min\":\"a\",\"max\":\"b\",\"approx_distinct\":2,\"avg\":null,\
         \"std\":null,\"count\":2,\"null_percentage\":33.333333333333336}",
            "{\"column\":\"x\",\"type\":\"Float64\",\"min\":\"1.5\",\"max\":\"2.5\",\"approx_distinct\":2,\"avg\":2.0,\
         \"std\":0.7071067811865476,\"count\":2,\"null_percentage\":33.333333333333336}",
            "{\"column\":\"l\",\"type\":\"List(Int64)\",\"min\":null,\"max\":null,\"approx_distinct\":null,\"avg\":null,\
         \"std\":null,\"count\":2,\"null_percentage\":33.333333333333336}",
        ]
    );
}

#[test]
fn summarize_takes_queries_and_empty_tables() {
    let shell = Shell::new();
    assert!(shell.rows("SUMMARIZE SELECT 7 AS seven")[0].contains("\"max\":\"7\""));
    assert!(shell.rows("SUMMARIZE (SELECT 7 AS seven)")[0].contains("\"max\":\"7\""));
    let empty = shell.rows("CREATE TABLE t (a INT, b VARCHAR); SUMMARIZE t");
    assert!(empty[0].contains("\"count\":0,\"null_percentage\":null"), "{empty:?}");
}

#[test]
fn external_tables_are_read_and_written() {
    let shell = Shell::new();
    shell.write("in/a.csv", "k,v\n1,x\n");
    let rows = shell.rows(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'in/' OPTIONS ('format.has_header' 'true'); \
         COPY (SELECT k + 1 AS k, v FROM t) TO 'in/b.csv'; SELECT * FROM t ORDER BY k",
    );
    assert_eq!(rows, ["{\"k\":1,\"v\":\"x\"}", "{\"k\":2,\"v\":\"x\"}"]);
}

#[test]
fn clauses_that_would_be_ignored_are_refused() {
    let shell = Shell::new();
    for (sql, reason) in [
        ("UPDATE t SET b = 1, b = 2", "sets column 'b' more than once"),
        ("UPDATE t SET b = 1, \"b\" = 2", "more than once"),
        ("PREPARE p AS UPDATE t SET b = 1, b = 2", "sets column 'b' more than once"),
        ("CREATE TABLE u (a INT NOT NULL) AS SELECT NULL", "NOT NULL of column 'a'"),
        ("CREATE TABLE u (a INT GENERATED ALWAYS AS (1) STORED)", "GENERATED"),
        ("CREATE TABLE u (a INT GENERATED ALWAYS AS IDENTITY)", "GENERATED"),
        ("CREATE TABLE u (a VARCHAR COLLATE german)", "COLLATE"),
        ("CREATE TABLE u (a INT, UNIQUE NULLS NOT DISTINCT (a))", "NULLS NOT DISTINCT"),
        ("CREATE EXTERNAL TABLE u (a INT GENERATED ALWAYS AS IDENTITY) STORED AS CSV LOCATION 'u/'", "GENERATED"),
        ("CREATE EXTERNAL TABLE u (a INT PRIMARY KEY) STORED AS CSV LOCATION 'u/'", "PRIMARY KEY"),
        ("CREATE TABLE u (a INT CHECK (a > 0))", "Check"),
        ("CREATE TABLE u (a INT REFERENCES t(a))", "Foreign key"),
        ("DELETE FROM t TABLESAMPLE SYSTEM (10)", ""),
        ("SELECT * FROM u", "u"),
    ] {
        let error = shell.fail(&["-c", "CREATE TABLE t (a INT PRIMARY KEY, b INT DEFAULT 7 COMMENT 'x')", "-c", sql]);
        assert!(error.contains(reason), "{sql}: {error}");
    }
}

#[test]
fn changes_of_rows_are_those_that_were_asked_for() {
    let rows = Shell::new().rows(
        "CREATE TABLE t AS SELECT value AS k FROM range(10); CREATE TABLE s AS VALUES (3), (4); \
         DELETE FROM t WHERE k IN (SELECT column1 FROM s); UPDATE t SET k = k + 100 WHERE k NOT IN (SELECT k FROM t WHERE k < 8); \
         SELECT count(*) AS c, max(k) AS m FROM t",
    );
    assert_eq!(rows, ["{\"c\":8,\"m\":109}"]);
}
