use crate::bench::{bench_with_the_emulated_driver, measured, points, text};
use crate::shell::Shell;

#[test]
fn generated_tables_can_be_joined() {
    let shell = Shell::new();
    let run = shell.run(&["datagen", "tpch", "--scale", "0.01", "--dir", "tpch"]);
    assert_eq!(run.status, 0, "{}", run.err);
    let sql = "SELECT count(*) AS c FROM 'tpch/orders.parquet' JOIN 'tpch/lineitem.parquet' ON o_orderkey = l_orderkey";
    assert_eq!(shell.rows(sql), ["{\"c\":60175}"]);
}

#[test]
fn the_tools_fail_as_the_shell_does() {
    let shell = Shell::new();
    assert_eq!(shell.run(&["datagen", "tpch", "--scale", "much"]).status, 2);
    assert_eq!(shell.run(&["datagen", "elephants"]).status, 2);
    shell.write("file", "");
    let error = shell.fail(&["datagen", "tpch", "--scale", "0.01", "--dir", "file/tpch"]);
    assert!(error.contains("file/tpch"), "{error}");
}

#[test]
fn the_machine_is_told_as_text_and_as_json() {
    let shell = Shell::new();
    let text = shell.run(&["machine"]);
    assert_eq!(text.status, 0, "{}", text.err);
    assert!(text.out.starts_with("Processor "), "{}", text.out);
    let json = shell.run(&["machine", "--json"]);
    let machine: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert!(machine["cpu"]["threads"].as_u64().unwrap() > 0);
    // Either there are GPUs, or it is said why not.
    let gpus = machine["gpus"].as_array().unwrap().len();
    assert_eq!(gpus == 0, machine["no_gpu_because"].is_string(), "{}", json.out);
}

#[test]
fn what_was_measured_is_shown_again_and_advised() {
    let shell = Shell::new();
    let before = shell.run(&["machine"]);
    assert!(before.out.contains("overspill machine --measure"), "{}", before.out);
    let measured = shell.run(&["machine", "--measure", "--json"]);
    assert_eq!(measured.status, 0, "{}", measured.err);
    let measured: serde_json::Value = serde_json::from_str(&measured.out).unwrap();
    assert!(measured["measured"]["rates"][0]["read"].as_f64().unwrap() > 1e6, "{measured}");
    let after = shell.run(&["machine"]);
    assert!(after.out.contains("M random reads/s") && !after.out.contains("--measure"), "{}", after.out);
    let json: serde_json::Value = serde_json::from_str(&shell.run(&["machine", "--json"]).out).unwrap();
    assert_eq!(
        json["measured"]["rates"].as_array().unwrap().len(),
        measured["measured"]["rates"].as_array().unwrap().len()
    );
    // It is the machine that is advised without a name.
    let run = shell.run(&["advise", "--build", "1M", "--probe", "16M", "--json"]);
    assert_eq!(run.status, 0, "{}", run.err);
    let advice: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(advice["machine"], "this machine");
    for name in ["no_partition", "radix", "hybrid"] {
        let rate = strategy(&advice, name)["tuples_per_second"].as_f64().unwrap();
        assert!((1e5..1e12).contains(&rate), "{name}: {rate}");
    }
    // A GPU is used, or it is said why not.
    let triton = strategy(&advice, "triton");
    assert_eq!(triton["seconds"].is_null(), triton["refusal"].is_string(), "{triton}");
}

/// What is said of a strategy in the JSON of `overspill advise`.
fn strategy<'a>(advice: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    advice["strategies"].as_array().unwrap().iter().find(|one| one["strategy"] == name).unwrap()
}

