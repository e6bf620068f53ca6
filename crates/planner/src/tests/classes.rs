//! An equality that follows from others joins relations directly, and counts once.

use std::collections::BTreeSet;

use super::{
    answers::all_orders,
    implied::add_implied,
    queries::{ALL_KINDS, many_inner, random_query, random_simple_query},
    shapes::{Shape, of_one_class, region},
};
use crate::{
    HashJoinCost, JoinKind, Node, Options, Predicate, PredicateKind, Region, Relation, RelationSet,
    conflict::Properties,
    estimate::{Base, Estimates, Scratch},
    hypergraph::Hypergraph,
    order,
    search::RandomNumbers,
    steps::Steps,
};

pub fn graph(region: &Region) -> Hypergraph<'_> {
    Hypergraph::new(region, &Properties::STANDARD)
}

pub fn rows(region: &Region, set: impl IntoIterator<Item = usize>) -> f64 {
    let graph = graph(region);
    Estimates::new(&graph).size(set.into_iter().collect(), &mut Scratch::default()).rows
}

pub fn is_close(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() < 1e-9
}

fn class_of(predicate: &Predicate) -> Option<usize> {
    match predicate.kind {
        PredicateKind::Equality { class, .. } => class,
        PredicateKind::Residual => None,
    }
}

/// The region with one predicate less, the last one.
fn without_last(region: &Region) -> Region {
    fn remove(node: &mut Node, predicate: usize) {
        if let Node::Join(join) = node {
            join.predicates.retain(|&number| number != predicate);
            remove(&mut join.left, predicate);
            remove(&mut join.right, predicate);
        }
    }
    let mut region = region.clone();
    region.predicates.pop();
    remove(&mut region.root, region.predicates.len());
    region
}

/// Relations a, b and c with a = b, b = c and a = c, in this order of selectivities.
fn triangle(selectivities: [f64; 3]) -> Region {
    let [ab, bc, ac] = selectivities;
    of_one_class(Region {
        relations: [1e3, 1e4, 1e5].map(|rows| Relation::new(rows, 10.0)).to_vec(),
        predicates: vec![Predicate::equality(0, 1, ab), Predicate::equality(1, 2, bc), Predicate::equality(0, 2, ac)],
        root: Node::join(
            JoinKind::Inner,
            Node::join(JoinKind::Inner, Node::Leaf(0), Node::Leaf(1), vec![0]),
            Node::Leaf(2),
            vec![1, 2],
        ),
    })
}

#[test]
fn an_equality_that_follows_counts_where_no_others_say_it() {
    let region = triangle([1e-4, 1e-5, 1e-5]);
    assert!(is_close(rows(&region, [0, 2]), 1e3));
    assert!(is_close(rows(&region, [0, 1]), 1e3));
    assert!(is_close(rows(&region, [1, 2]), 1e4));
    // Of the three, the two least selective.
    assert!(is_close(rows(&region, [0, 1, 2]), 1e3));
    for equal in [1e-5, 1e-4] {
        let region = triangle([equal; 3]);
        assert!(is_close(rows(&region, [0, 1, 2]), rows(&without_last(&region), [0, 1, 2])));
        assert!(is_close(rows(&region, [0, 2]), 1e8 * equal));
    }
}

#[test]
fn all_orders_have_the_same_estimates() {
    let region = triangle([1e-4, 3e-5, 1e-5]);
    let (graph, model) = (graph(&region), HashJoinCost::default());
    let estimates = Estimates::new(&graph);
    let orders = all_orders(&graph, graph.all);
    // Any two relations first, and either side of both joins on the left.
    assert_eq!(orders.len(), 12);
    for order in orders {
        let Node::Join(join) = &order else { panic!("{order:?} joins all relations") };
        let first = if let Node::Join(_) = join.left { &join.left } else { &join.right };
        let found = Steps::of(&graph, &order).estimates(&estimates, &model);
        assert_eq!(found[0].rows, rows(&region, first.leaves()), "{order:?}");
        assert_eq!(found[1].rows, rows(&region, [0, 1, 2]), "{order:?}");
    }
}

