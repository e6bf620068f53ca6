use std::collections::HashMap;
use std::sync::Arc;

use overspill_kernels::{
    Algorithm, AllocatedPairs, Extents, HashFunction, HashTable, HostSlots, Input, JoinSide, Kernels, KeyWidth, Output,
    PairAggregate, PairFunction, PairSide, PairTotals, PartitionPlan, PartitionedJoin, PartitionedSide, Partitioner,
    PayloadInput, Radix, SecondPass, SecondPassInput, SharedBuild, TableKind, TablePlacement, Values,
};
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{
    DeviceBuffer, HostBuffer, Layout, Mapping, PageSize, SharedView, SpanningBuffer, SpanningLayout,
};
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::test_gpu::{TestGpu, scaled, seeds};

/// Keys with a value each.
#[derive(Clone)]
pub struct Relation {
    pub keys: Vec<u64>,
    pub values: Vec<u64>,
}

impl Relation {
    fn new(keys: Vec<u64>, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let values = keys.iter().map(|_| random.random_range(0..1u64 << 31)).collect();
        Self { keys, values }
    }

    /// Unique keys from `smallest` on, shuffled.
    pub fn dense(tuples: u64, smallest: u64, seed: u64) -> Self {
        let mut keys: Vec<u64> = (smallest..smallest + tuples).collect();
        keys.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        Self::new(keys, seed)
    }

    /// Keys drawn from a range, so that some repeat.
    pub fn drawn(tuples: u64, range: std::ops::Range<u64>, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        Self::new((0..tuples).map(|_| random.random_range(range.clone())).collect(), seed)
    }
}

/// The pairs that the join of two relations has, sorted.
pub fn reference(build: &Relation, probe: &Relation) -> Vec<(u64, u64)> {
    let mut table: HashMap<u64, Vec<u64>> = HashMap::new();
    for (key, value) in build.keys.iter().zip(&build.values) {
        table.entry(*key).or_default().push(*value);
    }
    let mut pairs: Vec<(u64, u64)> = probe
        .keys
        .iter()
        .zip(&probe.values)
        .flat_map(|(key, value)| table.get(key).into_iter().flatten().map(move |build| (*build, *value)))
        .collect();
    pairs.sort_unstable();
    pairs
}

pub fn totals(pairs: &[(u64, u64)]) -> PairTotals {
    aggregated(pairs, &PairAggregate::SUMS)
}

/// What kernels are to make of pairs.
fn aggregated(pairs: &[(u64, u64)], aggregates: &[PairAggregate]) -> PairTotals {
    let value = |aggregate: &PairAggregate| {
        let numbers = pairs.iter().map(|(build, probe)| {
            let value = if aggregate.side == PairSide::Build { build } else { probe };
            let bits = u128::from(*value >> aggregate.shift) & ((1 << aggregate.bits) - 1);
            let is_negative = aggregate.is_signed && bits >> (aggregate.bits - 1) == 1;
            bits as i128 - if is_negative { 1 << aggregate.bits } else { 0 }
        });
        match aggregate.function {
            PairFunction::Sum if aggregate.is_signed => i128::from(numbers.sum::<i128>() as i64),
            PairFunction::Sum => i128::from(numbers.sum::<i128>() as u64),
            PairFunction::Min => numbers.min().unwrap_or(0),
            PairFunction::Max => numbers.max().unwrap_or(0),
        }
    };
    PairTotals { matches: pairs.len() as u64, values: aggregates.iter().map(value).collect() }
}

/// Up to as many aggregates as kernels take, of any bits.
fn random_aggregates(random: &mut ChaCha8Rng) -> Vec<PairAggregate> {
    let number = random.random_range(0..=PairAggregate::MOST);
    let aggregate = |_| {
        let bits = *[1, 7, 8, 16, 31, 32, 64].choose(random).unwrap();
        PairAggregate {
            side: if random.random() { PairSide::Build } else { PairSide::Probe },
            function: *[PairFunction::Sum, PairFunction::Min, PairFunction::Max].choose(random).unwrap(),
            shift: random.random_range(0..=64 - bits),
            bits,
            is_signed: random.random(),
        }
    };
    (0..number).map(aggregate).collect()
}

/// What has been found is what was expected; without matches values mean nothing.
fn check_totals(found: &PairTotals, expected: &PairTotals, name: &str) {
    assert_eq!(found.matches, expected.matches, "{name}");
    if expected.matches > 0 {
        assert_eq!(found.values, expected.values, "{name}");
    }
}

