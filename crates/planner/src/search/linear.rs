//! Orders whose every part is an interval of a sequence of relations: the linearized search space of Neumann and Radke, "Adaptive
//! optimization of very large join queries", SIGMOD 2018, section 3. It holds the tree whose leaves are the sequence.

use crate::{RelationSet, space::Space};

/// Adds all pairs of neighbouring intervals that may be joined: at most n³/6 for n relations.
pub fn add_intervals(space: &mut Space, sequence: &[usize]) {
    let interval = |from: usize, to: usize| sequence[from..to].iter().copied().collect::<RelationSet>();
    for length in 2..=sequence.len() {
        for from in 0..=sequence.len() - length {
            let to = from + length;
            for cut in from + 1..to {
                space.add(interval(from, cut), interval(cut, to));
            }
        }
    }
}
