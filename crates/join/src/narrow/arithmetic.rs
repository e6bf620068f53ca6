//! What is computed of columns.

/// An operation of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Their sum.
    Plus,
    /// Their difference.
    Minus,
    /// Their product.
    Times,
}

/// The number of a step of an [`Arithmetic`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step(pub(super) usize);

/// Steps that each give a value for a row. Equal steps are one.
#[derive(Debug, Clone, Default)]
pub struct Arithmetic {
    pub(super) steps: Vec<Operation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Column(usize),
    Constant(i64),
    /// `most` is the greatest absolute value that the result may have.
    Of {
        left: Step,
        operator: Operator,
        right: Step,
        most: u64,
    },
}

impl Arithmetic {
    /// The value of the `number`th column.
    pub fn column(&mut self, number: usize) -> Step {
        self.step(Operation::Column(number))
    }

    /// The same value for all rows.
    pub fn constant(&mut self, value: i64) -> Step {
        self.step(Operation::Constant(value))
    }

    /// The result of an operation on earlier steps, for rows where it is at most `most` or its negation.
    pub fn apply(&mut self, left: Step, operator: Operator, right: Step, most: u64) -> Step {
        self.step(Operation::Of { left, operator, right, most })
    }

    fn step(&mut self, operation: Operation) -> Step {
        let equal = self.steps.iter().position(|other| *other == operation);
        Step(equal.unwrap_or_else(|| {
            self.steps.push(operation);
            self.steps.len() - 1
        }))
    }
}
