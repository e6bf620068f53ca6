//! Machines as they were measured.

use overspill_advisor::{Cpu, HashTable, Join, Machine, ProbeRows, Strategy};
use overspill_machine::driver::Properties;
use overspill_machine::measure::{
    GpuWork, LatencyCurve, LatencyPoint, MeasuredMemory, Measurements, MemoryRates, Processor, RowWork,
};
use overspill_machine::memory::PageSize;
use overspill_machine::topology::{self, Cache, CacheKind, Gpu, Memory, Topology};

/// A machine with this number of nodes and threads.
fn cpu(nodes: usize, threads: usize) -> topology::Cpu {
    let cache =
        |level, bytes, instances| Cache { level, kind: CacheKind::Unified, bytes, line: 64, shared_by: 1, instances };
    let caches = vec![cache(2, 2 << 20, threads), cache(3, 32 << 20, nodes)];
    topology::Cpu { model: None, sockets: nodes, cores: threads, threads, caches }
}

/// Nodes with these rates each, in random reads and bytes a second.
fn measurements(nodes: usize, random_reads: f64, copy: f64) -> Measurements {
    let row_work = Some(RowWork { partition: 10e-9, lookup: 7e-9 });
    let mut measured = Measurements { row_work, ..Measurements::default() };
    for (own, node) in (0..nodes).flat_map(|own| (0..nodes).map(move |node| (own, node))) {
        for pages in [PageSize::Small, PageSize::Huge] {
            let processor = Processor::Cpu { node: own };
            let memory = MeasuredMemory::Host { node, pages, pinned: false };
            // Small pages and memory of other nodes do not count.
            let share = if pages == PageSize::Huge && own == node { 1.0 } else { 1e-3 };
            let (copy, random_reads) = (copy * share, random_reads * share);
            measured.rates.push(MemoryRates { processor, memory, read: copy, copy, random_reads, latency: 80.0 });
        }
    }
    measured
}

fn probe_rows(nodes: usize, threads: usize, joined_by: usize, random_reads: f64, copy: f64) -> ProbeRows {
    let cpu = Cpu::measured(&cpu(nodes, threads), &measurements(nodes, random_reads, copy)).unwrap();
    ProbeRows::new(&cpu, joined_by)
}

#[test]
fn few_processors_look_up_and_many_partition() {
    // Two processors are busy with their instructions whatever they do.
    let few = probe_rows(1, 2, 2, 125e6, 14e9);
    assert_eq!((few.no_partition, few.radix, few.partitioned_beyond), (8e-9, 8.5e-9, None));
    // Many threads wait for memory, which serves fewer reads at random.
    let many = probe_rows(2, 64, 64, 400e6, 80e9);
    assert_eq!((many.no_partition, many.partitioned_beyond), (1.25e-9, Some(64 << 20)));
    assert!((many.radix - 17e-9 / 64.0).abs() < 1e-15, "{many:?}");
    // Two of them do not wait longer than their own misses take.
    let two = probe_rows(2, 64, 2, 400e6, 80e9);
    assert!((two.no_partition - 4e-9).abs() < 1e-15 && two.partitioned_beyond.is_none(), "{two:?}");
    // Nor where all together had more of them outstanding.
    let wide = probe_rows(1, 2, 2, 400e6, 80e9);
    assert!((wide.no_partition - 3.5e-9).abs() < 1e-15, "{wide:?}");
    let one = probe_rows(1, 2, 1, 400e6, 80e9);
    assert!((one.no_partition - 7e-9).abs() < 1e-15, "{one:?}");
    // Until moving rows in order takes as long.
    let narrow = probe_rows(2, 64, 64, 400e6, 12e9);
    assert!(narrow.radix > 1.3e-9 && narrow.partitioned_beyond.is_none(), "{narrow:?}");
}

