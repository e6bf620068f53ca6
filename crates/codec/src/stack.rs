//! Which layers are applied.

use std::fmt;

/// How many layers of run-length encoding and of delta encoding are applied, up to two each (paper 4, section 4 and table 1). They
/// alternate, runs first: two of one and one of the other are runs, deltas, runs. What they leave is packed in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stack {
    runs: u8,
    deltas: u8,
}

/// A layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Values and lengths in place of equal values next to each other.
    Runs,
    /// Differences in place of values.
    Deltas,
}

impl Stack {
    /// All stacks, those with the fewest layers first.
    pub const ALL: [Self; 9] = [
        Self::of(0, 0),
        Self::of(0, 1),
        Self::of(1, 0),
        Self::of(1, 1),
        Self::of(0, 2),
        Self::of(2, 0),
        Self::of(1, 2),
        Self::of(2, 1),
        Self::of(2, 2),
    ];

    const fn of(runs: u8, deltas: u8) -> Self {
        Self { runs, deltas }
    }

    /// The stack with as many layers of each kind; `None` if these are more than two.
    pub fn new(runs: u8, deltas: u8) -> Option<Self> {
        (runs <= 2 && deltas <= 2).then_some(Self { runs, deltas })
    }

    /// Layers of run-length encoding.
    pub fn runs(self) -> usize {
        self.runs.into()
    }

    /// Layers of delta encoding.
    pub fn deltas(self) -> usize {
        self.deltas.into()
    }

    /// The layers, in the order of compression.
    pub(crate) fn layers(self) -> impl DoubleEndedIterator<Item = Layer> + Clone {
        let kinds = move |round: u8| [(round < self.runs, Layer::Runs), (round < self.deltas, Layer::Deltas)];
        [kinds(0), kinds(1)].into_iter().flatten().filter(|(applies, _)| *applies).map(|(_, layer)| layer)
    }

    pub(crate) fn byte(self) -> u8 {
        self.runs | self.deltas << 4
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::new(byte & 15, byte >> 4)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({},{})", self.runs, self.deltas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_alternate_and_runs_are_first() {
        let layers = |runs, deltas| Stack::new(runs, deltas).unwrap().layers().collect::<Vec<_>>();
        use Layer::{Deltas, Runs};
        assert_eq!(layers(2, 1), [Runs, Deltas, Runs]);
        assert_eq!(layers(1, 2), [Runs, Deltas, Deltas]);
        assert_eq!(layers(2, 2), [Runs, Deltas, Runs, Deltas]);
        assert!(layers(0, 0).is_empty() && Stack::new(3, 0).is_none());
        assert!(Stack::ALL.into_iter().all(|stack| Stack::from_byte(stack.byte()) == Some(stack)));
        assert_eq!(Stack::from_byte(0x33), None);
    }
}
