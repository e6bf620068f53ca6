//! The hash table finds all matches, and only them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};

use super::payload_rows::tests::Chunks;
use super::perfect::{KeyRange, PerfectTable};
use super::*;
use crate::keys::{KeyCodec, Keys};
use crate::radix::region_of_this_machine;

fn integers(values: &[Option<i64>]) -> Keys {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    KeyCodec::try_new(&[column.data_type().clone()], false).unwrap().encode(&[column]).unwrap()
}

fn strings(values: &[Option<i64>]) -> Keys {
    let column: ArrayRef = Arc::new(StringArray::from_iter(values.iter().map(|v| v.map(|v| format!("key {v}")))));
    KeyCodec::try_new(&[column.data_type().clone()], false).unwrap().encode(&[column]).unwrap()
}

/// Row numbers, of a table without payloads.
#[derive(Default)]
struct Numbers(Vec<u32>);

impl FoundRows for Numbers {
    fn numbers(&mut self) -> &mut Vec<u32> {
        &mut self.0
    }

    fn packed(&mut self) -> &mut Vec<u64> {
        panic!("a table of payloads")
    }
}

fn all_pairs(table: &JoinTable, probe: &Keys, limit: usize, first_only: bool) -> Vec<(u32, u32)> {
    let mut cursor = MatchCursor::default();
    table.start(probe, &mut cursor);
    let mut pairs = Vec::new();
    loop {
        let (mut build_rows, mut probe_rows) = (Numbers::default(), Vec::new());
        let more = table.next_pairs(probe, &mut cursor, limit, first_only, &mut build_rows, &mut probe_rows);
        assert!(build_rows.0.len() <= limit);
        pairs.extend(probe_rows.into_iter().zip(build_rows.0));
        if !more {
            return pairs;
        }
    }
}

fn expected(build: &[Option<i64>], probe: &[Option<i64>]) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for (probe_row, probe) in probe.iter().enumerate() {
        for (build_row, build) in build.iter().enumerate() {
            if probe.is_some() && probe == build {
                pairs.push((probe_row as u32, build_row as u32));
            }
        }
    }
    pairs
}

/// Few keys with many rows each, many keys with one, and nulls.
fn values(rows: i64, distinct: i64) -> Vec<Option<i64>> {
    (0..rows).map(|row| (row % 7 != 0).then_some(row * 31 % distinct)).collect()
}

#[test]
fn all_pairs_are_found_in_order_whatever_the_limit() {
    for distinct in [1, 3, 50, 1_000] {
        let (build, probe) = (values(300, distinct), values(200, distinct + 1));
        let expected = expected(&build, &probe);
        for encode in [integers, strings] {
            let table = JoinTable::build(encode(&build), TableChoice::Perfect, 3).unwrap();
            for limit in [1, 7, 8192] {
                assert_eq!(all_pairs(&table, &encode(&probe), limit, false), expected);
            }
        }
    }
}

#[test]
fn the_first_match_is_found_for_each_row() {
    let (build, probe) = (values(300, 10), values(200, 12));
    let mut first = expected(&build, &probe);
    first.dedup_by_key(|(probe_row, _)| *probe_row);
    assert_eq!(
        all_pairs(&JoinTable::build(integers(&build), TableChoice::Perfect, 1).unwrap(), &integers(&probe), 16, true),
        first
    );
}

#[test]
fn marking_reaches_every_row_of_a_key() {
    let (build, probe) = (values(300, 20), values(100, 13));
    for encode in [integers, strings] {
        let table = JoinTable::build(encode(&build), TableChoice::Perfect, 3).unwrap();
        let visited = VisitedRows::new(build.len());
        let mut cursor = MatchCursor::default();
        table.start(&encode(&probe), &mut cursor);
        table.mark_matches(&encode(&probe), &mut cursor, &visited);
        for (row, key) in build.iter().enumerate() {
            assert_eq!(visited.get(row as u32), key.is_some() && probe.contains(key), "row {row}");
        }
    }
}

#[test]
fn an_empty_table_has_no_matches() {
    let table = JoinTable::build(integers(&[]), TableChoice::Perfect, 2).unwrap();
    assert!(all_pairs(&table, &integers(&values(10, 3)), 4, false).is_empty());
}

