use std::sync::Arc;

use overspill_index::{Index, IndexKind, PlacedIndex, SortedKeys};
use overspill_kernels::{
    AllocatedPairs, DeviceIndex, DeviceSearch, IndexLookup, JoinSide, Kernels, PairAggregate, Values, WindowedLookup,
};
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{Buffer, DeviceBuffer, PageSize, Placement, View};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::faults::each_fails_once;
use crate::join::{Relation, reference, sorted, totals};
use crate::test_gpu::{TestGpu, scaled, seeds};

const GPU_MEMORY: Placement = Placement::Device;
const CPU_MEMORY: Placement = Placement::Host { pages: PageSize::Small, pinned: true };

/// Looks the keys of a side up in the order they come in, and in windows of several sizes. Returns the pairs of each.
fn look_up(
    kernels: &Kernels,
    index: &Index,
    build: &Relation,
    probe: &Relation,
    placement: Placement,
    windows: &[u64],
) -> Result<Vec<Vec<(u64, u64)>>> {
    let stream = Stream::new(kernels.device())?;
    let values: Vec<u32> = build.values.iter().map(|value| *value as u32).collect();
    let placed = PlacedIndex::new(&stream, index, Some(&values), placement)?;
    let lookup = IndexLookup::new(kernels, placed.on(kernels.device())?)?;
    let mut keys = Buffer::new(kernels.device(), placement, probe.keys.len() as u64 * 8)?;
    keys.write(&stream, &probe.keys)?;
    let values = DeviceBuffer::with_values(&stream, &probe.values)?;
    let keys: View<'_> = keys.view(kernels.device())?;
    let expected = reference(build, probe);
    let mut pairs = AllocatedPairs::new(kernels.device(), expected.len() as u64)?;
    let mut found = vec![];
    let read = |pairs: &AllocatedPairs, matches: u64| {
        assert_eq!(matches as usize, expected.len(), "the number of matches");
        sorted(pairs, &stream, expected.len())
    };
    let side = JoinSide { keys, values: Values::Eight(values.view()) };
    let matches = lookup.allocate(&stream, &side, &mut pairs)?;
    found.push(read(&pairs, matches)?);
    assert_eq!(lookup.aggregate(&stream, &side, &PairAggregate::SUMS)?, totals(&expected));
    for window in windows {
        let mut windowed = WindowedLookup::new(&lookup, *window, 8, false)?;
        assert_eq!(windowed.aggregate(&side, &PairAggregate::SUMS)?, totals(&expected));
        let matches = windowed.allocate(&side, &mut pairs)?;
        found.push(read(&pairs, matches)?);
        // Row ids in place of values, of as few bytes as they take.
        let rows = JoinSide { keys, values: Values::RowIds(7) };
        let mut windowed = WindowedLookup::new(&lookup, *window, 4, true)?;
        let matches = windowed.allocate(&rows, &mut pairs)?;
        let mut named = read(&pairs, matches)?;
        named.iter_mut().for_each(|(_, row)| *row = probe.values[*row as usize - 7]);
        named.sort_unstable();
        found.push(named);
    }
    Ok(found)
}

fn index_of(kind: IndexKind, build: &Relation) -> (Index, Relation) {
    let mut order: Vec<usize> = (0..build.keys.len()).collect();
    order.sort_by_key(|row| build.keys[*row]);
    let of = |column: &[u64]| order.iter().map(|row| column[*row]).collect::<Vec<_>>();
    let build = Relation { keys: of(&build.keys), values: of(&build.values) };
    let keys = SortedKeys::write(build.keys.len(), |keys| keys.copy_from_slice(&build.keys)).unwrap();
    (Index::build(kind, Arc::new(keys)).unwrap(), build)
}

fn check(kernels: &Kernels, build: &Relation, probe: &Relation, placement: Placement, windows: &[u64], case: &str) {
    let expected = reference(build, probe);
    for kind in IndexKind::ALL {
        let (index, build) = index_of(kind, build);
        let found = look_up(kernels, &index, &build, probe, placement, windows).unwrap();
        assert!(found.iter().all(|pairs| *pairs == expected), "{kind}: {case}");
    }
}

#[test]
fn every_kernel_looks_up_what_a_sorted_array_has() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    for seed in seeds() {
        gpu.schedule(seed);
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let count = scaled([0, 1, 7, 33, 600, 5000][seed as usize % 6]);
        let start = [0, 1 << 40, u64::MAX - 40_000][seed as usize % 3];
        let mut build = match seed % 4 {
            0 => Relation::dense(count, start, seed),
            1 => Relation::drawn(count, start..start + 3 * count + 1, seed),
            2 => Relation::drawn(count, 0..u64::MAX, seed),
            // Many equal keys.
            _ => Relation::drawn(count, start..start + 5, seed),
        };
        // Small keys beside large ones, as a spline hates them.
        for key in build.keys.iter_mut().step_by(3) {
            *key >>= random.random_range(0..64) / 8 * 8;
        }
        let mut probe = Relation::drawn(scaled(300), start..start + 40_000, seed + 100);
        for key in probe.keys.iter_mut().step_by(2).filter(|_| !build.keys.is_empty()) {
            *key = build.keys[random.random_range(0..build.keys.len())].saturating_add(random.random_range(0..2));
        }
        probe.keys.truncate(if seed == 5 { 0 } else { usize::MAX });
        probe.values.truncate(probe.keys.len());
        let placement = if seed % 2 == 0 { GPU_MEMORY } else { CPU_MEMORY };
        check(
            &kernels,
            &build,
            &probe,
            placement,
            &[[64, 100_000][seed as usize / 2 % 2]],
            &format!("schedule {seed}"),
        );
    }
}

