//! Files as tables, and files that are written.

mod csv;
mod inserted;
mod json;
mod listing;
mod partitions;
mod written;

use crate::shell::Shell;

/// A shell whose folder holds the keys 0, 1 and 2 in every format.
fn shell_with_files() -> Shell {
    let shell = Shell::new();
    shell.succeed(&[
        "-c",
        "CREATE TABLE t AS SELECT * FROM range(3) r(k); \
         COPY t TO 'k.parquet'; COPY t TO 'k.csv'; COPY t TO 'k.json'; COPY t TO 'k.arrow'; \
         COPY t TO 'k.csv.gz' STORED AS CSV OPTIONS ('format.compression' 'gzip'); \
         COPY t TO 'k.ndjson.zst' STORED AS JSON OPTIONS ('format.compression' 'zstd'); \
         COPY t TO 'folder/1.parquet'; COPY t TO 'folder/2.parquet'; \
         COPY t TO 'years/year=2020/a.parquet'; COPY t TO 'years/year=2021/b.parquet'",
    ]);
    shell.write("k.ndjson", shell.read("k.json"));
    shell.write("k.jsonl", shell.read("k.json"));
    shell.write("array.json", "\n [{\"k\": 0}, {\"k\": 1}, {\"k\": 2}]");
    shell.write("k.tsv", "k\tname\n0\ta,b\n1\tc\n2\td\n");
    shell.write("folder/_SUCCESS", "");
    shell
}

fn count_and_sum(shell: &Shell, path: &str) -> String {
    shell.rows(&format!("SELECT count(*) AS c, sum(k) AS s FROM '{path}'")).concat()
}

#[test]
fn a_path_is_a_table_whatever_the_format() {
    let shell = shell_with_files();
    let absolute = shell.folder().join("k.parquet");
    for path in [
        "k.parquet",
        "k.csv",
        "k.tsv",
        "k.json",
        "k.ndjson",
        "k.jsonl",
        "array.json",
        "k.arrow",
        "k.csv.gz",
        "k.ndjson.zst",
        "./k.parquet",
        "folder/../k.csv",
        "~/k.parquet",
        absolute.to_str().unwrap(),
    ] {
        assert_eq!(count_and_sum(&shell, path), "{\"c\":3,\"s\":3}", "{path}");
    }
}

#[test]
fn folders_and_globs_are_tables_of_all_their_files() {
    let shell = shell_with_files();
    for path in ["folder", "folder/", "folder/*.parquet", "folder/[12].parquet", "years", "years/*/*.parquet", "y*/*/*"]
    {
        assert_eq!(count_and_sum(&shell, path), "{\"c\":6,\"s\":6}", "{path}");
    }
    assert_eq!(count_and_sum(&shell, "folder/?.parquet"), "{\"c\":6,\"s\":6}");
    assert_eq!(count_and_sum(&shell, "years/year=2020"), "{\"c\":3,\"s\":3}");
}

#[test]
fn folders_named_by_a_value_give_a_column() {
    let rows = shell_with_files().rows("SELECT year, count(*) AS c FROM 'years' GROUP BY year ORDER BY year");
    assert_eq!(rows, ["{\"year\":2020,\"c\":3}", "{\"year\":2021,\"c\":3}"]);
}

#[test]
fn files_join_describe_and_summarize() {
    let shell = shell_with_files();
    assert_eq!(shell.rows("SELECT count(*) AS c FROM 'k.csv' a JOIN 'folder' b ON a.k = b.k"), ["{\"c\":6}"]);
    assert!(shell.rows("DESCRIBE 'k.csv'")[0].contains("\"column_name\":\"k\""));
    assert!(shell.rows("SUMMARIZE 'k.csv'")[0].contains("\"max\":\"2\""));
}

#[test]
fn a_file_added_to_a_folder_is_seen_at_once() {
    let rows = shell_with_files().rows(
        "SELECT count(*) AS c FROM 'folder'; COPY (SELECT 9 AS k) TO 'folder/3.parquet'; \
         SELECT count(*) AS c FROM 'folder'",
    );
    assert_eq!(rows, ["{\"c\":6}", "{\"c\":7}"]);
}

#[test]
fn missing_and_unreadable_files_are_named() {
    let shell = shell_with_files();
    shell.write("notes.txt", "hello");
    shell.write("cut.parquet", "PAR1 and nothing more");
    for (path, words) in [
        ("gone.parquet", "the file 'gone.parquet' does not exist"),
        ("gone/*.parquet", "no file matches 'gone/*.parquet'"),
        ("*.gone", "no file matches '*.gone'"),
        ("notes.txt", "a file is read by its name"),
        ("cut.parquet", "arquet"),
        ("k.csv/", "k.csv"),
    ] {
        let error = shell.fail(&["-c", &format!("SELECT * FROM '{path}'")]);
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[test]
fn a_name_that_is_no_path_is_a_missing_table() {
    assert!(Shell::new().fail(&["-c", "SELECT * FROM orders"]).contains("orders' not found"));
}

#[test]
fn remote_files_are_refused_in_plain_words() {
    let shell = Shell::new();
    for sql in [
        "SELECT * FROM 's3://bucket/x.parquet'",
        "SELECT * FROM 'https://example.com/x.csv'",
        "SELECT * FROM 'gs://bucket/*.parquet'",
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 's3://bucket/x.parquet'",
        "COPY (SELECT 1) TO 's3://bucket/x.parquet'",
    ] {
        let error = shell.fail(&["-c", sql]);
        assert!(error.contains("not supported") && error.contains("Copy the file to this machine"), "{sql}: {error}");
    }
}