#[test]
fn tables_of_one_row_or_few_are_searched_like_others() {
    for count in 0..5 {
        let build: Vec<_> = (0..count).map(|row| Some(row * 1_000)).collect();
        let probe = values(100, 5).into_iter().chain(build.clone()).collect::<Vec<_>>();
        for choice in [TableChoice::Perfect, TableChoice::LinearProbing, TableChoice::Unchained] {
            for encode in [integers, strings] {
                let table = JoinTable::build(encode(&build), choice, 2).unwrap();
                let found = all_pairs(&table, &encode(&probe), 8192, false);
                assert_eq!(found, expected(&build, &probe), "{count} rows, {choice:?}");
            }
        }
    }
}

/// Maps numbers injectively to numbers spread over 64 bits.
fn sparse(number: i64) -> i64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64).rotate_left(31)
}

/// Build sides of different kinds, with enough rows for several partitions.
fn large_builds() -> Vec<(&'static str, Vec<Option<i64>>)> {
    const ROWS: i64 = 150_000;
    // Odd multipliers permute the numbers below a power of two.
    let shuffled = |row: i64| row * 77_777 % (1 << 18);
    let of = |key: &dyn Fn(i64) -> Option<i64>| (0..ROWS).map(key).collect::<Vec<_>>();
    vec![
        ("in order", of(&|row| Some(row - 5_000))),
        ("dense and unique", of(&|row| Some(shuffled(row)))),
        ("dense, with nulls", of(&|row| (row % 5 != 0).then_some(shuffled(row)))),
        ("dense, in order, with nulls", of(&|row| (row % 5 != 0).then_some(row))),
        ("dense, two rows a key", of(&|row| Some(shuffled(row / 2)))),
        ("sparse and unique", of(&|row| Some(sparse(row)))),
        ("sparse, three rows a key", of(&|row| Some(sparse(row / 3)))),
        ("sparse, one key with most rows", of(&|row| Some(if row % 50 == 0 { sparse(row) } else { -1 }))),
        ("the extremes", of(&|row| Some([i64::MIN, i64::MAX, -1, 0, row][row as usize % 5]))),
    ]
}

#[test]
fn large_tables_find_what_a_map_finds_on_any_number_of_threads() {
    for (name, build) in large_builds() {
        let rows_of = rows_by_key(&build);
        // Keys in the table, with few repetitions of the most frequent one, and keys that are not.
        let mut probe: Vec<_> = build.iter().step_by(97).copied().filter(|key| *key != Some(-1)).collect();
        probe.extend([Some(-1), Some(i64::MIN), Some(i64::MAX), Some(1 << 40), Some(-5_001), Some(1 << 18)]);
        probe.extend((0..500).map(|number| Some(sparse(1_000_000 + number))));
        let mut expected = Vec::new();
        for (probe_row, key) in probe.iter().enumerate() {
            let rows = key.and_then(|key| rows_of.get(&key)).into_iter().flatten();
            expected.extend(rows.take(3_000).map(|row| (probe_row as u32, *row)));
        }
        let choices = [TableChoice::Perfect, TableChoice::LinearProbing, TableChoice::Unchained];
        for (choice, threads) in choices.into_iter().flat_map(|choice| [1, 2, 5].map(|threads| (choice, threads))) {
            let table = JoinTable::build(integers(&build), choice, threads).unwrap();
            let mut found = all_pairs(&table, &integers(&probe), 8192, false);
            // Compares only the first matches of keys with many rows.
            let mut last = (u32::MAX, 0);
            found.retain(|(row, _)| {
                last = if last.0 == *row { (*row, last.1 + 1) } else { (*row, 1) };
                last.1 <= 3_000
            });
            assert!(found == expected, "{name}, {choice:?}, {threads} threads");
        }
    }
}

/// The rows of each key.
fn rows_by_key(build: &[Option<i64>]) -> HashMap<i64, Vec<u32>> {
    let mut rows = HashMap::<i64, Vec<u32>>::new();
    for (key, row) in build.iter().zip(0..) {
        key.iter().for_each(|key| rows.entry(*key).or_default().push(row));
    }
    rows
}

