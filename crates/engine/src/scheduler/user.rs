//! Whose queries these are.

/// The user of a session, an extension of its configuration. Sessions without it are of one user.
///
/// No user's queries keep those of another waiting: the first query in each user's queue starts after at most as many query ends as users
/// wait.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryUser {
    /// The name.
    pub name: String,
    /// How much the user's time counts, beside 1 of others.
    pub weight: f64,
}

impl QueryUser {
    /// A user whose time counts as much as that of others.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), weight: 1.0 }
    }
}

impl Default for QueryUser {
    fn default() -> Self {
        Self::new("")
    }
}