pub fn keys_of(relation: &[u64], key: KeyWidth, stream: &Stream) -> DeviceBuffer {
    match key {
        KeyWidth::Four => {
            DeviceBuffer::from_slice(stream, &relation.iter().map(|key| *key as u32).collect::<Vec<_>>()).unwrap()
        }
        KeyWidth::Eight => DeviceBuffer::from_slice(stream, relation).unwrap(),
    }
}

pub fn sorted(pairs: &AllocatedPairs, stream: &Stream, count: usize) -> Result<Vec<(u64, u64)>> {
    let [build, probe] = pairs.columns();
    let (build, probe) = (build.read::<u64>(stream, count)?, probe.read::<u64>(stream, count)?);
    let mut pairs: Vec<(u64, u64)> = build.into_iter().zip(probe).collect();
    pairs.sort_unstable();
    Ok(pairs)
}

/// Joins by one table in all ways of giving a result, and compares each with the reference.
fn check_table(kernels: &Kernels, kind: TableKind, key: KeyWidth, build: &Relation, probe: &Relation) {
    let name = format!("{kind:?} {key:?}, {} and {} tuples", build.keys.len(), probe.keys.len());
    let stream = Stream::new(kernels.device()).unwrap();
    let expected = reference(build, probe);
    let (build_keys, probe_keys) = (keys_of(&build.keys, key, &stream), keys_of(&probe.keys, key, &stream));
    let build_values = DeviceBuffer::from_slice(&stream, &build.values).unwrap();
    let narrow: Vec<u32> = probe.values.iter().map(|value| *value as u32).collect();
    let probe_values = DeviceBuffer::from_slice(&stream, &narrow).unwrap();
    let build_side = JoinSide { keys: build_keys.view(), values: Values::Eight(build_values.view()) };
    let probe_side = JoinSide { keys: probe_keys.view(), values: Values::Four(probe_values.view()) };

    let mut table = HashTable::new(
        kernels,
        kind,
        key,
        build.keys.len() as u64,
        HashFunction::MultiplyShift,
        TablePlacement::Device,
    )
    .unwrap();
    assert_eq!(table.build(&stream, &build_side).unwrap(), 0, "{name}");
    let mut random = ChaCha8Rng::seed_from_u64(probe.values.first().copied().unwrap_or(0));
    for aggregates in [PairAggregate::SUMS.to_vec(), random_aggregates(&mut random)] {
        let found = table.probe_aggregate(&stream, &probe_side, &aggregates).unwrap();
        check_totals(&found, &aggregated(&expected, &aggregates), &format!("{name}, {aggregates:?}"));
    }

    // With room for all, with room for half, and with room for none.
    for capacity in [expected.len(), expected.len() / 2, 0] {
        let [build, probe] =
            [0, 1].map(|_| DeviceBuffer::from_slice(&stream, &vec![7u64; expected.len() + 1]).unwrap());
        let mut pairs = AllocatedPairs::in_columns(build, probe, capacity as u64).unwrap();
        let matches = table.probe_allocate(&stream, &probe_side, &mut pairs).unwrap();
        assert_eq!(matches as usize, expected.len(), "{name}");
        if capacity == expected.len() {
            assert!(sorted(&pairs, &stream, capacity).unwrap() == expected, "{name}: pairs differ");
        }
        for column in pairs.columns() {
            let after: Vec<u64> = column.read(&stream, expected.len() + 1).unwrap();
            assert!(after[capacity..].iter().all(|value| *value == 7), "{name}: written past the room");
        }
    }
}

