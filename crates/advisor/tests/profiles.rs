//! Machines as files, refusals and reports.

use overspill_advisor::{Join, Machine, PrefixSumProcessor, Refusal, Strategy, compression_gain, triton_link_bytes};

fn machine(name: &str) -> Machine {
    Machine::named(name).unwrap()
}

/// Names of all numbers below a value.
fn figures(value: &serde_json::Value, name: &str) -> Vec<String> {
    match value {
        serde_json::Value::Object(parts) => {
            parts.iter().flat_map(|(key, value)| figures(value, &format!("{name}.{key}"))).collect()
        }
        serde_json::Value::Number(_) => vec![name.to_owned()],
        _ => vec![],
    }
}

#[test]
fn every_profile_is_a_machine_that_says_where_its_figures_are_from() {
    let names: Vec<_> = Machine::names().collect();
    assert_eq!(names, ["ac922", "xeon-v100-pcie3", "a100-pcie4", "h200-pcie5", "gh200", "dgx-superpod"]);
    for name in names {
        let machine = machine(name);
        assert_eq!(machine.name, name);
        assert!(!machine.description.is_empty());
        let json = serde_json::to_value(&machine).unwrap();
        let known: Vec<_> = machine.sources.keys().flat_map(|names| names.split(", ")).collect();
        // What is named under `sources` is a figure, or holds several.
        for figure in &known {
            assert!(json.pointer(&format!("/{}", figure.replace('.', "/"))).is_some(), "{name}: {figure}");
        }
        // And every figure has a source.
        for figure in ["cpu", "gpu", "network"].into_iter().flat_map(|part| figures(&json[part], part)) {
            let is_told = known.iter().any(|known| figure == *known || figure.starts_with(&format!("{known}.")));
            assert!(is_told, "{name}: {figure}");
        }
        // A profile that is written is read as the same.
        assert_eq!(Machine::from_json(&json.to_string()).unwrap(), machine);
    }
}

#[test]
fn an_unknown_machine_lists_the_known_ones() {
    let error = Machine::named("cray-1").unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no machine named \"cray-1\"; known are ac922, xeon-v100-pcie3, a100-pcie4, h200-pcie5, gh200, \
         dgx-superpod"
    );
}

#[test]
fn a_profile_that_cannot_be_is_told() {
    let text = serde_json::to_string(&machine("ac922")).unwrap();
    let error = |text: &str| Machine::from_json(text).unwrap_err().to_string();
    assert!(error("{}").contains("missing field `name`"), "{}", error("{}"));
    let misspelt = text.replace("\"random_reads\"", "\"random_reeds\"");
    assert!(error(&misspelt).contains("random_reeds"), "{}", error(&misspelt));
    let mut broken = serde_json::to_value(machine("ac922")).unwrap();
    broken["gpu"]["link"]["read"] = 0.0.into();
    assert_eq!(error(&broken.to_string()), "the profile has 0 as gpu.link.read, which must be positive");
    let mut broken = serde_json::to_value(machine("ac922")).unwrap();
    broken["cpu"]["large_data"]["share"] = 2.0.into();
    assert!(error(&broken.to_string()).contains("cpu.large_data"), "{}", error(&broken.to_string()));
    let cluster = |figure: &str, value: f64| {
        let mut broken = serde_json::to_value(machine("dgx-superpod")).unwrap();
        *broken.pointer_mut(figure).unwrap() = value.into();
        error(&broken.to_string())
    };
    let found = cluster("/network/across/bandwidth", -1.0);
    assert_eq!(found, "the profile has -1 as network.across.bandwidth, which must be positive");
    let found = cluster("/network/within/all_to_all_share", 1.5);
    assert_eq!(found, "the profile has 1.5 as network.within.all_to_all_share, which is at most 1");
}