/// More levels of every tree, and a spline of many points.
#[test]
fn large_indexes_agree_with_a_sorted_array() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(9);
    let mut build = Relation::drawn(300_000, 0..u64::MAX, 9);
    build.keys.iter_mut().for_each(|key| *key >>= random.random_range(0..3) * 13);
    let mut probe = Relation::drawn(8_000, 0..u64::MAX, 10);
    for key in probe.keys.iter_mut().step_by(2) {
        *key = build.keys[random.random_range(0..build.keys.len())];
    }
    check(&kernels, &build, &probe, GPU_MEMORY, &[6000], "large");
}

/// A window of a single key, and one key after another.
#[test]
fn windows_may_be_as_small_as_a_key() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let (build, probe) = (Relation::dense(100, 5, 1), Relation::drawn(9, 0..120, 2));
    check(&kernels, &build, &probe, CPU_MEMORY, &[1, 2], "tiny windows");
}

fn work(gpu: &TestGpu) -> Result<()> {
    let kernels = Kernels::load(&gpu.driver.device(0, 64 << 20)?)?;
    let (build, probe) = (Relation::dense(300, 5, 1), Relation::drawn(50, 0..500, 2));
    let (index, build) = index_of(IndexKind::RadixSpline, &build);
    let found = look_up(&kernels, &index, &build, &probe, CPU_MEMORY, &[30])?;
    assert!(found.iter().all(|pairs| *pairs == reference(&build, &probe)), "a wrong answer instead of an error");
    Ok(())
}

#[test]
fn what_fails_while_keys_are_looked_up_ends_in_an_error() {
    for (kind, at_least) in [
        ("allocation", 20),
        ("registration", 5),
        ("copy", 3),
        ("launch", 15),
        ("synchronisation", 10),
        ("device_lost", 20),
    ] {
        each_fails_once(kind, at_least, work);
    }
}

#[test]
fn what_is_no_index_is_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let words = DeviceBuffer::from_slice(&stream, &[1u64, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let index = |length, rows, search| {
        // SAFETY: nothing is looked up.
        unsafe { DeviceIndex::new(words.view(), length, (1, 8), rows, search) }
    };
    let error = |length, rows, search| index(length, rows, search).unwrap_err().to_string();
    let text = error(9, None, DeviceSearch::BinarySearch);
    assert!(text.contains("sorted keys have 64 bytes of 128"), "{text}");
    let text = error(8, Some(View::empty()), DeviceSearch::BinarySearch);
    assert!(text.contains("row numbers of an index have 0 bytes of 32"), "{text}");
    let text = error(8, None, DeviceSearch::BTree { nodes: words.view(), node_keys: 8, levels: &[0; 17] });
    assert!(text.contains("17 levels"), "{text}");
    let text = error(8, None, DeviceSearch::BTree { nodes: words.view(), node_keys: 8, levels: &[0, 1] });
    assert!(text.contains("nodes of a B+tree have 64 bytes of 128"), "{text}");
    let text = error(8, None, DeviceSearch::BTree { nodes: words.view(), node_keys: 0, levels: &[] });
    assert!(text.contains("nodes have no keys"), "{text}");
    let harmonia = DeviceSearch::Harmonia { key_region: words.view(), child_region: words.view(), levels: 1 };
    let text = error(8, None, harmonia);
    assert!(text.contains("key region"), "{text}");
    let spline =
        |shift| DeviceSearch::RadixSpline { points: words.view(), table: words.view().slice(0, 8).unwrap(), shift };
    let text = error(8, None, spline(0));
    assert!(text.contains("table of a RadixSpline"), "{text}");
    let text = error(8, None, spline(64));
    assert!(text.contains("shifted by 64"), "{text}");
    let lookup = IndexLookup::new(&kernels, index(8, None, DeviceSearch::BinarySearch).unwrap()).unwrap();
    for (window, width) in [(0, 8), (5, 3)] {
        assert!(WindowedLookup::new(&lookup, window, width, true).is_err());
    }
    let side = JoinSide { keys: words.view(), values: Values::Eight(words.view()) };
    let mut windowed = WindowedLookup::new(&lookup, 5, 4, false).unwrap();
    let text = windowed.aggregate(&side, &PairAggregate::SUMS).unwrap_err().to_string();
    assert!(text.contains("not the 4 bytes"), "{text}");
    let mut windowed = WindowedLookup::new(&lookup, 5, 8, true).unwrap();
    assert!(windowed.aggregate(&side, &PairAggregate::SUMS).is_err());
}
