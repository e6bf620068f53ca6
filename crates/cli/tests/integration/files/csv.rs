//! CSV files that are easily read wrongly.

use std::fmt::Write as _;

use crate::shell::Shell;

/// Cuts small files for several threads as well.
const CUT: [&str; 2] = ["--set", "datafusion.optimizer.repartition_file_min_size=1000"];

/// A file whose every tenth record has line breaks and quotes in a field.
fn with_line_breaks(rows: usize) -> String {
    let mut text = "id,t\n".to_string();
    for row in 0..rows {
        if row % 10 == 0 {
            writeln!(text, "{row},\"first, line\n{row},\"\"second\"\"\r\nthird {row}\"").unwrap();
        } else {
            writeln!(text, "{row},a 5\" pipe {row}").unwrap();
        }
    }
    text
}

#[test]
fn line_breaks_in_quotes_end_no_record_whatever_the_threads() {
    let shell = Shell::new();
    let rows = 20_000;
    shell.write("x.csv", with_line_breaks(rows));
    let sum = (0..rows).sum::<usize>();
    let sql =
        "SELECT count(*) AS c, sum(id) AS s, count(DISTINCT t) AS d, count(t) FILTER (WHERE t LIKE '%third%') AS l";
    let expected = format!("{{\"c\":{rows},\"s\":{sum},\"d\":{rows},\"l\":{}}}\n", rows / 10);
    for threads in ["1", "2", "7", "32"] {
        let from_path = format!("{sql} FROM 'x.csv'");
        let out = shell.succeed(&["--format", "ndjson", "--threads", threads, CUT[0], CUT[1], "-c", &from_path]);
        assert_eq!(out, expected, "{threads} threads");
    }
    let external = format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'x.csv'; {sql} FROM t");
    let out = shell.succeed(&["--format", "ndjson", "--threads", "7", CUT[0], CUT[1], "-c", &external]);
    assert_eq!(out, expected);
}

#[test]
fn a_file_stays_cut_for_several_threads() {
    let shell = Shell::new();
    shell.write("x.csv", with_line_breaks(20_000));
    let plan = shell.succeed(&["--threads", "4", CUT[0], CUT[1], "-c", "EXPLAIN SELECT max(t) FROM 'x.csv'"]);
    assert!(plan.contains("4 groups"), "{plan}");
}

#[test]
fn line_breaks_in_quotes_of_the_first_rows_do_not_make_ids_text() {
    let shell = Shell::new();
    shell.write("x.csv", "id,t\n1,\"a\nb\nc\"\n2,d\n");
    assert_eq!(
        shell.rows("SELECT arrow_typeof(id) AS t, id + 1 AS n FROM 'x.csv' LIMIT 1"),
        ["{\"t\":\"Int64\",\"n\":2}"]
    );
}

#[test]
fn columns_of_several_files_are_found_by_name() {
    let shell = Shell::new();
    shell.write("d/1.csv", "a,b\n1,2\n");
    shell.write("d/2.csv", "b,a\n20,10\n");
    for from in ["FROM 'd'", "FROM 'd/*.csv'"] {
        let rows = shell.rows(&format!("SELECT a, b {from} ORDER BY a"));
        assert_eq!(rows, ["{\"a\":1,\"b\":2}", "{\"a\":10,\"b\":20}"], "{from}");
    }
    let rows = shell.rows("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'd/'; SELECT a, b FROM t ORDER BY a");
    assert_eq!(rows, ["{\"a\":1,\"b\":2}", "{\"a\":10,\"b\":20}"]);
    let declared = "CREATE EXTERNAL TABLE t (b BIGINT, a BIGINT) STORED AS CSV LOCATION 'd/' OPTIONS ('format.has_header' 'true'); \
                    SELECT a, b FROM t ORDER BY a";
    assert_eq!(shell.rows(declared), ["{\"a\":1,\"b\":2}", "{\"a\":10,\"b\":20}"]);
}

