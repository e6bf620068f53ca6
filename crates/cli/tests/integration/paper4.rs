//! Figures of paper 4, among threads.

use serde_json::Value;

use crate::shell::{Run, Shell};

/// Runs `bench figure` with these words, and reads its JSON.
fn figure(shell: &Shell, words: &str) -> (Run, Value) {
    let words = format!("bench figure {words} --device cpu --threads 2 --json f.json --points p.ndjson");
    let run = shell.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    let json: Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    assert_eq!(json[0]["outcome"], "done", "{json}");
    (run, json[0]["figures"].clone())
}

/// The x and the y of a line's points in a panel.
fn points(panel: &Value, source: &str, name: &str) -> Vec<(f64, f64)> {
    let mut lines = panel["series"].as_array().unwrap().iter();
    let line = lines.find(|line| line["source"] == source && line["name"] == name);
    let points = line.unwrap_or_else(|| panic!("no line {name} in {panel}"))["points"].as_array().unwrap().iter();
    points.map(|point| (point[0].as_f64().unwrap(), point[1].as_f64().unwrap())).collect()
}

fn xs(panel: &Value, source: &str, name: &str) -> Vec<f64> {
    points(panel, source, name).iter().map(|point| point.0).collect()
}

fn at(panel: &Value, source: &str, name: &str, x: f64) -> f64 {
    let points = points(panel, source, name);
    points.iter().find(|point| point.0 == x).unwrap_or_else(|| panic!("{name} has no {x}: {points:?}")).1
}

#[test]
fn more_ranks_join_as_many_random_keys_each() {
    let shell = Shell::new();
    let (run, panels) = figure(&shell, "paper4-6 --quick");
    for panel in panels.as_array().unwrap() {
        assert_eq!(xs(panel, "measured", "one level, plain, CPU ranks"), [1.0, 2.0, 4.0, 8.0]);
        // A node alone has one level.
        assert_eq!(xs(panel, "measured", "two levels, plain, CPU ranks"), [4.0, 8.0]);
        assert!(points(panel, "measured", "two levels, plain, CPU ranks").iter().all(|point| point.1 > 0.0));
    }
    assert_eq!(xs(&panels[0], "predicted", "one level, plain, dgx-superpod").len(), 8);
    assert_eq!(xs(&panels[0], "predicted", "two levels, plain, dgx-superpod").len(), 7);
    let [one, two] = ["one level, plain", "two levels, plain"]
        .map(|way| at(&panels[0], "predicted", &format!("{way}, dgx-superpod"), 1024.0));
    assert!((two..667e3).contains(&one) && one > 500e3, "{one} {two}");
    assert_eq!(at(&panels[0], "paper", "one level, plain", 1024.0), 667e3);
    assert!(run.out.contains("two levels of one: paper below 1 x, not measured here"), "{}", run.out);
    assert!(run.out.contains("toy size: rates mean nothing"), "{}", run.out);
    assert!(run.out.contains("ranks are threads of this process, 2 a node"), "{}", run.out);
    assert!(run.out.contains("GPUs: refused, ranks join on the CPU"), "{}", run.out);
    assert_eq!(shell.read("p.ndjson").lines().count(), 6);
}

#[test]
fn sizes_of_tables_are_compared_on_all_ranks() {
    let shell = Shell::new();
    let (run, panels) = figure(&shell, "paper4-7 --scale 0.00002 --runs 1 --ranks 6 --ranks-per-node 3");
    for way in ["one level, plain", "two levels, plain"] {
        let sizes = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0];
        assert_eq!(xs(&panels[0], "measured", &format!("{way}, CPU ranks")), sizes);
        assert_eq!(xs(&panels[0], "predicted", &format!("{way}, dgx-superpod")), sizes);
    }
    assert!(
        run.out.contains("two levels of one, the smallest tables: paper above 1 x at 1 M rows, here "),
        "{}",
        run.out
    );
    let crossover = run.out.split(" M by the model").next().and_then(|before| before.rsplit(' ').next());
    assert!((22.5..27.5).contains(&crossover.unwrap().parse::<f64>().unwrap()), "{}", run.out);
    // 512 GPUs of 64 nodes, and here 6 ranks of 2.
    let messages = "the model has 258048 between nodes and 3584 within them on one level, 32256 and 3584 on two; here are 18 and 12, \
                    then 6 and 12";
    assert!(run.out.contains(messages), "{}", run.out);
}

