use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;

use super::*;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(flatten)]
    args: PeersArgs,
}

/// A fake engine. When it starts, `before` may change the shell variables for its times and answers, among others; `engine`
/// is its name.
fn program(dir: &Path, name: &str, before: &str) -> PathBuf {
    let path = dir.join(name);
    // With `-c SCRIPT` it acts as a Python engine. A repeated query takes a quarter of its time.
    let script = format!(
        r#"#!/bin/sh
engine=overspill; [ "$1" = -c ] && engine=$3
first=2 second=0.5 scans=0.25 answer=1,2
{before}
[ "$1" = -c ] && echo "version 1.$engine"
n=0 last=
while read -r line; do
    n=$((n + 1))
    case "$line" in
        SELECT*JOIN*) eval "echo names; echo $answer"; time=$first; [ "$line" = "$last" ] && time=$second ;;
        SELECT*) echo names; echo "$answer"; time=$first; [ "$line" = "$last" ] && time=$scans ;;
        *) time=$first ;;
    esac
    last=$line
    echo "time $n $time" >&2
done
"#
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

struct Outcome {
    result: Result<()>,
    printed: String,
    json: Option<Value>,
    dir: tempfile::TempDir,
}

impl Outcome {
    fn error(&self) -> String {
        self.result.as_ref().unwrap_err().to_string()
    }
}

/// Runs the experiment with fake engines with these start scripts, at 10^8 reads per second.
fn run_with(overspill: &str, peers: Option<&str>, options: &str) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let (data, json) = (dir.path().join("data"), dir.path().join("figures.json"));
    let overspill = program(dir.path(), "overspill", overspill);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let mut words: Vec<String> = ["test", "--scale", "0.0001", "--runs", "2", "--dir"].map(str::to_owned).to_vec();
    words.extend([path(&data), "--program".into(), path(&overspill), "--json".into(), path(&json)]);
    if let Some(peers) = peers {
        words.extend(["--python".into(), path(&program(dir.path(), "python", peers))]);
    }
    words.extend(options.split_whitespace().map(|word| word.replace("DIR", &path(dir.path()))));
    let mut printed = vec![];
    let args = Cli::try_parse_from(words).unwrap().args;
    let result = run_to(&args, |_| Ok(1e8), &mut printed);
    let left: Vec<_> = fs::read_dir(&data).into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "peers"), "files were left: {left:?}");
    let json = fs::read(json).ok().map(|json| serde_json::from_slice(&json).unwrap());
    Outcome { result, printed: String::from_utf8(printed).unwrap(), json, dir }
}

const SLOW_PEERS: &str = "case $engine in duckdb) second=2;; polars) second=1.5;; datafusion) second=4;; esac";

