//! Local joins and gathered rows against a plain reference.

use std::collections::HashMap;

use overspill_kernels::{Gather, Kernels, KeyColumn, LocalJoin, MovedColumn, RowNumbers, murmur3_word};
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::columns::{Column, DeviceColumn, room};
use crate::faults::each_fails_once;
use crate::test_gpu::{TestGpu, scaled, seeds};

const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

/// One side of a join.
struct Side {
    rows: usize,
    keys: Vec<Column>,
}

impl Side {
    fn new(keys: Vec<Column>) -> Self {
        Self { rows: keys[0].bytes.len() / keys[0].width, keys }
    }

    /// Keys of 8 bytes.
    fn of(values: impl Iterator<Item = u64>) -> Self {
        Self::new(vec![Column::new(8, values.map(u128::from))])
    }

    fn key(&self, row: usize) -> Option<Vec<u128>> {
        self.keys.iter().map(|key| key.is_valid(row).then(|| key.value(row))).collect()
    }
}

/// All pairs, by the probe row and then by the build row.
fn reference(build: &Side, probe: &Side) -> Vec<(u32, u32)> {
    let mut table: HashMap<Vec<u128>, Vec<u32>> = HashMap::new();
    for row in 0..build.rows {
        if let Some(key) = build.key(row) {
            table.entry(key).or_default().push(row as u32);
        }
    }
    let matches = |row: usize| probe.key(row).and_then(|key| table.get(&key)).into_iter().flatten();
    (0..probe.rows).flat_map(|row| matches(row).map(move |build_row| (row as u32, *build_row))).collect()
}

/// Joins both sides, gathers columns of the build side, and checks what they are of. Returns the pairs, probe rows first.
fn run(kernels: &Kernels, build: &Side, probe: &Side, payloads: &[Column]) -> Result<Vec<(u32, u32)>> {
    let stream = Stream::new(kernels.device())?;
    let on = |columns: &[Column]| columns.iter().map(|column| column.on(&stream)).collect::<Result<Vec<_>>>();
    let (build_columns, probe_columns, payload_columns) = (on(&build.keys)?, on(&probe.keys)?, on(payloads)?);
    let build_keys: Vec<_> = build_columns.iter().map(DeviceColumn::key).collect();
    let probe_keys: Vec<_> = probe_columns.iter().map(DeviceColumn::key).collect();
    let join = LocalJoin::new(kernels)?;
    let table = join.build(&stream, build.rows as u64, &build_keys)?;
    assert_eq!(table.rows(), build.rows as u64);
    let pairs = join.probe(&stream, &table, probe.rows as u64, &probe_keys)?;
    let (build_rows, probe_rows) = (pairs.build.read(&stream)?, pairs.probe.read(&stream)?);
    assert_eq!(pairs.build.view().bytes(), build_rows.len() as u64 * 4);
    let rooms = payloads.iter().map(|column| room(&stream, column.width, pairs.build.count()));
    let mut to = rooms.collect::<Result<Vec<_>>>()?;
    let mut moved: Vec<_> = payload_columns.iter().zip(&mut to).map(|(from, to)| from.moved(to)).collect();
    Gather::new(kernels)?.run(&stream, &pairs.build, &mut moved)?;
    for (column, to) in payloads.iter().zip(&to) {
        let found: Vec<u8> = to.read(&stream, to.bytes() as usize)?;
        let rows = build_rows.iter().flat_map(|row| &column.bytes[*row as usize * column.width..][..column.width]);
        assert!(rows.eq(&found), "{} gathered rows of {} bytes", build_rows.len(), column.width);
    }
    Ok(probe_rows.into_iter().zip(build_rows).collect())
}

/// Checks the pairs, and that they are in the order of probe rows. Returns how many there are.
fn check(kernels: &Kernels, build: &Side, probe: &Side, payloads: &[Column]) -> usize {
    let types: Vec<_> = build.keys.iter().map(|key| (key.width, key.is_float)).collect();
    let case = format!("{} and {} rows with keys of {types:?}", build.rows, probe.rows);
    let mut found = run(kernels, build, probe, payloads).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(found.is_sorted_by_key(|(probe_row, _)| *probe_row), "{case}: probe rows in another order");
    found.sort_unstable();
    let expected = reference(build, probe);
    let wrong = found.iter().zip(&expected).position(|(one, other)| one != other);
    assert!(found == expected, "{case}: {} pairs of {}, differing at {wrong:?}", found.len(), expected.len());
    found.len()
}

#[test]
fn every_schedule_of_a_local_join_finds_all_pairs() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(1);
    let (build_rows, probe_rows) = (scaled(2_000) as usize, scaled(5_000) as usize + 777);
    let mut key = || random.random_range(0..build_rows as u64);
    let build = Side::of((0..build_rows).map(|_| key()));
    let probe = Side::of((0..probe_rows).map(|_| key() * 2));
    let payloads: Vec<_> = WIDTHS.iter().map(|width| Column::random(random, *width, build_rows)).collect();
    for seed in seeds() {
        gpu.schedule(seed);
        assert!(check(&kernels, &build, &probe, &payloads) > probe_rows / 4);
    }
}