#[test]
fn nothing_is_said_of_processors_that_were_not_measured() {
    assert_eq!(Cpu::measured(&topology::Cpu::of_this_machine(), &Measurements::default()), None);
    assert_eq!(probe_rows(1, 2, 2, 0.0, 14e9).partitioned_beyond, None);
    let old = Measurements { row_work: None, ..measurements(1, 125e6, 14e9) };
    assert_eq!(Cpu::measured(&cpu(1, 2), &old), None);
}

#[test]
fn joins_of_a_large_table_are_judged_as_its_probe_rows_are() {
    // The prediction of a whole join tends to the verdict on a row, as tables outgrow caches and probe sides build
    // sides.
    for (nodes, threads, random_reads, copy) in [(1, 2, 125e6, 14e9), (2, 64, 400e6, 80e9), (2, 64, 400e6, 12e9)] {
        let rows = probe_rows(nodes, threads, threads, random_reads, copy);
        let cpu = cpu(nodes, threads);
        let machine = Machine::measured(&topology(cpu, vec![]), &measurements(nodes, random_reads, copy)).unwrap();
        let probe = 1u64 << 40;
        let advice = machine.advise(&Join::new(1 << 32, probe, 16));
        let of_row = |strategy| advice.of(strategy).seconds / probe as f64;
        assert!((of_row(Strategy::NoPartition) / rows.no_partition - 1.0).abs() < 0.02, "{rows:?}");
        assert!((of_row(Strategy::Radix) / rows.radix - 1.0).abs() < 0.02, "{rows:?}");
        assert_eq!(advice.choice == Strategy::Radix, rows.partitioned_beyond.is_some(), "{rows:?}");
    }
}

fn topology(cpu: topology::Cpu, gpus: Vec<Gpu>) -> Topology {
    let topology = Topology::without_gpus();
    let memory = Memory { bytes: None, ..topology.memory };
    Topology { cpu, memory, gpus, no_gpu_because: None, ..topology }
}

/// An H200 on PCIe, or on a link that is coherent.
fn gpu(coherent: bool) -> Gpu {
    let properties = Properties {
        name: "NVIDIA H200".to_owned(),
        pci_bus_id: "0000:0B:00.0".to_owned(),
        compute_capability: (9, 0),
        memory: 140 << 30,
        multiprocessors: 132,
        scratchpad_per_block: 227 << 10,
        scratchpad_per_multiprocessor: 228 << 10,
        l2_cache: 50 << 20,
        max_threads_per_block: 1024,
        pageable_memory_access: coherent,
        coherent,
        host_native_atomics: coherent,
        unified_memory: true,
        concurrent_unified_access: true,
        virtual_memory_management: true,
        host_pages: coherent,
        clock_kilohertz: 1_980_000,
    };
    Gpu { ordinal: 0, properties, link: None, node: Some(0) }
}

fn with_gpu(coherent: bool) -> Measurements {
    let mut measured = measurements(1, 125e6, 200e9);
    let processor = Processor::Gpu { ordinal: 0 };
    let rates =
        |memory, read, copy, random_reads| MemoryRates { processor, memory, read, copy, random_reads, latency: 600.0 };
    let host = |pages, pinned| MeasuredMemory::Host { node: 0, pages, pinned };
    measured.rates.push(rates(MeasuredMemory::Gpu { ordinal: 0 }, 4.2e12, 2e12, 30e9));
    measured.rates.push(rates(host(PageSize::Small, true), 40e9, 20e9, 0.1e9));
    measured.rates.push(rates(host(PageSize::Huge, true), 54e9, 44e9, 0.2e9));
    if coherent {
        measured.rates.push(rates(host(PageSize::Huge, false), 380e9, 250e9, 2e9));
    }
    let points = [(1u64 << 30, 600.0), (2 << 30, 620.0), (4 << 30, 640.0), (8 << 30, 1900.0)];
    measured.latency.push(LatencyCurve {
        processor,
        memory: host(PageSize::Huge, !coherent),
        stride: 2 << 20,
        points: points.map(|(range, nanoseconds)| LatencyPoint { range, nanoseconds }).into(),
    });
    measured
}

