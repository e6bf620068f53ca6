use crate::shell::Shell;

/// The keys of TPC-H at scale factor 100,000 on 1,024 GPUs (paper 4, section 6.4).
const TPCH: &str = "--gpus 1024 --per-gpu --build 146.48M --probe 585.94M --build-columns 8,4 --probe-columns 8";

fn advise(shell: &Shell, words: &str) -> String {
    let run =
        shell.run(&["advise", "--machine", "dgx-superpod"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    run.out
}

fn json(shell: &Shell, words: &str) -> serde_json::Value {
    serde_json::from_str(&advise(shell, &format!("{words} --json"))).unwrap()
}

#[test]
fn a_cluster_is_told_levels_compression_and_phases() {
    let shell = Shell::new();
    let text = advise(&shell, &format!("{TPCH} --compression-ratio 3.9"));
    assert!(
        text.contains("Network     128 x 8 GPUs on NVLink 3.0 and NVSwitch, HDR InfiniBand across nodes"),
        "{text}"
    );
    assert!(text.contains("Join        146480000 x 585940000 tuples of 12 and 8 bytes on each GPU"), "{text}");
    assert!(text.contains("Choice       one level, compressed\n"), "{text}");
    assert!(text.contains("Levels       one: two levels would take 1"), "{text}");
    assert!(text.contains("Compression  yes: plain it would take 9"), "{text}");
    // Of the choice, in their order.
    let phases =
        ["partition", "compress", "shuffle across", "decompress", "shuffle within", "local join", "materialize"];
    let listed = text.split("bound\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names: Vec<_> = listed.lines().map(|line| line.split("  ").next().unwrap()).collect();
    assert_eq!(names, phases, "{text}");
    let advice = json(&shell, &format!("{TPCH} --compression-ratio 3.9"));
    assert_eq!(advice["choice"], serde_json::json!({"levels": "one", "compressed": true}));
    assert_eq!((&advice["machine"], &advice["join"]["nodes"]), (&"dgx-superpod".into(), &128.into()));
    let compressed = &advice["shuffles"][1];
    assert_eq!(compressed["messages"], serde_json::json!({"across": 3 * 1024 * 1016, "within": 3 * 1024 * 7}));
    let rate = compressed["tuples_per_second"].as_f64().unwrap();
    assert!((rate / 1793e9 - 1.0).abs() < 0.2, "{rate}");
}

#[test]
fn tuples_are_those_of_all_gpus_unless_otherwise_said() {
    let shell = Shell::new();
    let all = json(&shell, "--gpus 512 --build 12.8G --probe 12.8G --match-rate 0.3");
    let each = json(&shell, "--gpus 512 --per-gpu --build 25M --probe 25M --match-rate 0.3");
    assert_eq!(all, each);
    assert_eq!(all["join"]["build"], serde_json::json!({"rows": 25_000_000, "columns": [8, 8]}));
    assert_eq!(json(&shell, "--ranks 512 --build 12.8G --probe 12.8G --match-rate 0.3"), all);
    // Small tables take two levels, and nothing was said of compression.
    let small = advise(&shell, "--gpus 512 --per-gpu --build 1M --probe 1M");
    assert!(small.contains("Choice       two levels, plain\n"), "{small}");
    assert!(small.contains("Compression  no: how much smaller the columns become compressed was not said"), "{small}");
    let node = advise(&shell, "--gpus 4 --build 1G --probe 1G --compression-ratio 2");
    assert!(node.contains("Network     1 x 4 GPUs on NVLink 3.0 and NVSwitch\n"), "{node}");
    assert!(node.contains("Compression  no: all ranks are on one node"), "{node}");
}

#[test]
fn processes_of_a_machine_without_gpu_are_ranks() {
    let shell = Shell::new();
    let profile = include_str!("../../../advisor/machines/dgx-superpod.json");
    let mut profile: serde_json::Value = serde_json::from_str(profile).unwrap();
    profile["gpu"] = serde_json::Value::Null;
    profile["sources"] = serde_json::json!({});
    shell.write("cpu.json", profile.to_string());
    let run = shell.run(&["advise", "--machine", "cpu.json", "--ranks", "8", "--build", "80M", "--probe", "80M"]);
    assert_eq!((run.status, run.err.as_str()), (0, ""), "{}", run.out);
    assert!(run.out.contains("10000000 x 10000000 tuples of 16 and 16 bytes on each process"), "{}", run.out);
    assert!(run.out.contains("1 x 8 processes on"), "{}", run.out);
}

#[test]
fn a_cluster_that_cannot_be_is_explained() {
    let shell = Shell::new();
    let fail = |words: &str| shell.fail(&["advise"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
    let error = fail("--machine ac922 --gpus 16 --build 1G --probe 1G");
    assert!(
        error.contains(
            "the figures of ac922 are those of one machine, without a network to other ranks; name one that has it with \
             --machine (dgx-superpod)"
        ),
        "{error}"
    );
    let error = fail("--machine dgx-superpod --gpus 12 --build 1G --probe 1G");
    assert!(error.contains("12 ranks do not fill nodes of 8"), "{error}");
    let error = fail("--machine dgx-superpod --gpus 8 --build 100G --probe 100G");
    assert!(error.contains("of GPU memory, and the limit is 69.3 GiB"), "{error}");
    for (words, sentence) in [
        ("--gpus none", "the number of GPUs is a whole number from 1 to 1000000"),
        ("--gpus 8 --build-columns 8,,4", "columns are widths of 1 to 65536 bytes, the key's first, as in 8,4"),
        ("--gpus 8 --compression-ratio 0", "a compression ratio is a number from 0.1 to 10000"),
        ("--per-gpu", "--gpus <N>"),
        ("--gpus 8 --index btree", "cannot be used with"),
        ("--gpus 8 --gpu-memory-limit 4GiB", "cannot be used with"),
    ] {
        let words = format!("advise --machine dgx-superpod --build 1M --probe 1M {words}");
        let run = shell.run(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(run.status, 2, "{words}");
        assert!(run.err.contains(sentence), "{words}: {}", run.err);
    }
    let help = shell.run(&["advise", "--help"]).out;
    assert!(
        help.contains("dgx-superpod") && help.contains("--compression-ratio") && help.contains("Cluster"),
        "{help}"
    );
}
