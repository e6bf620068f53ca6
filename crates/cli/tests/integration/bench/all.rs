//! `bench all` on the emulated device.

use super::{bench_with_the_emulated_driver, measured, notes, points, text};
use crate::shell::Shell;

/// The experiments of `bench all` by their names.
fn figures(shell: &Shell, device: &str) -> std::collections::HashMap<String, serde_json::Value> {
    let words = ["all", "--quick", "--device", device, "--threads", "2", "--json", "all.json", "--plot", "plots"];
    let run = bench_with_the_emulated_driver(shell, "", &words);
    assert!(run.status.success(), "{}", text(&run));
    let all: serde_json::Value = serde_json::from_str(&shell.read("all.json")).unwrap();
    let named = all.as_array().unwrap().iter();
    named.map(|one| (one["experiment"].as_str().unwrap().to_owned(), one.clone())).collect()
}

#[test]
fn every_figure_of_the_papers_runs_on_the_emulated_device() {
    let shell = Shell::new();
    let all = figures(&shell, "emulated");
    let names = ["transfer", "granularity", "translation", "partition", "prefix-sum", "hash-table"].map(str::to_owned);
    let of_joins = [13, 14, 15, 16, 17, 19, 21, 22, 23, 24].map(|number| format!("paper1-{number}"));
    let of_the_other = (13..=21).map(|number| format!("paper2-{number}"));
    let of_indexes = (3..=9).map(|number| format!("paper3-{number}"));
    let of_ranks = (6..=9).map(|number| format!("paper4-{number}"));
    for name in names.into_iter().chain(of_joins).chain(of_the_other).chain(of_indexes).chain(of_ranks) {
        let experiment = all.get(&name).unwrap_or_else(|| panic!("{name} is missing"));
        // Of rates alone nothing is left.
        if ["paper2-13", "paper2-14"].contains(&name.as_str()) {
            let reason = "C, 16-byte tuples: refused, the emulated device gave the right answers; it has no speed";
            assert_eq!(
                (&experiment["outcome"], &experiment["reason"]),
                (&"refused".into(), &reason.into()),
                "{experiment}"
            );
            continue;
        }
        assert_eq!(experiment["outcome"], "done", "{experiment}");
        // Translations are those of a model.
        let is_model = ["paper3-4", "paper3-6"].contains(&name.as_str());
        assert_eq!(measured(experiment).is_empty(), is_model, "{experiment}");
        assert!(shell.read(&format!("plots/{name}.svg")).contains("<svg"), "{name}");
        // The stand-in's rates mean nothing: joins on it only have bytes.
        if name.starts_with("paper") {
            for figure in experiment["figures"].as_array().unwrap() {
                assert_eq!(figure["emulated"], true, "{name}");
                let is_rate = figure["y"]["label"].as_str().unwrap().contains("a second");
                let lines = figure["series"].as_array().unwrap().iter().filter(|line| line["source"] == "measured");
                let on_gpu = |line: &serde_json::Value| {
                    ["gpu", "GPU", "triton", "cpu_partitioned", "het"]
                        .iter()
                        .any(|word| line["name"].as_str().unwrap().contains(word))
                };
                assert!(!is_rate || lines.clone().all(|line| !on_gpu(line)), "{name}: {figure}");
            }
        }
    }
    // Each strategy at each size, and each algorithm.
    let lines = measured(&all["paper1-13"]);
    for line in ["no_partition", "radix", "radix, linear probing", "gpu_no_partition", "triton"] {
        assert!(lines.contains(&(line.to_owned(), 5)), "{line} of {lines:?}");
    }
    let lines = measured(&all["paper1-17"]);
    for line in ["standard", "linear", "shared", "hierarchical"] {
        assert!(lines.contains(&(line.to_owned(), 4)), "{line} of {lines:?}");
    }
    // The first pass with a histogram of either processor.
    let lines = measured(&all["prefix-sum"]);
    for line in ["triton, prefix sum on the CPU", "triton, prefix sum on the GPU"] {
        assert!(lines.contains(&(line.to_owned(), 3)), "{line} of {lines:?}: {}", notes(&all["prefix-sum"]));
    }
    assert!(lines.iter().any(|(line, _)| line.starts_with("CPU, ") && line.ends_with(": histogram")), "{lines:?}");
    // What is not there is refused by its name, with the reason.
    assert!(notes(&all["paper1-14"]).contains("translation requests a tuple: refused"), "{}", notes(&all["paper1-14"]));
    // Each kernel of the Triton join was timed, at each size, in both passes.
    let lines = measured(&all["paper1-15"]);
    for line in ["PS 1", "Part 1", "PS 2", "Part 2", "Sched", "Join", "copies"] {
        let panels = lines.iter().filter(|(name, points)| name == line && *points == 3).count();
        assert_eq!(panels, 2, "{line} of {lines:?}");
    }
    assert!(!lines.iter().any(|(name, _)| name == "other kernels"), "{lines:?}");
    let told = notes(&all["paper1-15"]);
    assert!(told.contains("Part 1: paper 43.8 to 47.2 %, not measured here"), "{told}");
    assert!(told.contains("the emulated device has no speed: these are the CPU's seconds"), "{told}");
    // Whether a machine counts the energy of its processors is its own. The device does.
    let of_gpu: Vec<_> = measured(&all["paper1-23"])
        .into_iter()
        .filter(|(name, _)| !["no_partition", "radix"].contains(&name.as_str()))
        .collect();
    for line in ["triton", "gpu_no_partition"] {
        assert!(of_gpu.contains(&(line.to_owned(), 3)), "{line} of {of_gpu:?}");
    }
    let told = notes(&all["paper1-23"]);
    assert!(
        measured(&all["paper1-23"]).len() > of_gpu.len() || told.contains("no_partition, radix: refused, "),
        "{told}"
    );
    assert!(told.contains("the emulated device's energy is a number for tests"), "{told}");
    // The query of TPC-H was the device's.
    let query = notes(&all["paper2-15"]);
    assert!(
        query.contains("GPU: the emulated device gave the right answer") && !query.contains("as it processed"),
        "{query}"
    );
    let lines = measured(&all["paper2-21"]);
    for strategy in ["no_partition", "het", "gpu_het", "gpu_no_partition"] {
        assert!(lines.contains(&(strategy.to_owned(), 3)), "{strategy} of {lines:?}: {}", notes(&all["paper2-21"]));
    }
    // Each index on the CPU, at each size, beside the paper's machine by the advisor.
    let lines = measured(&all["paper3-5"]);
    for kind in ["btree", "binary_search", "harmonia", "radix_spline"] {
        assert!(lines.contains(&(format!("{kind}, CPU"), 10)), "{kind} of {lines:?}");
    }
    assert!(notes(&all["paper3-5"]).contains("the emulated device gave the right answers"));
    assert!(
        notes(&all["paper3-9"]).contains("a100-pcie4, by the model: radix_spline is faster than the hash join from")
    );
    // Figure 4 has six sets. Every query that an environment places on the GPU runs kernels. A scheduler may place all on the CPU.
    assert!(measured(&all["paper5-4"]).contains(&("Default".to_owned(), 6)), "{:?}", measured(&all["paper5-4"]));
    for (name, told) in [
        ("paper5-1", &["GPU: kernels took part in 10 of 10"][..]),
        ("paper5-4", &["PG-Strom: kernels took part in 36 of 36", "overspill: kernels took part in "]),
        ("paper5-5", &["PG-Strom: kernels took part in 4 of 4", "Desired: kernels took part in 2 of 4"]),
    ] {
        let notes = notes(&all[name]);
        assert!(notes.contains("right answers in all environments"), "{name}: {notes}");
        assert!(told.iter().all(|told| notes.contains(told)), "{name}: {notes}");
    }
    // The policy paper5 gives the first query of a round to the GPU.
    assert!(!notes(&all["paper5-4"]).contains("(paper5): kernels took part in 0 of"), "{}", notes(&all["paper5-4"]));
    // What may not lie in GPU memory lies in the CPU's, and crosses the link.
    let crossed = points(&all["paper1-19"], "bytes over the link", "triton, 2048 M");
    assert!(crossed.len() == 4 && crossed[0] > crossed[3], "{crossed:?}");
    let tables = ["table in GPU memory", "half in GPU memory", "table in CPU memory"]
        .map(|line| points(&all["paper2-19"], "bytes of hash tables", &format!("gpu_no_partition, {line}")));
    assert_eq!(tables.each_ref().map(Vec::len), [5; 3]);
    assert!(
        (0..5).all(|zipf| 0.0 == tables[0][zipf] && 0.0 < tables[1][zipf] && tables[1][zipf] < tables[2][zipf]),
        "{tables:?}"
    );
}