type Encoder = fn(&[Option<i64>]) -> Keys;

/// The same number in two columns.
fn pairs_of_integers(values: &[Option<i64>]) -> Keys {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    let types = vec![column.data_type().clone(); 2];
    KeyCodec::try_new(&types, false).unwrap().encode(&[Arc::clone(&column), column]).unwrap()
}

#[test]
fn lookups_that_find_little_are_filtered_and_find_the_same() {
    let unique: Vec<_> = (0..100_000).map(|row| Some(sparse(row))).collect();
    let repeated: Vec<_> = (0..100_000).map(|row| (row % 9 != 0).then_some(sparse(row / 3))).collect();
    for (build, encode) in [&unique, &repeated].into_iter().flat_map(|build| {
        let encoders: [Encoder; 3] = [integers, strings, pairs_of_integers];
        encoders.map(|encode| (build, encode))
    }) {
        let rows_of = rows_by_key(build);
        for choice in [TableChoice::LinearProbing, TableChoice::Unchained] {
            let table = JoinTable::build(encode(build), choice, 2).unwrap();
            let visited = VisitedRows::new(build.len());
            let (mut cursor, mut marking) = (MatchCursor::default(), MatchCursor::default());
            // One row in a thousand has matches.
            for batch in 0..30 {
                let key = |row: i64| sparse(if row % 1_000 == 0 { batch * 31 + row } else { -1 - row });
                let probe: Vec<_> = (0..8_000).map(|row| (row % 7 != 5).then(|| key(row))).collect();
                let rows = probe.iter().zip(0..).filter_map(|(key, row)| Some((row, rows_of.get(&(*key)?)?)));
                let expected: Vec<(u32, u32)> =
                    rows.flat_map(|(row, rows)| rows.iter().map(move |build| (row, *build))).collect();
                let probe = encode(&probe);
                let (mut rows, mut probe_rows) = (Numbers::default(), vec![]);
                table.start(&probe, &mut cursor);
                assert!(!table.next_pairs(&probe, &mut cursor, 8_000, false, &mut rows, &mut probe_rows));
                assert!(probe_rows.into_iter().zip(rows.0).eq(expected.iter().copied()), "{choice:?}, batch {batch}");
                table.start(&probe, &mut marking);
                table.mark_matches(&probe, &mut marking, &visited);
                assert!(expected.iter().all(|(_, row)| visited.get(*row)));
            }
            let is_large = table.bytes() > region_of_this_machine();
            assert_eq!((table.is_filtered(&cursor), table.is_filtered(&marking)), (is_large, is_large));
        }
    }
}