const WORK: GpuWork = GpuWork { ordinal: 0, random_writes: 9e9, random_host_writes: 0.1e9, launch: 4e-6 };

#[test]
fn a_gpu_is_used_as_far_as_it_was_measured() {
    let join = Join::new(1 << 28, 1 << 30, 16);
    let topology = topology(cpu(1, 16), vec![gpu(false)]);
    // Before its launches and writes were measured.
    let unmeasured = Machine::measured(&topology, &with_gpu(false)).unwrap();
    let advice = unmeasured.advise(&join);
    for strategy in Strategy::ALL.into_iter().filter(|strategy| strategy.uses_gpu()) {
        let refusal = advice.of(strategy).refusal.as_ref().unwrap().to_string();
        assert!(refusal.contains("was not measured") || refusal.contains("atomics"), "{strategy}: {refusal}");
    }
    let measured = Measurements { gpu_work: vec![WORK], ..with_gpu(false) };
    let machine = Machine::measured(&topology, &measured).unwrap();
    let found = machine.gpu.as_ref().unwrap();
    assert_eq!((found.bandwidth, found.random_writes, found.launch), (4.2e12, Some(9e9), Some(4e-6)));
    assert_eq!((found.link.read, found.link.both, found.link.random_reads), (54e9, 88e9, 0.2e9));
    assert_eq!(found.memory_bytes, (140 << 30) / 10 * 9);
    let advice = machine.advise(&join);
    assert_eq!(advice.choice, Strategy::GpuNoPartition);
    // Bound by the link: 16 bytes a row.
    let probe = advice.of(Strategy::GpuNoPartition).phases[1];
    assert!((probe.seconds - 16.0 * f64::from(1 << 30) / 54e9).abs() < 1e-9, "{probe:?}");
    // Latency is measured up to 4 GiB before it rises: nothing is said of random access further on.
    let spilled = |gibibytes: u64| {
        let join = Join { gpu_memory_limit: Some((16 - gibibytes) << 30), ..Join::new(1 << 30, 1 << 30, 16) };
        assert_eq!(join.hash_table, HashTable::Perfect);
        machine.advise(&join).of(Strategy::GpuNoPartition).refusal.clone()
    };
    assert_eq!(spilled(4), None);
    let refusal = spilled(5).unwrap().to_string();
    assert!(refusal.contains("5.0 GiB") && refusal.contains("4.0 GiB"), "{refusal}");
}

#[test]
fn a_coherent_gpu_reads_pageable_memory() {
    let measured = Measurements { gpu_work: vec![WORK], ..with_gpu(true) };
    let machine = Machine::measured(&topology(cpu(1, 16), vec![gpu(true)]), &measured).unwrap();
    let link = &machine.gpu.as_ref().unwrap().link;
    assert_eq!((link.read, link.coherent, link.system_atomics), (380e9, true, true));
    assert_eq!(machine.advise(&Join::new(1 << 24, 1 << 28, 16)).of(Strategy::Het).refusal, None);
}

#[test]
fn why_there_is_no_gpu_is_passed_on() {
    let reason = |topology: &Topology, measured: &Measurements| {
        let machine = Machine::measured(topology, measured).unwrap();
        let advice = machine.advise(&Join::new(1 << 24, 1 << 28, 16));
        advice.of(Strategy::Triton).refusal.as_ref().unwrap().to_string()
    };
    let none = Topology { no_gpu_because: Some("there is no driver".to_owned()), ..topology(cpu(1, 2), vec![]) };
    assert_eq!(reason(&none, &measurements(1, 125e6, 14e9)), "there is no GPU: there is no driver");
    let unmeasured = topology(cpu(1, 2), vec![gpu(false)]);
    let text = reason(&unmeasured, &measurements(1, 125e6, 14e9));
    assert!(text.contains("overspill machine --measure"), "{text}");
}
