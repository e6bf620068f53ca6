//! The cheapest order of an enumerated space.

use crate::{
    CostModel, JoinWork, Node, Size,
    cost::sound,
    estimate::{Estimates, Scratch},
    space::{Pair, Space},
};

/// What an order is judged by: the sum of its costs under one or several estimates, each with a weight.
pub struct Objective<'a> {
    pub model: &'a dyn CostModel,
    pub estimates: Vec<(Estimates<'a>, f64)>,
}

/// By set: the cost of its cheapest order, and which of its pairs that ends with, the first set on the left or the second.
struct Cheapest {
    cost: Vec<f64>,
    last: Vec<Option<(Pair, bool)>>,
}

/// The cheapest order of all relations; none if the space has no order of them. The pairs are sorted. Takes time linear in the pairs and
/// in the sets times the predicates. Of equal orders the first is taken.
pub fn optimum(space: &Space, objective: &Objective) -> Option<Node> {
    let all = space.all()?;
    let count = space.sets.len();
    let mut cheapest = Cheapest { cost: vec![f64::INFINITY; count], last: vec![None; count] };
    let singles = space.graph.region.relations.len();
    cheapest.cost[..singles].fill(0.0);
    let mut scratch = Scratch::default();
    let sizes: Vec<Vec<Size>> = objective
        .estimates
        .iter()
        .map(|(estimates, _)| space.sets.iter().map(|&set| estimates.size(set, &mut scratch)).collect())
        .collect();
    for pair in &space.pairs {
        let [first, second, whole] = [pair.first, pair.second, pair.whole].map(|number| number as usize);
        let inputs = cheapest.cost[first] + cheapest.cost[second];
        for swapped in [false, true] {
            let (build, probe) = if swapped { (second, first) } else { (first, second) };
            let kind = if swapped { pair.meeting.kind.swapped() } else { pair.meeting.kind };
            if (swapped && pair.meeting.fixed) || inputs >= cheapest.cost[whole] {
                continue;
            }
            let mut cost = inputs;
            for ((_, weight), sizes) in objective.estimates.iter().zip(&sizes) {
                let (build, probe, output) = (sizes[build], sizes[probe], sizes[whole]);
                let work = JoinWork { kind, hashed: pair.meeting.hashed, build, probe, output };
                cost += weight * sound(objective.model.cost(&work));
            }
            if cost < cheapest.cost[whole] {
                cheapest.cost[whole] = cost;
                cheapest.last[whole] = Some((*pair, swapped));
            }
        }
    }
    cheapest.node(space, all)
}

impl Cheapest {
    fn node(&self, space: &Space, number: usize) -> Option<Node> {
        let set = space.sets[number];
        if set.len() == 1 {
            return set.first().map(Node::Leaf);
        }
        let (pair, swapped) = self.last[number]?;
        let side = |number: u32| {
            let number = number as usize;
            Some((self.node(space, number)?, space.sets[number]))
        };
        let (left, right) = if swapped { (pair.second, pair.first) } else { (pair.first, pair.second) };
        space.graph.join(side(left)?, side(right)?)
    }
}