#[test]
fn the_second_run_of_every_engine_is_compared() {
    let outcome = run_with("", Some(SLOW_PEERS), "--workload a --svg DIR/figure.svg --check --threads 3");
    outcome.result.as_ref().unwrap();
    let json = outcome.json.as_ref().unwrap();
    let join = &json["workloads"][0];
    assert_eq!((&join["name"], &join["build_rows"], &join["probe_rows"]), (&"a".into(), &800.into(), &12_800.into()));
    assert_eq!(join["overspill"]["median_seconds"], 0.5);
    assert_eq!(join["overspill"]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(join["overspill"]["million_tuples_per_second"], 0.0272);
    assert_eq!(join["peers"][2]["version"], "1.datafusion");
    assert_eq!((&join["best_peer"], &join["best_peer_seconds_to_overspill"]), (&"Polars".into(), &3.0.into()));
    assert_eq!(join["answer"], "1,2");
    // 13,600 reads, and the second scan of each table.
    assert_eq!(join["bound"]["random_access_seconds"], 0.000136);
    assert_eq!(join["bound"]["scan_seconds"], 0.5);
    assert_eq!(join["targets"][0]["met"], true, "{join}");
    for part in
        ["Overspill", "Polars 1.polars", "3.00 x as fast as Polars", "3 threads", "a: 800 x 12800 rows of 8 + 8"]
    {
        assert!(outcome.printed.contains(part), "{part} is not in: {}", outcome.printed);
    }
    let svg = fs::read_to_string(outcome.dir.path().join("figure.svg")).unwrap();
    assert!(svg.contains("DuckDB 1.duckdb") && svg.contains("(bound)"), "{svg}");
}

#[test]
fn tables_that_a_join_made_are_compared_by_their_sums() {
    let sums = "case $engine in overspill) first=0.25;; *) first=0.75;; esac";
    let outcome = run_with(sums, Some(sums), "--workload c-materialized");
    let join = &outcome.json.as_ref().unwrap()["workloads"][0];
    assert_eq!(join["best_peer_seconds_to_overspill"], 3.0, "{join}");
    let other = "[ $engine = polars ] && answer=1,3";
    let outcome = run_with("", Some(other), "--workload c-materialized");
    assert!(outcome.error().contains("1,2 by Overspill and 1,3 by Polars"), "{}", outcome.error());
}

#[test]
fn a_target_that_is_missed_or_unknown_fails_the_check() {
    // Both scans of the fake take as long as its join, unless they are faster: it is at the bound.
    let far = "scans=0.1";
    for (workload, overspill, peers, speed) in [
        ("a", far, Some("second=1.4"), Some(false)),
        ("a", far, Some("second=1.6"), Some(true)),
        ("a", "", Some("second=1.4"), Some(true)),
        ("t-sparse", "", Some("second=1.1"), Some(true)),
        ("t-sparse", "", Some("second=0.9"), Some(false)),
        ("b", "", Some("second=0.8"), Some(true)),
        ("b", "", Some("second=0.7"), Some(false)),
        ("b", "", None, None),
        ("c", "", None, Some(true)),
        ("c", far, None, None),
    ] {
        let outcome = run_with(overspill, peers, &format!("--workload {workload} --check"));
        let targets = &outcome.json.as_ref().unwrap()["workloads"][0]["targets"];
        assert_eq!(targets[0]["met"].as_bool(), speed, "{workload}: {}", outcome.printed);
        assert_eq!(targets[1]["met"].is_null(), peers.is_none(), "{targets}");
        let all_met = targets.as_array().unwrap().iter().all(|target| target["met"] == true);
        assert_eq!(outcome.result.is_ok(), all_met, "{workload}: {}", outcome.printed);
    }
}

#[test]
fn answers_that_differ_are_refused() {
    for (overspill, peers, part) in [
        ("", "[ $engine = duckdb ] && answer=1,3", "The answers to c differ: 1,2 by Overspill and 1,3 by DuckDB"),
        ("answer=0,0", "", "0,0 by Overspill and 1,2"),
        // It answers with the number of the statement.
        ("answer='$n'", "", "Overspill answered 3 and then 4 to the same query"),
    ] {
        let outcome = run_with(overspill, Some(peers), "--workload c");
        assert!(outcome.error().contains(part), "{part} is not in: {}", outcome.error());
        assert!(outcome.json.is_none());
    }
}

#[test]
fn engines_that_are_not_there_are_told_in_sentences() {
    let outcome = run_with("", None, "--workload c");
    outcome.result.as_ref().unwrap();
    for name in ["DuckDB", "Polars", "DataFusion"] {
        assert!(outcome.printed.contains(&format!("{name} was skipped: name a Python that has it with --python.")));
    }
    assert_eq!(outcome.json.as_ref().unwrap()["missing"][1]["name"], "Polars");
    let outcome = run_with("", Some("[ $engine = polars ] && { echo no such module >&2; exit 1; }"), "--workload c");
    assert!(outcome.printed.contains("Polars was skipped: Polars ended (exit status: 1)"), "{}", outcome.printed);
    assert!(outcome.printed.contains("no such module") && outcome.printed.contains("DuckDB 1.duckdb"));
    let outcome = run_with("", Some("echo hello"), "--workload c");
    assert!(outcome.printed.contains("was asked which version it is and said: hello"), "{}", outcome.printed);
    let outcome = run_with("", None, "--workload c --python /nowhere/python");
    assert!(outcome.printed.contains("'/nowhere/python' could not be run"), "{}", outcome.printed);
}

#[test]
fn a_peer_that_fails_leaves_the_others() {
    // The error occurs when it loads tables.
    let peers = "[ $engine = polars ] && { echo version 1; read -r line && echo no memory >&2 && exit 1; exit 0; }";
    let outcome = run_with("", Some(peers), "--workload c");
    outcome.result.as_ref().unwrap();
    let join = &outcome.json.as_ref().unwrap()["workloads"][0];
    assert!(join["peers"][1]["failed"].as_str().unwrap().contains("no memory"), "{join}");
    assert_eq!(join["peers"][1]["runs"].as_array().unwrap().len(), 0);
    assert_eq!(join["peers"][2]["runs"].as_array().unwrap().len(), 2);
    assert!(outcome.printed.contains("Polars did not finish: Polars ended"), "{}", outcome.printed);
}

#[test]
fn an_overspill_that_dies_or_hangs_is_a_sentence() {
    for (overspill, options, part) in [
        (
            "echo broken >&2; kill -9 $$",
            "",
            "Overspill ended (signal: 9 (SIGKILL)) before it had answered: CREATE TABLE r",
        ),
        ("exec 0<&- 1>&- 2>&-; exit 3", "", "(exit status: 3)"),
        ("sleep 60", "--timeout 1", "Overspill was stopped after 1 s, before it had answered: CREATE TABLE r"),
        ("exec yes", "--timeout 1", "Overspill was stopped after 1 s"),
        ("trap 'sleep 60' EXIT", "--timeout 1", "Overspill was stopped after 1 s, before it had ended"),
        ("trap 'echo all lost >&2; exit 4' EXIT", "", "all lost"),
    ] {
        // It writes its process id, so that the test can look for it.
        let outcome =
            run_with(&format!("echo $$ > ${{0%/*}}/process; {overspill}"), None, &format!("--workload c {options}"));
        assert!(outcome.error().contains(part), "{part} is not in: {}", outcome.error());
        let process = fs::read_to_string(outcome.dir.path().join("process")).unwrap();
        assert!(!Path::new("/proc").join(process.trim()).exists(), "{overspill} still runs");
    }
}

#[test]
fn peak_memory_is_counted_from_after_loading() {
    // The shell returns the memory to the system when the variable is emptied, before its first answer.
    let large = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); x=";
    let outcome = run_with(large, Some(""), "--workload c");
    let join = &outcome.json.as_ref().unwrap()["workloads"][0];
    let run = &join["overspill"]["runs"][0];
    let peak = run["peak_memory_bytes"].as_u64().unwrap();
    assert_eq!(run["peak_memory_includes_loading"] == true, peak > 30_000_000, "{join}");
    assert_eq!(outcome.printed.contains("that of loading as well"), peak > 30_000_000);
    let ratio = join["peak_memory_to_datafusion"].as_f64().unwrap();
    assert_eq!(join["targets"][1]["met"], ratio <= 1.25);
}