#[test]
fn a_declared_table_may_name_the_columns_anew() {
    let shell = Shell::new();
    shell.write("x.csv", "a,b\n1,2\n");
    let sql = "CREATE EXTERNAL TABLE t (x BIGINT, y VARCHAR) STORED AS CSV LOCATION 'x.csv' OPTIONS ('format.has_header' \
               'true'); SELECT * FROM t";
    assert_eq!(shell.rows(sql), ["{\"x\":1,\"y\":\"2\"}"]);
    let partly = "CREATE EXTERNAL TABLE t (a BIGINT, y VARCHAR) STORED AS CSV LOCATION 'x.csv' OPTIONS ('format.has_header' \
                  'true'); SELECT * FROM t";
    assert!(shell.fail(&["-c", partly]).contains("has no column 'y'"));
}

#[test]
fn files_with_other_columns_are_refused_or_filled_with_null() {
    let shell = Shell::new();
    shell.write("d/1.csv", "a,b\n1,2\n");
    shell.write("d/2.csv", "a\n10\n");
    let error = shell.fail(&["-c", "SELECT * FROM 'd'"]);
    assert!(error.contains("1.csv") && error.contains("2.csv") && error.contains("truncated_rows"), "{error}");
    let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'd/' OPTIONS ('format.truncated_rows' 'true'); \
               SELECT a, b FROM t ORDER BY a";
    assert_eq!(shell.rows(sql), ["{\"a\":1,\"b\":2}", "{\"a\":10,\"b\":null}"]);
}

#[test]
fn a_file_without_header_is_refused_until_one_says_so() {
    let shell = Shell::new();
    shell.write("x.csv", "1,foo\n2,bar\n");
    shell.write("d/1.csv", "name,city\nx,y\n");
    shell.write("d/2.csv", "Ann,Rome\nBob,Oslo\n");
    for path in ["x.csv", "d"] {
        let error = shell.fail(&["-c", &format!("SELECT * FROM '{path}'")]);
        assert!(error.contains("format.has_header"), "{error}");
    }
    let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'x.csv' OPTIONS ('format.has_header' 'false'); \
               SELECT * FROM t ORDER BY 1";
    assert_eq!(shell.rows(sql), ["{\"column_1\":1,\"column_2\":\"foo\"}", "{\"column_1\":2,\"column_2\":\"bar\"}"]);
}

#[test]
fn null_and_empty_text_are_told_apart_both_ways() {
    let shell = Shell::new();
    let sql = "SELECT * FROM (VALUES (1, ''), (2, NULL), (3, 'x'), (4, ' ')) t(k, v) ORDER BY k";
    let text = "k,v\n1,\"\"\n2,\n3,x\n4, \n";
    assert_eq!(shell.succeed(&["--format", "csv", "-c", sql]), text);
    shell.succeed(&["--output", "o.csv", "-c", sql]);
    shell.succeed(&["-c", &format!("COPY ({sql}) TO 'c.csv'")]);
    for name in ["o.csv", "c.csv"] {
        assert_eq!(shell.read(name), text, "{name}");
        let rows = shell.rows(&format!("SELECT k, v FROM '{name}' EXCEPT SELECT * FROM ({sql})"));
        assert_eq!(rows, Vec::<String>::new(), "{name}");
        assert_eq!(shell.rows(&format!("SELECT count(*) AS c FROM '{name}' WHERE v = ''")), ["{\"c\":1}"], "{name}");
    }
}

#[test]
fn a_column_of_nulls_keeps_its_rows() {
    let shell = Shell::new();
    shell.succeed(&["-c", "COPY (SELECT * FROM (VALUES ('a'), (NULL), (''), ('b')) t(k)) TO 'x.csv'"]);
    assert_eq!(shell.read("x.csv"), "k\na\n\n\"\"\nb\n");
    assert_eq!(shell.rows("SELECT count(*) AS c, count(k) AS k FROM 'x.csv'"), ["{\"c\":4,\"k\":3}"]);
}

#[test]
fn a_quoted_number_that_is_empty_is_null() {
    let shell = Shell::new();
    shell.write("x.csv", "\"k\",\"n\"\n\"1\",\"10\"\n\"2\",\"\"\n");
    assert_eq!(shell.rows("SELECT sum(n) AS s, count(n) AS c FROM 'x.csv'"), ["{\"s\":10,\"c\":1}"]);
}

