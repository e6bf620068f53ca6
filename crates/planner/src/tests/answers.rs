//! Every order gives the rows of the written one.

use std::ops::Range;

use super::{
    oracle::Data,
    queries::{ALL_KINDS, Query, many_inner, random_query},
};
use crate::{
    HashJoinCost, Mode, Node, Options, RelationSet,
    conflict::Properties,
    hypergraph::Hypergraph,
    order,
    order::Ordering,
    search::{RandomNumbers, enumerate, merged, optimum, sampled},
};

/// Random orders of each query.
const ORDERS: u64 = 6;

/// The seeds of the queries: 6,000, or as many as `OVERSPILL_TEST_CASES` says, from `OVERSPILL_TEST_SEED` on.
fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let first = number("OVERSPILL_TEST_SEED").unwrap_or(0);
    first..first + number("OVERSPILL_TEST_CASES").unwrap_or(6_000)
}

fn predicates(node: &Node) -> Vec<usize> {
    match node {
        Node::Leaf(_) => vec![],
        Node::Join(join) => [predicates(&join.left), predicates(&join.right), join.predicates.clone()].concat(),
    }
}

/// The joins without a predicate that uses both sides.
fn cross_products(query: &Query, node: &Node) -> usize {
    let Node::Join(join) = node else { return 0 };
    let (left, right) = (join.left.relations(), join.right.relations());
    let used = |number: &usize| query.region.predicates[*number].relations;
    let connected = join.predicates.iter().map(used).any(|used| used.intersects(left) && used.intersects(right));
    cross_products(query, &join.left) + cross_products(query, &join.right) + usize::from(!connected)
}

/// Fails if the order has not the same parts or not the same rows, or has new cross products.
fn check(seed: u64, by: &str, query: &Query, written: &[Vec<i8>], node: &Node) {
    let parts = |mut numbers: Vec<usize>| {
        numbers.sort_unstable();
        numbers
    };
    let root = &query.region.root;
    assert_eq!(parts(node.leaves()), parts(root.leaves()), "seed {seed}, {by}: {node:?}");
    assert_eq!(parts(predicates(node)), parts(predicates(root)), "seed {seed}, {by}: {node:?}");
    assert!(cross_products(query, node) <= cross_products(query, root), "seed {seed}, {by}: {node:?}");
    let Data { tables, conditions } = &query.data;
    assert!(
        query.data.answer(node).as_deref() == Some(written),
        "seed {seed}, {by}: another answer\nwritten {root:?}\norder {node:?}\nconditions {conditions:?}\ntables {tables:?}"
    );
}

/// Checks the cheapest orders of a query, the greedy one and random ones. Gives how many of the random ones are not the written one.
fn check_orders(seed: u64, query: &Query) -> usize {
    let model = HashJoinCost::default();
    query.region.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let written = query.data.answer(&query.region.root).expect("a query uses what is visible");
    let graph = Hypergraph::new(&query.region, &Properties::STANDARD);
    let options = Options::default();
    let ordering = Ordering::new(&graph, &options, &model);
    let (space, all) = ordering.space();
    assert!(all);
    let cheapest = optimum(&space, &ordering.objective(&[])).expect("the written order is one");
    check(seed, "cheapest", query, &written, &cheapest);
    if let Some(node) = ordering.greedy() {
        check(seed, "greedy", query, &written, &node);
    }
    let few = Options { most_pairs: 0, ..options };
    let some = Ordering::new(&graph, &few, &model);
    let (space, all) = some.space();
    assert!(!all);
    let node = optimum(&space, &some.objective(&[])).expect("the written order is one");
    check(seed, "some orders", query, &written, &node);
    let mut other_orders = 0;
    for number in 0..ORDERS {
        let node = ordering.random(number);
        other_orders += usize::from(node.relations() == query.region.root.relations() && node != query.region.root);
        check(seed, &format!("random {number}"), query, &written, &node);
        check(seed, &format!("merged {number}"), query, &written, &some.random(number));
    }
    other_orders
}

