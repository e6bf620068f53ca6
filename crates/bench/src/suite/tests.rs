use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;

use super::*;
use crate::tpch::SUITE;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: SuiteArgs,
}

/// A fake engine that answers each query with two rows. When it starts, `before` may change the time of queries and their
/// answers; `engine` is its name, `stock` for Overspill without its joins, and `$line` the statement.
fn program(dir: &Path, name: &str, before: &str) -> PathBuf {
    let path = dir.join(name);
    let script = format!(
        r#"#!/bin/sh
engine=overspill; [ "$1" = -c ] && engine=$3
case "$*" in *overspill.enabled=false*) engine=stock;; esac
time=0.5 rows='1.25,a
2,b'
[ "$1" = -c ] && echo "version 1.$engine"
n=0
while read -r line; do
    n=$((n + 1))
    {before}
    case "$line" in
        "SELECT "*) echo last_row; echo "$line" | cut -d ' ' -f 2 ;;
        select*|with*) echo names; [ "$rows" ] && echo "$rows" ;;
    esac
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
}

fn run_with(overspill: &str, peers: Option<&str>, options: &str) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let json = dir.path().join("figures.json");
    let mut words: Vec<String> = ["test", "--scale", "0.001", "--dir"].map(str::to_owned).to_vec();
    words.extend([path(&dir.path().join("data")), "--json".into(), path(&json), "--program".into()]);
    words.push(path(&program(dir.path(), "overspill", overspill)));
    if let Some(peers) = peers {
        words.extend(["--python".into(), path(&program(dir.path(), "python", peers))]);
    }
    words.extend(options.split_whitespace().map(|word| word.replace("DIR", &path(dir.path()))));
    let mut printed = vec![];
    let result = SUITE.run(&Cli::try_parse_from(words).unwrap().args, &mut printed);
    let left: Vec<_> = fs::read_dir(dir.path().join("data")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["tpch-sf0.001"], "files were left");
    let json = fs::read(json).ok().map(|json| serde_json::from_slice(&json).unwrap());
    Outcome { result, printed: String::from_utf8(printed).unwrap(), json }
}

/// Overspill takes half a second, all others take one.
const SLOW: &str = "[ $engine = overspill ] || time=1";

#[test]
fn all_queries_are_compared_in_all_engines() {
    let outcome = run_with(SLOW, Some(SLOW), "--runs 2 --threads 3 --check --svg DIR/figure.svg");
    outcome.result.as_ref().unwrap();
    let json = outcome.json.as_ref().unwrap();
    let names: Vec<_> =
        json["engines"].as_array().unwrap().iter().map(|engine| engine["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Overspill", "DataFusion's joins", "DuckDB", "Polars", "DataFusion"]);
    for (engine, total) in json["engines"].as_array().unwrap().iter().zip([11.0, 22.0, 22.0, 22.0, 22.0]) {
        assert_eq!(engine["total_seconds"], total, "{engine}");
        assert_eq!(engine["queries"][21]["number"], 22);
        assert_eq!(engine["queries"][21]["runs"].as_array().unwrap().len(), 2);
        assert!(engine["peak_memory_bytes"].as_u64().unwrap() > 1 << 16, "{engine}");
    }
    for part in [
        "scale factor 0.001, 3 threads, medians of 2 runs",
        "Polars 1.polars: total 0.50 x, geometric mean 0.50 x, over 22 queries; most: query 1 0.50 x, query 2 0.50 x, ",
        "met     queries: none",
    ] {
        assert!(outcome.printed.contains(part), "{part} is not in: {}", outcome.printed);
    }
    assert_eq!(outcome.printed.matches("met     total: 0.50 x the seconds of DataFusion").count(), 2);
}

#[test]
fn a_slower_query_or_total_fails_the_check() {
    for (before, part) in [
        ("[ $engine = overspill ] || time=0.4", "MISSED  total: 1.25 x the seconds of DataFusion's joins"),
        (
            "time=0.5; [ $engine = overspill ] || time=1; case \"$engine $line\" in overspill*l_shipmode*) time=1.1;; esac",
            "MISSED  queries: query 12 1.10 x, query 19 1.10 x, at most 1.05 x",
        ),
    ] {
        let outcome = run_with(before, None, "--check");
        assert!(outcome.printed.contains(part), "{part} is not in: {}", outcome.printed);
        assert!(outcome.result.unwrap_err().to_string().contains("target"));
        assert!(outcome.printed.contains("Polars was skipped"), "{}", outcome.printed);
    }
}

