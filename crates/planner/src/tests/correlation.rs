//! Several equalities between two relations.

use super::{
    answers::all_orders,
    classes::{graph, is_close, rows},
    queries::{ALL_KINDS, random_query},
};
use crate::{
    HashJoinCost, JoinKind, Node, Predicate, PredicateKind, Region, Relation,
    estimate::{Estimates, Scratch},
    steps::Steps,
};

/// An equality of columns of two relations. Each column has `keys` different values.
fn equality(left: usize, right: usize, keys: f64, class: usize) -> Predicate {
    let mut equality = Predicate::equality(left, right, 1.0 / keys);
    if let PredicateKind::Equality { distinct, class: known, .. } = &mut equality.kind {
        (*distinct, *known) = (Some([keys; 2]), Some(class));
    }
    equality
}

fn inner(left: Node, right: Node, predicates: Vec<usize>) -> Node {
    Node::join(JoinKind::Inner, left, right, predicates)
}

/// Lines, the offers that they are of, and the parts and suppliers of offers, as in TPC-H at scale 10. An offer is a part and a supplier.
fn offers() -> Region {
    let relation = |rows: f64, unfiltered: f64| Relation { unfiltered, ..Relation::new(rows, 20.0) };
    Region {
        relations: vec![relation(6e7, 6e7), relation(8e6, 8e6), relation(1e5, 2e6), relation(1e5, 1e5)],
        predicates: vec![
            equality(0, 1, 2e6, 0),
            equality(0, 1, 1e5, 1),
            equality(1, 2, 2e6, 0),
            equality(0, 2, 2e6, 0),
            equality(1, 3, 1e5, 1),
            equality(0, 3, 1e5, 1),
        ],
        root: inner(
            inner(inner(Node::Leaf(0), Node::Leaf(1), vec![0, 1]), Node::Leaf(2), vec![2, 3]),
            Node::Leaf(3),
            vec![4, 5],
        ),
    }
}

#[test]
fn keys_of_two_columns_are_no_more_than_rows() {
    let region = offers();
    // A line has one offer, but it is not known that the offers are those of the lines.
    let of_lines = 6e7 * 8e6 / (6e7_f64 * 8e6).sqrt();
    assert!(is_close(rows(&region, [0, 1]), of_lines));
    assert!(is_close(rows(&region, [1, 2]), 4e5));
    // A twentieth of the parts is wanted.
    for set in [vec![0, 1, 2], vec![0, 1, 2, 3]] {
        assert!(is_close(rows(&region, set.iter().copied()), of_lines / 20.0), "{set:?}");
    }
    for set in [vec![0, 2], vec![0, 2, 3]] {
        assert!(is_close(rows(&region, set.iter().copied()), 6e7 / 20.0), "{set:?}");
    }
    let mut unknown = region;
    unknown.relations.iter_mut().for_each(|relation| relation.unfiltered = f64::INFINITY);
    assert!(is_close(rows(&unknown, [0, 1]), 6e7 * 8e6 / 2e11));
}

#[test]
fn of_three_relations_with_the_same_keys_two_pairs_count() {
    let keys = [(0, 1), (1, 2), (0, 2)].into_iter().flat_map(|(one, other)| [1e3, 1e4].map(|keys| (one, other, keys)));
    let region = Region {
        relations: vec![Relation { unfiltered: 1e5, ..Relation::new(1e5, 20.0) }; 3],
        predicates: keys.map(|(one, other, keys)| equality(one, other, keys, usize::from(keys > 2e3))).collect(),
        root: inner(inner(Node::Leaf(0), Node::Leaf(1), vec![0, 1]), Node::Leaf(2), vec![2, 3, 4, 5]),
    };
    for set in [vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2]] {
        assert!(is_close(rows(&region, set.iter().copied()), 1e5), "{set:?}: {}", rows(&region, set.iter().copied()));
    }
}

#[test]
fn estimates_depend_on_the_set_alone() {
    let region = offers();
    let (graph, model) = (graph(&region), HashJoinCost::default());
    let estimates = Estimates::new(&graph);
    let orders = all_orders(&graph, graph.all);
    assert!(orders.len() > 50);
    for order in orders {
        let last = Steps::of(&graph, &order).estimates(&estimates, &model).last().unwrap().rows;
        assert!(is_close(last, rows(&region, 0..4)), "{order:?}: {last}");
    }
}

#[test]
fn joins_of_all_kinds_have_no_more_rows_than_pairs() {
    for seed in 0..2_000 {
        let mut query = random_query(seed, &ALL_KINDS, 6);
        for relation in &mut query.region.relations {
            relation.unfiltered = relation.rows * (1 + seed % 3) as f64;
        }
        let graph = graph(&query.region);
        let most: f64 = query.region.relations.iter().map(|relation| relation.rows.max(1.0) + 1.0).product();
        let known = Estimates::new(&graph).size(graph.all, &mut Scratch::default()).rows;
        assert!(known >= 1.0 && known <= most, "seed {seed}: {known} of {most}");
    }
}