#[test]
fn tables_that_span_gpu_and_cpu_memory() {
    let gpu = TestGpu::start();
    if !gpu.maps_host_pages() {
        return;
    }
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    // 8 MiB of slots, a quarter of them on the device.
    let tuples = 200_000;
    let placement = TablePlacement::Spanning { device_bytes: 2 << 20, node: 0, mapping: Mapping::Contiguous };
    let (build, probe) = (Relation::dense(tuples, 1, 3), Relation::drawn(10_000, 1..2 * tuples, 4));
    let expected = totals(&reference(&build, &probe));
    let (build_keys, probe_keys) =
        (keys_of(&build.keys, KeyWidth::Eight, &stream), keys_of(&probe.keys, KeyWidth::Eight, &stream));
    let build_values = DeviceBuffer::from_slice(&stream, &build.values).unwrap();
    let probe_values = DeviceBuffer::from_slice(&stream, &probe.values).unwrap();
    let build_side = JoinSide { keys: build_keys.view(), values: Values::Eight(build_values.view()) };
    let probe_side = JoinSide { keys: probe_keys.view(), values: Values::Eight(probe_values.view()) };
    let new = |kind, placement| {
        HashTable::new(&kernels, kind, KeyWidth::Eight, tuples, HashFunction::MultiplyShift, placement)
    };
    for kind in [TableKind::LinearProbing, TableKind::Perfect { smallest_key: 1, slots: 1 << 20 }] {
        let before = kernels.device().memory_held();
        let mut table = new(kind, placement).unwrap();
        assert_eq!(kernels.device().memory_held() - before, 2 << 20, "{kind:?}");
        assert_eq!(table.build(&stream, &build_side).unwrap(), 0, "{kind:?}");
        assert_eq!(table.probe_aggregate(&stream, &probe_side, &PairAggregate::SUMS).unwrap(), expected, "{kind:?}");
        drop(table);
        assert_eq!(kernels.device().memory_held(), before);
        // Without virtual memory management there is no one range, unless one memory holds all.
        let apart = |device_bytes| TablePlacement::Spanning { device_bytes, node: 0, mapping: Mapping::TwoArrays };
        let error = new(kind, apart(2 << 20)).unwrap_err();
        assert!(error.to_string().contains("one range of addresses"), "{error}");
        for device_bytes in [0, 64 << 20] {
            let mut table = new(kind, apart(device_bytes)).unwrap();
            assert_eq!(table.build(&stream, &build_side).unwrap(), 0, "{kind:?}");
            assert_eq!(
                table.probe_aggregate(&stream, &probe_side, &PairAggregate::SUMS).unwrap(),
                expected,
                "{kind:?}"
            );
        }
    }
}

#[test]
fn tables_that_both_processors_fill_and_read() {
    let gpu = TestGpu::start();
    for coherent in [false, true] {
        if !gpu.set_coherent(coherent) {
            continue;
        }
        let kernels = gpu.kernels();
        let stream = Stream::new(kernels.device()).unwrap();
        let before = kernels.device().memory_held();
        let unique = (Relation::dense(5_000, 1, 3), TableKind::Perfect { smallest_key: 1, slots: 6_000 });
        let sparse = (Relation::dense(5_000, 1, 4), TableKind::LinearProbing);
        let few = (Relation::drawn(5_000, 1..2_000, 5), TableKind::LinearProbing);
        let many = (Relation::drawn(5_000, 1..20, 6), TableKind::MultiValue);
        let none = (Relation::drawn(0, 1..2, 7), TableKind::MultiValue);
        for (build, kind) in [unique, sparse, few, many, none] {
            let case = format!("{kind:?}, coherent: {coherent}");
            let probe = Relation::drawn(3_000, 0..7_000, 8);
            let expected = reference(&build, &probe);
            let keys = [&build.keys, &probe.keys].map(|keys| keys_of(keys, KeyWidth::Eight, &stream));
            let values =
                [&build.values, &probe.values].map(|values| DeviceBuffer::from_slice(&stream, values).unwrap());
            let [build_side, probe_side] =
                [0, 1].map(|side| JoinSide { keys: keys[side].view(), values: Values::Eight(values[side].view()) });
            let new = |placement| {
                let capacity = build.keys.len() as u64;
                HashTable::new(&kernels, kind, KeyWidth::Eight, capacity, HashFunction::Murmur3, placement).unwrap()
            };
            let find = |slots: HostSlots<'_>| {
                let mut pairs = vec![];
                for (key, value) in probe.keys.iter().zip(&probe.values) {
                    let mut place = slots.first(*key);
                    while let Some((found, next)) = slots.next(*key, place) {
                        pairs.push((found, *value));
                        place = next;
                    }
                }
                pairs.sort_unstable();
                pairs
            };
            // Filled by two threads, and by a kernel at the same time where that is possible.
            let mut table = new(TablePlacement::Host);
            let tuples: Vec<_> = build.keys.iter().copied().zip(build.values.iter().copied()).collect();
            match table.build_shared(2).unwrap() {
                SharedBuild::Slots(slots, kernel) => {
                    assert_eq!(kernel.is_some(), coherent, "{case}");
                    let by_kernel = if kernel.is_some() { tuples.len() / 2 } else { 0 };
                    let part = JoinSide {
                        keys: keys[0].view().slice(0, by_kernel as u64 * 8).unwrap(),
                        values: Values::Eight(values[0].view().slice(0, by_kernel as u64 * 8).unwrap()),
                    };
                    std::thread::scope(|scope| {
                        for tuples in tuples[by_kernel..].chunks(1 + tuples.len() / 2) {
                            scope.spawn(move || {
                                let is_in = |(key, value)| slots.insert(key, value, slots.first(key));
                                assert!(tuples.iter().copied().all(is_in));
                            });
                        }
                        if let Some(kernel) = &kernel {
                            assert_eq!(kernel.insert(&stream, &part).unwrap(), 0, "{case}");
                        }
                    });
                    if let TableKind::Perfect { slots: range, .. } = kind {
                        // A key that is there, and one that is out of range.
                        for key in [build.keys[0], range + 1, 0] {
                            assert!(!slots.insert(key, 1, slots.first(key)), "{case}");
                        }
                    }
                }
                SharedBuild::Lists(lists) => {
                    let each = |work: &(dyn Fn(usize) + Sync)| {
                        std::thread::scope(|scope| {
                            for rows in [0..tuples.len() / 2, tuples.len() / 2..tuples.len()] {
                                scope.spawn(move || rows.for_each(work));
                            }
                        });
                    };
                    each(&|row| lists.count(&build.keys, row, lists.first(build.keys[row])));
                    lists.place(2);
                    each(&|row| lists.fill(tuples[row].0, tuples[row].1, lists.first(tuples[row].0)));
                }
            }
            assert!(find(table.host_slots().unwrap()) == expected, "{case}: lookups by the CPU");
            assert_eq!(
                table.probe_aggregate(&stream, &probe_side, &PairAggregate::SUMS).unwrap(),
                totals(&expected),
                "{case}"
            );
            // Filled by the device, and copied.
            let mut table = new(TablePlacement::Device);
            assert_eq!(table.build(&stream, &build_side).unwrap(), 0, "{case}");
            assert!(table.host_slots().unwrap_err().to_string().contains("the CPU does not read"), "{case}");
            assert!(table.build_shared(2).is_err(), "{case}");
            let mut copy = vec![0; table.words() as usize];
            table.copy_to_host(&stream, &mut copy).unwrap();
            assert!(find(table.slots_in(&copy).unwrap()) == expected, "{case}: lookups in a copy");
            assert!(table.copy_to_host(&stream, &mut copy[1..]).is_err() && table.slots_in(&copy[1..]).is_err());
        }
        assert_eq!(kernels.device().memory_held(), before);
    }
}

