use std::fs;
use std::os::unix::fs::PermissionsExt;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: SpillArgs,
}

/// A program that behaves like the command line, but returns at once. Under a limit it runs `limited` first.
fn program(dir: &Path, limited: &str) -> PathBuf {
    let path = dir.join("program");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--memory-limit*) {limited} ;; esac\ncase \"$*\" in\n\
         *EXPLAIN*) echo 'HybridJoinExec: metrics=[spilled_bytes=3.0 MB]';;\n\
         *) echo n,r; echo 1,2; echo 'time 1 0.25' >&2;;\nesac\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn run_with(dir: &Path, program: &Path, options: &str) -> Result<()> {
    let data = dir.join("data");
    let words = ["test", "--scale", "0.0001", "--dir", data.to_str().unwrap(), "--program", program.to_str().unwrap()];
    let words = words.into_iter().chain(options.split_whitespace());
    run_to(&Cli::try_parse_from(words).unwrap().args, &mut std::io::sink())
}

#[test]
fn the_experiment_runs_and_writes_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("figures.json");
    let options = format!("--runs 2 --skip-work --check --json {}", json.display());
    run_with(dir.path(), &program(dir.path(), ":"), &options).unwrap();
    let figures: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(figures["spilled_bytes"], 3 << 20);
    assert_eq!(figures["disk"]["bytes"], 3 << 20);
    assert_eq!(figures["overspill"]["limited"]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(figures["overspill"]["ample"]["median_seconds"], 0.25);
    assert_eq!(figures["answer"], "1,2");
    assert_eq!(figures["build_rows"], 2000);
    assert!(figures["duckdb"]["missing"].as_str().unwrap().contains("--duckdb-python"));
    assert_eq!(figures["bounds"][0]["met"], true);
    assert_eq!(fs::read_dir(dir.path().join("data/temp")).unwrap().count(), 0);
}

#[test]
fn a_slow_join_misses_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let slow = program(dir.path(), "case \"$*\" in *EXPLAIN*) ;; *) echo 1,2; echo time 1 3600 >&2; exit;; esac");
    run_with(dir.path(), &slow, "--runs 1 --skip-work").unwrap();
    let message = run_with(dir.path(), &slow, "--runs 1 --skip-work --check").unwrap_err().to_string();
    assert!(message.contains("bound"), "{message}");
}

#[test]
fn wrong_answers_failures_and_files_left_behind_fail_the_experiment() {
    for (limited, part) in [
        ("case \"$*\" in *EXPLAIN*) ;; *) echo 1,3; echo time 1 1 >&2; exit;; esac", "The answers differ: 1,2 and 1,3"),
        ("echo no memory >&2; exit 1", "no memory"),
        ("while [ \"$1\" != --temp-dir ]; do shift; done; touch $2/spill; set -- EXPLAIN", "left files"),
        ("echo HashJoinExec; exit 0", "did not run on Overspill's join"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let message =
            run_with(dir.path(), &program(dir.path(), limited), "--runs 1 --skip-work").unwrap_err().to_string();
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}