#[test]
fn strategies_are_refused_by_name() {
    let advice = machine("xeon-v100-pcie3").advise(&Join::new(1 << 20, 1 << 20, 16));
    assert_eq!(
        advice.of(Strategy::Het).refusal.as_ref().unwrap().to_string(),
        "PCIe 3.0 x16 has no system-wide atomics, without which CPU and GPU cannot build one table together"
    );
    assert_eq!(advice.of(Strategy::GpuHet).refusal, None);
    let large = Join { gpu_memory_limit: Some(64 << 20), ..Join::new(2_048_000_000, 2_048_000_000, 16) };
    let advice = machine("ac922").advise(&large);
    for strategy in [Strategy::Triton, Strategy::CpuPartitioned] {
        assert_eq!(
            advice.of(strategy).refusal.as_ref().unwrap().to_string(),
            "two pairs of partitions, twice each, in half of what the join may have, need at least 244.1 MiB of GPU \
             memory, and the limit is 64.0 MiB"
        );
    }
    // With as much as is needed it is not.
    let enough = Join { gpu_memory_limit: Some(245 << 20), ..large };
    assert_eq!(machine("ac922").advise(&enough).of(Strategy::Triton).refusal, None);
    let too_little = Join { gpu_memory_limit: Some(244 << 20), ..large };
    assert!(machine("ac922").advise(&too_little).of(Strategy::Triton).refusal.is_some());
    // A limit does not make memory.
    let unlimited = Join { gpu_memory_limit: Some(u64::MAX), ..large };
    let whole = Join { gpu_memory_limit: None, ..large };
    assert_eq!(machine("ac922").advise(&unlimited), machine("ac922").advise(&whole));
    let refusal = advice.of(Strategy::GpuHet).refusal.as_ref().unwrap().to_string();
    assert_eq!(refusal, "the table's slots need at least 30.5 GiB of GPU memory, and the limit is 64.0 MiB");
    // More than CPU memory.
    let huge = machine("ac922").advise(&Join::new(1 << 34, 1 << 34, 16));
    for strategy in [Strategy::NoPartition, Strategy::Radix, Strategy::Triton, Strategy::CpuPartitioned] {
        let refusal = huge.of(strategy).refusal.as_ref().unwrap().to_string();
        assert!(refusal.contains("of CPU memory, and there are 128.0 GiB"), "{strategy}: {refusal}");
    }
    assert_eq!(huge.choice, Strategy::Hybrid);
}

#[test]
fn a_machine_without_gpu_takes_the_cpu() {
    let mut cpu = machine("ac922");
    cpu.gpu = None;
    let join = Join::new(128_000_000, 128_000_000, 16);
    let advice = cpu.advise(&join);
    assert_eq!(advice.choice, Strategy::Radix);
    for strategy in Strategy::ALL.into_iter().filter(|strategy| strategy.uses_gpu()) {
        let refusal = advice.of(strategy).refusal.as_ref().unwrap();
        assert_eq!(refusal.to_string(), "there is no GPU: ac922 has none");
    }
    // The same if only they are asked for.
    let of_cpu = [Strategy::NoPartition, Strategy::Radix, Strategy::Hybrid];
    assert_eq!(machine("ac922").advise_among(&join, &of_cpu).choice, Strategy::Radix);
    assert_eq!(machine("ac922").advise_among(&join, &[Strategy::Het]).choice, Strategy::Het);
    assert_eq!(machine("xeon-v100-pcie3").advise_among(&join, &[Strategy::Het]).choice, Strategy::Hybrid);
}

#[test]
fn figures_that_are_missing_refuse_what_needs_them() {
    let join = Join::new(128_000_000, 128_000_000, 16);
    let mut gapped = machine("ac922");
    let gpu = gapped.gpu.as_mut().unwrap();
    (gpu.random_writes, gpu.link.random_writes) = (None, None);
    let advice = gapped.advise(&join);
    for strategy in [Strategy::GpuNoPartition, Strategy::Het, Strategy::GpuHet] {
        let refusal = advice.of(strategy).refusal.clone().unwrap();
        assert!(matches!(refusal, Refusal::NotMeasured { .. }), "{strategy}: {refusal}");
        assert!(refusal.to_string().contains("overspill machine --measure"), "{refusal}");
    }
    assert_eq!(advice.choice, Strategy::Triton);
    gapped.gpu.as_mut().unwrap().launch = None;
    assert_eq!(gapped.advise(&join).choice, Strategy::Radix);
    // What a translation miss costs on PCIe is not known.
    let table = overspill_advisor::HashTable::LinearProbing;
    let far = Join { hash_table: table, ..Join::new(2_048_000_000, 2_048_000_000, 16) };
    let advice = machine("xeon-v100-pcie3").advise(&far);
    assert_eq!(
        advice.of(Strategy::GpuNoPartition).refusal.as_ref().unwrap().to_string(),
        "the GPU would access 49.1 GiB of CPU memory at random, and its rate is known up to 32.0 GiB only"
    );
}

