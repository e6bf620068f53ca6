//! Which files a path names.

use std::time::{Duration, Instant};

use crate::shell::Shell;

#[test]
fn names_of_any_case_are_one_format() {
    let shell = Shell::new();
    shell.write("d/A.CSV", "k\n1\n");
    shell.write("d/b.csv", "k\n2\n");
    for path in ["d", "d/*", "d/*.[cC]*"] {
        assert_eq!(shell.rows(&format!("SELECT sum(k) AS s FROM '{path}'")), ["{\"s\":3}"], "{path}");
    }
}

#[test]
fn files_of_several_formats_are_refused_by_two_of_their_names() {
    let shell = Shell::new();
    shell.succeed(&["-c", "COPY (SELECT 1 AS k) TO 'd/a.csv'; COPY (SELECT 2 AS k) TO 'd/a.csv.gz'"]);
    for path in ["d", "d/*.csv*"] {
        let error = shell.fail(&["-c", &format!("SELECT * FROM '{path}'")]);
        assert!(error.contains("d/a.csv and d/a.csv.gz"), "{error}");
    }
    shell.write("e/a.csv", "k\n1\n");
    shell.write("e/notes.txt", "k");
    assert_eq!(shell.rows("SELECT k FROM 'e'"), ["{\"k\":1}"]);
    assert!(shell.fail(&["-c", "SELECT k FROM 'e/*'"]).contains("e/notes.txt"));
}

