//! Faulty regions are refused, and faulty numbers are taken as some number.

use super::{
    queries::{ALL_KINDS, random_query},
    shapes::{SHAPES, Shape, region},
};
use crate::{
    CostModel, HashJoinCost, JoinKind, JoinWork, Mode, Node, Options, Predicate, PredicateKind, Region, RegionError,
    Relation, RelationSet, order, search::RandomNumbers,
};

fn error(region: &Region) -> RegionError {
    let error = order(region, &Options::default(), &HashJoinCost::default()).unwrap_err();
    assert!(error.to_string().len() > 20);
    error
}

#[test]
fn faulty_regions_are_refused() {
    let good = region(Shape::Chain, 4, 0);
    let with = |change: fn(&mut Region)| {
        let mut region = good.clone();
        change(&mut region);
        error(&region)
    };
    let relation = Relation::new(1.0, 1.0);
    assert_eq!(with(|region| region.relations.push(Relation::new(1.0, 1.0))), RegionError::NotOneLeaf(4));
    assert_eq!(with(|region| region.relations.clear()), RegionError::UnknownRelation(0));
    assert_eq!(with(|region| region.root = Node::Leaf(usize::MAX)), RegionError::UnknownRelation(usize::MAX));
    assert_eq!(with(|region| region.root = Node::Leaf(1)), RegionError::NotOneLeaf(0));
    assert_eq!(with(|region| region.predicates.clear()), RegionError::UnknownPredicate(0));
    assert_eq!(
        with(|region| region.predicates.push(Predicate::residual(RelationSet::single(0), 1.0))),
        RegionError::NotOneJoin(3)
    );
    assert_eq!(
        with(|region| region.predicates[0] = Predicate::equality(0, 3, 0.1)),
        RegionError::Invisible { predicate: 0, relations: RelationSet::single(3) }
    );
    assert_eq!(
        with(|region| {
            let sides = RelationSet::single(0);
            region.predicates[0].kind =
                PredicateKind::Equality { left: sides, right: sides, distinct: None, class: None };
        }),
        RegionError::BadSides(0)
    );
    assert_eq!(
        with(|region| {
            let (left, right) = (RelationSet::below(2), RelationSet::single(2));
            let kind = PredicateKind::Equality { left, right, distinct: None, class: Some(7) };
            region.predicates[1] = Predicate { relations: left | right, kind, ..region.predicates[1].clone() };
        }),
        RegionError::BadClass(1)
    );
    let twice = Node::join(JoinKind::Inner, Node::Leaf(0), Node::Leaf(0), vec![]);
    assert_eq!(
        error(&Region { relations: vec![relation], predicates: vec![], root: twice.clone() }),
        RegionError::NotOneLeaf(0)
    );
    let deep = (0..1000).fold(twice, |node, _| Node::join(JoinKind::Inner, node, Node::Leaf(0), vec![]));
    assert_eq!(error(&Region { relations: vec![relation], predicates: vec![], root: deep }), RegionError::TooDeep);
    let many = region(Shape::Star, 65, 0);
    assert_eq!(error(&many), RegionError::TooManyRelations(65));
}

#[test]
fn what_a_semi_join_hides_cannot_be_used() {
    let relation = Relation::new(1.0, 1.0);
    for (kind, refused) in [(JoinKind::LeftSemi, true), (JoinKind::RightAnti, false), (JoinKind::LeftMark, false)] {
        let below = Node::join(kind, Node::Leaf(0), Node::Leaf(1), vec![0]);
        let region = Region {
            relations: vec![relation; 3],
            predicates: vec![Predicate::equality(0, 1, 0.1), Predicate::equality(1, 2, 0.1)],
            root: Node::join(JoinKind::Inner, below, Node::Leaf(2), vec![1]),
        };
        assert_eq!(region.check().is_err(), refused, "{kind:?}");
    }
}

#[test]
fn one_relation_is_its_own_order() {
    let region = Region { relations: vec![Relation::new(5.0, 1.0)], predicates: vec![], root: Node::Leaf(0) };
    for mode in [Mode::Auto, Mode::AsWritten, Mode::Random(1)] {
        let plan = order(&region, &Options { mode, ..Options::default() }, &HashJoinCost::default()).unwrap();
        assert_eq!((plan.root, plan.cost, plan.estimates.len()), (Node::Leaf(0), 0.0, 0));
    }
}

/// Gives numbers that are none.
struct Absurd;

impl CostModel for Absurd {
    fn cost(&self, work: &JoinWork) -> f64 {
        [f64::NAN, f64::INFINITY, -1.0, f64::NEG_INFINITY, 0.0][work.output.rows as usize % 5]
    }
}

#[test]
fn numbers_may_be_anything() {
    let absurd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e308, 5e-324, 1e-300];
    for seed in 0..600 {
        let mut random = RandomNumbers::new(seed);
        let mut draw = || absurd[random.below(absurd.len())];
        let mut region = match seed % 2 {
            0 => random_query(seed, &ALL_KINDS, 6).region,
            _ => region(SHAPES[seed as usize / 2 % 4], 6, seed),
        };
        for relation in &mut region.relations {
            *relation = Relation { rows: draw(), bounds: [draw(), draw()], unfiltered: draw(), width: draw() };
        }
        for predicate in &mut region.predicates {
            predicate.selectivity = draw();
            if let PredicateKind::Equality { distinct, .. } = &mut predicate.kind {
                *distinct = Some([draw(), draw()]);
            }
        }
        let odd = Options { mode: Mode::Auto, most_pairs: 100, least_gain: draw(), doubt: draw() };
        for options in [Options::default(), odd, Options { mode: Mode::Random(seed), ..odd }] {
            for model in [&HashJoinCost::default() as &dyn CostModel, &Absurd] {
                let plan = order(&region, &options, model).unwrap();
                assert!(plan.cost.is_finite() && plan.written_cost.is_finite(), "seed {seed}: {plan:?}");
                let finite = |estimate: &crate::Estimate| estimate.rows.is_finite() && estimate.rows >= 1.0;
                assert!(plan.estimates.iter().all(finite), "seed {seed}: {plan:?}");
            }
        }
    }
}

#[test]
fn fixed_joins_keep_their_sides() {
    /// Of each fixed join: its kind, its predicates and the relations of both sides.
    fn fixed(node: &Node) -> Vec<(JoinKind, Vec<usize>, RelationSet, RelationSet)> {
        let Node::Join(join) = node else { return vec![] };
        let mut found = [fixed(&join.left), fixed(&join.right)].concat();
        if join.fixed {
            found.push((join.kind, join.predicates.clone(), join.left.relations(), join.right.relations()));
        }
        found.sort_by_key(|(_, _, left, right)| (*left, *right));
        found
    }
    let mut seen = 0;
    for seed in 0..4_000 {
        let region = random_query(seed, &ALL_KINDS, 6).region;
        for mode in [Mode::Auto, Mode::Random(1), Mode::Random(2)] {
            for most_pairs in [0, 10_000] {
                let options = Options { mode, most_pairs, ..Options::default() };
                let plan = order(&region, &options, &HashJoinCost::default()).unwrap();
                assert_eq!(fixed(&plan.root), fixed(&region.root), "seed {seed}");
                seen += fixed(&plan.root).len();
            }
        }
    }
    assert!(seen > 1_000, "{seen} fixed joins");
}