#[test]
fn keys_of_any_columns_are_compared_whole() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(2);
    let cases: [&[usize]; 11] =
        [&[1], &[2], &[4], &[8], &[16], &[4, 4], &[8, 8], &[1, 2, 4, 8, 16], &[16, 16], &[8, 8, 8], &[1; 16]];
    for widths in cases {
        // Few values of each column, which differ in one byte, the highest of a wide value or the lowest.
        let mut column = |width: usize, rows: usize| {
            let place = random.random_range(0..2) * (width - 1) * 8;
            let values: Vec<u128> = (0..rows).map(|_| u128::from(random.random_range(0..5_u8)) << place).collect();
            Column::new(width, values.into_iter())
        };
        let mut side = |rows| Side::new(widths.iter().map(|width| column(*width, rows)).collect());
        let rows = if widths.len() > 3 { 1_000 } else { 60 };
        let (build, probe) = (side(rows), side(70));
        check(&kernels, &build, &probe, &[]);
        // Each row has itself as a partner at least.
        assert!(check(&kernels, &build, &build, &[]) >= rows);
    }
}

#[test]
fn sides_may_be_empty_or_tiny() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let payload = |rows: u64| [Column::new(4, (0..rows).map(u128::from))];
    for build in [0, 1, 2, 3, 5, 17] {
        for probe in [0, 1, 2, 33] {
            // The table is so small that walks go over its end.
            for step in [1, 1 << 32, 0x9E37_79B9] {
                let side = |rows: u64| Side::of((0..rows).map(|row| row * step));
                let pairs = check(&kernels, &side(build), &side(probe), &payload(build));
                assert_eq!(pairs as u64, build.min(probe));
            }
        }
    }
}

#[test]
fn keys_with_many_duplicates_pair_with_all() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let duplicates = scaled(3_000);
    // All rows of one key, and rows of others, which walk over them.
    let build = Side::of((0..duplicates + 500).map(|row| if row < duplicates { 7 } else { row }));
    let probe = Side::of([7, 1, duplicates, 7, duplicates + 499, duplicates + 500, 7].into_iter());
    let pairs = check(&kernels, &build, &probe, &[Column::new(8, (0..duplicates as u128 + 500).rev())]);
    assert_eq!(pairs as u64, 3 * duplicates + 2);
    // One build row, and many that are probed.
    let pairs = check(&kernels, &Side::of([7].into_iter()), &Side::of((0..duplicates).map(|_| 7)), &[]);
    assert_eq!(pairs as u64, duplicates);
}

/// Keys of 64 bits whose hashes of 32 are equal are compared as such.
#[test]
fn equal_hashes_of_unequal_keys_are_no_match() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let mut seen = HashMap::new();
    let collide = |key: u64| {
        let other = seen.insert(murmur3_word(key, LocalJoin::SEED), key);
        other.map(|other| [other, key])
    };
    let colliding: Vec<[u64; 2]> = (0..600_000_u64).map(|key| key << 20).filter_map(collide).collect();
    assert!(colliding.len() > 10, "{} keys", colliding.len());
    let build = Side::of(colliding.iter().map(|[one, _]| *one));
    let probe = Side::of(colliding.iter().map(|[_, other]| *other));
    assert_eq!(check(&kernels, &build, &probe, &[]), 0);
    assert_eq!(check(&kernels, &build, &Side::of(colliding.as_flattened().iter().copied()), &[]), build.rows);
}

#[test]
fn nulls_have_no_partner_and_zeros_of_both_signs_have_each_other() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let random = &mut ChaCha8Rng::seed_from_u64(3);
    let mut column = |width: usize, rows: usize| {
        let values: Vec<u128> = (0..rows).map(|_| u128::from(random.random_range(0..20_u8))).collect();
        let valid = (0..rows).map(|_| random.random_bool(0.8)).collect();
        Column { valid, ..Column::new(width, values.into_iter()) }
    };
    for widths in [&[4][..], &[8, 2]] {
        let mut side = |rows| Side::new(widths.iter().map(|width| column(*width, rows)).collect());
        let (build, probe) = (side(scaled(700) as usize), side(300));
        check(&kernels, &build, &probe, &[]);
    }
    let all_null =
        |rows: usize| Side::new(vec![Column { valid: vec![false; rows], ..Column::new(8, (0..rows).map(|_| 1)) }]);
    assert_eq!(check(&kernels, &all_null(100), &all_null(50), &[]), 0);
    for width in [2, 4, 8] {
        let zero = |row: usize| if row.is_multiple_of(2) { 0 } else { 1 << (width * 8 - 1) };
        let zeros = |rows, is_float| Side::new(vec![Column { is_float, ..Column::new(width, (0..rows).map(zero)) }]);
        assert_eq!(check(&kernels, &zeros(6, true), &zeros(4, true), &[]), 24);
        assert_eq!(check(&kernels, &zeros(6, false), &zeros(4, false), &[]), 12);
    }
}

