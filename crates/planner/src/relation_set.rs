//! Sets of relations.

use std::{
    fmt,
    ops::{BitAnd, BitOr, BitOrAssign, Sub},
};

/// A set of relations of a region, by their numbers, in one word.
///
/// A number from 64 on is in no set: [`Region::check`](crate::Region::check) refuses a region with so many relations.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelationSet(u64);

impl RelationSet {
    /// The most relations of a set.
    pub const CAPACITY: usize = 64;
    /// The set without relations.
    pub const EMPTY: Self = Self(0);

    /// The set of one relation.
    pub fn single(relation: usize) -> Self {
        Self(u32::try_from(relation).ok().and_then(|bit| 1_u64.checked_shl(bit)).unwrap_or(0))
    }

    /// The relations with numbers below `count`.
    pub fn below(count: usize) -> Self {
        if count >= Self::CAPACITY { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// Whether the set has no relation.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of relations.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the relation is in the set.
    pub fn contains(self, relation: usize) -> bool {
        self.intersects(Self::single(relation))
    }

    /// Whether all relations of this set are in the other.
    pub fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether the two sets have a relation in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The relation with the lowest number.
    pub fn first(self) -> Option<usize> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as usize)
    }

    /// The relations, by ascending number.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = usize> {
        Relations(self.0)
    }

    /// All subsets but the empty one, so that a set comes behind its own subsets.
    pub(crate) fn subsets(self) -> impl Iterator<Item = Self> {
        let mut last = 0_u64;
        std::iter::from_fn(move || {
            last = last.wrapping_sub(self.0) & self.0;
            (last != 0).then_some(Self(last))
        })
    }

    /// The bits of the set: bit `i` is relation `i`.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// The relations of a set that are still to come.
struct Relations(u64);

impl Iterator for Relations {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let first = RelationSet(self.0).first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }
}

impl DoubleEndedIterator for Relations {
    fn next_back(&mut self) -> Option<usize> {
        let last = self.0.checked_ilog2()? as usize;
        self.0 &= !(1 << last);
        Some(last)
    }
}

impl FromIterator<usize> for RelationSet {
    fn from_iter<I: IntoIterator<Item = usize>>(relations: I) -> Self {
        relations.into_iter().fold(Self::EMPTY, |set, relation| set | Self::single(relation))
    }
}

impl BitOr for RelationSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RelationSet {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for RelationSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Sub for RelationSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for RelationSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
