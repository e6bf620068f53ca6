//! Which pairs of operators are associative, left-asscom and right-asscom: tables 2 and 3 of the paper.

use crate::{
    RelationSet,
    operator::{Operator, OperatorKind},
};

/// When two operators may change places. "Rejects" is about rows whose columns of the shared expression are all NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Never,
    Always,
    /// If the condition of the first operator rejects.
    FirstRejects,
    /// If the condition of the second operator rejects.
    SecondRejects,
    /// If both do.
    BothReject,
}

use Holds::{Always as A, BothReject as B, FirstRejects as F, Never as N, SecondRejects as S};

/// A row for each first operator, a column for each second one, in the order of [`OperatorKind`].
pub type Table = [[Holds; 6]; 6];

/// The three ways in which two operators may change places.
///
/// ```text
/// associative     (e1 a e2) b e3  =  e1 a (e2 b e3)     b uses e2 and e3
/// left-asscom     (e1 a e2) b e3  =  (e1 b e3) a e2     b uses e1 and e3
/// right-asscom    e1 a (e2 b e3)  =  e2 b (e1 a e3)     a uses e1 and e3
/// ```
///
/// Mark joins have the row and the column of the paper's nest join, which also keeps each row of its left side once, with a value that is
/// computed of its partners. A condition that uses the mark names a relation of the right side. The rows and columns of "never" keep it above
/// the mark join, as they ask for its left side as well.
#[derive(Clone, Debug)]
pub struct Properties {
    pub associative: Table,
    pub left_asscom: Table,
    pub right_asscom: Table,
}

impl Properties {
    pub const STANDARD: Self = Self {
        //                 inner semi anti mark outer full
        associative: [
            /* inner */ [A, A, A, A, A, N],
            /* semi  */ [N, N, N, N, N, N],
            /* anti  */ [N, N, N, N, N, N],
            /* mark  */ [N, N, N, N, N, N],
            /* outer */ [N, N, N, N, S, N],
            /* full  */ [N, N, N, N, S, B],
        ],
        left_asscom: [
            /* inner */ [A, A, A, A, A, N],
            /* semi  */ [A, A, A, A, A, N],
            /* anti  */ [A, A, A, A, A, N],
            /* mark  */ [A, A, A, A, A, N],
            /* outer */ [A, A, A, A, A, F],
            /* full  */ [N, N, N, N, S, B],
        ],
        right_asscom: [
            /* inner */ [A, N, N, N, N, N],
            /* semi  */ [N, N, N, N, N, N],
            /* anti  */ [N, N, N, N, N, N],
            /* mark  */ [N, N, N, N, N, N],
            /* outer */ [N, N, N, N, N, N],
            /* full  */ [N, N, N, N, N, B],
        ],
    };

    pub fn associative(&self, first: &Operator, second: &Operator, shared: RelationSet) -> bool {
        holds(&self.associative, first, second, shared)
    }

    pub fn left_asscom(&self, first: &Operator, second: &Operator, shared: RelationSet) -> bool {
        holds(&self.left_asscom, first, second, shared)
    }

    pub fn right_asscom(&self, first: &Operator, second: &Operator, shared: RelationSet) -> bool {
        holds(&self.right_asscom, first, second, shared)
    }
}

/// A fixed operator never changes places.
fn holds(table: &Table, first: &Operator, second: &Operator, shared: RelationSet) -> bool {
    let (first_rejects, second_rejects) =
        (first.rejects_nulls.intersects(shared), second.rejects_nulls.intersects(shared));
    let place = |operator: &Operator| match operator.kind {
        OperatorKind::Inner => 0,
        OperatorKind::Semi => 1,
        OperatorKind::Anti => 2,
        OperatorKind::Mark => 3,
        OperatorKind::Outer => 4,
        OperatorKind::Full => 5,
    };
    !first.fixed
        && !second.fixed
        && match table[place(first)][place(second)] {
            Holds::Never => false,
            Holds::Always => true,
            Holds::FirstRejects => first_rejects,
            Holds::SecondRejects => second_rejects,
            Holds::BothReject => first_rejects && second_rejects,
        }
}