#[test]
fn damaged_files_are_named_with_the_line() {
    let shell = Shell::new();
    shell.write("ragged.csv", "a,b\n1,2\n\n\"3\n3\",4\n5\n");
    shell.write("wide.csv", "a,b\n1,2\n3,4,5\n");
    shell.write("open.csv", "a,b\n1,\"x\n2,3\n");
    shell.write("latin.csv", b"a,b\n1,x\n2,caf\xe9\n");
    shell.write("utf16.csv", b"\xff\xfea\0,\0b\0\n\0");
    shell.write("empty.csv", "");
    shell.write("semicolons.csv", "a;b\n1;2\n");
    for (name, words) in [
        ("ragged.csv", "line 6 of"),
        ("wide.csv", "line 3 of"),
        ("open.csv", "line 2 of"),
        ("latin.csv", "line 3 of"),
        ("utf16.csv", "UTF-16"),
        ("empty.csv", "is empty"),
        ("semicolons.csv", "'format.delimiter' ';'"),
    ] {
        let error = shell.fail(&["-c", &format!("SELECT * FROM '{name}'")]);
        assert!(error.contains(words) && error.contains(name), "{name}: {error}");
    }
    let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'semicolons.csv' OPTIONS ('format.delimiter' ';'); \
               SELECT a + b AS s FROM t";
    assert_eq!(shell.rows(sql), ["{\"s\":3}"]);
}

#[test]
fn a_value_that_contradicts_the_first_rows_is_named_with_its_line() {
    let shell = Shell::new();
    let mut text = "id,t\n".to_string();
    (0..40_000).for_each(|row| writeln!(text, "{row},some text").unwrap());
    text.push_str("abc,x\n");
    (0..10).for_each(|row| writeln!(text, "{row},x").unwrap());
    shell.write("x.csv", text);
    for threads in ["1", "4"] {
        let error = shell.fail(&["--threads", threads, CUT[0], CUT[1], "-c", "SELECT sum(id) FROM 'x.csv'"]);
        assert!(error.contains("line 40002 of") && error.contains("x.csv has 'abc' in the column 'id'"), "{error}");
        assert!(error.contains("schema_infer_max_rec"), "{error}");
    }
}

#[test]
fn a_value_of_which_its_type_has_only_a_part_is_named_with_its_line() {
    let shell = Shell::new();
    for (first, later, data_type) in [
        ("2024-01-31 10:00:00", "2024-01-31 10:00:00.5", "Timestamp(s)"),
        ("2024-01-31T10:00:00Z", "2024-01-31T10:00:00.000001Z", "Timestamp(s)"),
        ("2024-01-31 10:00:00", "2016-12-31 23:59:60", "Timestamp(s)"),
        ("2024-01-31", "2024-01-31 10:00:00", "Date32"),
        ("1.5", "1e999", "Float64"),
    ] {
        shell.write("x.csv", format!("a,b\n{}9,{later}\n", format!("1,{first}\n").repeat(100)));
        let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'x.csv' OPTIONS ('format.schema_infer_max_rec' '100'); \
                   SELECT max(b) FROM t";
        let error = shell.fail(&["-c", sql]);
        let value = format!("has '{later}' in the column 'b', whose type is {data_type}");
        assert!(error.contains("line 102 of") && error.contains(&value), "{error}");
        let all = sql.replace("'100'", "'1000'");
        let kept = shell.rows(&format!("{all}; SELECT count(*) AS c FROM t WHERE b IS NOT NULL"));
        assert_eq!(kept.last().unwrap(), "{\"c\":101}", "{later}");
    }
    // Nothing is lost.
    shell.write("x.csv", "a,b,c\n2024-01-31,2024-01-31 10:00:00.123000,inf\n");
    let sql = "CREATE EXTERNAL TABLE t (a DATE, b TIMESTAMP(3), c DOUBLE) STORED AS CSV LOCATION 'x.csv' OPTIONS \
               ('format.has_header' 'true'); SELECT CAST(b AS VARCHAR) AS b, c > 1 AS c FROM t";
    assert_eq!(shell.rows(sql), ["{\"b\":\"2024-01-31T10:00:00.123\",\"c\":true}"]);
}

