//! The model of index joins beside the figures of paper 3.

use overspill_advisor::{HashTable, IndexJoin, IndexKind, IndexPrediction, Join, LookupWay, Machine, Side, Strategy};

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
/// The keys that are looked up (section 3.2).
const LOOKUPS: u64 = 1 << 26;
/// The kinds that the paper has.
const KINDS: [IndexKind; 4] = [IndexKind::BTree, IndexKind::BinarySearch, IndexKind::Harmonia, IndexKind::RadixSpline];

fn machine(name: &str) -> Machine {
    Machine::named(name).unwrap()
}

fn rows(gib: f64) -> u64 {
    (gib * GIB / 8.0) as u64
}

fn index_join(machine: &Machine, kind: IndexKind, way: LookupWay, gib: f64) -> IndexPrediction {
    machine.index_join(kind, way, &IndexJoin::new(rows(gib), LOOKUPS))
}

/// The hash join builds on the smaller side, in the time, at half load.
fn hash_join(machine: &Machine, gib: f64) -> f64 {
    let side = |rows| Side { rows, tuple_bytes: 8, key_bytes: 8 };
    let join = Join {
        build: side(LOOKUPS),
        probe: side(rows(gib)),
        hash_table: HashTable::LinearProbing,
        match_rate: LOOKUPS as f64 / rows(gib) as f64,
        ..Join::new(0, 0, 16)
    };
    machine.advise(&join).of(Strategy::GpuNoPartition).seconds
}

/// The size from which on an index join in windows is faster.
fn crossover(machine: &Machine, kind: IndexKind) -> f64 {
    let is_faster = |gib: f64| index_join(machine, kind, LookupWay::GpuWindows, gib).seconds < hash_join(machine, gib);
    let sizes = (0..700).map(|step| 0.5 * 1.01f64.powi(step));
    sizes.into_iter().find(|gib| is_faster(*gib)).unwrap()
}

#[test]
fn figure_5_windows_beat_the_hash_join() {
    let ac922 = machine("ac922");
    let queries = |kind| 1.0 / index_join(&ac922, kind, LookupWay::GpuWindows, 111.0).seconds;
    for (kind, paper) in KINDS.into_iter().zip([0.6, 0.7, 1.0, 1.9]) {
        let found = queries(kind);
        assert!((found / paper - 1.0).abs() < 0.4, "{kind}: {found} of {paper} Q/s");
    }
    // Binary search and our B+tree, whose nodes have no pointers, are close to each other.
    let [btree, binary, harmonia, spline] = KINDS.map(queries);
    assert!(spline > harmonia && harmonia > binary.max(btree));
    assert!((btree / binary - 1.0).abs() < 0.2, "{btree} and {binary}");
    let hash = 1.0 / hash_join(&ac922, 111.0);
    assert!((hash / 0.2 - 1.0).abs() < 0.4, "{hash} Q/s");
    // 3 to 10 times as fast.
    assert!(btree / hash > 3.0 && (6.0..14.0).contains(&(spline / hash)), "{btree}, {spline}, {hash}");
}

#[test]
fn figure_3_lookups_as_keys_come_fall_beyond_32_gib() {
    let ac922 = machine("ac922");
    let queries = |kind, gib| 1.0 / index_join(&ac922, kind, LookupWay::Gpu, gib).seconds;
    let windows = |kind, gib| 1.0 / index_join(&ac922, kind, LookupWay::GpuWindows, gib).seconds;
    let mut worst = 0.0f64;
    for kind in KINDS {
        // Up to there nothing drops suddenly.
        let sizes = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        for pair in sizes.windows(2) {
            assert!(queries(kind, pair[1]) > queries(kind, pair[0]) * 0.65, "{kind} at {pair:?} GiB");
        }
        assert_eq!(index_join(&ac922, kind, LookupWay::Gpu, 32.0).translations, 0.0);
        assert!(queries(kind, 40.0) < queries(kind, 32.0) / 2.0, "{kind}");
        assert!(queries(kind, 111.0) < 1.0 / hash_join(&ac922, 111.0), "{kind}");
        worst = worst.max(windows(kind, 111.0) / queries(kind, 111.0));
    }
    assert!((worst / 16.7 - 1.0).abs() < 0.1, "{worst}");
}

