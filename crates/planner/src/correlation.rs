//! Several equalities between two relations.
//!
//! Taken as independent, the columns of a key of two would have as many values as the product of theirs. But a side has no more different keys
//! than rows before its filters. Where the product is larger than that, the planner takes the geometric mean of the rows of both sides. The larger side may repeat the keys of
//! the smaller one, as lines repeat offers, or have more keys, as sales have more than returns. The planner cannot tell which.
//!
//! As with the equalities of a class, those between two of three relations may follow from the others. A spanning forest counts, of the pairs that
//! select least.

use crate::{PredicateKind, Region, RelationSet};

/// Two relations with several equalities between them.
#[derive(Clone, Copy)]
struct Pair {
    ends: RelationSet,
    /// The share of pairs of rows that all equalities take.
    share: f64,
    /// This share to the product of those of the equalities, above 1.
    factor: f64,
}

/// The equalities between two relations.
struct Equalities {
    ends: [usize; 2],
    /// The classes of the equalities that were counted. A second equality of a class selects nothing more.
    classes: Vec<usize>,
    count: usize,
    /// The product of their selectivities.
    share: f64,
}

/// All pairs of relations with several equalities between them, those that select least first.
pub struct Correlations(Vec<Pair>);

impl Correlations {
    /// Takes the selectivities of all predicates, from above 0 to 1. Takes time quadratic in the equalities.
    pub fn of(region: &Region, selectivities: &[f64]) -> Self {
        let single = |set: RelationSet| set.first().filter(|&relation| set == RelationSet::single(relation));
        let mut pairs: Vec<Equalities> = vec![];
        for (predicate, selectivity) in region.predicates.iter().zip(selectivities) {
            let PredicateKind::Equality { left, right, class, .. } = predicate.kind else { continue };
            let (Some(left), Some(right)) = (single(left), single(right)) else { continue };
            let ends = [left.min(right), left.max(right)];
            let place = pairs.iter().position(|pair| pair.ends == ends).unwrap_or_else(|| {
                pairs.push(Equalities { ends, classes: vec![], count: 0, share: 1.0 });
                pairs.len() - 1
            });
            let pair = &mut pairs[place];
            if class.is_some_and(|class| pair.classes.contains(&class)) {
                continue;
            }
            pair.classes.extend(class);
            pair.count += 1;
            pair.share *= selectivity;
        }
        let correlated = pairs.into_iter().filter(|pair| pair.count > 1).filter_map(|pair| {
            let unfiltered = pair.ends.map(|end| region.relations[end].unfiltered.max(1.0));
            let share = 1.0 / (unfiltered[0] * unfiltered[1]).sqrt();
            let factor = share / pair.share.max(f64::MIN_POSITIVE);
            let ends = pair.ends.into_iter().collect();
            (factor > 1.0 && factor.is_finite()).then_some(Pair { ends, share, factor })
        });
        let mut correlated: Vec<Pair> = correlated.collect();
        correlated.sort_by(|one, other| other.share.total_cmp(&one.share));
        Self(correlated)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// By how much more pairs of rows the equalities within a set take than if they were independent. Takes time quadratic in the pairs.
    pub fn factor(&self, set: RelationSet) -> f64 {
        let mut connected: Vec<RelationSet> = vec![];
        let mut factor = 1.0;
        for pair in self.0.iter().filter(|pair| pair.ends.is_subset(set)) {
            if connected.iter().any(|known| pair.ends.is_subset(*known)) {
                continue;
            }
            let (touched, mut others): (Vec<_>, Vec<_>) =
                connected.iter().partition(|known| known.intersects(pair.ends));
            others.push(touched.into_iter().fold(pair.ends, |all, known| all | known));
            connected = others;
            factor *= pair.factor;
        }
        factor
    }
}
