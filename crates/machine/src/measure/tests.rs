use std::collections::HashSet;

use super::*;
use crate::topology::Topology;
use crate::transfer::{TransferMethod, TransferRate, TransferRates};

const EFFORT: CpuEffort = CpuEffort { array_bytes: 4 << 20, longest_range: 4 << 20, runs: 1, reads: 1 << 16 };

#[test]
fn a_chain_comes_by_every_place_once() {
    for (range, stride) in [(4096, 8), (1 << 16, 64), (1 << 20, 4096), (64, 64)] {
        let chain = Chain { range, stride };
        let mut array = vec![u64::MAX; (range / 8) as usize];
        let mut at = chain.lay(&mut array);
        let first = at;
        let mut seen = HashSet::new();
        for _ in 0..chain.places() {
            assert!(seen.insert(at * 8 / stride), "{chain:?} comes by a place twice");
            at = array[at as usize];
        }
        assert_eq!((at, seen.len() as u64), (first, chain.places()), "{chain:?}");
        assert_eq!(Chain::follow(&array, first, chain.places()), first);
    }
}

#[test]
fn the_cpu_is_measured() {
    let topology = Topology::of_this_machine();
    let measured = measure_cpu(&topology, EFFORT).unwrap();
    assert!(measured.rates.len() >= 2 && measured.latency.len() >= 2);
    for rates in &measured.rates {
        // Lower bounds are below the rates of any memory, upper bounds above.
        assert!(rates.read > 1e6 && rates.read < 1e14, "{rates:?}");
        assert!(rates.copy > 1e6 && rates.copy < 1e14, "{rates:?}");
        assert!(rates.random_reads > 1e4 && rates.random_reads < 1e13, "{rates:?}");
        assert!(rates.latency > 0.1 && rates.latency < 1e6, "{rates:?}");
    }
    for curve in &measured.latency {
        assert_eq!(curve.points.iter().map(|point| point.range >> 20).collect::<Vec<_>>(), [1, 2, 4]);
    }
}

#[test]
fn all_processors_together_have_bounds() {
    let bounds = measure_bounds(&Topology::of_this_machine(), EFFORT).unwrap();
    assert!(bounds.read > 1e6 && bounds.read < 1e14, "{bounds:?}");
    assert!(bounds.copy > 1e6 && bounds.copy < 1e14, "{bounds:?}");
    assert!(bounds.random_reads > 1e4 && bounds.random_reads < 1e13, "{bounds:?}");
}

#[test]
fn measurements_are_kept_for_their_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/machine.json");
    let topology = Topology::of_this_machine();
    assert_eq!(Measurements::load(&path, &topology), None);
    let memory = MeasuredMemory::Host { node: 0, pages: PageSize::Huge, pinned: true };
    let rate = TransferRate { method: TransferMethod::ZeroCopy, bytes_per_second: 2e9 };
    let measured = Measurements {
        rates: vec![MemoryRates {
            processor: Processor::Gpu { ordinal: 1 },
            memory,
            read: 1e10,
            copy: 5e9,
            random_reads: 1e8,
            latency: 80.5,
        }],
        latency: vec![LatencyCurve {
            processor: Processor::Cpu { node: 0 },
            memory: MeasuredMemory::Gpu { ordinal: 0 },
            stride: 4096,
            points: vec![LatencyPoint { range: 1 << 30, nanoseconds: 100.25 }],
        }],
        transfers: vec![TransferRates(vec![rate])],
        row_work: Some(RowWork { partition: 4e-9, lookup: 5.5e-9 }),
        gpu_work: vec![GpuWork { ordinal: 0, random_writes: 9e9, random_host_writes: 1e8, launch: 4e-6 }],
        query_work: Some(QueryWork { operators: [("sort".to_owned(), 30.4)].into(), overlap: 1.3, gpu: None }),
        networks: vec![network(4, 2)],
    };
    measured.save(&path, &topology).unwrap();
    assert_eq!(Measurements::load(&path, &topology).as_ref(), Some(&measured));
    let mut other = topology.clone();
    other.cpu.model = Some("another processor".to_owned());
    assert_eq!(Measurements::load(&path, &other), None);
    assert_eq!(Measurements::load_for_processors(&path, &other), None);
    let unknown_gpus = Topology { gpus: Vec::new(), ..topology.clone() };
    assert_eq!(Measurements::load_for_processors(&path, &unknown_gpus).as_ref(), Some(&measured));
    std::fs::write(&path, "{ not JSON").unwrap();
    assert_eq!(Measurements::load(&path, &topology), None);
    measured.save(&path, &topology).unwrap();
    assert_eq!(Measurements::load(&path, &topology), Some(measured));
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a temporary file was left");
}

fn network(ranks: u32, ranks_per_node: u32) -> NetworkRates {
    let level = LevelRates { bytes_per_second: 2.5e9, latency: 1.5e-5, message: 3e-6 };
    NetworkRates {
        ranks,
        ranks_per_node,
        ranks_per_machine: ranks,
        within: Some(level),
        across: (ranks > ranks_per_node).then_some(level),
        partition: 1e9,
        codec: (ranks > ranks_per_node).then_some(CodecRates { compress: 2e9, decompress: 4e9 }),
    }
}

#[test]
fn a_network_is_measured_anew() {
    let mut measured = Measurements::default();
    for rates in [network(4, 4), network(4, 2), NetworkRates { partition: 2e9, ..network(4, 4) }, network(8, 2)] {
        measured.add_network(rates);
    }
    let of = |rates: &NetworkRates| (rates.ranks, rates.ranks_per_node, rates.partition);
    assert!(measured.networks.iter().map(of).eq([(4, 2, 1e9), (4, 4, 2e9), (8, 2, 1e9)]));
    let [two, four, eight] = &measured.networks[..] else { unreachable!("they were three") };
    assert!(two.is_like(eight) && !two.is_like(four) && four.is_like(&network(2, 2)));
}

#[test]
fn the_reach_of_small_pages_is_where_they_get_slow() {
    let curve = |pages, nanoseconds: [f64; 4]| LatencyCurve {
        processor: Processor::Cpu { node: 0 },
        memory: MeasuredMemory::Host { node: 0, pages, pinned: false },
        stride: 4096,
        points: (20..)
            .zip(nanoseconds)
            .map(|(bits, nanoseconds)| LatencyPoint { range: 1 << bits, nanoseconds })
            .collect(),
    };
    let measured = Measurements {
        latency: vec![curve(PageSize::Small, [5.0, 6.0, 20.0, 21.0]), curve(PageSize::Huge, [5.0, 5.0, 10.0, 20.0])],
        ..Measurements::default()
    };
    assert_eq!(measured.small_page_reach(Processor::Cpu { node: 0 }), Some(2 << 20));
    assert_eq!(measured.small_page_reach(Processor::Cpu { node: 1 }), None);
}