/// The greatest product of selectivities of equalities that connect all that the given ones do: tries all choices.
fn greatest_forest(equalities: &[(RelationSet, f64)]) -> f64 {
    let chosen = |choice: usize| (0..equalities.len()).filter(move |number| choice >> number & 1 == 1);
    let components = |choice: usize| {
        let mut components: Vec<RelationSet> = vec![];
        for ends in chosen(choice).map(|number| equalities[number].0) {
            let (met, mut others): (Vec<_>, Vec<_>) = components.iter().partition(|set| set.intersects(ends));
            others.push(met.into_iter().fold(ends, |all, set| all | set));
            components = others;
        }
        components.sort();
        components
    };
    let all = components((1 << equalities.len()) - 1);
    let edges: usize = all.iter().map(|component| component.len() - 1).sum();
    (0..1 << equalities.len())
        .filter(|&choice| chosen(choice).count() == edges && components(choice) == all)
        .map(|choice| chosen(choice).map(|number| equalities[number].1).product())
        .fold(0.0, f64::max)
}

#[test]
fn inner_joins_count_the_least_selective_forest_of_each_class() {
    let mut smaller = 0;
    for seed in 0..3_000 {
        let mut region = random_query(seed, &[JoinKind::Inner], 5).region;
        let mut random = RandomNumbers::new(seed);
        // Without extreme numbers, which estimates cut off.
        region.predicates.iter_mut().for_each(|predicate| predicate.selectivity = 0.05 + 0.9 * random.share());
        let graph = graph(&region);
        let estimates = Estimates::new(&graph);
        for set in graph.all.subsets() {
            let complete = graph.operators.iter().zip(&graph.conflicts);
            let complete: Vec<&Predicate> = complete
                .filter(|(_, conflicts)| conflicts.needed().is_subset(set))
                .flat_map(|(operator, _)| operator.predicates.iter().map(|&number| &region.predicates[number]))
                .collect();
            let classes: BTreeSet<Option<usize>> = complete.iter().map(|predicate| class_of(predicate)).collect();
            let of_class = |class: Option<usize>| {
                let members = complete.iter().filter(move |predicate| class_of(predicate) == class);
                members.map(|predicate| (predicate.relations, predicate.selectivity)).collect::<Vec<_>>()
            };
            let all: f64 = set.iter().map(|relation| region.relations[relation].rows).product();
            let plain: f64 = of_class(None).iter().map(|(_, selectivity)| selectivity).product();
            let forests: f64 =
                classes.into_iter().flatten().map(|class| greatest_forest(&of_class(Some(class)))).product();
            let expected = (all * plain * forests).max(1.0);
            let found = estimates.size(set, &mut Scratch::default()).rows;
            assert!(is_close(found, expected), "seed {seed}, {set:?}: {found}, not {expected}");
            let counted_twice: f64 = complete.iter().map(|predicate| predicate.selectivity).product();
            smaller += usize::from(all * counted_twice < 0.9 * expected);
        }
    }
    assert!(smaller > 1_000, "{smaller} estimates would be smaller if all equalities counted");
}

/// Sets of relations of the joins of a tree.
fn joined(node: &Node) -> Vec<RelationSet> {
    let Node::Join(join) = node else { return vec![] };
    [joined(&join.left), joined(&join.right), vec![node.relations()]].concat()
}

#[test]
fn an_equality_that_follows_changes_no_estimate_where_it_selects_most() {
    let mut added = 0;
    for seed in 0..8_000 {
        let kinds = if seed % 2 == 0 { &ALL_KINDS[..1] } else { &ALL_KINDS };
        let plain = random_simple_query(seed, kinds, 6);
        let mut implied = random_simple_query(seed, kinds, 6);
        add_implied(&mut implied, &mut RandomNumbers::new(seed));
        added += implied.implied;
        let first = plain.region.predicates.len();
        implied.region.predicates[first..].iter_mut().for_each(|predicate| predicate.selectivity = 1e-30);
        // Others connect what it does in what the query joins, and not in all sets.
        let sets = joined(&plain.region.root);
        for set in sets {
            let (plain, implied) = (rows(&plain.region, set.iter()), rows(&implied.region, set.iter()));
            assert!(is_close(plain, implied), "seed {seed}, {set:?}: {plain} and {implied}");
        }
    }
    assert!(added > 1_000, "{added} equalities follow");
}