#[test]
fn small_joins_stay_on_the_cpu() {
    for name in Machine::names() {
        let advice = machine(name).advise(&Join::new(1000, 1000, 16));
        assert_eq!(advice.choice, Strategy::NoPartition, "{name}");
    }
}

#[test]
fn the_link_is_counted() {
    let advice = machine("ac922").advise(&Join::new(128_000_000, 128_000_000, 16));
    let bytes = |strategy| advice.of(strategy).link_bytes;
    let relations = 2.0 * 128e6 * 16.0;
    assert_eq!((bytes(Strategy::GpuNoPartition).to_gpu, bytes(Strategy::GpuNoPartition).to_cpu), (relations, 0.0));
    assert_eq!((bytes(Strategy::Triton).to_gpu, bytes(Strategy::Triton).to_cpu), (relations, 0.0));
    assert_eq!(bytes(Strategy::Radix).total(), 0.0);
    // Without a cache the Triton join moves three times the relations, and the keys again where the GPU counts them.
    let uncached = triton_link_bytes(1e9, 3e9, 2e9, 0.0, PrefixSumProcessor::Gpu, 5e8).link_bytes();
    assert_eq!((uncached.to_gpu, uncached.to_cpu), (2e9 + 4e9 + 4e9, 4e9 + 5e8));
    let half = triton_link_bytes(1e9, 3e9, 2e9, 0.5, PrefixSumProcessor::Cpu, 0.0);
    assert_eq!((half.spilled, half.spilled_again, half.keys), (2e9, 2e9, 0.0));
    assert_eq!(half.link_bytes().total(), 8e9);
}

/// The table of docs/codec.md, "Over the link to a GPU".
#[test]
fn compression_pays_over_pcie_and_not_over_a_fast_interconnect() {
    let rows = [
        ("xeon-v100-pcie3", 2.1, 1.5),
        ("a100-pcie4", 2.1, 2.1),
        ("h200-pcie5", 2.1, 1.7),
        ("ac922", 1.0, 0.4),
        ("gh200", 0.8, 0.3),
    ];
    for (name, fast, slow) in rows {
        let machine = machine(name);
        let read = machine.gpu.as_ref().unwrap().link.read;
        let gain = |rate: f64| compression_gain(read, 2.1, machine.cpu.cores as f64 * rate);
        assert_eq!([4.4e9, 1.5e9].map(|rate| (gain(rate) * 10.0).round() / 10.0), [fast, slow], "{name}");
    }
}

#[test]
fn advice_as_json() {
    let advice = machine("xeon-v100-pcie3").advise(&Join::new(1 << 20, 1 << 24, 16));
    let json = serde_json::to_value(&advice).unwrap();
    assert_eq!(json["choice"], advice.choice.name());
    let strategies = json["strategies"].as_array().unwrap();
    let names: Vec<_> = strategies.iter().map(|one| one["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, Strategy::ALL.map(Strategy::name));
    let gpu = &strategies[3];
    assert!(gpu["seconds"].as_f64().unwrap() > 0.0 && gpu["tuples_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(gpu["phases"][1]["name"], "probe");
    assert_eq!(gpu["phases"][1]["bound"], "transfer");
    assert_eq!(gpu["link_bytes"]["to_gpu"], ((1u64 << 20) + (1 << 24)) as f64 * 16.0);
    assert!(gpu["refusal"].is_null());
    let het = &strategies[6];
    assert!(het["seconds"].is_null() && het["refusal"].as_str().unwrap().contains("atomics"), "{het}");
}
