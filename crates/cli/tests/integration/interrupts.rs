use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::Shell;

/// A query that takes longer than any test waits.
const ENDLESS: &str = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.value * b.value % 7 = 3";

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Starts a script whose first statement shows that the process runs, and waits for its output.
fn running(shell: &Shell, then: &str) -> Child {
    let mut child = shell
        .command()
        .args(["--format", "csv", "-c", "SELECT 1 AS ready", "-c", then, "-c", "SELECT 2 AS never"])
        .spawn()
        .unwrap();
    let mut ready = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n1\n");
    std::thread::sleep(Duration::from_millis(200));
    child
}

#[test]
fn control_c_ends_a_script_with_130() {
    let shell = Shell::new();
    let child = running(&shell, ENDLESS);
    let start = Instant::now();
    send(&child, Signal::SIGINT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "no statement may follow");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn terminate_ends_a_script_with_143() {
    let shell = Shell::new();
    let child = running(&shell, ENDLESS);
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
}

#[test]
fn control_c_ends_the_wait_for_input() {
    let shell = Shell::new();
    let mut child = shell.command().stdin(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take();
    std::thread::sleep(Duration::from_millis(500));
    send(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(input);
}

#[test]
fn an_interrupted_output_is_not_put_in_place() {
    let shell = Shell::new();
    shell.write("x.csv", "before");
    let child = shell.command().args(["--output", "x.csv", "-c", "SELECT 1", "-c", ENDLESS]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    send(&child, Signal::SIGINT);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(shell.read("x.csv"), "before");
    assert_eq!(std::fs::read_dir(shell.folder()).unwrap().count(), 1);
}