/// Each schedule of the kernels that fill a table while the CPU does.
#[test]
fn tables_of_unique_keys_are_filled_beside_the_cpu() {
    let gpu = TestGpu::start();
    if !gpu.set_coherent(true) {
        return;
    }
    for seed in seeds() {
        gpu.schedule(seed);
        let kernels = gpu.kernels();
        let stream = Stream::new(kernels.device()).unwrap();
        let tuples = scaled(2_000);
        let build = Relation::dense(tuples, 1, seed);
        let keys = keys_of(&build.keys, KeyWidth::Eight, &stream);
        let values = DeviceBuffer::from_slice(&stream, &build.values).unwrap();
        let half = tuples / 2 * 8;
        let part = JoinSide {
            keys: keys.view().slice(0, half).unwrap(),
            values: Values::Eight(values.view().slice(0, half).unwrap()),
        };
        for kind in [TableKind::Perfect { smallest_key: 1, slots: tuples }, TableKind::LinearProbing] {
            let hash = HashFunction::Murmur3;
            let mut table =
                HashTable::new(&kernels, kind, KeyWidth::Eight, tuples, hash, TablePlacement::Host).unwrap();
            let SharedBuild::Slots(slots, Some(kernel)) = table.build_shared(2).unwrap() else {
                panic!("{kind:?} is filled by both")
            };
            let (build, half) = (&build, half as usize / 8);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for (key, value) in build.keys.iter().zip(&build.values).skip(half) {
                        assert!(slots.insert(*key, *value, slots.first(*key)));
                    }
                });
                assert_eq!(kernel.insert(&stream, &part).unwrap(), 0, "{kind:?}");
            });
            let slots = table.host_slots().unwrap();
            for (key, value) in build.keys.iter().zip(&build.values) {
                assert_eq!(slots.next(*key, slots.first(*key)).map(|found| found.0), Some(*value), "{kind:?}, {seed}");
            }
        }
    }
}