#[test]
fn noise_alone_makes_no_query_slower() {
    // One slow run of two: the fastest decides.
    let before = "[ $engine = overspill ] && [ -e ${0%/*}/second ] && time=0.9; [ $n = 9 ] && touch ${0%/*}/second";
    let outcome = run_with(before, None, "--runs 2 --query 6");
    assert_eq!(outcome.json.as_ref().unwrap()["engines"][0]["queries"][0]["median_seconds"], 0.7);
    assert!(outcome.printed.contains("met     queries: none slower"), "{}", outcome.printed);
}

#[test]
fn answers_must_be_the_same() {
    let outcome = run_with("", Some("[ $engine = polars ] && rows='1.25,a\n3,b'"), "--query 6 --runs 1");
    let error = outcome.result.unwrap_err().to_string();
    assert!(error.contains("Polars has another answer to query 6: 2 rows, and 2 of Overspill."), "{error}");
    assert!(error.contains("\"2,b\" and \"3,b\""), "{error}");
    assert_eq!(outcome.json.unwrap()["engines"][3]["queries"][0]["differs"], true);
    for alike in ["rows='1.2500001,a\n2,b'", "rows='2,b\n1.25,a'"] {
        run_with("", Some(&format!("[ $engine = polars ] && {alike}")), "--query 6 --runs 1").result.unwrap();
    }
    run_with("rows=", Some("rows="), "--query 6 --runs 1").result.unwrap();
}

#[test]
fn rows_that_a_limit_leaves_among_equals_may_differ() {
    // Query 18 has a limit. Only its total order has the rows of the other engine.
    let ties =
        "case \"$engine $line\" in polars*', 1, 2 limit'*) rows='1.25,a\n2,b';; polars*) rows='1.25,a\n3,b';; esac";
    let outcome = run_with("", Some(ties), "--query 18 --runs 1");
    outcome.result.unwrap();
    let differ = "case $engine in polars) rows='1.25,a\n3,b';; esac";
    let error = run_with("", Some(differ), "--query 18 --runs 1").result.unwrap_err().to_string();
    assert!(error.contains("Polars has another answer to query 18"), "{error}");
}

#[test]
fn a_query_that_an_engine_cannot_run_leaves_the_others() {
    let before = "case \"$engine $line\" in polars*l_shipmode*) echo no such function >&2; exit 1;; esac";
    let outcome = run_with("", Some(before), "--runs 2 --query 11 --query 12 --query 13");
    outcome.result.as_ref().unwrap();
    let polars = &outcome.json.as_ref().unwrap()["engines"][3];
    assert!(polars["queries"][1]["failed"].as_str().unwrap().contains("no such function"), "{polars}");
    assert_eq!(polars["queries"][2]["runs"].as_array().unwrap().len(), 2, "{polars}");
    assert!(polars["total_seconds"].is_null(), "{polars}");
    assert!(outcome.printed.contains("Polars did not finish query 12: Polars ended"), "{}", outcome.printed);
    let outcome = run_with(before.replace("polars", "stock").as_str(), None, "--query 12 --check");
    assert!(outcome.printed.contains("unknown total: DataFusion's joins 55"), "{}", outcome.printed);
    assert!(outcome.result.unwrap_err().to_string().contains("could not be judged"));
    let outcome = run_with(before.replace("polars", "overspill").as_str(), None, "--query 12-14");
    let error = outcome.result.unwrap_err().to_string();
    assert!(error.contains("Overspill did not finish query 12") && error.contains("no such function"), "{error}");
    // The others have run, and are compared.
    let stock = &outcome.json.unwrap()["engines"][1];
    assert_eq!((&stock["overspill_to_it"]["queries"], &stock["queries"][0]["failed"]), (&2.into(), &Value::Null));
}

#[test]
fn bad_arguments_are_refused() {
    assert!(
        Cli::try_parse_from(["test", "--query", "six"]).is_err_and(|error| error.to_string().contains("such as 3"))
    );
    for (options, part) in
        [("--query 1,23", "no query 23"), ("--queries 0-3", "no query 0"), ("--scale 0", "scale factor")]
    {
        let error =
            SUITE.run(&Cli::parse_from("test".split(' ').chain(options.split(' '))).args, &mut vec![]).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_picture_is_drawn_again_from_its_json() {
    let dir = tempfile::tempdir().unwrap();
    let (from, svg) = (dir.path().join("tpch.json"), dir.path().join("tpch.svg"));
    let outcome = run_with(SLOW, None, "--query 6 --query 9 --runs 1");
    fs::write(&from, outcome.json.unwrap().to_string()).unwrap();
    let words = ["test", "--query", "9", "--from", from.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    SUITE.run(&Cli::try_parse_from(words).unwrap().args, &mut vec![]).unwrap();
    let picture = fs::read_to_string(svg).unwrap();
    assert!(picture.contains("Overspill") && picture.contains("0.500"), "{picture}");
}
