//! The cheapest order is the cheapest of all.

use super::{
    answers::all_orders,
    queries::{ALL_KINDS, random_query},
};
use crate::{
    HashJoinCost, Node, Options,
    conflict::Properties,
    hypergraph::Hypergraph,
    order::Ordering,
    search::optimum,
    steps::{Steps, total},
};

#[test]
fn no_order_is_cheaper_than_the_cheapest() {
    let (model, options) = (HashJoinCost { core_cache: 1e4, shared_cache: 1e5, memory: 1e6 }, Options::default());
    let mut greedy_is_worse = 0;
    for seed in 0..1_500 {
        let query = random_query(seed, &ALL_KINDS, 5);
        let graph = Hypergraph::new(&query.region, &Properties::STANDARD);
        let ordering = Ordering::new(&graph, &options, &model);
        let cost = |node: &Node| total(&Steps::of(&graph, node).estimates(&ordering.estimates, &model));
        let found = cost(&optimum(&ordering.space().0, &ordering.objective(&[])).unwrap());
        let least = all_orders(&graph, graph.all).iter().map(cost).min_by(f64::total_cmp).unwrap();
        assert!((found / least - 1.0).abs() < 1e-9, "seed {seed}: {found} is found, {least} is the least");
        let few = Options { most_pairs: 0, ..options };
        let some = Ordering::new(&graph, &few, &model);
        let linear = cost(&optimum(&some.space().0, &some.objective(&[])).unwrap());
        assert!(linear >= found * (1.0 - 1e-9), "seed {seed}");
        assert!(linear <= cost(&query.region.root) * (1.0 + 1e-9), "seed {seed}");
        if let Some(greedy) = ordering.greedy() {
            let greedy = cost(&greedy);
            assert!(greedy >= found * (1.0 - 1e-9), "seed {seed}: {greedy} is below {found}");
            assert!(greedy >= linear * (1.0 - 1e-9), "seed {seed}: {greedy} is below {linear}");
            greedy_is_worse += usize::from(greedy > found * 1.01);
        }
    }
    assert!(greedy_is_worse > 0);
}
