//! Greedy operator ordering: Fegaras, "A new heuristic for optimizing large queries", DEXA 1998.

use crate::{
    RelationSet,
    estimate::{Estimates, Scratch},
    hypergraph::Hypergraph,
    space::Space,
};

/// A pair of groups that may be joined.
struct Choice {
    first: RelationSet,
    second: RelationSet,
    rows: f64,
}

/// The joins of one order: again and again the two groups whose join has the fewest rows. None if that leads nowhere, which rules may
/// cause. Takes time quadratic in the relations, times the operators.
pub fn greedy<'a>(graph: &'a Hypergraph<'a>, estimates: &Estimates) -> Option<Space<'a>> {
    let mut space = Space::new(graph);
    let mut scratch = Scratch::default();
    let mut groups: Vec<RelationSet> = graph.all.iter().map(RelationSet::single).collect();
    let mut choices: Vec<Choice> = vec![];
    let mut consider = |choices: &mut Vec<Choice>, one: RelationSet, other: RelationSet| {
        if graph.meeting(one, other).or_else(|| graph.meeting(other, one)).is_some() {
            choices.push(Choice { first: one, second: other, rows: estimates.size(one | other, &mut scratch).rows });
        }
    };
    for (place, &one) in groups.iter().enumerate() {
        groups[place + 1..].iter().for_each(|&other| consider(&mut choices, one, other));
    }
    while groups.len() > 1 {
        // Equal rows: the earlier choice, so that the order is the same in each run.
        let best = choices.iter().min_by(|one, other| one.rows.total_cmp(&other.rows))?;
        let (first, second) = (best.first, best.second);
        if !space.add(first, second) {
            return None;
        }
        let joined = first | second;
        groups.retain(|group| !group.intersects(joined));
        choices.retain(|choice| !choice.first.intersects(joined) && !choice.second.intersects(joined));
        groups.iter().for_each(|&other| consider(&mut choices, joined, other));
        groups.push(joined);
    }
    Some(space)
}
