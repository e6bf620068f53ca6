//! The kinds of join, and their requirements on the algorithm.

/// The kind of a join; *left* is the build side and *right* the probe side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinType {
    /// Matching pairs.
    Inner,
    /// Matching pairs, and build rows without a match.
    Left,
    /// Matching pairs, and probe rows without a match.
    Right,
    /// Matching pairs, and rows of both sides without a match.
    Full,
    /// Build rows with a match.
    LeftSemi,
    /// Build rows without a match.
    LeftAnti,
    /// All build rows, each with a flag whether it has a match.
    LeftMark,
    /// Probe rows with a match.
    RightSemi,
    /// Probe rows without a match.
    RightAnti,
    /// All probe rows, each with a flag whether it has a match.
    RightMark,
}

impl JoinType {
    /// Whether the output holds pairs of a build and a probe row.
    pub(crate) fn emits_pairs(self) -> bool {
        matches!(self, Self::Inner | Self::Left | Self::Right | Self::Full)
    }

    /// Whether build rows are emitted at the end of the probe side, depending on whether they matched.
    pub fn emits_build_at_end(self) -> bool {
        matches!(self, Self::Left | Self::Full | Self::LeftSemi | Self::LeftAnti | Self::LeftMark)
    }

    /// Whether a build row that cannot match may still be part of the output.
    pub fn keeps_unmatched_build(self) -> bool {
        matches!(self, Self::Left | Self::Full | Self::LeftAnti | Self::LeftMark)
    }

    /// Whether probe rows are emitted depending on whether they matched.
    pub fn emits_probe_by_match(self) -> bool {
        matches!(self, Self::Right | Self::Full | Self::RightSemi | Self::RightAnti | Self::RightMark)
    }

    /// Whether a probe row that cannot match may still be part of the output.
    pub fn keeps_unmatched_probe(self) -> bool {
        matches!(self, Self::Right | Self::Full | Self::RightAnti | Self::RightMark)
    }
}
