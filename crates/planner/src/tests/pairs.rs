//! All pairs are enumerated, each once.

use std::collections::HashSet;

use super::{
    queries::{ALL_KINDS, random_query},
    shapes::{SHAPES, Shape, region},
};
use crate::{RelationSet, conflict::Properties, hypergraph::Hypergraph, search::enumerate};

const UNLIMITED: usize = usize::MAX / 100;

/// Pairs of connected sets, of Moerkotte and Neumann, "Analysis of two existing and one new dynamic programming algorithm", VLDB 2006.
fn formula(shape: Shape, n: usize) -> usize {
    match shape {
        Shape::Chain => (n.pow(3) - n) / 6,
        Shape::Cycle => (n.pow(3) + n - 2 * n.pow(2)) / 2,
        Shape::Star => (n - 1) * (1 << (n - 2)),
        Shape::Clique => (3_usize.pow(n as u32) + 1 - (1 << (n + 1))) / 2,
    }
}

#[test]
fn shapes_have_as_many_pairs_as_the_formulas_say() {
    for shape in SHAPES {
        for relations in 3..=10 {
            let region = region(shape, relations, 0);
            let graph = Hypergraph::new(&region, &Properties::STANDARD);
            let space = enumerate(&graph, UNLIMITED).unwrap();
            assert_eq!(space.pairs.len(), formula(shape, relations), "{shape:?} of {relations}");
        }
    }
}

#[test]
fn the_budget_is_kept() {
    for shape in SHAPES {
        let region = region(shape, 10, 0);
        let graph = Hypergraph::new(&region, &Properties::STANDARD);
        let pairs = formula(shape, 10);
        assert!(enumerate(&graph, pairs).is_some(), "{shape:?}");
        assert!(enumerate(&graph, pairs - 1).is_none(), "{shape:?}");
    }
}

#[test]
fn joins_of_all_kinds_have_the_pairs_that_a_trial_of_all_sets_finds() {
    for seed in 0..4_000 {
        let query = random_query(seed, &ALL_KINDS, 7);
        let graph = Hypergraph::new(&query.region, &Properties::STANDARD);
        let mut space = enumerate(&graph, UNLIMITED).unwrap();
        let found = space.pairs.len();
        space.sort();
        assert_eq!(space.pairs.len(), found, "seed {seed}: a pair came twice");
        let mut orderly: HashSet<RelationSet> = graph.all.iter().map(RelationSet::single).collect();
        let mut expected = 0;
        // Subsets come before the sets that they are of.
        for set in graph.all.subsets() {
            let halves = set.subsets().filter(|&half| half != set && half.first() == set.first());
            let halves = halves.filter(|&half| orderly.contains(&half) && orderly.contains(&(set - half)));
            let pairs = halves
                .filter(|&half| graph.meeting(half, set - half).or_else(|| graph.meeting(set - half, half)).is_some());
            let pairs = pairs.count();
            expected += pairs;
            if pairs > 0 {
                orderly.insert(set);
            }
        }
        assert_eq!(found, expected, "seed {seed}");
    }
}