#[test]
fn ranges_wider_than_any_memory_are_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let new = |kind, capacity| {
        let hash = HashFunction::MultiplyShift;
        HashTable::new(&kernels, kind, KeyWidth::Eight, capacity, hash, TablePlacement::Device).unwrap_err().to_string()
    };
    for slots in [(1 << 61) + 1, u64::MAX] {
        let told = new(TableKind::Perfect { smallest_key: 0, slots }, 10);
        assert!(told.contains(&format!("{slots} slots of 8 bytes")), "{told}");
    }
    let told = new(TableKind::Perfect { smallest_key: 0, slots: 1 << 40 }, 10);
    assert!(told.contains("bytes of GPU memory were asked for"), "{told}");
    for kind in [TableKind::LinearProbing, TableKind::MultiValue] {
        for capacity in [1 << 61, 1 << 62, u64::MAX] {
            let told = new(kind, capacity);
            assert!(told.starts_with("a hash table of"), "{kind:?} {capacity}: {told}");
        }
    }
    assert_eq!(kernels.device().memory_held(), 0);
}

#[test]
fn tables_of_unique_keys() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for seed in seeds() {
        gpu.schedule(seed);
        let tuples = scaled(3_000);
        let build = Relation::dense(tuples, 1_000, seed);
        // Half of the probe side finds a match.
        let probe = Relation::drawn(2 * tuples, 1_000 - tuples / 4..1_000 + tuples * 7 / 4, seed + 100);
        for key in [KeyWidth::Four, KeyWidth::Eight] {
            let perfect = TableKind::Perfect { smallest_key: 1_000, slots: tuples };
            for kind in [perfect, TableKind::LinearProbing, TableKind::MultiValue] {
                check_table(&kernels, kind, key, &build, &probe);
            }
        }
    }
}

#[test]
fn tables_of_duplicate_keys() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for seed in seeds() {
        gpu.schedule(seed);
        let tuples = scaled(1_000);
        // Among them keys of all ones, and one key that a tenth of the build side has.
        let mut build = Relation::drawn(tuples, 0..tuples / 3, seed);
        for key in build.keys.iter_mut().step_by(10) {
            *key = u64::from(u32::MAX);
        }
        let mut probe = Relation::drawn(tuples, 0..tuples / 2, seed + 100);
        for key in probe.keys.iter_mut().step_by(50) {
            *key = u64::from(u32::MAX);
        }
        for key in [KeyWidth::Four, KeyWidth::Eight] {
            for kind in [TableKind::LinearProbing, TableKind::MultiValue] {
                check_table(&kernels, kind, key, &build, &probe);
            }
        }
        let widest = |relation: &Relation| Relation {
            keys: relation.keys.iter().map(|key| if *key == u64::from(u32::MAX) { u64::MAX } else { *key }).collect(),
            values: relation.values.clone(),
        };
        for kind in [TableKind::LinearProbing, TableKind::MultiValue] {
            check_table(&kernels, kind, KeyWidth::Eight, &widest(&build), &widest(&probe));
        }
    }
}

#[test]
fn empty_sides_and_row_ids() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let (none, some) = (Relation::new(vec![], 0), Relation::dense(50, 0, 1));
    for kind in [TableKind::Perfect { smallest_key: 0, slots: 50 }, TableKind::LinearProbing, TableKind::MultiValue] {
        check_table(&kernels, kind, KeyWidth::Eight, &none, &some);
        check_table(&kernels, kind, KeyWidth::Four, &some, &none);
        check_table(&kernels, kind, KeyWidth::Four, &none, &none);
    }
    let stream = Stream::new(kernels.device()).unwrap();
    let keys = DeviceBuffer::from_slice(&stream, &[5u64, 6, 7]).unwrap();
    let mut table = HashTable::new(
        &kernels,
        TableKind::LinearProbing,
        KeyWidth::Eight,
        3,
        HashFunction::Murmur3,
        TablePlacement::Device,
    )
    .unwrap();
    table.build(&stream, &JoinSide { keys: keys.view(), values: Values::RowIds(10) }).unwrap();
    let side = JoinSide { keys: keys.view(), values: Values::RowIds(100) };
    let found = table.probe_aggregate(&stream, &side, &PairAggregate::SUMS).unwrap();
    assert_eq!(found, PairTotals { matches: 3, values: vec![10 + 11 + 12, 100 + 101 + 102] });
}