#[test]
fn the_key_set_of_a_table_has_its_keys_and_few_others() {
    for (name, build) in large_builds() {
        let in_build: HashSet<i64> = build.iter().copied().flatten().collect();
        let mut probe: Vec<_> =
            build.iter().step_by(3).copied().chain((0..150_000).map(|key| Some(key - 7_000))).collect();
        probe.extend((0..50_000).map(|number| Some(sparse(1_000_000 + number))));
        probe.extend([None, Some(i64::MIN), Some(i64::MAX), Some(-1), Some(-5_001), Some(1 << 18)]);
        let encoders: [Encoder; 3] = [integers, strings, pairs_of_integers];
        let choices = [TableChoice::Perfect, TableChoice::LinearProbing, TableChoice::Unchained];
        for (encode, choice) in encoders.into_iter().flat_map(|encode| choices.map(|choice| (encode, choice))) {
            let table = JoinTable::build(encode(&build), choice, 2).unwrap();
            let set = table.key_set().unwrap().unwrap();
            check_key_set(&format!("{name}, {choice:?}"), &set, &in_build, &probe, encode);
            let taken = match &set {
                KeySet::Range { .. } => 0,
                KeySet::Bits { bits, .. } => bits.bytes(),
                KeySet::Hashes(_) => 0,
            };
            assert!(taken <= table.key_set_bytes(), "{name}, {choice:?}: {taken} bytes");
            // The same set by way of hashes, as it is made for several tables.
            let hashes = table.key_hashes().unwrap();
            assert!(
                (in_build.len()..=build.len()).contains(&hashes.len()),
                "{name}, {choice:?}: {} hashes",
                hashes.len()
            );
            let of_hashes = KeySet::of_hashes(hashes.len(), hashes.into_iter()).unwrap().unwrap();
            check_key_set(&format!("hashes, {name}, {choice:?}"), &of_hashes, &in_build, &probe, encode);
        }
        // The same for tables of payloads, which exist for unique keys.
        let words: Vec<u64> = build.iter().map(|key| key.unwrap_or_default() as u64).collect();
        for (payload, is_narrow) in [(1, true), (1 << 40, false)] {
            let payloads: Vec<u64> = (0..words.len() as u64).map(|row| row * payload).collect();
            let rows = Chunks::of(&words, &payloads, is_narrow, |row| build[row].is_some());
            for choice in [TableChoice::Perfect, TableChoice::LinearProbing] {
                let Some(table) = JoinTable::of_payloads(&rows, words.len(), choice, 2).unwrap() else { continue };
                let set = table.key_set().unwrap().unwrap();
                check_key_set(&format!("{name}, payloads, {choice:?}"), &set, &in_build, &probe, integers);
            }
        }
    }
    let empty = JoinTable::build(integers(&[]), TableChoice::Perfect, 2).unwrap().key_set().unwrap().unwrap();
    assert_eq!(empty.members(&integers(&[Some(0), None, Some(-1)])).count_set_bits(), 0);
}

/// Checks which of the keys are in a set of the keys of a build side.
fn check_key_set(name: &str, set: &KeySet, build: &HashSet<i64>, probe: &[Option<i64>], encode: Encoder) {
    let members = set.members(&encode(probe));
    assert_eq!(members.len(), probe.len());
    let (mut others, mut absent) = (0, 0);
    for (key, is_member) in probe.iter().zip(&members) {
        match key {
            Some(key) if build.contains(key) => assert!(is_member, "{name}: {key} is missing"),
            Some(_) => (others, absent) = (others + usize::from(is_member), absent + 1),
            None => assert!(!is_member, "{name}: a null"),
        }
    }
    let exact = !matches!(set, KeySet::Hashes(_));
    assert!(others == 0 || !exact, "{name}: {others} keys that are not in the table");
    assert!(others * 100 <= absent * 4, "{name}: {others} of {absent} keys that are not in the table");
}

#[test]
fn tables_take_no_more_memory_than_is_paid_for() {
    for (name, build) in large_builds() {
        let column: ArrayRef = Arc::new(Int64Array::from(build.clone()));
        let codec = KeyCodec::try_new(&[column.data_type().clone()], false).unwrap();
        let table = JoinTable::build(integers(&build), TableChoice::Perfect, 2).unwrap();
        assert!(table.bytes() <= build.len() * JoinTable::row_bytes(&codec), "{name}: {} bytes", table.bytes());
    }
}

#[test]
fn rows_are_put_in_order_only_if_there_are_no_others() {
    let build = |keys: &[u64], is_matchable: &(dyn Fn(usize) -> bool + Sync)| {
        PerfectTable::build(keys, KeyRange::of(keys, is_matchable, 1).unwrap(), is_matchable, 1).unwrap()
    };
    let order = |table: PerfectTable| match table {
        PerfectTable::Unique(table) => table.order().map(<[u32]>::to_vec),
        PerfectTable::Grouped(_) => panic!("keys that are not unique"),
    };
    let keys: Vec<u64> = vec![14, 10, 13, 11, 12];
    assert_eq!(order(build(&keys, &|_| true)), Some(vec![2, 4, 5, 3, 1]));
    // As many rows as keys in the range, but one row cannot match, so that its key has no row.
    assert_eq!(order(build(&keys, &|row| row != 2)), None);
    assert!(matches!(build(&[10, 14, 12, 12, 11], &|_| true), PerfectTable::Grouped(_)));
    assert!(KeyRange::of(&[0, u64::MAX], |_| true, 2).is_none());
}
