//! The ways of rows that are compared.

use overspill_exchange::Levels;

/// One way of rows.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub levels: Levels,
    pub is_compressed: bool,
}

pub const WAYS: [Way; 4] = [
    Way { levels: Levels::One, is_compressed: false },
    Way { levels: Levels::One, is_compressed: true },
    Way { levels: Levels::Two, is_compressed: false },
    Way { levels: Levels::Two, is_compressed: true },
];

impl Way {
    pub fn name(self) -> String {
        let levels = if self.levels == Levels::One { "one level" } else { "two levels" };
        format!("{levels}, {}", if self.is_compressed { "compressed" } else { "plain" })
    }
}