#[test]
fn byte_order_marks_and_line_ends_of_windows_are_no_values() {
    let shell = Shell::new();
    shell.write("x.csv", "\u{feff}a,b\r\n1,x\r\n2,y\r\n");
    assert_eq!(shell.rows("SELECT a, b FROM 'x.csv' ORDER BY a"), ["{\"a\":1,\"b\":\"x\"}", "{\"a\":2,\"b\":\"y\"}"]);
    shell.write("header.csv", "a,b\n");
    assert_eq!(shell.rows("SELECT count(*) AS c FROM 'header.csv'"), ["{\"c\":0}"]);
}

#[test]
fn a_compressed_file_that_is_cut_short_is_an_error() {
    let shell = Shell::new();
    for end in ["gz", "bz2", "xz", "zst"] {
        let name = format!("x.csv.{end}");
        shell.succeed(&["-c", &format!("COPY (SELECT k, k * 7919 % 100003 AS v FROM range(20000) r(k)) TO '{name}'")]);
        assert_eq!(shell.rows(&format!("SELECT count(v) AS c FROM '{name}'")), ["{\"c\":20000}"]);
        let bytes = std::fs::read(shell.folder().join(&name)).unwrap();
        shell.write(&name, &bytes[..bytes.len() * 2 / 3]);
        let error = shell.fail(&["-c", &format!("SELECT count(v) FROM '{name}'")]);
        assert!(error.contains(&name), "{error}");
    }
}

#[test]
fn a_declared_table_does_not_take_a_row_for_a_header() {
    let shell = Shell::new();
    shell.write("x.csv", "1,2\n3,4\n");
    let table = "CREATE EXTERNAL TABLE t (a INT, b INT) STORED AS CSV LOCATION 'x.csv'";
    let error = shell.fail(&["-c", &format!("{table}; SELECT count(*) FROM t")]);
    assert!(error.contains("'format.has_header' 'true'") && error.contains("'false'"), "{error}");
    let sql = format!("{table} OPTIONS ('format.has_header' 'false'); SELECT sum(a) AS s FROM t");
    assert_eq!(shell.rows(&sql), ["{\"s\":4}"]);
}

#[test]
fn what_is_inserted_into_compressed_files_is_found_again() {
    let shell = Shell::new();
    for (format, name) in [("CSV", "csv"), ("JSON", "json")] {
        shell.succeed(&["-c", &format!("COPY (SELECT 1 AS v) TO '{name}/1.{name}.gz'")]);
        let sql = format!(
            "CREATE EXTERNAL TABLE t STORED AS {format} LOCATION '{name}/' OPTIONS ('format.compression' 'gzip'); \
             INSERT INTO t VALUES (2), (3); SELECT sum(v) AS s FROM t"
        );
        assert_eq!(shell.rows(&sql), ["{\"s\":6}"], "{format}");
        assert_eq!(shell.rows(&format!("SELECT sum(v) AS s FROM '{name}'")), ["{\"s\":6}"], "{format}");
    }
}

#[test]
fn empty_lines_of_a_file_without_header_are_rows_of_one_null() {
    let shell = Shell::new();
    for (name, rows) in
        [("one.csv", "(NULL)"), ("three.csv", "(NULL), (NULL), (NULL)"), ("last.csv", "(NULL), (NULL), (7)")]
    {
        let count = rows.matches('(').count();
        let copy = format!(
            "COPY (SELECT CAST(k AS BIGINT) AS k FROM (VALUES {rows}) t(k)) TO '{name}' OPTIONS ('format.has_header' 'false')"
        );
        shell.succeed(&["-c", &copy]);
        for columns in ["", "(k BIGINT)"] {
            let sql = format!(
                "CREATE EXTERNAL TABLE t {columns} STORED AS CSV LOCATION '{name}' OPTIONS ('format.has_header' 'false'); \
                 SELECT count(*) AS c FROM t"
            );
            assert_eq!(shell.rows(&sql), [format!("{{\"c\":{count}}}")], "{name} {columns}");
        }
    }
    // Records of several columns have no empty lines.
    shell.write("two.csv", "\n\n");
    let sql = "CREATE EXTERNAL TABLE t (a BIGINT, b BIGINT) STORED AS CSV LOCATION 'two.csv' OPTIONS \
               ('format.has_header' 'false'); SELECT count(*) AS c FROM t";
    assert_eq!(shell.rows(sql), ["{\"c\":0}"]);
}

