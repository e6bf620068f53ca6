use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::shell::Shell;

/// A sort that outgrows the limit of 20 MB it is given here.
const SPILLING: &str =
    "SELECT * FROM (SELECT value AS k, repeat('x', 100) || value AS v FROM range(1000000)) ORDER BY v, k";

fn files_below(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries.flatten().map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn spilling(shell: &Shell) -> Child {
    shell
        .command()
        .args([
            "--threads",
            "1",
            "--memory-limit",
            "20MB",
            "--temp-dir",
            "temp",
            "--output",
            "/dev/null",
            "--format",
            "csv",
        ])
        .args(["-c", SPILLING, "-c", SPILLING])
        .spawn()
        .unwrap()
}

/// A query that has less room for its spilled rows than it needs; gives the error.
fn reaches_the_temporary_limit(shell: &Shell) -> String {
    let mut arguments = vec!["--threads", "1", "--memory-limit", "20MB", "--temp-dir", "temp", "--temp-limit", "1MB"];
    arguments.extend(["--format", "csv", "-c", SPILLING]);
    shell.fail(&arguments)
}

/// Waits until the process has spilled.
fn wait_for_files(shell: &Shell, more_than: usize) {
    let start = Instant::now();
    while files_below(&shell.folder().join("temp")) <= more_than {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is spilled");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn nothing_is_left_after_success_and_after_an_error() {
    let shell = Shell::new();
    assert!(spilling(&shell).wait_with_output().unwrap().status.success());
    assert_eq!(entries(&shell.folder().join("temp")), Vec::<String>::new());
    reaches_the_temporary_limit(&shell);
    assert_eq!(entries(&shell.folder().join("temp")), Vec::<String>::new());
}

#[test]
fn nothing_is_left_after_control_c() {
    let shell = Shell::new();
    let child = spilling(&shell);
    wait_for_files(&shell, 1);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(entries(&shell.folder().join("temp")), Vec::<String>::new());
}

#[test]
fn what_a_killed_process_left_goes_at_the_next_start_and_nothing_else() {
    let shell = Shell::new();
    shell.write("temp/foreign", "not ours");
    shell.write("temp/overspill-notes/readme", "not ours either");
    let mut killed = spilling(&shell);
    wait_for_files(&shell, 3);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let left = entries(&shell.folder().join("temp"));
    assert!(left.len() > 2, "the killed process left nothing: {left:?}");

    let live = spilling(&shell);
    let own = |names: &[String]| names.iter().filter(|name| name.contains(&live.id().to_string())).count();
    let start = Instant::now();
    while own(&entries(&shell.folder().join("temp"))) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "the live process made no directory");
        std::thread::sleep(Duration::from_millis(5));
    }
    shell.succeed(&["--temp-dir", "temp", "--quiet", "-c", "SELECT 1"]);
    let names = entries(&shell.folder().join("temp"));
    assert_eq!(own(&names), 1, "the live process's directory must stay: {names:?}");
    assert!(names.iter().all(|name| !name.contains(&format!("-{}-", killed.id()))), "{names:?}");
    assert!(live.wait_with_output().unwrap().status.success());
    assert_eq!(entries(&shell.folder().join("temp")), ["foreign", "overspill-notes"]);
    assert_eq!(shell.read("temp/foreign"), "not ours");
    assert_eq!(shell.read("temp/overspill-notes/readme"), "not ours either");
}

#[test]
fn the_temporary_limit_is_named_when_it_is_reached() {
    let shell = Shell::new();
    let error = reaches_the_temporary_limit(&shell);
    assert!(error.contains("--temp-limit"), "{error}");
}
