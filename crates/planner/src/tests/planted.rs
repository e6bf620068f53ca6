//! Wrong rules give wrong answers, which the oracle sees.

use super::queries::{ALL_KINDS, random_query};
use crate::{
    JoinKind, Region,
    conflict::{Conflicts, Holds, Properties, Table, detect},
    hypergraph::Hypergraph,
    operator::Written,
    search::{RandomNumbers, enumerate, sampled},
};

/// Queries within which a bug must be found.
const QUERIES: u64 = 6_000;

/// Whether an order of some query gives other rows than the written one.
fn is_found(kinds: &[JoinKind], spoiled: impl Fn(&Region) -> Hypergraph) -> bool {
    (0..QUERIES).any(|seed| {
        let query = random_query(seed, kinds, 5);
        let graph = spoiled(&query.region);
        let mut space = enumerate(&graph, usize::MAX / 100).unwrap();
        space.sort();
        let written = query.data.answer(&query.region.root);
        let mut random = RandomNumbers::new(seed);
        (0..8).filter_map(|_| sampled(&space, &mut random)).any(|order| query.data.answer(&order) != written)
    })
}

/// The kinds of joins of each row and column of the tables.
const KINDS: [&[JoinKind]; 6] = [
    &[JoinKind::Inner],
    &[JoinKind::LeftSemi, JoinKind::RightSemi],
    &[JoinKind::LeftAnti, JoinKind::RightAnti],
    &[JoinKind::LeftMark, JoinKind::RightMark],
    &[JoinKind::LeftOuter, JoinKind::RightOuter],
    &[JoinKind::FullOuter],
];

/// Fails unless the oracle finds each entry of a table that is turned into "always", but for those columns.
fn every_entry_is_found(table: fn(&mut Properties) -> &mut Table, but: &[usize]) {
    for (first, first_kinds) in KINDS.iter().enumerate() {
        for (second, second_kinds) in KINDS.iter().enumerate().filter(|(second, _)| !but.contains(second)) {
            let mut properties = Properties::STANDARD;
            let entry = &mut table(&mut properties)[first][second];
            if *entry != Holds::Always {
                *entry = Holds::Always;
                let kinds = [first_kinds, *second_kinds, &[JoinKind::Inner]].concat();
                assert!(
                    is_found(&kinds, |region| Hypergraph::new(region, &properties)),
                    "{first_kinds:?} before {second_kinds:?}"
                );
            }
        }
    }
}

#[test]
fn wrong_associativity_is_found() {
    every_entry_is_found(|properties| &mut properties.associative, &[]);
}

#[test]
fn wrong_left_asscom_is_found() {
    every_entry_is_found(|properties| &mut properties.left_asscom, &[]);
}

#[test]
fn wrong_right_asscom_is_found() {
    // No condition above a semi, anti or mark join uses its right side, so those columns are never asked.
    every_entry_is_found(|properties| &mut properties.right_asscom, &[1, 2, 3]);
}

#[test]
fn conditions_that_are_thought_to_reject_nulls_are_found() {
    assert!(is_found(&ALL_KINDS, |region| {
        let mut written = Written::new(region);
        written.operators.iter_mut().for_each(|operator| operator.rejects_nulls = operator.needed);
        let conflicts = detect(&written.operators, &Properties::STANDARD);
        Hypergraph::of(region, written, conflicts)
    }));
}

#[test]
fn conflicts_that_are_forgotten_are_found() {
    assert!(is_found(&ALL_KINDS, |region| {
        let written = Written::new(region);
        let conflicts = written.operators.iter().map(Conflicts::without_rules).collect();
        Hypergraph::of(region, written, conflicts)
    }));
}