#[test]
fn a_file_of_one_column_may_hold_other_delimiters() {
    let shell = Shell::new();
    shell.write("name.csv", "price; net\n1\n2\n");
    shell.write("quoted.csv", "\"a;b|c\"\n\"1;2|3\"\n");
    for name in ["name.csv", "quoted.csv"] {
        assert_eq!(shell.rows(&format!("SELECT count(*) AS c FROM '{name}'")).len(), 1, "{name}");
    }
    shell.write("texts.csv", "a;b\n1;2\n3;4\n");
    let error = shell.fail(&["-c", "SELECT * FROM 'texts.csv'"]);
    assert!(error.contains("'format.delimiter' ';'") && error.contains("or ','"), "{error}");
    let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'texts.csv' OPTIONS ('format.delimiter' ','); \
               SELECT \"a;b\" AS v FROM t ORDER BY v";
    assert_eq!(shell.rows(sql), ["{\"v\":\"1;2\"}", "{\"v\":\"3;4\"}"]);
}

#[test]
fn dates_that_there_are_not_make_a_column_text() {
    let shell = Shell::new();
    for (values, kind) in [
        (["2024-01-01", "0000-00-00"], "Utf8"),
        (["2024-02-31", "2024-01-01"], "Utf8"),
        (["2024-01-01 10:00:00", "2024-01-01 25:00:00"], "Utf8"),
        (["2300-01-01 10:00:00.5", "2024-01-01 10:00:00.5"], "Utf8"),
        (["9999-12-31", "2024-01-01 10:00:00.5"], "Utf8"),
        (["9999-12-31 23:59:59", "2024-01-01"], "Timestamp"),
        (["9999-12-31", "2024-01-01"], "Date32"),
    ] {
        shell.write("x.csv", format!("d\n{}\n", values.join("\n")));
        let rows = shell.rows("SELECT arrow_typeof(d) AS t, count(*) AS c FROM 'x.csv' GROUP BY 1");
        assert!(rows.len() == 1 && rows[0].contains(kind) && rows[0].contains("\"c\":2"), "{values:?}: {rows:?}");
        if kind == "Utf8" {
            let rows = shell.rows(&format!("SELECT count(*) AS c FROM 'x.csv' WHERE d = '{}'", values[1]));
            assert_eq!(rows, ["{\"c\":1}"], "{values:?}");
        }
    }
}

#[test]
fn what_looks_like_a_comment_is_written_so_that_it_is_read_again() {
    let shell = Shell::new();
    let rows = "SELECT * FROM (VALUES ('#1', '#2'), ('3', '#4'), (chr(65279) || '5', '6')) t(\"#k\", v)";
    for (name, header) in [("header.csv", "true"), ("none.csv", "false")] {
        let options = format!("OPTIONS ('format.comment' '#', 'format.has_header' '{header}')");
        let sql = format!(
            "COPY ({rows}) TO '{name}' {options}; \
             CREATE EXTERNAL TABLE t (\"#k\" VARCHAR, v VARCHAR) STORED AS CSV LOCATION '{name}' {options}; \
             SELECT count(*) AS c FROM (SELECT * FROM t EXCEPT SELECT * FROM ({rows})); SELECT count(*) AS c FROM t"
        );
        assert_eq!(shell.rows(&sql), ["{\"c\":0}", "{\"c\":3}"], "{name}");
    }
    for options in ["'format.comment' '#', 'format.null_value' '#N/A'", "'format.null_value' 'a,b'"] {
        let error = shell.fail(&["-c", &format!("COPY ({rows}) TO 'null.csv' OPTIONS ({options})")]);
        assert!(error.contains("format.null_value"), "{error}");
    }
}
