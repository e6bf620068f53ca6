//! Targets that an experiment checks Overspill against.

use std::fmt::{Display, Formatter};

use serde_json::{Value, json};

pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// The target and the result, in the words of the table.
    pub(crate) sentence: String,
    /// `None` if there was nothing to compare with.
    pub(crate) met: Option<bool>,
}

impl Target {
    pub(crate) fn is_met(&self) -> bool {
        self.met == Some(true)
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "name": self.name, "sentence": self.sentence, "met": self.met })
    }
}

/// A line of the table.
impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "unknown",
        };
        write!(f, "{verdict:<7} {}: {}.", self.name, self.sentence)
    }
}
