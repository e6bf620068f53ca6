//! A random valid order.

use crate::{Node, RelationSet, hypergraph::Hypergraph, space::Space};

/// Random numbers by SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the same for a seed on all machines and in all versions.
pub struct RandomNumbers(u64);

impl RandomNumbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.word()) * count as u128) >> 64) as usize
    }

    /// A number from 0 up to 1.
    pub fn share(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// An order of all relations, each one of the space equally likely; none if the space has none. The pairs are sorted.
pub fn sampled(space: &Space, random: &mut RandomNumbers) -> Option<Node> {
    let all = space.all()?;
    let mut orders = vec![0.0; space.sets.len()];
    orders[..space.graph.region.relations.len()].fill(1.0);
    let mut ending_in: Vec<Vec<usize>> = vec![vec![]; space.sets.len()];
    for (number, pair) in space.pairs.iter().enumerate() {
        orders[pair.whole as usize] += orders_of(space, &orders, number);
        ending_in[pair.whole as usize].push(number);
    }
    sample(space, &orders, &ending_in, all, random)
}

/// The orders that end with a pair. Either side may be on the left.
fn orders_of(space: &Space, orders: &[f64], number: usize) -> f64 {
    let pair = &space.pairs[number];
    let ways = if pair.meeting.fixed { 1.0 } else { 2.0 };
    ways * orders[pair.first as usize] * orders[pair.second as usize]
}

fn sample(
    space: &Space,
    orders: &[f64],
    ending_in: &[Vec<usize>],
    set: usize,
    random: &mut RandomNumbers,
) -> Option<Node> {
    if space.sets[set].len() == 1 {
        return space.sets[set].first().map(Node::Leaf);
    }
    let mut rest = random.share() * orders[set];
    let fitting = ending_in[set].iter().find(|&&number| {
        rest -= orders_of(space, orders, number);
        rest < 0.0
    });
    let pair = &space.pairs[*fitting.or(ending_in[set].last())?];
    let (mut left, mut right) = (pair.first as usize, pair.second as usize);
    if !pair.meeting.fixed && random.below(2) == 1 {
        std::mem::swap(&mut left, &mut right);
    }
    let left_node = sample(space, orders, ending_in, left, random)?;
    let right_node = sample(space, orders, ending_in, right, random)?;
    space.graph.join((left_node, space.sets[left]), (right_node, space.sets[right]))
}

/// An order of all relations by joining two groups at random, again and again. Each order can come, not all equally likely. None if
/// that led nowhere.
pub fn merged(graph: &Hypergraph, random: &mut RandomNumbers) -> Option<Node> {
    let mut groups: Vec<(Node, RelationSet)> =
        graph.all.iter().map(|relation| (Node::Leaf(relation), RelationSet::single(relation))).collect();
    while groups.len() > 1 {
        let mut choices = vec![];
        for (left, &(_, one)) in groups.iter().enumerate() {
            for (right, &(_, other)) in groups.iter().enumerate() {
                if left != right && graph.meeting(one, other).is_some() {
                    choices.push((left, right));
                }
            }
        }
        if choices.is_empty() {
            return None;
        }
        let (left, right) = choices[random.below(choices.len())];
        let (left_group, right_group) = (groups[left].clone(), groups[right].clone());
        let relations = left_group.1 | right_group.1;
        groups.retain(|(_, group)| !group.intersects(relations));
        groups.push((graph.join(left_group, right_group)?, relations));
    }
    groups.pop().map(|(node, _)| node)
}
