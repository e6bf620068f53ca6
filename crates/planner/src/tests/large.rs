//! Many relations.

use std::time::Instant;

use super::{
    queries::{ALL_KINDS, random_query},
    shapes::{SHAPES, Shape, of_one_class, region},
};
use crate::{HashJoinCost, Mode, Node, Options, Region, order};

fn leaves(node: &Node) -> Vec<usize> {
    let mut leaves = node.leaves();
    leaves.sort_unstable();
    leaves
}

#[test]
fn forty_and_sixty_four_relations_are_ordered() {
    for shape in SHAPES {
        for relations in [40, 64] {
            let region = region(shape, relations, 1);
            for mode in [Mode::Auto, Mode::AsWritten, Mode::Random(3)] {
                let options = Options { mode, ..Options::default() };
                let plan = order(&region, &options, &HashJoinCost::default()).unwrap();
                assert_eq!(leaves(&plan.root), leaves(&region.root), "{shape:?} {mode:?}");
                assert_eq!(plan.estimates.len(), relations - 1);
                assert!(mode != Mode::Auto || plan.cost <= plan.written_cost, "{shape:?}");
            }
        }
    }
}

#[test]
fn some_orders_are_close_to_the_best() {
    let mut worst: f64 = 1.0;
    for shape in SHAPES {
        for seed in 0..30 {
            let region = region(shape, 9, seed);
            // Without caution, costs can be compared.
            let options = Options { least_gain: f64::MIN, doubt: 1.0, ..Options::default() };
            let all = order(&region, &options, &HashJoinCost::default()).unwrap();
            let some = order(&region, &Options { most_pairs: 0, ..options }, &HashJoinCost::default()).unwrap();
            worst = worst.max(some.cost / all.cost);
        }
    }
    assert!(worst < 2.0, "{worst} times the best cost");
}

/// Milliseconds of planning: the median, and the longest.
fn milliseconds(regions: &[Region]) -> (f64, f64) {
    let mut times: Vec<f64> = regions
        .iter()
        .map(|region| {
            let start = Instant::now();
            order(region, &Options::default(), &HashJoinCost::default()).unwrap();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() - 1])
}

/// Prints how long planning takes: `cargo test --release -p overspill-planner planning_times -- --ignored --nocapture`.
#[test]
#[ignore = "it measures times, and asserts nothing that other load could not change"]
fn planning_times() {
    for relations in [4, 8, 12, 20, 40, 64] {
        for shape in SHAPES {
            let regions: Vec<Region> = (0..20).map(|seed| region(shape, relations, seed)).collect();
            let (median, longest) = milliseconds(&regions);
            println!("{relations:2} tables, {shape:?}: median {median:.2} ms, longest {longest:.2} ms");
        }
        for shape in [Shape::Cycle, Shape::Clique] {
            let regions: Vec<Region> = (0..20).map(|seed| of_one_class(region(shape, relations, seed))).collect();
            let (median, longest) = milliseconds(&regions);
            println!("{relations:2} tables, {shape:?} of one class: median {median:.2} ms, longest {longest:.2} ms");
        }
        let regions = (0..).map(|seed| random_query(seed, &ALL_KINDS, relations).region);
        let regions: Vec<Region> = regions.filter(|region| region.relations.len() == relations).take(20).collect();
        let (median, longest) = milliseconds(&regions);
        println!("{relations:2} tables, all kinds of joins: median {median:.2} ms, longest {longest:.2} ms");
    }
}