#[test]
fn a_join_may_be_confined_to_some_multiprocessors() {
    let gpu = TestGpu::start();
    gpu.set_multiprocessors(4);
    let kernels = gpu.kernels().confined_to(2).unwrap();
    let (build, probe) = (Side::of((0..scaled(900)).rev()), Side::of((0..scaled(3_000)).map(|row| row / 2)));
    let payload = [Column::new(16, (0..build.rows as u128).map(|row| row << 90))];
    let launches = gpu.launches(|| {
        check(&kernels, &build, &probe, &payload);
    });
    for launch in launches.into_iter().flatten() {
        assert!(launch.blocks <= 2, "{launch:?}");
    }
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let stream = Stream::new(kernels.device()).unwrap();
    let values = DeviceBuffer::from_slice(&stream, &[1_u64; 100]).unwrap();
    let key = |width| KeyColumn { values: values.view(), width, is_float: false, validity: None };
    let join = LocalJoin::new(&kernels).unwrap();
    let build = |rows, keys: &[KeyColumn<'_>]| join.build(&stream, rows, keys).unwrap_err().to_string();
    let most = u64::from(u32::MAX);
    let error = build(most, &[key(8)]);
    assert_eq!(error, "a local join of 4294967295 rows on the build side: it takes at most 4294967294");
    // That many are only too many for the column.
    let error = build(most - 1, &[key(8)]);
    assert_eq!(error, "the values of key column 0 have 800 bytes, and 4294967294 tuples of 8 bytes are 34359738352");
    assert_eq!(build(1, &[]), "a key of 0 columns: kernels take 1 to 16");
    assert_eq!(build(1, &[key(8), key(5)]), "values of 5 bytes: kernels move and compare those of 1, 2, 4, 8 or 16");
    let table = join.build(&stream, 100, &[key(8)]).unwrap();
    let probe = |rows, keys: &[KeyColumn<'_>]| join.probe(&stream, &table, rows, keys).unwrap_err().to_string();
    let error = probe(most, &[key(8)]);
    assert_eq!(error, "a local join of 4294967295 rows on the probe side: it takes at most 4294967294");
    assert_eq!(probe(1, &[key(4)]), "keys of (i32) are looked up in a table of keys of (i64)");
    let float = KeyColumn { is_float: true, ..key(8) };
    assert_eq!(probe(1, &[key(8), float]), "keys of (i64, f64) are looked up in a table of keys of (i64)");
    assert!(probe(101, &[key(8)]).contains("have 800 bytes, and 101 tuples of 8 bytes are 808"));

    let pairs = join.probe(&stream, &table, 3, &[key(8)]).unwrap();
    assert_eq!((pairs.build.count(), pairs.probe.count()), (300, 300));
    let gather = Gather::new(&kernels).unwrap();
    let mut to = room(&stream, 8, 300).unwrap();
    let refused = |rows: &RowNumbers, columns: &mut [MovedColumn<'_>]| {
        gather.run(&stream, rows, columns).unwrap_err().to_string()
    };
    // The numbers of the build side are of 100 rows, those of the probe side of 3.
    let short = values.view().slice(0, 792).unwrap();
    let error = refused(&pairs.build, &mut [MovedColumn { from: short, to: to.view_mut(), width: 8 }]);
    assert_eq!(error, "the values of column 0 have 792 bytes, and 100 tuples of 8 bytes are 800");
    gather.run(&stream, &pairs.probe, &mut [MovedColumn { from: short, to: to.view_mut(), width: 8 }]).unwrap();
    let error = refused(&pairs.build, &mut [MovedColumn { from: values.view(), to: to.view_mut(), width: 16 }]);
    assert!(error.contains("column 0 have 800 bytes, and 100 tuples of 16 bytes are 1600"), "{error}");
    let part = to.view_mut().split_at(2_392).unwrap().0;
    let error = refused(&pairs.build, &mut [MovedColumn { from: values.view(), to: part, width: 8 }]);
    assert_eq!(error, "the places of column 0 have 2392 bytes, and 300 tuples of 8 bytes are 2400");
    let from = to.view();
    // SAFETY: nothing else uses the buffer, and no kernel writes to it.
    let overlapping = unsafe { to.view_mut_of_shared() };
    let error = refused(&pairs.probe, &mut [MovedColumn { from, to: overlapping, width: 8 }]);
    assert_eq!(error, "the columns that are written overlap each other or those that are read");
}

#[test]
fn each_failure_of_a_local_join_gives_all_memory_back() {
    let work = |gpu: &TestGpu| {
        let device = gpu.driver.device(0, 64 << 20)?;
        let kernels = Kernels::load(&device)?;
        let (build, probe) = (Side::of(0..500), Side::of((0..1_000).map(|row| row * 2)));
        let pairs = run(&kernels, &build, &probe, &[Column::new(4, 0..500)])?;
        assert_eq!(pairs.len(), 250, "a wrong answer instead of an error");
        Ok(())
    };
    each_fails_once("allocation", 8, work);
    each_fails_once("launch", 7, work);
    each_fails_once("copy", 4, work);
    each_fails_once("synchronisation", 5, work);
}
