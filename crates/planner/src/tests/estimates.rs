//! Estimates are numbers, grow with what they are computed of, and are those of the formulas.

use super::queries::{ALL_KINDS, random_query};
use crate::{
    CostModel, HashJoinCost, JoinKind, JoinWork, Node, Predicate, PredicateKind, Region, Relation, RelationSet, Size,
    conflict::Properties,
    estimate::{Base, Estimates, Scratch},
    hypergraph::Hypergraph,
    steps::{Steps, total},
};

fn rows(region: &Region) -> f64 {
    let graph = Hypergraph::new(region, &Properties::STANDARD);
    Estimates::new(&graph).size(graph.all, &mut Scratch::default()).rows
}

/// A join of 1,000 rows with 100, of which each pair matches with a chance of 1 in 500. The right side has `distinct` keys.
fn join_of_two(kind: JoinKind, distinct: Option<f64>) -> Region {
    let mut predicate = Predicate::equality(0, 1, 1.0 / 500.0);
    if let (PredicateKind::Equality { distinct: known, .. }, Some(keys)) = (&mut predicate.kind, distinct) {
        *known = Some([500.0, keys]);
    }
    Region {
        relations: [1000.0, 100.0].map(|rows| Relation::new(rows, 10.0)).to_vec(),
        predicates: vec![predicate],
        root: Node::join(kind, Node::Leaf(0), Node::Leaf(1), vec![0]),
    }
}

#[test]
fn each_kind_has_the_rows_of_its_formula() {
    let expected = [
        (JoinKind::Inner, 200.0, 200.0),
        (JoinKind::LeftSemi, 200.0, 100.0),
        (JoinKind::RightSemi, 100.0, 100.0),
        (JoinKind::LeftAnti, 800.0, 900.0),
        (JoinKind::RightAnti, 5.0, 5.0),
        (JoinKind::LeftMark, 1000.0, 1000.0),
        (JoinKind::RightMark, 100.0, 100.0),
        (JoinKind::LeftOuter, 1000.0, 1100.0),
        (JoinKind::RightOuter, 200.0, 200.0),
        (JoinKind::FullOuter, 1000.0, 1100.0),
    ];
    for (kind, plain, with_keys) in expected {
        assert!((rows(&join_of_two(kind, None)) - plain).abs() < 1e-6, "{kind:?}");
        // 50 different keys have half as many partners, each twice.
        assert!((rows(&join_of_two(kind, Some(50.0))) - with_keys).abs() < 1e-6, "{kind:?} with keys");
    }
}

#[test]
fn widths_are_those_of_visible_columns() {
    let widths = [(JoinKind::Inner, 20.0), (JoinKind::LeftAnti, 10.0), (JoinKind::LeftMark, 11.0)];
    for (kind, width) in widths {
        let region = join_of_two(kind, None);
        let graph = Hypergraph::new(&region, &Properties::STANDARD);
        assert_eq!(Estimates::new(&graph).size(graph.all, &mut Scratch::default()).width, width, "{kind:?}");
    }
}

#[test]
fn outer_joins_keep_the_rows_of_their_outer_side() {
    for seed in 0..2_000 {
        let query = random_query(seed, &[JoinKind::Inner, JoinKind::LeftOuter, JoinKind::FullOuter], 6);
        let graph = Hypergraph::new(&query.region, &Properties::STANDARD);
        let estimates = Estimates::new(&graph);
        let mut size = |set: RelationSet| estimates.size(set, &mut Scratch::default()).rows;
        fn check(node: &Node, seed: u64, size: &mut impl FnMut(RelationSet) -> f64) {
            let Node::Join(join) = node else { return };
            let (here, left, right) =
                (size(node.relations()), size(join.left.relations()), size(join.right.relations()));
            let outer_left = matches!(join.kind, JoinKind::LeftOuter | JoinKind::FullOuter);
            assert!(!outer_left || here >= left * (1.0 - 1e-9), "seed {seed}: {here} of {left}");
            let outer_right = join.kind == JoinKind::FullOuter;
            assert!(!outer_right || here >= right * (1.0 - 1e-9), "seed {seed}: {here} of {right}");
            check(&join.left, seed, size);
            check(&join.right, seed, size);
        }
        check(&query.region.root, seed, &mut size);
    }
}

#[test]
fn more_rows_give_more_rows_and_cost_more() {
    // Rows of an anti join fall with those of its other side.
    let kinds: Vec<JoinKind> = ALL_KINDS.into_iter().filter(|kind| !format!("{kind:?}").ends_with("Anti")).collect();
    for seed in 0..2_000 {
        let query = random_query(seed, &kinds, 6);
        let graph = Hypergraph::new(&query.region, &Properties::STANDARD);
        let estimates = Estimates::new(&graph);
        let steps = Steps::of(&graph, &query.region.root);
        let model = HashJoinCost::default();
        let of = |estimates: &Estimates| {
            (estimates.size(graph.all, &mut Scratch::default()).rows, total(&steps.estimates(estimates, &model)))
        };
        let (rows, cost) = of(&estimates);
        for base in estimates.bases().filter(|base| matches!(base, Base::Rows(_))) {
            let (more_rows, more_cost) = of(&estimates.changed(base, 3.0));
            assert!(more_rows >= rows * (1.0 - 1e-9), "seed {seed}, {base}: {more_rows} after {rows}");
            assert!(more_cost >= cost * (1.0 - 1e-9), "seed {seed}, {base}: {more_cost} after {cost}");
        }
    }
}

#[test]
fn rows_that_find_nothing_are_cheaper_to_look_up() {
    let size = |rows: f64| Size { rows, width: 20.0 };
    let cost = |kind: JoinKind, output: f64| {
        let work = JoinWork { kind, hashed: true, build: size(1e7), probe: size(1e8), output: size(output) };
        HashJoinCost::default().cost(&work)
    };
    let written = |output: f64| output * (2.0 + 20.0 * 0.15);
    let lookups = |kind, output: f64| cost(kind, output) - written(output);
    assert!(lookups(JoinKind::Inner, 1e6) < 0.7 * lookups(JoinKind::Inner, 1e8));
    assert!((lookups(JoinKind::LeftOuter, 1e6) / lookups(JoinKind::LeftOuter, 1e8) - 1.0).abs() < 1e-9);
    // A filter is not worth its own access where most rows find something.
    assert!((lookups(JoinKind::Inner, 1e8) / lookups(JoinKind::LeftOuter, 1e8) - 1.0).abs() < 1e-9);
}