#[test]
fn strategies_are_advised_by_a_named_machine() {
    let shell = Shell::new();
    let advise = |words: &str| {
        let run = shell.run(&["advise", "--machine"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
        run.out
    };
    let json = |words: &str| serde_json::from_str::<serde_json::Value>(&advise(&format!("{words} --json"))).unwrap();
    let large = json("ac922 --build 2048M --probe 2048M --tuple 16");
    assert_eq!((large["choice"].as_str(), large["machine"].as_str()), (Some("triton"), Some("ac922")));
    assert_eq!(large["join"]["build"]["rows"], 2_048_000_000u64);
    let names: Vec<_> =
        large["strategies"].as_array().unwrap().iter().map(|one| one["strategy"].as_str().unwrap()).collect();
    let expected =
        ["no_partition", "radix", "hybrid", "gpu_no_partition", "triton", "cpu_partitioned", "het", "gpu_het"];
    assert_eq!(names, expected);
    let triton = strategy(&large, "triton");
    let rate = triton["tuples_per_second"].as_f64().unwrap();
    assert!((rate * triton["seconds"].as_f64().unwrap() / 4.096e9 - 1.0).abs() < 1e-9, "{triton}");
    assert!(triton["phases"].as_array().unwrap().iter().any(|phase| phase["name"] == "first pass"), "{triton}");
    assert!(triton["refusal"].is_null() && triton["link_bytes"]["to_cpu"].as_f64().unwrap() > 4e10, "{triton}");
    assert!(strategy(&large, "gpu_het")["seconds"].is_null());
    // Perfect hashing is the default; its table is at most half as large.
    let table = json("ac922 --build 2048M --probe 2048M --hash-table linear_probing");
    let of_table = |advice| strategy(advice, "gpu_no_partition")["tuples_per_second"].as_f64().unwrap();
    assert!(of_table(&large) > 20.0 * of_table(&table));
    let text = advise("ac922 --build 640M --probe 640M");
    assert!(
        text.contains("Join        640000000 x 640000000 tuples of 16 bytes, a perfect table of 9.54 GiB"),
        "{text}"
    );
    assert!(text.contains("build 70 % (random access to GPU memory), probe 30 % (transfer)"), "{text}");
    assert!(text.ends_with("Choice      gpu_no_partition\n"), "{text}");
    // With less GPU memory another.
    let text = advise("ac922 --build 640M --probe 640M --gpu-memory-limit 4GiB");
    assert!(text.ends_with("Choice      triton\n"), "{text}");
    let text = advise("xeon-v100-pcie3 --build 1G --probe 1.5G --match-rate 0.5 --result 8");
    assert!(text.contains("het               refused: PCIe 3.0 x16 has no system-wide atomics"), "{text}");
}

#[test]
fn strategies_are_advised_by_a_file() {
    let shell = Shell::new();
    let profile = include_str!("../../../advisor/machines/ac922.json").replace("\"ac922\"", "\"mine\"");
    shell.write("mine.json", &profile);
    let run = shell.run(&["advise", "--machine", "mine.json", "--build", "1K", "--probe", "1K"]);
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(run.out.starts_with("Machine     mine: IBM AC922"), "{}", run.out);
    shell.write("other.json", "{\"name\": 7}");
    let error = shell.fail(&["advise", "--machine", "other.json", "--build", "1K", "--probe", "1K"]);
    assert!(error.contains("other.json: the profile is not that of a machine"), "{error}");
    let error = shell.fail(&["advise", "--machine", "no/such.json", "--build", "1K", "--probe", "1K"]);
    assert!(error.contains("cannot read no/such.json"), "{error}");
}

#[test]
fn advice_that_cannot_be_given_is_explained() {
    let shell = Shell::new();
    let error = shell.fail(&["advise", "--machine", "cray-1", "--build", "1M", "--probe", "1M"]);
    assert!(error.contains("there is no machine named \"cray-1\"; known are ac922, xeon-v100-pcie3"), "{error}");
    let error = shell.fail(&["advise", "--build", "1M", "--probe", "1M"]);
    assert!(error.contains("this machine was not measured: run overspill machine --measure"), "{error}");
    for (words, sentence) in [
        ("--build many --probe 1M", "a count is a number"),
        ("--build 1.5 --probe 1M", "1.5 is not a whole number of tuples"),
        ("--build 1M --probe 1M --tuple 0", "a tuple has 2 to 65536 bytes"),
        ("--build 1M --probe 1M --hash-table cuckoo", "known are perfect and linear_probing"),
        ("--build 1M --probe 1M --gpu-memory-limit lots", "a size is a number"),
        ("--build 1M --probe 1M --match-rate 2", "a share is a number from 0 to 1"),
        ("--probe 1M", "--build"),
    ] {
        let run = shell.run(&["advise"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        assert_eq!(run.status, 2, "{words}");
        assert!(run.err.contains(sentence), "{words}: {}", run.err);
    }
    let help = shell.run(&["advise", "--help"]).out;
    assert!(help.contains("10^6") && help.contains("ac922") && help.contains("linear_probing"), "{help}");
}

#[test]
fn experiments_run_without_a_gpu() {
    let shell = Shell::new();
    let run =
        shell.run(&["bench", "prefix-sum", "--device", "cpu", "--scale", "0.01", "--json", "f.json", "--svg", "f.svg"]);
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(run.out.contains("no GPU: left out") && run.out.contains("histogram"), "{}", run.out);
    let figure: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    assert_eq!(figure["emulated"], false);
    assert!(shell.read("f.svg").contains("paper 1, figure 20"));
    let error = shell.fail(&["bench", "transfer", "--device", "emulated", "--emulated-driver", "/no/such.so"]);
    assert!(error.contains("/no/such.so"), "{error}");
    let error = shell.fail(&["bench", "prefix-sum", "--device", "cpu", "--scale", "0.01", "--svg", "no/folder/f.svg"]);
    assert!(error.contains("no/folder/f.svg"), "{error}");
}

#[test]
fn joins_are_measured_without_other_engines() {
    let shell = Shell::new();
    let run = shell.run(&["bench", "peers", "--workload", "c", "--scale", "0.0001", "--runs", "1", "--json", "f.json"]);
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("Polars was skipped: name a Python that has it with --python."), "{}", run.out);
    assert!(run.out.contains("c: 3200 x 3200 rows of 4 + 4 bytes, dense keys"), "{}", run.out);
    let figures: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    let join = &figures["workloads"][0];
    assert!(join["answer"].as_str().unwrap().starts_with("3200,"), "{join}");
    assert!(join["overspill"]["median_seconds"].as_f64().unwrap() > 0.0, "{join}");
    assert!(join["overspill"]["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{join}");
    assert!(join["bound"]["seconds"].as_f64().unwrap() > 0.0, "{join}");
    let random_reads = figures["random_reads_per_second"].as_f64().unwrap();
    assert!(random_reads > 1e5 && random_reads < 1e12, "{random_reads}");
    let left: Vec<_> = std::fs::read_dir(shell.folder().join("overspill-bench-data")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let help = shell.run(&["bench", "peers", "--help"]).out;
    assert!(help.contains("pip install") && help.contains("polars=="), "{help}");
}

#[test]
fn queries_of_tpch_are_measured_without_other_engines() {
    let shell = Shell::new();
    let words = "bench tpch --scale 0.01 --runs 2 --query 1 --query 3 --query 16 --json f.json --svg f.svg";
    let run = shell.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("TPC-H, scale factor 0.01") && run.out.contains("Polars was skipped"), "{}", run.out);
    let figures: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    for (engine, name) in figures["engines"].as_array().unwrap().iter().zip(["Overspill", "DataFusion's joins"]) {
        assert_eq!(engine["name"], name);
        let queries = engine["queries"].as_array().unwrap();
        assert_eq!(queries.iter().map(|query| query["number"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3, 16]);
        assert!(queries.iter().all(|query| query["median_seconds"].as_f64().unwrap() > 0.0), "{engine}");
    }
    assert!(shell.read("f.svg").contains("TPC-H"));
    let error = shell.fail(&["bench", "tpch", "--scale", "0"]);
    assert!(error.contains("scale"), "{error}");
}

#[test]
fn queries_of_tpcds_are_measured_without_other_engines() {
    let shell = Shell::new();
    let words = "bench tpcds --scale 0.01 --runs 1 --query 3,96-97 --json f.json";
    let run = shell.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("TPC-DS, scale factor 0.01") && run.out.contains("over 3 queries"), "{}", run.out);
    let figures: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    let numbers =
        figures["engines"][1]["queries"].as_array().unwrap().iter().map(|query| query["number"].as_u64().unwrap());
    assert_eq!(numbers.collect::<Vec<_>>(), [3, 96, 97]);
    let error = shell.fail(&["bench", "tpcds", "--query", "100"]);
    assert!(error.contains("numbers 1 to 99"), "{error}");
}

#[test]
fn queries_of_the_star_schema_are_measured_without_other_engines() {
    let shell = Shell::new();
    let words = "bench ssb --scale 0.01 --runs 1";
    let run = shell.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(
        run.out.contains("The Star Schema Benchmark, scale factor 0.01") && run.out.contains("over 13 queries"),
        "{}",
        run.out
    );
}

#[test]
fn the_emulated_device_is_named_as_no_gpu() {
    let shell = Shell::new();
    // Built for the tests of the kernels, and put among the libraries.
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_overspill"));
    let library = program.with_file_name("deps").join("liboverspill_emulated_driver.so");
    let library = library.to_str().unwrap();
    let run = shell.run(&["bench", "partition", "--device", "emulated", "--emulated-driver", library]);
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(run.out.contains("NO GPU: the emulated device"), "{}", run.out);
    assert!(run.out.contains("emulated device CPU to CPU memory: hierarchical"), "{}", run.out);
}

#[test]
fn compression_gives_the_same_bytes_on_the_emulated_device() {
    let shell = Shell::new();
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_overspill"));
    let library = program.with_file_name("deps").join("liboverspill_emulated_driver.so");
    let run = |more: &[&str]| {
        let words = ["bench", "codec", "--scale", "0.002", "--runs", "1", "--json", "codec.json"];
        shell.run(&[&words, more].concat())
    };
    let columns = "orders.o_orderkey,lineitem.l_orderkey,orders.o_orderpriority";
    let device = ["--device", "emulated", "--emulated-driver", library.to_str().unwrap()];
    let done = run(&[&device[..], &["--columns", columns, "--partitions", "1,8"]].concat());
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(done.out.contains("NO GPU: the emulated device") && done.out.contains("(2,1)"), "{}", done.out);
    let found: serde_json::Value = serde_json::from_str(&shell.read("codec.json")).unwrap();
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{found}");
    for row in rows {
        let codecs = row["codecs"].as_array().unwrap();
        let ratio = |name: &str| codecs.iter().find(|codec| codec["codec"] == name).unwrap()["ratio"].as_f64();
        assert_eq!(ratio("cascaded, GPU"), ratio("cascaded"), "{row}");
    }
    let error = run(&["--device", "cpu", "--columns", "orders.o_comment"]).err;
    assert!(error.contains("TPC-H has no column \"orders.o_comment\" of integers"), "{error}");
}

/// 128 M x 128 M tuples of 16 bytes under 2 GiB of GPU memory, a sixty-fourth of both. What waits, launches or maps more than it
/// must is farther from its bound. Four streams, which leave their rows to the last of them.
#[test]
fn joins_are_predicted_near_the_bound_of_their_bytes() {
    let shell = Shell::new();
    let words = "figure paper1-13 --device emulated --scale 0.015625 --gpu-memory-limit 32MiB --at 128 --threads 4 \
                 --clock h200-pcie5 --points p.jsonl";
    let run = bench_with_the_emulated_driver(&shell, "", &words.split_whitespace().collect::<Vec<_>>());
    assert!(run.status.success(), "{}", text(&run));
    let points: Vec<serde_json::Value> =
        shell.read("p.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in ["triton", "gpu_no_partition"] {
        let point = points.iter().find(|point| point["line"] == line).unwrap();
        let predicted = &point["predicted"];
        let number = |name: &str| predicted[name].as_f64().unwrap();
        let calls = |name: &str| predicted["calls"][name]["calls"].as_u64().unwrap();
        assert_eq!((calls("registrations"), calls("mappings")), (0, 0), "of a later join: {point}");
        // A pair of partitions launches 7 kernels if its build side is there, else 12, and waits once, as kernels sum its rows.
        // Each of three relations or chunks waits 4 times at most.
        assert!(calls("waits") <= 3 * 4 + calls("launches") / 7, "{point}");
        assert!(number("seconds") <= 1.5 * number("bound") && number("seconds") <= 1.5 * number("law"), "{point}");
    }
    for (words, reason) in [
        ("figure paper1-13 --quick --device cpu --clock h200-pcie5", "add --device emulated"),
        ("figure paper1-13 --quick --device emulated --clock abacus", "there is no machine named \"abacus\""),
        ("figure transfer --quick --device emulated --clock gh200", "predicts the time of joins"),
        ("figure paper1-13 --quick --device emulated --at 7", "no point at what --at names"),
    ] {
        let run = bench_with_the_emulated_driver(&shell, "", &words.split_whitespace().collect::<Vec<_>>());
        assert!(!run.status.success() && text(&run).contains(reason), "{words}: {}", text(&run));
    }
}

#[test]
fn ranks_join_in_gpu_memory() {
    let shell = Shell::new();
    for figure in ["paper4-6", "paper4-8", "paper4-9"] {
        let words = ["figure", figure, "--quick", "--device", "emulated", "--ranks", "4", "--json", "f.json"];
        let run = bench_with_the_emulated_driver(&shell, "", &words);
        assert!(run.status.success(), "{}", text(&run));
        assert!(text(&run).contains("GPU ranks gave the right answers on the emulated device"), "{}", text(&run));
        // Times there mean nothing, and are not shown.
        assert!(!shell.read("f.json").contains("plain, GPU ranks"), "{}", shell.read("f.json"));
    }
}

#[test]
fn rows_in_gpu_memory_are_exchanged() {
    let shell = Shell::new();
    let words = "exchange --ranks 4 --ranks-per-node 2 --millions 0.003 --runs 1 --device emulated --json f.json";
    let run = bench_with_the_emulated_driver(&shell, "", &words.split_whitespace().collect::<Vec<_>>());
    assert!(run.status.success(), "{}", text(&run));
    let told: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    let ways = told["ways"].as_array().unwrap();
    let of = |levels: u64, on_gpu: bool| {
        let is_it =
            |way: &&serde_json::Value| way["levels"] == levels && way["on_gpu"] == on_gpu && way["compressed"] == false;
        ways.iter().find(is_it).unwrap_or_else(|| panic!("{levels} levels: {told}"))
    };
    for levels in [1, 2] {
        // The same rows go to the same ranks.
        let [on_cpu, on_gpu] = [false, true].map(|on_gpu| of(levels, on_gpu));
        for place in ["across", "within"] {
            let [ours, theirs] = [on_gpu, on_cpu].map(|way| way[place]["sent_bytes"].as_f64().unwrap());
            assert!((0.9..1.1).contains(&(ours / theirs)), "{told}");
        }
        assert!(on_gpu["seconds"].as_f64().unwrap() > 0.0, "{told}");
        // Ranks of a process read each other's GPU memory.
        let bytes = |name: &str| on_gpu[name].as_u64().unwrap();
        assert!(bytes("sent_from_gpu_directly") > 0, "{told}");
        assert_eq!(bytes("sent_from_gpu_through_pinned_memory"), 0, "{told}");
    }
    let pinned = format!("{words} --pinned");
    let run = bench_with_the_emulated_driver(&shell, "", &pinned.split_whitespace().collect::<Vec<_>>());
    assert!(run.status.success(), "{}", text(&run));
    let pinned: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    let sum =
        |name: &str| pinned["ways"].as_array().unwrap().iter().map(|way| way[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("sent_from_gpu_directly"), 0, "{pinned}");
    assert!(sum("sent_from_gpu_through_pinned_memory") > 0, "{pinned}");
    // Two columns, from each rank to the two of the other node, or to one of them.
    assert_eq!([of(1, true), of(2, true)].map(|way| way["across"]["messages"].as_u64().unwrap()), [16, 8]);
    let run =
        shell.run(&["bench", "exchange", "--ranks", "2", "--millions", "0.001", "--runs", "1", "--device", "cpu"]);
    assert!(run.out.contains("GPU: refused, left out by --device cpu"), "{}", run.out);
}

#[test]
fn keys_that_the_cpu_counts_cross_the_link_once_less() {
    let shell = Shell::new();
    // Threads that join parts of the probe side each read the build side, and how many come to do so is a matter of time.
    let words = ["figure", "paper1-20", "--quick", "--device", "emulated", "--threads", "1", "--json", "figure.json"];
    let run = bench_with_the_emulated_driver(&shell, "", &words);
    assert!(run.status.success(), "{}", text(&run));
    let figure: serde_json::Value = serde_json::from_str(&shell.read("figure.json")).unwrap();
    let counted = ["CPU", "GPU"].map(|by| points(&figure[0], "bytes over", &format!("triton, prefix sum on the {by}")));
    assert_eq!(counted.each_ref().map(Vec::len), [3; 2]);
    assert!((0..3).all(|size| counted[0][size] + 7.0 < counted[1][size]), "{counted:?}");
}

#[test]
fn a_device_that_counts_no_energy_is_refused_by_name() {
    let shell = Shell::new();
    let run = |settings: &str| {
        let words = ["figure", "paper1-23", "--quick", "--device", "emulated", "--threads", "2"];
        text(&bench_with_the_emulated_driver(&shell, settings, &words))
    };
    let reason = "triton, gpu_no_partition: refused, the GPU at FFFF:00:00.0 does not count its energy";
    let refused = run("energy=0");
    assert!(refused.contains(reason), "{refused}");
    let counted = run("energy=1");
    assert!(!counted.contains(reason) && counted.contains("million tuples for each joule of the GPU"), "{counted}");
}

#[test]
fn choices_of_indexes_are_compared_with_both_ways() {
    let shell = Shell::new();
    let run =
        shell.run(&["bench", "advisor", "--index", "--max-tuples", "20000", "--runs", "1", "--json", "grid.json"]);
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    let points: serde_json::Value = serde_json::from_str(&shell.read("grid.json")).unwrap();
    let points = points.as_array().unwrap();
    assert!(run.out.contains(&format!("of {} points; the most is", points.len())), "{}", run.out);
    // Of 2^14 rows, each table has joins with 1, 16, 163, 1638 and 16384 keys, skewed ones, filters, and a list.
    for table in ["2^14 rows in memory, sorted", "2^14 rows in memory, shuffled", "2^14 rows in Parquet, sorted"] {
        let queries: Vec<_> =
            points.iter().filter(|point| point["table"] == table).map(|point| &point["query"]).collect();
        for query in ["join with 1638 keys", "join with 16384 skewed keys", "filter that 163 rows pass"] {
            assert!(queries.iter().any(|known| *known == query), "{query} of {queries:?}");
        }
    }
    assert!(points.iter().any(|point| point["query"] == "query 12"), "{points:?}");
    for point in points {
        let times = &point["milliseconds"];
        let [never, always, auto] = ["never", "always", "auto"].map(|way| times[way].as_f64().unwrap());
        // A median of ratios lies near the ratio of medians.
        let of_best = point["auto_of_best"].as_f64().unwrap() / (auto / never.min(always));
        assert!((0.1..10.0).contains(&of_best), "{point}");
    }
}

#[test]
fn figures_need_no_gpu_where_they_have_lines_of_the_cpu() {
    let shell = Shell::new();
    let figure = |name: &str| {
        let words = ["bench", "figure", name, "--quick", "--device", "cpu", "--json", "f.json", "--points", "p.ndjson"];
        shell.run(&words)
    };
    let run = figure("paper2-16");
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("gpu_no_partition: refused, it needs a GPU: left out by --device cpu"), "{}", run.out);
    assert!(
        run.out.contains("gpu_no_partition of radix: paper 3.2 to 7.3 x with NVLink 2.0, not measured here"),
        "{}",
        run.out
    );
    let json: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    assert_eq!(measured(&json[0]), [("no_partition".to_owned(), 4), ("radix".to_owned(), 4)]);
    let points = shell.read("p.ndjson");
    let seconds =
        points.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["seconds"].as_f64());
    assert_eq!(seconds.filter(|seconds| seconds.is_some_and(|seconds| seconds > 0.0)).count(), 8, "{points}");
    let run = figure("paper1-20");
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("(a), joins: refused, it needs a GPU: left out by --device cpu"), "{}", run.out);
    let run = figure("paper1-16");
    assert_eq!(run.status, 1, "{}", run.out);
    assert!(
        run.err.contains("The figure paper1-16 cannot be measured here: it needs a GPU: left out by --device cpu"),
        "{}",
        run.err
    );
    assert_eq!(figure("paper1-99").status, 2);
    let help = shell.run(&["bench", "figure", "--help"]).out;
    assert!(help.contains("paper1-13") && help.contains("Scaling the build side"), "{help}");
    let error = shell.fail(&["bench", "figure", "paper2-16", "--device", "cpu", "--scale", "2"]);
    assert!(error.contains("The scale must be above 0 and at most 1, not 2."), "{error}");
    let error =
        shell.fail(&["bench", "figure", "paper2-16", "--quick", "--device", "cpu", "--json", "no/folder/f.json"]);
    assert!(error.contains("no/folder/f.json"), "{error}");
}

#[test]
fn clients_run_queries_at_the_same_time_with_and_without_a_scheduler() {
    let shell = Shell::new();
    let words = "bench load --scale 0.01 --dir tables --clients 1,3 --policy none,overspill,first-come \
                 --seconds 1 --mixes 1 --json f.json";
    let run = shell.run(&words.split_whitespace().collect::<Vec<_>>());
    assert_eq!(run.status, 0, "{}", run.err);
    let told: serde_json::Value = serde_json::from_str(&shell.read("f.json")).unwrap();
    let loads = told["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 6);
    for load in loads {
        assert!(load["queries"].as_u64().unwrap() >= load["clients"].as_u64().unwrap(), "{load}");
        let numbers = ["queries_a_minute", "mean_seconds", "seconds_of_99_percent", "brief_seconds_of_99_percent"];
        assert!(numbers.iter().all(|name| load[name].as_f64().unwrap() > 0.0), "{load}");
    }
    // A mix for each of the two schedulers.
    assert_eq!(told["mixes"].as_array().unwrap().len(), 2);
    assert!(told["predicted_times_wrong_by"]["after_three_runs"].as_f64().unwrap() >= 1.0, "{told}");
    assert!(run.out.contains("first-come"), "{}", run.out);

    std::fs::create_dir(shell.folder().join("queries")).unwrap();
    let own = ["bench", "load", "--dir", "tables", "--queries", "queries", "--clients", "2", "--seconds", "0.2"];
    assert!(shell.fail(&own).contains("their files end in .sql"));
    shell.write("queries/count.sql", "SELECT count(*) FROM orders JOIN lineitem ON o_orderkey = l_orderkey");
    let run = shell.run(&own);
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(run.out.contains("; queries: count\n"), "{}", run.out);
    shell.write("queries/wrong.sql", "SELECT none FROM orders");
    assert!(shell.fail(&own).contains("wrong failed:"));
    assert!(shell.fail(&["bench", "load", "--set", "threads"]).contains("'threads' is not KEY=VALUE"));
}