#[test]
fn figure_4_binary_search_requests_the_most_translations() {
    let ac922 = machine("ac922");
    let of = |kind| index_join(&ac922, kind, LookupWay::Gpu, 111.0);
    // The paper's counters see 105 and 11.3: several requests for a read that misses.
    assert!(of(IndexKind::BinarySearch).translations > 2.0 * of(IndexKind::Harmonia).translations);
    assert!(of(IndexKind::BinarySearch).translations < of(IndexKind::BinarySearch).reads);
    for kind in IndexKind::ALL {
        assert_eq!(index_join(&ac922, kind, LookupWay::GpuWindows, 111.0).translations, 0.0);
    }
}

#[test]
fn figure_9_crossovers() {
    for (name, paper) in [("ac922", 6.2), ("a100-pcie4", 13.9)] {
        let found = crossover(&machine(name), IndexKind::RadixSpline);
        assert!((1.0 / 1.5..1.5).contains(&(found / paper)), "{name}: {found} of {paper} GiB");
    }
}

#[test]
fn what_is_not_known_is_refused() {
    let mut machine = machine("ac922");
    let translation = machine.gpu.as_mut().unwrap().link.translation.as_mut().unwrap();
    (translation.misses, translation.read_misses) = (None, None);
    let prediction = index_join(&machine, IndexKind::RadixSpline, LookupWay::Gpu, 111.0);
    assert!(prediction.refusal.unwrap().to_string().contains("at random"), "{:?}", prediction.seconds);
    assert!(index_join(&machine, IndexKind::RadixSpline, LookupWay::GpuWindows, 111.0).refusal.is_none());
    machine.gpu = None;
    let prediction = index_join(&machine, IndexKind::RadixSpline, LookupWay::GpuWindows, 1.0);
    assert!(prediction.refusal.unwrap().to_string().contains("no GPU"));
    assert!(index_join(&machine, IndexKind::RadixSpline, LookupWay::Cpu, 1.0).refusal.is_none());
}

/// A larger index, more lookups and fewer threads never take less time, and costs are finite.
#[test]
fn more_work_takes_longer() {
    for name in Machine::names() {
        let machine = machine(name);
        for kind in IndexKind::ALL {
            for way in LookupWay::ALL {
                let mut before = 0.0;
                for bits in [0, 5, 10, 20, 26, 30, 33] {
                    let join = IndexJoin::new(1 << bits, 1 << 20);
                    let found = machine.index_join(kind, way, &join);
                    if found.refusal.is_some() {
                        continue;
                    }
                    assert!(found.seconds.is_finite() && found.seconds >= before, "{name}, {kind}, {way:?}, 2^{bits}");
                    before = found.seconds;
                    let more = machine.index_join(kind, way, &IndexJoin { lookups: 1 << 22, ..join });
                    assert!(more.seconds > found.seconds);
                    let fewer = machine.index_join(kind, way, &IndexJoin { threads: Some(1), ..join });
                    assert!(fewer.seconds >= found.seconds);
                }
            }
        }
        let none = machine.index_join(IndexKind::BTree, LookupWay::Cpu, &IndexJoin::new(0, 0));
        assert_eq!(none.seconds, 0.0);
    }
}

#[test]
fn kinds_have_names() {
    for kind in IndexKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "bitmap".parse::<IndexKind>().unwrap_err();
    assert!(error.contains("binary_search, btree, line_btree, harmonia, radix_spline"), "{error}");
}

/// Lookups a second of two threads of a CPU among 2^28 keys, measured (docs/benchmarks.md, "Indexes").
#[test]
fn lookups_of_a_cpu_are_near_what_was_measured() {
    let mut machine = machine("a100-pcie4");
    machine.cpu.random_reads = 188.9e6;
    (machine.cpu.threads, machine.cpu.cores, machine.cpu.last_level_cache) = (2, 2, 32 << 20);
    let measured = [5.3, 15.8, 28.4, 21.5, 34.9];
    for (kind, measured) in IndexKind::ALL.into_iter().zip(measured) {
        let seconds = machine.index_join(kind, LookupWay::Cpu, &IndexJoin::new(1 << 28, 1 << 20)).seconds;
        let found = f64::from(1 << 20) / seconds / 1e6;
        let factor = if kind == IndexKind::BinarySearch { 2.5 } else { 1.6 };
        assert!((1.0 / factor..factor).contains(&(found / measured)), "{kind}: {found} of {measured} M/s");
    }
}