#[test]
fn keys_of_tpch_are_joined_plain_and_compressed() {
    let shell = Shell::new();
    let (run, panels) = figure(&shell, "paper4-8 --scale 0.00001 --runs 1 --ranks 4 --network 500");
    for way in ["one level, plain", "one level, compressed", "two levels, plain", "two levels, compressed"] {
        let ranks = if way == "one level, plain" { &[1.0, 2.0, 4.0][..] } else { &[4.0] };
        assert_eq!(xs(&panels[0], "measured", &format!("{way}, CPU ranks")), ranks);
        assert_eq!(xs(&panels[1], "measured", &format!("{way}, CPU ranks")), ranks);
    }
    assert_eq!(at(&panels[0], "paper", "best of all plain", 1024.0), 1015e3);
    assert_eq!(at(&panels[0], "paper", "best of all compressed", 1024.0), 1793e3);
    let compressed = at(&panels[0], "predicted", "one level, compressed, dgx-superpod", 1024.0);
    assert!((compressed / 1793e3 - 1.0).abs() < 0.05, "{compressed}");
    let claim = "compressed of plain, one level: paper 1.77 x, the best of both on 1,024 GPUs, here ";
    assert!(run.out.contains(claim), "{}", run.out);
    assert!(run.out.contains("each rank receives 500 MB a second"), "{}", run.out);
    assert!(!run.out.contains("--network makes one"), "{}", run.out);
    let ratio = run.out.split("columns between nodes became ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(ratio.unwrap().parse::<f64>().unwrap() > 2.0, "{}", run.out);
}

#[test]
fn the_time_of_ranks_is_broken_down() {
    let shell = Shell::new();
    let (run, panels) = figure(&shell, "paper4-9 --scale 0.00001 --runs 1");
    let [here, gpus, shares] = &panels.as_array().unwrap()[..] else { panic!("{panels}") };
    let names = ["4 CPU ranks\nplain", "4 CPU ranks\ncompressed", "8 CPU ranks\nplain", "8 CPU ranks\ncompressed"];
    assert_eq!(here["x"]["names"], serde_json::json!(names));
    for step in ["partition", "all-to-all", "build", "probe"] {
        assert!(points(here, "measured", step).iter().all(|point| point.1 > 0.0), "{step}: {here}");
    }
    let compress = points(here, "measured", "compress");
    assert!(compress[1].1 > compress[0].1 && compress[3].1 > compress[2].1, "{compress:?}");
    // The last two are 1,024 GPUs, plain and compressed.
    for (step, times) in [("all-to-all", [648.0, 167.0]), ("compress", [0.0, 46.0]), ("decompress", [0.0, 20.0])] {
        for (x, time) in [4.0, 5.0].into_iter().zip(times) {
            let model = at(gpus, "predicted", &format!("{step}, dgx-superpod"), x);
            assert!((model - time).abs() <= 0.06 * time, "{step}: {model} ms of {time}");
            assert!(time == 0.0 || at(gpus, "paper", step, x) == time, "{step}");
        }
    }
    assert_eq!(points(shares, "measured", "CPU ranks").len(), 4);
    assert_eq!(at(shares, "paper", "all-to-all", 8.0), 78.0);
    assert!((at(shares, "predicted", "dgx-superpod", 8.0) - 78.0).abs() < 2.0, "{shares}");
    assert!(run.out.contains("648 ms are 78 % of 831 ms"), "{}", run.out);
    assert!(run.out.contains("750 billion tuples at 1015 billion a second, in 739 ms"), "{}", run.out);
    assert!(run.out.contains("all-to-all, compressed of plain: paper 0.26 x on 1,024 GPUs"), "{}", run.out);
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    let shell = Shell::new();
    let refused = |words: &str| {
        let words = format!("bench figure {words} --device cpu");
        shell.fail(&words.split(' ').collect::<Vec<_>>())
    };
    let error = refused("paper4-9 --quick --ranks 2");
    assert!(error.contains("no number of ranks that --at and --ranks allow has several nodes"), "{error}");
    let error = refused("paper4-6 --quick --at 3");
    assert!(error.contains("no point at what --at names"), "{error}");
    let error = refused("paper4-6 --quick --mpi-library no/library.so");
    assert!(error.contains("no/library.so") && error.contains("make mpi"), "{error}");
    let error = shell.fail(&"bench all --quick --mpi-library no/library.so".split(' ').collect::<Vec<_>>());
    assert!(error.contains("mpirun overspill bench figure paper4-6"), "{error}");
    let error = refused("paper4-6 --scale 1 --ranks 1024");
    assert!(error.contains("choose a smaller --scale"), "{error}");
}
