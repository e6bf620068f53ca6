//! Hash tables whose pages lie in the memory of several devices.

use overspill_kernels::{
    AllocatedPairs, HashFunction, HashTable, JoinSide, Kernels, KeyWidth, PairAggregate, TableKind, TableShares, Values,
};
use overspill_machine::driver::{PeerAccess, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use crate::faults::each_fails_once;
use crate::join::{Relation, keys_of, reference, sorted, totals};
use crate::test_gpu::{TestGpu, scaled, seeds};

const STRIPE: u64 = 2 << 20;

/// Tuples that tables have room for: enough that their pages lie on all of three devices.
const CAPACITY: u64 = 150_000;

const PERFECT: TableKind = TableKind::Perfect { smallest_key: 1, slots: 1 << 20 };

fn kernels(gpu: &TestGpu, devices: usize) -> Result<Vec<Kernels>> {
    (0..devices).map(|ordinal| Kernels::load(&gpu.driver.device(ordinal, 64 << 20)?)).collect()
}

/// An even share of each device, and as many stripes less as are to lie in CPU memory.
fn shares(kind: TableKind, capacity: u64, devices: u64, on_host: u64) -> TableShares {
    let stripes = HashTable::bytes(kind, KeyWidth::Eight, capacity).unwrap().div_ceil(STRIPE) - on_host;
    let share = |device| (stripes / devices + u64::from(device < stripes % devices)) * STRIPE;
    TableShares { device_bytes: (0..devices).map(share).collect(), node: 0 }
}

fn table(kernels: &[Kernels], kind: TableKind, capacity: u64, shares: &TableShares) -> Result<HashTable> {
    HashTable::interleaved(kernels, kind, KeyWidth::Eight, capacity, HashFunction::Murmur3, shares)
}

/// Fills a table by kernels of the first device or of all, an equal part each.
fn build(table: &mut HashTable, kernels: &[Kernels], by_all: bool, relation: &Relation) -> Result<()> {
    let streams = kernels.iter().map(|kernels| Stream::new(kernels.device())).collect::<Result<Vec<_>>>()?;
    if !by_all {
        let keys = DeviceBuffer::from_slice(&streams[0], &relation.keys)?;
        let values = DeviceBuffer::from_slice(&streams[0], &relation.values)?;
        let side = JoinSide { keys: keys.view(), values: Values::Eight(values.view()) };
        assert_eq!(table.build(&streams[0], &side)?, 0);
        return Ok(());
    }
    let build_kernels = table.build_by_all(&streams[0])?;
    assert_eq!(build_kernels.len(), kernels.len());
    let part = relation.keys.len().div_ceil(kernels.len()).max(1);
    let parts = relation.keys.chunks(part).zip(relation.values.chunks(part));
    std::thread::scope(|scope| {
        let inserting: Vec<_> = parts
            .zip(build_kernels.iter().zip(&streams))
            .map(|((keys, values), (kernel, stream))| {
                scope.spawn(move || {
                    let keys = DeviceBuffer::from_slice(stream, keys)?;
                    let values = DeviceBuffer::from_slice(stream, values)?;
                    let side = JoinSide { keys: keys.view(), values: Values::Eight(values.view()) };
                    assert_eq!(kernel.insert(stream, &side)?, 0);
                    Ok(())
                })
            })
            .collect();
        inserting.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// Looks a relation up from each device, and compares sums and pairs with those of a plain map.
fn probe(table: &HashTable, kernels: &[Kernels], expected: &[(u64, u64)], relation: &Relation) -> Result<()> {
    for kernels in kernels {
        let stream = Stream::new(kernels.device())?;
        let keys = DeviceBuffer::from_slice(&stream, &relation.keys)?;
        let values = DeviceBuffer::from_slice(&stream, &relation.values)?;
        let side = JoinSide { keys: keys.view(), values: Values::Eight(values.view()) };
        assert_eq!(
            table.probe_aggregate(&stream, &side, &PairAggregate::SUMS)?,
            totals(expected),
            "GPU {}",
            kernels.device().ordinal()
        );
        let mut pairs = AllocatedPairs::new(kernels.device(), expected.len() as u64)?;
        let found = table.probe_allocate(&stream, &side, &mut pairs)?;
        assert_eq!(found as usize, expected.len());
        assert!(
            sorted(&pairs, &stream, expected.len())? == expected,
            "GPU {}: pairs differ",
            kernels.device().ordinal()
        );
    }
    Ok(())
}

/// What a kind takes: unique keys of its range, unique keys, keys that repeat.
fn relation(kind: TableKind, seed: u64) -> Relation {
    let tuples = scaled(2_000);
    match kind {
        TableKind::MultiValue => Relation::drawn(tuples, 0..tuples / 3, seed),
        _ => {
            // Far apart, so that all pages of the range are written.
            let mut relation = Relation::dense(tuples, 0, seed);
            let apart = (1 << 20) / tuples;
            relation.keys.iter_mut().for_each(|key| *key = *key * apart + 1);
            relation
        }
    }
}

#[test]
fn every_device_builds_and_probes_an_interleaved_table() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let before = gpu.held();
    for devices in [2, 3] {
        let kernels = kernels(&gpu, devices).unwrap();
        for seed in seeds() {
            gpu.schedule(seed);
            for kind in [PERFECT, TableKind::LinearProbing, TableKind::MultiValue] {
                let on_host = seed % 2;
                let case = format!("{kind:?} on {devices} devices, {on_host} stripes on the host, schedule {seed}");
                let filled = relation(kind, seed);
                let mut looked_up = relation(kind, seed + 100);
                looked_up.keys.iter_mut().step_by(3).for_each(|key| *key += 1);
                let expected = reference(&filled, &looked_up);
                let held = |kernels: &Kernels| kernels.device().memory_held();
                let idle: Vec<u64> = kernels.iter().map(held).collect();
                let shares = shares(kind, CAPACITY, devices as u64, on_host);
                let mut table = table(&kernels, kind, CAPACITY, &shares).unwrap();
                for ((kernels, idle), share) in kernels.iter().zip(&idle).zip(&shares.device_bytes) {
                    assert_eq!(held(kernels) - idle, *share, "{case}");
                    assert!(*share > 0, "{case}");
                }
                // Keys that repeat are grouped by one device.
                for by_all in [false, true] {
                    if by_all && kind == TableKind::MultiValue {
                        let told = table.build_by_all(&Stream::new(kernels[0].device()).unwrap()).unwrap_err();
                        assert!(told.to_string().contains("which one GPU fills"), "{told}");
                        continue;
                    }
                    build(&mut table, &kernels, by_all, &filled).unwrap();
                    probe(&table, &kernels, &expected, &looked_up).unwrap_or_else(|error| panic!("{case}: {error}"));
                }
                drop(table);
                assert_eq!(kernels.iter().map(held).collect::<Vec<_>>(), idle, "{case}");
            }
        }
        drop(kernels);
        assert_eq!(gpu.held(), before);
    }
}

#[test]
fn the_first_device_fills_pages_of_the_others() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    gpu.configure("peer_atomics=0");
    let kernels = kernels(&gpu, 2).unwrap();
    let [first, second] = [&kernels[0], &kernels[1]].map(|kernels| kernels.device());
    let access = PeerAccess { reads_and_writes: true, native_atomics: false };
    assert_eq!((first.access_to(second).unwrap(), second.access_to(first).unwrap()), (access, access));
    assert!(first.access_to(first).is_err());
    gpu.configure("peer_atomics=1");
    assert!(first.access_to(second).unwrap().native_atomics);
    gpu.configure("peer_access=0");
    let none = PeerAccess { reads_and_writes: false, native_atomics: false };
    assert_eq!(first.access_to(second).unwrap(), none);
    // A table that only one device was told of is no other's.
    let stream = Stream::new(second).unwrap();
    let alone = table(&kernels[..1], PERFECT, CAPACITY, &TableShares { device_bytes: vec![8 << 20], node: 0 }).unwrap();
    let keys = keys_of(&[1], KeyWidth::Eight, &stream);
    let side = JoinSide { keys: keys.view(), values: Values::RowIds(0) };
    let told = alone.probe_aggregate(&stream, &side, &PairAggregate::SUMS).unwrap_err();
    assert!(told.to_string().contains("GPU 1 does not reach"), "{told}");
}

#[test]
fn failures_on_any_device_leave_nothing() {
    // Few pages, of which each device has some: every call fails once.
    for (kind, capacity) in [(PERFECT, 2_000), (TableKind::MultiValue, 40_000)] {
        let work = |gpu: &TestGpu| {
            let kernels = kernels(gpu, 2)?;
            let filled = relation(kind, 1);
            let expected = reference(&filled, &filled);
            let mut table = table(&kernels, kind, capacity, &shares(kind, capacity, 2, 0))?;
            build(&mut table, &kernels, kind == PERFECT, &filled)?;
            probe(&table, &kernels, &expected, &filled)
        };
        each_fails_once("allocation", 10, work);
        each_fails_once("copy", 10, work);
        each_fails_once("launch", 6, work);
        each_fails_once("synchronisation", 10, work);
        each_fails_once("device_lost", 60, work);
    }
}

/// One device is lost, and the other gives back what it has.
#[test]
fn the_loss_of_a_device_is_its_own() {
    for lost in 0..2 {
        let Some(gpu) = TestGpu::stand_in() else { return };
        let kernels = kernels(&gpu, 2).unwrap();
        let living = &kernels[1 - lost];
        let idle = living.device().memory_held();
        let table = table(&kernels, PERFECT, CAPACITY, &shares(PERFECT, CAPACITY, 2, 0)).unwrap();
        gpu.configure(&format!("fail=device_lost:1@{lost}"));
        let error = Stream::new(kernels[lost].device()).unwrap_err();
        assert!(
            matches!(error, Error::DeviceLost { .. }) && error.to_string().starts_with(&format!("GPU {lost} is lost")),
            "{error}"
        );
        let stream = Stream::new(living.device()).unwrap();
        let buffer = DeviceBuffer::from_slice(&stream, &[7u64]).unwrap();
        assert_eq!(buffer.read::<u64>(&stream, 1).unwrap(), [7]);
        assert!(Stream::new(kernels[lost].device()).is_err());
        drop((table, buffer));
        assert_eq!(living.device().memory_held(), idle);
        let statistics = gpu.statistics();
        assert_eq!((statistics.physical_pieces, statistics.address_ranges), (0, 0));
        drop((stream, kernels));
        gpu.configure("reset=1");
    }
}
