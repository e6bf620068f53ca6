//! How many queries may be on the GPU at once.

use crate::query::{Class, Demand};

/// The most queries on the GPU at once, by what they do there, and the bytes that they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// If all of them only scan and join.
    pub joins: usize,
    /// If all of them only aggregate.
    pub aggregates: usize,
    /// If some do one and some the other, or one does both.
    pub both: usize,
    /// Bytes of GPU memory of all together.
    pub memory: u64,
}

impl Limits {
    /// Those of paper 5, section 5, which were found by measuring.
    pub const PAPER: Self = Self { joins: 4, aggregates: 1, both: 2, memory: u64::MAX };

    /// Without limits.
    pub const NONE: Self = Self { joins: usize::MAX, aggregates: usize::MAX, both: usize::MAX, memory: u64::MAX };

    /// Whether these may be on the GPU at the same time.
    pub fn allow<'a>(&self, queries: impl Iterator<Item = &'a Demand>) -> bool {
        let (mut count, mut memory, mut joins, mut aggregates) = (0, 0_u64, false, false);
        for query in queries {
            count += 1;
            memory = memory.saturating_add(query.gpu_memory);
            joins |= query.class != Class::Aggregate;
            aggregates |= query.class != Class::Join;
        }
        let most = match (joins, aggregates) {
            (true, true) => self.both,
            (_, false) => self.joins,
            (false, true) => self.aggregates,
        };
        count <= most && memory <= self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{QueryId, UserId};

    #[test]
    fn the_limits_are_those_of_what_runs_together() {
        let query = |class, gpu_memory| Demand {
            id: QueryId(0),
            user: UserId(0),
            weight: 1.0,
            class,
            cpu: 1.0,
            gpu: Some(1.0),
            gpu_memory,
        };
        let allowed = |classes: &[Class]| {
            let queries: Vec<_> = classes.iter().map(|class| query(*class, 3)).collect();
            Limits { memory: 10, ..Limits::PAPER }.allow(queries.iter())
        };
        use Class::{Aggregate, Both, Join};
        assert!(allowed(&[]) && allowed(&[Join; 3]) && allowed(&[Aggregate]) && allowed(&[Both, Both]));
        assert!(allowed(&[Join, Aggregate]) && !allowed(&[Join, Join, Aggregate]));
        assert!(!allowed(&[Aggregate, Aggregate]) && !allowed(&[Both, Join, Join]));
        // Four joins are too many bytes.
        assert!(!allowed(&[Join; 4]));
        assert!(Limits::NONE.allow([query(Join, u64::MAX), query(Both, 1)].iter()));
    }
}
