//! `INSERT` into a folder that is named by its path.

use crate::shell::Shell;

/// The names in a folder, hidden ones too, in order.
fn names(shell: &Shell, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(shell.folder().join(folder)).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn new_files_are_of_the_format_of_those_that_are_there() {
    let shell = Shell::new();
    for end in ["csv", "tsv", "CSV", "json", "ndjson", "parquet", "arrow", "CSV.GZ", "tsv.zst", "jsonl.gz"] {
        let folder = format!("d-{end}");
        shell.succeed(&["--output", &format!("x.{end}"), "-c", "SELECT 1 AS k, 'a,b' AS t"]);
        std::fs::create_dir(shell.folder().join(&folder)).unwrap();
        let (from, to) = (format!("x.{end}"), format!("{folder}/1.{end}"));
        std::fs::rename(shell.folder().join(from), shell.folder().join(to)).unwrap();
        for _ in 0..2 {
            shell.succeed(&["-c", &format!("INSERT INTO '{folder}' VALUES (2, 'c\td'), (3, '')")]);
        }
        let names = names(&shell, &folder);
        assert!(names.len() == 3 && names.iter().all(|name| name.ends_with(&format!(".{end}"))), "{names:?}");
        let sql = format!("SELECT sum(k) AS s, count(t) AS c, max(t) AS m FROM '{folder}'");
        assert_eq!(shell.rows(&sql), ["{\"s\":11,\"c\":5,\"m\":\"c\\td\"}"], "{end}");
    }
}

#[test]
fn an_insert_that_fails_adds_no_file() {
    let shell = Shell::new();
    for end in ["csv", "parquet"] {
        let copy = format!("COPY (SELECT value AS k FROM range(10)) TO '{end}/1.{end}'");
        shell.succeed(&["-c", &copy]);
        let error =
            shell.fail(&["-c", &format!("INSERT INTO '{end}' SELECT 100 / (299999 - value) AS k FROM range(300000)")]);
        assert!(error.contains("Divide by zero"), "{error}");
        assert_eq!(names(&shell, end), [format!("1.{end}")]);
        let whole = format!("INSERT INTO '{end}' SELECT k + 10 FROM '{end}'; SELECT sum(k) AS s FROM '{end}'");
        assert_eq!(shell.rows(&whole), ["{\"s\":190}"]);
    }
}

#[test]
fn a_folder_is_named_as_it_is_written() {
    let shell = Shell::new();
    for folder in ["a[1]", "b?", "c*", "d%20e", "ä ö"] {
        shell.write(&format!("{folder}/1.csv"), "k\n1\n");
        shell.write("a1/1.csv", "k\n100\n");
        shell.write("bb/1.csv", "k\n100\n");
        shell.write("cc/1.csv", "k\n100\n");
        let by_path = format!("INSERT INTO '{folder}' VALUES (2); SELECT sum(k) AS s FROM '{folder}/'");
        assert_eq!(shell.rows(&by_path), ["{\"s\":3}"], "{folder}");
        let by_name = format!(
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{folder}/'; INSERT INTO t VALUES (4); \
             SELECT sum(k) AS s FROM t"
        );
        assert_eq!(shell.rows(&by_name), ["{\"s\":7}"], "{folder}");
        assert_eq!(names(&shell, folder).len(), 3, "{folder}");
    }
    assert_eq!(shell.rows("SELECT sum(k) AS s FROM 'a[1]/*.csv'"), ["{\"s\":7}"]);
    for other in ["a1", "bb", "cc"] {
        assert_eq!(names(&shell, other), ["1.csv"]);
    }
}
