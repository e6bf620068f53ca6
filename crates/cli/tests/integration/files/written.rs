//! What the names of files that are written say.

use crate::shell::Shell;

#[test]
fn a_compressed_name_is_a_compressed_file() {
    let shell = Shell::new();
    let magic: [(&str, &[u8]); 4] =
        [("gz", b"\x1f\x8b"), ("bz2", b"BZh"), ("xz", b"\xfd7zXZ"), ("zst", b"\x28\xb5\x2f\xfd")];
    for (end, magic) in magic {
        let kinds: &[&str] = if end == "gz" { &["csv", "ndjson", "json", "tsv"] } else { &["csv"] };
        for kind in kinds {
            let (copied, output) = (format!("c.{kind}.{end}"), format!("o.{kind}.{end}"));
            shell.succeed(&["-c", &format!("COPY (SELECT k, k::text AS v FROM range(1000) r(k)) TO '{copied}'")]);
            shell.succeed(&["--output", &output, "-c", "SELECT k, k::text AS v FROM range(1000) r(k)"]);
            for name in [copied, output] {
                assert!(std::fs::read(shell.folder().join(&name)).unwrap().starts_with(magic), "{name}");
                assert_eq!(
                    shell.rows(&format!("SELECT count(*) AS c, sum(k) AS s FROM '{name}'")),
                    ["{\"c\":1000,\"s\":499500}"],
                    "{name}"
                );
            }
        }
    }
    let external = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'c.csv.gz'; SELECT count(*) AS c FROM t";
    assert_eq!(shell.rows(external), ["{\"c\":1000}"]);
}

#[test]
fn names_that_tell_no_format_are_refused() {
    let shell = Shell::new();
    for sql in ["COPY (SELECT 1 AS k) TO 'a.xlsx'", "COPY (SELECT 1 AS k) TO 'a.csv' STORED AS XLSX"] {
        let error = shell.fail(&["-c", sql]);
        assert!(error.contains("STORED AS") && error.to_lowercase().contains("parquet"), "{error}");
    }
    let error = shell.fail(&["--output", "a.xlsx", "-c", "SELECT 1 AS k"]);
    assert!(error.contains("a.xlsx") && error.contains("--format"), "{error}");
    assert!(shell.fail(&["--output", "a.parquet.gz", "-c", "SELECT 1 AS k"]).contains("a.parquet.gz"));
    assert_eq!(std::fs::read_dir(shell.folder()).unwrap().count(), 0);
    shell.succeed(&["-c", "COPY (SELECT 1 AS k) TO 'a.xlsx' STORED AS CSV"]);
    assert_eq!(shell.read("a.xlsx"), "k\n1\n");
}

#[test]
fn two_columns_of_one_name_are_refused_in_files() {
    let shell = Shell::new();
    let sql = "SELECT * FROM (SELECT 1 AS k) a JOIN (SELECT 1 AS k) b ON a.k = b.k";
    for format in ["csv", "json", "ndjson", "parquet", "arrow"] {
        let run = shell.run(&["--format", format, "-c", sql]);
        assert!(run.status == 1 && run.err.contains("two columns") && run.err.contains("'k'"), "{format}: {run:?}");
        let error = shell.fail(&["-c", &format!("COPY ({sql}) TO 'x.{format}'")]);
        assert!(error.contains("two columns"), "{format}: {error}");
    }
    assert!(shell.succeed(&["-c", sql]).contains(" k | k"));
}