/// 17 GB of addresses, of which no page is ever written: all read the same page of zeros.
#[test]
#[ignore = "takes minutes"]
fn more_tuples_than_32_bits_count() {
    let gpu = TestGpu::start();
    if !gpu.set_coherent(true) {
        return;
    }
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let tuples = (1u64 << 32) + 3;
    let mut probe = HostBuffer::new((tuples * 4) as usize, PageSize::Small).unwrap();
    probe.as_mut_slice::<u32>()[tuples as usize - 1] = 7;
    let build = DeviceBuffer::from_slice(&stream, &[7u32, 0]).unwrap();
    for kind in [TableKind::Perfect { smallest_key: 0, slots: 8 }, TableKind::LinearProbing, TableKind::MultiValue] {
        let mut table =
            HashTable::new(&kernels, kind, KeyWidth::Four, 2, HashFunction::Murmur3, TablePlacement::Device).unwrap();
        table.build(&stream, &JoinSide { keys: build.view(), values: Values::RowIds(0) }).unwrap();
        let side = JoinSide { keys: probe.view(kernels.device()).unwrap(), values: Values::RowIds(0) };
        let found = table.probe_aggregate(&stream, &side, &PairAggregate::SUMS).unwrap();
        // The sum of all row ids, and row 1 of the build side for each key but the last.
        let rows = (u128::from(tuples) * u128::from(tuples - 1) / 2) as u64;
        assert_eq!((found.matches, found.sum()), (tuples, rows.wrapping_add(tuples - 1)), "{kind:?}");
    }
}

/// A wait costs as long as joining a million tuples.
#[test]
fn each_step_waits_once() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let kernels = gpu.kernels();
    kernels.device().keep_freed_memory(64 << 20);
    let stream = Stream::new(kernels.device()).unwrap();
    let keys = DeviceBuffer::from_slice(&stream, &(0..1000).collect::<Vec<u64>>()).unwrap();
    let side = JoinSide { keys: keys.view(), values: Values::RowIds(0) };
    let mut pairs = AllocatedPairs::new(kernels.device(), 1000).unwrap();
    let waits = |what: &str, expected: u64, work: &mut dyn FnMut()| {
        // The first time allocates and loads.
        work();
        let before = gpu.statistics().waits_made;
        work();
        assert_eq!(gpu.statistics().waits_made - before, expected, "{what}");
    };
    for (kind, build) in [
        (TableKind::Perfect { smallest_key: 0, slots: 1000 }, 1),
        (TableKind::LinearProbing, 1),
        // Its tuples are counted, summed up and placed.
        (TableKind::MultiValue, 3),
    ] {
        let (hash, place) = (HashFunction::Murmur3, TablePlacement::Device);
        let mut table = HashTable::new(&kernels, kind, KeyWidth::Eight, 1000, hash, place).unwrap();
        waits("build", build, &mut || assert_eq!(table.build(&stream, &side).unwrap(), 0));
        waits("aggregate", 1, &mut || {
            let found = table.probe_aggregate(&stream, &side, &PairAggregate::SUMS).unwrap();
            assert_eq!(found.matches, 1000);
        });
        waits("allocate", 1, &mut || {
            assert_eq!(table.probe_allocate(&stream, &side, &mut pairs).unwrap(), 1000);
        });
    }
    let radix = Radix::new(3, 0, HashFunction::MultiplyShift).unwrap();
    let relation = Relation::dense(1000, 0, 1);
    let partitioned = partition(&kernels, &relation, KeyWidth::Eight, radix);
    let side = PartitionedSide { side: side_of(&partitioned), extents: &partitioned.2 };
    let join = PartitionedJoin::new(&kernels, KeyWidth::Eight, radix).unwrap();
    waits("join of partitions", 1, &mut || {
        assert_eq!(join.aggregate(&stream, &side, &side, &PairAggregate::SUMS).unwrap().matches, 1000);
    });
    let plan = PartitionPlan::new(&kernels, Algorithm::Shared, KeyWidth::Eight, &[], radix, 1000, 8 << 20).unwrap();
    let mut room = DeviceBuffer::new(kernels.device(), plan.output_tuples() * 8).unwrap();
    let mut partitioner = Partitioner::new(&kernels, plan).unwrap();
    waits("partitioning", 1, &mut || {
        let mut output = Output { keys: room.view_mut(), payloads: vec![] };
        partitioner.run(&stream, &Input { keys: keys.view(), payloads: vec![] }, &mut output).unwrap();
    });
}

#[test]
fn perfect_hashing_says_what_it_cannot_take() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let keys = DeviceBuffer::from_slice(&stream, &[4u64, 5, 6, 6, 15, 3]).unwrap();
    let kind = TableKind::Perfect { smallest_key: 4, slots: 10 };
    let mut table =
        HashTable::new(&kernels, kind, KeyWidth::Eight, 6, HashFunction::MultiplyShift, TablePlacement::Device)
            .unwrap();
    let side = JoinSide { keys: keys.view(), values: Values::RowIds(0) };
    assert_eq!(table.build(&stream, &side).unwrap(), 3, "a duplicate, one above the range and one below");
    let mut table =
        HashTable::new(&kernels, kind, KeyWidth::Eight, 5, HashFunction::MultiplyShift, TablePlacement::Device)
            .unwrap();
    assert!(table.build(&stream, &side).unwrap_err().to_string().contains("6 tuples for a hash table of 5"));
}