#[test]
fn every_order_gives_the_written_rows() {
    let other_orders: usize = seeds().map(|seed| check_orders(seed, &random_query(seed, &ALL_KINDS, 6))).sum();
    assert!(other_orders >= seeds().count() * ORDERS as usize / 2, "{other_orders} orders are not the written one");
}

#[test]
fn every_order_with_equalities_that_follow_gives_the_written_rows() {
    let queries = seeds().map(|seed| (seed, random_query(seed, &many_inner(), 6)));
    let mut checked = 0;
    for (seed, query) in queries.filter(|(_, query)| query.implied > 0) {
        check_orders(seed, &query);
        checked += 1;
    }
    assert!(checked >= seeds().count() / 25, "{checked} queries have equalities that follow");
}

#[test]
fn the_plan_that_is_chosen_gives_the_written_rows() {
    let mut cheaper = 0;
    for seed in seeds() {
        let query = random_query(seed, &ALL_KINDS, 6);
        let written = query.data.answer(&query.region.root).expect("a query uses what is visible");
        let plan = order(&query.region, &Options::default(), &HashJoinCost::default()).unwrap();
        check(seed, "plan", &query, &written, &plan.root);
        assert_eq!(plan.reason.keeps_written(), plan.root == query.region.root, "seed {seed}");
        cheaper += usize::from(!plan.reason.keeps_written());
    }
    assert!(cheaper >= seeds().count() / 10, "{cheaper} plans are not the written one");
}

#[test]
fn random_orders_are_those_of_their_seed() {
    let query = random_query(17, &ALL_KINDS, 6);
    let of = |seed, most_pairs| {
        let options = Options { mode: Mode::Random(seed), most_pairs, ..Options::default() };
        order(&query.region, &options, &HashJoinCost::default()).unwrap().root
    };
    for most_pairs in [0, 10_000] {
        (0..20).for_each(|seed| assert_eq!(of(seed, most_pairs), of(seed, most_pairs)));
    }
}

/// All orders of a set, with either side on the left where that is allowed.
pub fn all_orders(graph: &Hypergraph, set: RelationSet) -> Vec<Node> {
    if set.len() == 1 {
        return set.first().map(Node::Leaf).into_iter().collect();
    }
    let mut found = vec![];
    for left in set.subsets().filter(|&left| left != set) {
        let right = set - left;
        if graph.meeting(left, right).is_none() {
            continue;
        }
        let rights = all_orders(graph, right);
        for left_node in all_orders(graph, left) {
            for right_node in &rights {
                found.extend(graph.join((left_node.clone(), left), (right_node.clone(), right)));
            }
        }
    }
    found
}

#[test]
fn random_reaches_every_order_equally_often() {
    for seed in 0..300 {
        let query = random_query(seed, &ALL_KINDS, 4);
        let graph = Hypergraph::new(&query.region, &Properties::STANDARD);
        let orders = all_orders(&graph, graph.all);
        if orders.len() > 100 {
            continue;
        }
        let mut space = enumerate(&graph, usize::MAX / 100).unwrap();
        space.sort();
        let mut random = RandomNumbers::new(seed);
        let (mut by_sampling, mut by_merging) = (vec![0; orders.len()], vec![0; orders.len()]);
        let place = |node: Node| orders.iter().position(|order| *order == node).expect("it is among all orders");
        for _ in 0..200 * orders.len() {
            by_sampling[place(sampled(&space, &mut random).unwrap())] += 1;
            if let Some(node) = merged(&graph, &mut random) {
                by_merging[place(node)] += 1;
            }
        }
        // 200 are expected, with a standard deviation of 14.
        assert!(by_sampling.iter().all(|times| (110..300).contains(times)), "seed {seed}: {by_sampling:?}");
        assert!(by_merging.iter().all(|&times| times > 0), "seed {seed}: {by_merging:?}");
    }
}
