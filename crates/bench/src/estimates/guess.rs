//! An estimate beside the truth.

/// How far the rows of a node were from what was estimated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Guess {
    /// The joins of the node and below it; 0 for a table with a filter.
    pub(super) joins: usize,
    /// How many times the estimate the truth is, or the truth the estimate: at least 1.
    pub(super) error: f64,
}

impl Guess {
    /// Of rows that were estimated and counted. One row is as good as none.
    pub(super) fn new(joins: usize, estimated: f64, counted: f64) -> Self {
        Self::of_factor(joins, counted.max(1.0) / estimated.max(1.0))
    }

    /// Of the counted rows as a multiple of the estimated ones.
    pub(super) fn of_factor(joins: usize, factor: f64) -> Self {
        Self { joins, error: factor.max(1.0 / factor) }
    }
}

/// What is below a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Below {
    /// The joins, if there is nothing else but tables, filters and columns.
    pub(super) joins: Option<usize>,
    /// Whether there is a filter.
    pub(super) is_filtered: bool,
}

impl Below {
    /// Of a table.
    pub(super) const TABLE: Self = Self { joins: Some(0), is_filtered: false };

    /// Of a node of several inputs, without the node itself.
    pub(super) fn both(self, other: Self) -> Self {
        let joins = self.joins.zip(other.joins).map(|(one, other)| one + other);
        Self { joins, is_filtered: self.is_filtered || other.is_filtered }
    }

    /// Whether it is a table with a filter.
    pub(super) fn is_filtered_table(self) -> bool {
        self.joins == Some(0) && self.is_filtered
    }
}