#[test]
fn equalities_that_follow_change_no_rows() {
    let (mut added, mut direct) = (0, 0);
    for seed in 0..6_000 {
        let plain = random_simple_query(seed, &many_inner(), 6);
        let mut implied = random_simple_query(seed, &many_inner(), 6);
        add_implied(&mut implied, &mut RandomNumbers::new(seed));
        implied.region.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(plain.data.answer(&plain.region.root), implied.data.answer(&implied.region.root), "seed {seed}");
        let (plain_graph, graph) = (graph(&plain.region), graph(&implied.region));
        let following = implied.region.predicates[plain.region.predicates.len()..].iter();
        assert_eq!(following.len(), implied.implied);
        added += implied.implied;
        for ends in following.map(|predicate| predicate.relations) {
            let [one, other] =
                [ends.iter().next(), ends.iter().next_back()].map(|end| RelationSet::single(end.unwrap()));
            assert!(plain_graph.meeting(one, other).is_none(), "seed {seed}");
            direct += usize::from(graph.meeting(one, other).is_some_and(|meeting| meeting.hashed));
        }
    }
    assert!(added > 500 && direct > added / 2, "{direct} of {added} equalities join two relations");
}

#[test]
fn a_changed_selectivity_may_change_the_forest() {
    for seed in 0..1_000 {
        let region = random_query(seed, &ALL_KINDS, 5).region;
        let base_graph = graph(&region);
        let estimates = Estimates::new(&base_graph);
        for base in estimates.bases() {
            for factor in [10.0, 0.1] {
                let changed = estimates.changed(base, factor);
                let mut wrong = region.clone();
                match base {
                    Base::Rows(relation) => {
                        wrong.relations[relation].rows = (region.relations[relation].rows * factor).max(1.0)
                    }
                    Base::Selectivity(predicate) => wrong.predicates[predicate].selectivity *= factor,
                }
                let wrong_graph = graph(&wrong);
                let expected = Estimates::new(&wrong_graph);
                for set in base_graph.all.subsets() {
                    let size = |estimates: &Estimates| estimates.size(set, &mut Scratch::default());
                    assert_eq!(size(&changed), size(&expected), "seed {seed}, {base}, {set:?}");
                    // What is known of other sets is used again.
                    if !estimates.concerned(base).is_subset(set) {
                        assert_eq!(size(&changed), size(&estimates), "seed {seed}, {base}, {set:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_equality_of_one_side_follows_from_those_below() {
    let mut region = triangle([1e-4, 1e-5, 1.0]);
    let following = Predicate::equality(0, 1, 1e-4);
    region.predicates[1].kind = PredicateKind::Residual;
    region.predicates[2] = Predicate { kind: region.predicates[0].kind, ..following };
    assert!(is_close(rows(&region, 0..3), rows(&without_last(&region), 0..3)));
}

#[test]
fn joins_between_those_of_a_class_have_the_rows_of_their_own_relations() {
    // The most selective of the three equalities is below the outer join, and not in the forest of all relations.
    let mut region = triangle([1e-5, 1e-4, 1e-4]);
    let inner = rows(&region, 0..3);
    region.relations.push(Relation::new(1.0, 10.0));
    region.predicates.push(Predicate::equality(1, 3, 1e-9));
    let Node::Join(top) = &mut region.root else { panic!("the root is a join") };
    let lower = std::mem::replace(&mut top.left, Node::Leaf(3));
    top.left = Node::join(JoinKind::RightOuter, Node::Leaf(3), lower, vec![3]);
    assert!(is_close(rows(&region, [0, 1, 3]), rows(&region, [0, 1])));
    assert!(is_close(rows(&region, 0..4), inner));
    // The other way round, the outer join has 100 rows to choose from, not the 10 million pairs of a and b.
    let Node::Join(top) = &mut region.root else { panic!("the root is a join") };
    let Node::Join(outer) = &mut top.left else { panic!("its left side is a join") };
    outer.kind = JoinKind::LeftOuter;
    region.predicates[3].selectivity = 1e-4;
    region.relations[2].rows = 1e12;
    assert!(is_close(rows(&region, [0, 1, 3]), 1.0));
    assert!(is_close(rows(&region, 0..4), 1e12 * 1e-8 / 1e-5));
}

#[test]
fn products_of_many_selectivities_stay_numbers() {
    let mut region = of_one_class(region(Shape::Clique, 64, 0));
    region.relations.iter_mut().for_each(|relation| relation.rows = 1e6);
    for predicate in &mut region.predicates {
        predicate.selectivity = if predicate.relations.contains(63) { 1.1e-6 } else { 1e-6 };
    }
    assert!(is_close(rows(&region, 0..63), 1e6));
    assert!(is_close(rows(&region, 0..64), 1e6 * 1.1_f64.powi(63)));
}

/// An equality of 1,000 values with `keys` values.
fn equality(one: usize, other: usize, keys: f64) -> Predicate {
    let mut predicate = Predicate::equality(one, other, 1e-3);
    if let PredicateKind::Equality { distinct, class, .. } = &mut predicate.kind {
        (*distinct, *class) = (Some([1e3, keys]), Some(0));
    }
    predicate
}

/// Relations a and b with a = b, and a join of some kind with c, by the given predicates of a = b, a = c and b = c.
fn joined_with_third(kind: JoinKind, predicates: Vec<usize>) -> Region {
    let all = [equality(0, 1, 1e3), equality(0, 2, 50.0), equality(1, 2, 50.0)];
    Region {
        relations: [1e3, 1e3, 1e2].map(|rows| Relation::new(rows, 10.0)).to_vec(),
        predicates: all[..=predicates.len()].to_vec(),
        root: Node::join(
            kind,
            Node::join(JoinKind::Inner, Node::Leaf(0), Node::Leaf(1), vec![0]),
            Node::Leaf(2),
            predicates,
        ),
    }
}

#[test]
fn joins_of_all_kinds_count_equal_keys_once() {
    for kind in ALL_KINDS {
        let (one, both) = (joined_with_third(kind, vec![1]), joined_with_third(kind, vec![1, 2]));
        let (one, both) = (rows(&one, 0..3), rows(&both, 0..3));
        assert!(is_close(one, both), "{kind:?}: {one} rows with one equality, {both} with both");
    }
}

#[test]
fn keys_of_a_side_are_those_that_it_does_not_make_equal() {
    // Of a million pairs of a and b with a = b, those that have a partner among the pairs of c and d by a = c, b = c and a = d.
    let semi_join = |last: Predicate| {
        let inner = |one: usize, other: usize, predicate: usize| {
            Node::join(JoinKind::Inner, Node::Leaf(one), Node::Leaf(other), vec![predicate])
        };
        let equalities = [equality(0, 1, 1e3), equality(0, 2, 50.0), equality(1, 2, 50.0), equality(0, 3, 40.0)];
        let region = Region {
            relations: [1e6, 1e3, 1e3, 1e3].map(|rows| Relation::new(rows, 10.0)).to_vec(),
            predicates: [&equalities[..], &[last]].concat(),
            root: Node::join(JoinKind::LeftSemi, inner(0, 1, 0), inner(2, 3, 4), vec![1, 2, 3]),
        };
        rows(&region, 0..4)
    };
    // Each of 50 keys comes with each of 40.
    let residual = Predicate::residual([2, 3].into_iter().collect(), 0.5);
    assert!(is_close(semi_join(residual), 1e6 * 50.0 * 40.0 * 1e-6));
    // With c = d there are 40.
    assert!(is_close(semi_join(equality(2, 3, 40.0)), 1e6 * 40.0 * 1e-3));
}

#[test]
fn equalities_of_other_classes_are_other_keys() {
    let mut region = joined_with_third(JoinKind::LeftSemi, vec![1, 2]);
    region.relations[0].rows = 1e6;
    region.relations[2].rows = 1e5;
    if let PredicateKind::Equality { class, .. } = &mut region.predicates[2].kind {
        *class = Some(1);
    }
    assert!(is_close(rows(&region, 0..3), 1e6 * 50.0 * 50.0 * 1e-6));
}

/// A table of 10 million rows, and three of a million that have each of its keys once.
fn star() -> Region {
    let join = |left: Node, right: usize, predicates: Vec<usize>| {
        Node::join(JoinKind::Inner, left, Node::Leaf(right), predicates)
    };
    let ends = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    of_one_class(Region {
        relations: [1e7, 1e6, 1e6, 1e6].map(|rows| Relation::new(rows, 20.0)).to_vec(),
        predicates: ends.map(|(one, other)| Predicate::equality(one, other, 1e-6)).to_vec(),
        root: join(join(join(Node::Leaf(0), 1, vec![0]), 2, vec![1, 3]), 3, vec![2, 4, 5]),
    })
}

#[test]
fn dimensions_that_share_a_key_are_joined_first() {
    let region = star();
    let mut given = region.clone();
    (0..3).for_each(|_| given = without_last(&given));
    let [found, known] = [&region, &given].map(|region| order(region, &Options::default(), &HashJoinCost::default()));
    let (found, known) = (found.unwrap(), known.unwrap());
    let Node::Join(join) = &found.root else { panic!("{:?} joins all relations", found.root) };
    assert!(join.left == Node::Leaf(0) || join.right == Node::Leaf(0), "{:?}", found.root);
    assert!(found.cost < 0.8 * known.cost, "{} and {}", found.cost, known.cost);
    assert!(is_close(found.written_cost, known.written_cost));
}