#[test]
fn bad_arguments_are_refused() {
    assert!(run_with("", None, "--scale 0").error().contains("The scale must be above 0"));
    assert!(Cli::try_parse_from(["test", "--workload", "elephants"]).is_err());
    let unwritable = run_with("", None, "--workload c --svg DIR/no/folder.svg");
    assert!(unwritable.error().contains("no/folder.svg"), "{}", unwritable.error());
}

#[test]
fn engines_take_turns_and_settings_reach_overspill() {
    let overspill = "echo overspill $* >> ${0%/*}/turns";
    let peers = "echo $engine >> ${0%/*}/turns";
    let outcome = run_with(overspill, Some(peers), "--workload c --threads 3 --set overspill.strategy=hybrid");
    let turns = fs::read_to_string(outcome.dir.path().join("turns")).unwrap();
    let turns: Vec<&str> = turns.lines().collect();
    // Each peer reported its version first.
    let names: Vec<&str> = turns.iter().skip(3).filter_map(|turn| turn.split(' ').next()).collect();
    let expected = ["overspill", "duckdb", "polars", "datafusion", "duckdb", "polars", "datafusion", "overspill"];
    assert_eq!(names, expected);
    assert!(turns[3].contains("--threads 3 --set overspill.strategy=hybrid"), "{}", turns[3]);
}

#[test]
fn a_picture_is_drawn_again_from_its_json() {
    let outcome = run_with("", Some(SLOW_PEERS), "--workload a --workload zipf-1.0 --svg DIR/figure.svg");
    let path = |name: &str| outcome.dir.path().join(name).to_str().unwrap().to_owned();
    let draw = |from: &str, options: &[&str]| {
        let words = ["test", "--from", &path(from), "--svg", &path("again.svg")];
        let args = Cli::try_parse_from(words.iter().chain(options)).unwrap().args;
        run_to(&args, |_| panic!("nothing is measured"), &mut vec![])
    };
    draw("figures.json", &[]).unwrap();
    let picture = fs::read_to_string(path("again.svg")).unwrap();
    assert_eq!(picture, fs::read_to_string(path("figure.svg")).unwrap());
    assert!(picture.contains("zipf-1.0"), "{picture}");
    draw("figures.json", &["--workload", "a"]).unwrap();
    assert!(!fs::read_to_string(path("again.svg")).unwrap().contains("zipf-1.0"));
    assert!(draw("figure.svg", &[]).unwrap_err().to_string().contains("not one that bench peers --json has written"));
    assert!(
        Cli::try_parse_from(["test", "--from", "figures.json"]).is_err_and(|error| error.to_string().contains("--svg"))
    );
}
