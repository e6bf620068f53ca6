use std::os::unix::fs::{PermissionsExt, symlink};

use crate::shell::Shell;

#[test]
fn the_name_tells_the_format() {
    let shell = Shell::new();
    for (name, text) in
        [("x.csv", "k\n1\n"), ("x.json", "[{\"k\":1}]\n"), ("x.ndjson", "{\"k\":1}\n"), ("x", " k\n---\n 1\n")]
    {
        assert_eq!(shell.succeed(&["--quiet", "--output", name, "-c", "SELECT 1 AS k"]), "");
        assert_eq!(shell.read(name), text);
    }
    for name in ["x.parquet", "x.arrow"] {
        shell.succeed(&["--output", name, "-c", "SELECT 1 AS k"]);
        assert_eq!(shell.rows(&format!("SELECT * FROM '{name}'")), ["{\"k\":1}"]);
    }
    shell.succeed(&["--format", "csv", "--output", "x.data", "-c", "SELECT 1 AS k"]);
    assert_eq!(shell.read("x.data"), "k\n1\n");
}

#[test]
fn a_query_may_read_the_file_it_replaces() {
    let shell = Shell::new();
    shell.succeed(&["--output", "x.parquet", "-c", "SELECT * FROM range(1000) r(k)"]);
    shell.succeed(&["--output", "x.parquet", "-c", "SELECT k FROM 'x.parquet' WHERE k < 10"]);
    assert_eq!(shell.rows("SELECT count(*) AS c FROM 'x.parquet'"), ["{\"c\":10}"]);
}

#[test]
fn a_failure_leaves_what_was_there_and_nothing_else() {
    let shell = Shell::new();
    shell.write("x.csv", "before");
    shell.fail(&["--output", "x.csv", "-c", "SELECT 1 AS k; SELEC 2"]);
    assert_eq!(shell.read("x.csv"), "before");
    shell.fail(&["--output", "y.csv", "-c", "SELEC 2"]);
    let names: Vec<_> = std::fs::read_dir(shell.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["x.csv"]);
}

#[test]
fn who_continues_after_errors_keeps_the_rest() {
    let shell = Shell::new();
    let run =
        shell.run(&["--on-error", "continue", "--output", "x.csv", "-c", "SELECT 1 AS k; SELEC 2; SELECT 3 AS k"]);
    assert_eq!(run.status, 1);
    assert_eq!(shell.read("x.csv"), "k\n1\nk\n3\n");
}

#[test]
fn links_are_written_through_and_devices_as_they_are() {
    let shell = Shell::new();
    shell.write("real.csv", "before");
    symlink("real.csv", shell.folder().join("link.csv")).unwrap();
    shell.succeed(&["--output", "link.csv", "-c", "SELECT 1 AS k"]);
    assert_eq!(shell.read("real.csv"), "k\n1\n");
    assert_eq!(shell.succeed(&["--format", "csv", "--output", "/dev/null", "-c", "SELECT 1 AS k"]), "");
    assert_eq!(shell.succeed(&["--format", "csv", "--output", "/dev/stdout", "-c", "SELECT 1 AS k"]), "k\n1\n");
}

#[test]
fn the_file_keeps_its_permissions() {
    let shell = Shell::new();
    shell.write("x.csv", "before");
    let path = shell.folder().join("x.csv");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    shell.succeed(&["--output", "x.csv", "-c", "SELECT 1 AS k"]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_full_device_is_an_error() {
    let error = Shell::new().fail(&["--output", "/dev/full", "--format", "csv", "-c", "SELECT * FROM range(100000)"]);
    assert!(error.contains("/dev/full") && error.contains("space"), "{error}");
}