#[test]
fn a_pattern_reads_only_folders_that_can_match() {
    let started = Instant::now();
    let shell = Shell::new();
    assert!(shell.fail(&["-c", "SELECT * FROM '/no-such-name*.csv'"]).contains("no file matches"));
    let external = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/no-such-name*.csv'";
    assert!(shell.fail(&["-c", external]).contains("no file matches"));
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn parquet_files_of_several_types_have_a_common_one() {
    let shell = Shell::new();
    shell.succeed(&[
        "-c",
        "COPY (SELECT CAST(1 AS INT) AS k, 'x' AS v) TO 'd/1.parquet'; \
         COPY (SELECT 3000000000 AS k, 'y' AS v) TO 'd/2.parquet'; \
         COPY (SELECT CAST(2 AS INT) AS k, 5 AS v) TO 'e/1.parquet'; COPY (SELECT 1 AS k, 'y' AS v) TO 'e/2.parquet'",
    ]);
    let sql = "SELECT sum(k) AS s, max(k) AS m, arrow_typeof(max(k)) AS t FROM 'd'";
    assert_eq!(shell.rows(sql), ["{\"s\":3000000001,\"m\":3000000000,\"t\":\"Int64\"}"]);
    assert_eq!(shell.rows("SELECT v FROM 'd' WHERE k < 5"), ["{\"v\":\"x\"}"]);
    let error = shell.fail(&["-c", "SELECT * FROM 'e'"]);
    assert!(error.contains("e/1.parquet") && error.contains("e/2.parquet") && error.contains("'v'"), "{error}");
}

#[test]
fn arrow_files_with_columns_in_another_order_are_refused() {
    let shell = Shell::new();
    shell
        .succeed(&["-c", "COPY (SELECT 1 AS a, 2 AS b) TO 'd/1.arrow'; COPY (SELECT 20 AS b, 10 AS a) TO 'd/2.arrow'"]);
    let error = shell.fail(&["-c", "SELECT a, b FROM 'd'"]);
    assert!(error.contains("d/1.arrow") && error.contains("d/2.arrow"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_utf_8_are_refused_and_never_passed_over() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let shell = Shell::new();
    shell.write("d/a.csv", "k\n1\n");
    shell.write("e/x/a.csv", "k\n1\n");
    // A file of no format, a hidden one and a folder that no pattern reaches are no part of a table whatever their names.
    for name in [&b"d/notes-\xe9.txt"[..], b"d/.\xe9.csv", b"d/\xe9/b.csv"] {
        let path = shell.folder().join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "k\n2\n").unwrap();
    }
    for path in ["d", "d/*.csv"] {
        assert_eq!(shell.rows(&format!("SELECT sum(k) AS s FROM '{path}'")), ["{\"s\":1}"], "{path}");
    }
    std::fs::write(shell.folder().join(OsStr::from_bytes(b"d/caf\xe9.csv")), "k\n3\n").unwrap();
    std::fs::create_dir(shell.folder().join(OsStr::from_bytes(b"e/\xe9=1"))).unwrap();
    std::fs::write(shell.folder().join(OsStr::from_bytes(b"e/\xe9=1/b.csv")), "k\n3\n").unwrap();
    for (path, name) in [
        ("d", "caf\u{fffd}.csv"),
        ("d/*.csv", "caf\u{fffd}.csv"),
        ("d/caf?.csv", "caf\u{fffd}.csv"),
        ("**/*.csv", "\u{fffd}"),
        ("e", "\u{fffd}=1/b.csv"),
        ("e/*/*.csv", "\u{fffd}=1/b.csv"),
    ] {
        let error = shell.fail(&["-c", &format!("SELECT sum(k) AS s FROM '{path}'")]);
        assert!(error.contains(name) && error.contains("not UTF-8"), "{path}: {error}");
    }
    let table = "CREATE EXTERNAL TABLE t (k BIGINT) STORED AS CSV LOCATION 'd/'; SELECT sum(k) FROM t";
    let error = shell.fail(&["-c", table]);
    assert!(error.contains("d/"), "{error}");
}

#[test]
fn damaged_files_are_named() {
    let shell = Shell::new();
    for format in ["parquet", "arrow"] {
        shell.succeed(&["-c", &format!("COPY (SELECT k, k % 7 AS v FROM range(100000) r(k)) TO 'd/good.{format}'")]);
        let bytes = std::fs::read(shell.folder().join(format!("d/good.{format}"))).unwrap();
        let mut overwritten = bytes.clone();
        let end = bytes.len() * 3 / 4;
        overwritten[8..end].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(7).wrapping_add(13));
        for (kind, content) in
            [("cut", bytes[..bytes.len() / 2].to_vec()), ("overwritten", overwritten), ("empty", vec![])]
        {
            let name = format!("d/{kind}.{format}");
            shell.write(&name, content);
            let error = shell.fail(&["-c", &format!("SELECT count(*), sum(k), sum(v) FROM 'd/*.{format}'")]);
            assert!(error.contains(&name), "{name}: {error}");
            std::fs::remove_file(shell.folder().join(&name)).unwrap();
        }
        std::fs::remove_file(shell.folder().join(format!("d/good.{format}"))).unwrap();
    }
}

#[test]
fn no_damaged_arrow_file_ends_the_process() {
    let shell = Shell::new();
    shell.succeed(&[
        "-c",
        "COPY (SELECT value AS k, concat('text ', value % 99) AS t FROM range(2000)) TO 'good.arrow'",
    ]);
    let good = std::fs::read(shell.folder().join("good.arrow")).unwrap();
    let mut sql = String::new();
    let mut random = 1_usize;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for number in 0..150 {
        let mut bytes = good.clone();
        // Metadata lies at both ends.
        let length = 1 + next() % 600;
        let at = if number % 2 == 0 { length } else { bytes.len() - length };
        (0..1 + next() % 12).for_each(|offset| bytes[(at + offset) % good.len()] = next() as u8);
        shell.write(&format!("d/{number}.arrow"), bytes);
        sql += &format!("SELECT count(*) FROM (SELECT DISTINCT * FROM 'd/{number}.arrow');\n");
    }
    shell.write("all.sql", sql);
    let run = shell.run(&["--on-error", "continue", "-f", "all.sql"]);
    assert!(run.status == 1 && !run.err.contains("panicked"), "{run:?}");
    let errors: Vec<_> = run.err.lines().filter(|line| line.starts_with("error")).collect();
    assert!(errors.len() > 30, "{run:?}");
    assert!(errors.iter().all(|error| error.contains(".arrow")), "{errors:#?}");
    // So does a table whose columns are declared.
    let mut bytes = good.clone();
    bytes[good.len() / 2..].iter_mut().take(200).for_each(|byte| *byte ^= 0x55);
    shell.write("damaged.arrow", bytes);
    let table = "CREATE EXTERNAL TABLE t (k BIGINT, t VARCHAR) STORED AS ARROW LOCATION 'damaged.arrow'";
    let error = shell.fail(&["-c", &format!("{table}; SELECT max(t), max(k) FROM t")]);
    assert!(error.contains("damaged.arrow"), "{error}");
}

#[test]
fn a_folder_of_which_an_external_table_would_leave_files_out_is_refused() {
    let shell = Shell::new();
    shell.write("d/A.CSV", "k\n1\n");
    shell.write("d/b.csv", "k\n2\n");
    let error = shell.fail(&["-c", "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'd/'"]);
    assert!(error.contains("A.CSV") && error.contains("'d/*'"), "{error}");
    let sql = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'd/*'; SELECT sum(k) AS s FROM t";
    assert_eq!(shell.rows(sql), ["{\"s\":3}"]);
}

#[test]
fn a_table_may_have_the_name_of_a_folder_that_is_none() {
    let shell = Shell::new();
    shell.write("d/below/1.csv", "k\n1\n");
    shell.write("e/1.csv", "k\n1\n");
    shell.write("e/2.json", "{\"k\":2}\n");
    for folder in ["d", "e"] {
        for made in [
            format!("CREATE TABLE {folder} AS SELECT 7 AS k"),
            format!("CREATE TABLE IF NOT EXISTS {folder} AS SELECT 7 AS k"),
            format!("CREATE VIEW {folder} AS SELECT 7 AS k"),
            format!("CREATE EXTERNAL TABLE {folder} STORED AS CSV LOCATION 'seven.csv'"),
        ] {
            shell.write("seven.csv", "k\n7\n");
            assert_eq!(shell.rows(&format!("{made}; SELECT k FROM {folder}")), ["{\"k\":7}"], "{made}");
        }
    }
    let reason = "no file lies in the folder 'd'";
    for statement in
        ["SELECT * FROM d", "SELECT * FROM 'd'", "SUMMARIZE d", "DESCRIBE d", "INSERT INTO e SELECT k FROM d"]
    {
        let error = shell.fail(&["-c", statement]);
        let wanted = if statement.contains(" e ") { "files of several formats" } else { reason };
        assert!(error.contains(wanted), "{statement}: {error}");
    }
    assert!(shell.fail(&["-c", "DROP TABLE d"]).contains("Table 'd' not found"));
}