/// A side, partitioned: its keys, its values, and where its partitions are.
type Partitioned = (DeviceBuffer, DeviceBuffer, Extents);

fn side_of(partitioned: &Partitioned) -> JoinSide<'_> {
    JoinSide { keys: partitioned.0.view(), values: Values::Eight(partitioned.1.view()) }
}

fn partition(kernels: &Kernels, relation: &Relation, key: KeyWidth, radix: Radix) -> Partitioned {
    let stream = Stream::new(kernels.device()).unwrap();
    let plan =
        PartitionPlan::new(kernels, Algorithm::Shared, key, &[8], radix, relation.keys.len() as u64, 8 << 20).unwrap();
    let keys = keys_of(&relation.keys, key, &stream);
    let values = DeviceBuffer::from_slice(&stream, &relation.values).unwrap();
    let mut out_keys = DeviceBuffer::new(kernels.device(), plan.output_tuples() * key.bytes()).unwrap();
    let mut out_values = DeviceBuffer::new(kernels.device(), plan.output_tuples() * 8).unwrap();
    let input = Input { keys: keys.view(), payloads: vec![PayloadInput::Column(values.view())] };
    let mut output = Output { keys: out_keys.view_mut(), payloads: vec![out_values.view_mut()] };
    let partitions = Partitioner::new(kernels, plan).unwrap().run(&stream, &input, &mut output).unwrap();
    drop(output);
    let extents = Extents::new(&stream, &partitions).unwrap();
    // Other streams read them.
    stream.synchronize().unwrap();
    (out_keys, out_values, extents)
}

fn check_partitioned(kernels: &Kernels, key: KeyWidth, bits: u32, build: &Relation, probe: &Relation) {
    let name = format!("{key:?}, {} and {} tuples, {bits} bits", build.keys.len(), probe.keys.len());
    let stream = Stream::new(kernels.device()).unwrap();
    let radix = Radix::new(bits, 0, HashFunction::MultiplyShift).unwrap();
    let expected = reference(build, probe);
    let built = partition(kernels, build, key, radix);
    let probed = partition(kernels, probe, key, radix);
    let build_side = PartitionedSide { side: side_of(&built), extents: &built.2 };
    let probe_side = PartitionedSide { side: side_of(&probed), extents: &probed.2 };
    let join = PartitionedJoin::new(kernels, key, radix).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(build.keys.len() as u64);
    for aggregates in [PairAggregate::SUMS.to_vec(), random_aggregates(&mut random)] {
        let found = join.aggregate(&stream, &build_side, &probe_side, &aggregates).unwrap();
        check_totals(&found, &aggregated(&expected, &aggregates), &format!("{name}, {aggregates:?}"));
    }
    let mut pairs = AllocatedPairs::new(kernels.device(), expected.len() as u64).unwrap();
    assert_eq!(
        join.allocate(&stream, &build_side, &probe_side, &mut pairs).unwrap() as usize,
        expected.len(),
        "{name}"
    );
    assert!(sorted(&pairs, &stream, expected.len()).unwrap() == expected, "{name}: pairs differ");
}

/// Copies a column to pages of GPU and CPU memory.
fn spilled(kernels: &Kernels, stream: &Stream, values: &[u64]) -> SharedView {
    let bytes = size_of_val(values) as u64;
    let layout = SpanningLayout {
        layout: Layout::Interleaved,
        bytes,
        device_bytes: vec![bytes / 2],
        stripe_bytes: 2 << 20,
        node: 0,
    };
    let mut buffer = SpanningBuffer::new(&[Arc::clone(kernels.device())], &layout, Mapping::Contiguous).unwrap();
    buffer.write(stream, 0, values).unwrap();
    SharedView::new(Arc::new(buffer), 0, bytes).unwrap()
}

