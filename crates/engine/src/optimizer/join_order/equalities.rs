//! Equalities of columns that follow from others: from a = b and b = c, a = c.

use std::collections::BTreeSet;

use super::conditions::LeafColumn;

/// Sets of equal columns: in each row, all columns of a set have the same value, and it is not null. A column is in one set at most.
#[derive(Debug, Clone, Default)]
pub(super) struct EqualColumns(Vec<BTreeSet<LeafColumn>>);

impl EqualColumns {
    /// What is equal in the rows of two parts that are joined. They have no column in common.
    pub fn of_both(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Adds that two columns are equal. Says whether that was not known.
    pub fn add(&mut self, [one, other]: [LeafColumn; 2]) -> bool {
        let (one, other) = (self.number_of(one), self.number_of(other));
        if one == other {
            return false;
        }
        let (kept, gone) = (one.min(other), one.max(other));
        let gone = self.0.swap_remove(gone);
        self.0[kept].extend(gone);
        true
    }

    /// The set that a column is in, which is its own if nothing is known of it.
    fn number_of(&mut self, column: LeafColumn) -> usize {
        self.position(column).unwrap_or_else(|| {
            self.0.push(BTreeSet::from([column]));
            self.0.len() - 1
        })
    }

    /// The number of the set that a column is in, if it is equal to another. Numbers change when equalities are added.
    pub fn position(&self, column: LeafColumn) -> Option<usize> {
        self.0.iter().position(|set| set.contains(&column))
    }

    /// The pairs of equal columns between two sides. `is_left` says whether a column is on the left side; the left column comes first.
    pub fn pairs(&self, is_left: impl Fn(LeafColumn) -> bool) -> impl Iterator<Item = [LeafColumn; 2]> {
        self.0.iter().flat_map(move |set| {
            let (left, right): (Vec<_>, Vec<_>) = set.iter().copied().partition(|column| is_left(*column));
            left.into_iter().flat_map(move |one| right.clone().into_iter().map(move |other| [one, other]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{EqualColumns, LeafColumn};

    const fn column(leaf: usize) -> LeafColumn {
        LeafColumn { leaf, column: 0 }
    }

    #[test]
    fn columns_are_equal_through_others() {
        let mut equal = EqualColumns::default();
        assert!(equal.add([column(0), column(1)]) && equal.add([column(2), column(3)]));
        assert_ne!(equal.position(column(0)), equal.position(column(3)));
        assert!(equal.add([column(1), column(2)]));
        assert!(!equal.add([column(0), column(3)]));
        assert_eq!(equal.position(column(0)), equal.position(column(3)));
        assert_eq!(equal.position(column(4)), None);
        let mut other = EqualColumns::default();
        other.add([column(4), column(5)]);
        let both = equal.of_both(other);
        let pairs: Vec<_> = both.pairs(|column| column.leaf % 2 == 0).map(|pair| pair.map(|end| end.leaf)).collect();
        assert_eq!(pairs, [[0, 1], [0, 3], [2, 1], [2, 3], [4, 5]]);
    }
}
