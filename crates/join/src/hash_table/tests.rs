//! The hash table finds all matches, and only them.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};

use super::*;
use crate::keys::{KeyCodec, Keys};

fn integers(values: &[Option<i64>]) -> Keys {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    KeyCodec::try_new(&[column.data_type().clone()], false).unwrap().encode(&[column]).unwrap()
}

fn strings(values: &[Option<i64>]) -> Keys {
    let column: ArrayRef = Arc::new(StringArray::from_iter(values.iter().map(|v| v.map(|v| format!("key {v}")))));
    KeyCodec::try_new(&[column.data_type().clone()], false).unwrap().encode(&[column]).unwrap()
}

fn all_pairs(table: &JoinTable, probe: &Keys, limit: usize, first_only: bool) -> Vec<(u32, u32)> {
    let mut cursor = MatchCursor::default();
    table.start(probe, &mut cursor);
    let mut pairs = Vec::new();
    loop {
        let (mut build_rows, mut probe_rows) = (Vec::new(), Vec::new());
        let more = table.next_pairs(probe, &mut cursor, limit, first_only, &mut build_rows, &mut probe_rows);
        assert!(build_rows.len() <= limit);
        pairs.extend(probe_rows.into_iter().zip(build_rows));
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
            let table = JoinTable::build(encode(&build));
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
    assert_eq!(all_pairs(&JoinTable::build(integers(&build)), &integers(&probe), 16, true), first);
}

#[test]
fn marking_reaches_every_row_of_a_key() {
    let (build, probe) = (values(300, 20), values(100, 13));
    for encode in [integers, strings] {
        let table = JoinTable::build(encode(&build));
        let visited = VisitedRows::new(build.len());
        let mut cursor = MatchCursor::default();
        table.start(&encode(&probe), &mut cursor);
        table.mark_matches(&encode(&probe), &cursor, &visited);
        for (row, key) in build.iter().enumerate() {
            assert_eq!(visited.get(row as u32), key.is_some() && probe.contains(key), "row {row}");
        }
    }
}

#[test]
fn an_empty_table_has_no_matches() {
    let table = JoinTable::build(integers(&[]));
    assert!(all_pairs(&table, &integers(&values(10, 3)), 4, false).is_empty());
}

#[test]
fn a_key_with_many_rows_does_not_slow_its_neighbours() {
    // One key owns almost all rows; whatever shares its bucket must be found in a step or two.
    let rows = 1 << 16;
    let keys = (0..rows).map(|row| if row < 100 { row + 1 } else { 0 });
    let table = ChainedTable::<u64>::build(keys.collect::<Vec<u64>>().into_iter(), |_| true);
    for key in 1..=100 {
        let link = table.find(key, table.head(key));
        assert_eq!(u64::from(link), key);
        assert_eq!(table.next_row(link), 0);
    }
}