/// One stream refines partitions while another joins those before them, and the CPU waits only for the pairs.
#[test]
fn queued_passes_precede_queued_joins() {
    let gpu = TestGpu::start();
    if !gpu.maps_host_pages() {
        return;
    }
    let kernels = gpu.kernels();
    kernels.device().keep_freed_memory(64 << 20);
    let (joining, refining) = (Stream::new(kernels.device()).unwrap(), Stream::new(kernels.device()).unwrap());
    let radix = Radix::new(4, 0, HashFunction::Murmur3).unwrap();
    let join = PartitionedJoin::new(&kernels, KeyWidth::Eight, radix).unwrap();
    let held = kernels.device().memory_held();
    for seed in 0..4 {
        let tuples = scaled(2_000);
        let (build, probe) =
            (Relation::drawn(tuples, 0..tuples, seed), Relation::drawn(2 * tuples, 0..tuples, 9 + seed));
        let expected = reference(&build, &probe);
        let input = |relation: &Relation, is_spilled| SecondPassInput {
            keys: spilled(&kernels, &joining, &relation.keys),
            values: spilled(&kernels, &joining, &relation.values),
            value_bytes: 8,
            is_spilled,
        };
        // Both sides are copied to the same memory, one after the other; or none is.
        let inputs = [input(&build, seed % 2 == 0), input(&probe, seed % 2 == 0)];
        let before = gpu.statistics().waits_made;
        let mut pass = SecondPass::new(&refining, 2 * tuples);
        let sides = [0, 1].map(|side| Arc::new(pass.queue(&kernels, &inputs[side], radix).unwrap()));
        drop(pass);
        let pairs = AllocatedPairs::new(kernels.device(), expected.len() as u64).unwrap();
        let pairs = join.queue_allocate(&joining, [&sides[0], &sides[1]], pairs).unwrap();
        let totals = join.queue_aggregate(&joining, [&sides[0], &sides[1]], &PairAggregate::SUMS).unwrap();
        assert_eq!(pairs.result().found(&joining).unwrap() as usize, expected.len());
        let [build, probe] = sides;
        build.settle();
        assert_eq!(build.result().tuples(), tuples);
        drop((build, probe));
        let waits = gpu.statistics().waits_made - before;
        assert!(waits <= 1, "{waits} waits, but one for the join also covers the passes before it");
        check_totals(&totals.result().read(&joining).unwrap(), &aggregated(&expected, &PairAggregate::SUMS), "queued");
        assert!(sorted(pairs.result(), &joining, expected.len()).unwrap() == expected, "pairs differ");
    }
    // Queued work that no call has waited for: dropping it waits.
    let values: Vec<u64> = (0..1000).collect();
    let [keys, values] = [0, 1].map(|_| spilled(&kernels, &joining, &values));
    let input = SecondPassInput { keys, values, value_bytes: 8, is_spilled: true };
    let queued = SecondPass::new(&refining, 1000).queue(&kernels, &input, radix).unwrap();
    let before = gpu.statistics();
    drop(queued);
    let after = gpu.statistics();
    assert!(before.launches_made == 0 || after.waits_made > before.waits_made, "dropped while the GPU used it");
    assert!(SecondPass::new(&refining, 1).queue(&kernels, &input, radix).is_err(), "more tuples than was said");
    drop(input);
    assert_eq!(kernels.device().memory_held(), held);
}

#[test]
fn partitions_join_in_the_scratchpad() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for seed in seeds() {
        gpu.schedule(seed);
        let tuples = scaled(3_000);
        for key in [KeyWidth::Four, KeyWidth::Eight] {
            check_partitioned(
                &kernels,
                key,
                3,
                &Relation::drawn(tuples, 0..tuples, seed),
                &Relation::drawn(tuples, 0..tuples, seed + 9),
            );
        }
    }
}

#[test]
fn partitions_larger_than_the_scratchpad_join_in_pieces() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    // 1 KiB beyond the buckets, what kernels name themselves, and what the driver takes: some 50 tuples.
    gpu.configure("shared=21760;seed=4");
    let kernels = gpu.kernels();
    let tuples = scaled(2_000);
    let mut probe = Relation::drawn(tuples, 0..tuples, 2);
    for key in probe.keys.iter_mut().step_by(2) {
        *key = 3;
    }
    check_partitioned(&kernels, KeyWidth::Eight, 2, &Relation::drawn(tuples, 0..tuples, 1), &probe);
}

#[test]
fn skewed_and_empty_partitions() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let (none, some) = (Relation::new(vec![], 0), Relation::dense(100, 0, 1));
    check_partitioned(&kernels, KeyWidth::Eight, 4, &none, &some);
    check_partitioned(&kernels, KeyWidth::Eight, 4, &some, &none);
    if scaled(u64::MAX) == u64::MAX {
        // One partition of the probe side is cut into several tasks.
        let probe = Relation::new(vec![42; 200_000], 3);
        check_partitioned(&kernels, KeyWidth::Four, 4, &some, &probe);
    }
}
