//! Drops rows of scans by the keys of a join far above them (sideways information passing; Bloom joins: Mackert and Lohman,
//! 1986; predicate transfer: Yang et al., CIDR 2024).
//!
//! A [`HybridJoinExec`](crate::HybridJoinExec) that has read its build side publishes the keys in a [`MembershipSlot`]. Only
//! then does it execute its probe side, with [`MembershipExec`] among its nodes, which drops rows with other keys before joins,
//! aggregates and sorts see them. If each stream has a build side of its own, the first to be read executes the probe side, and
//! rows pass until the last has been read: a stream cannot wait for others, which may never be polled. The rule `membership_filters` puts it there.
//!
//! The same keys drop rows of build sides of joins above, if these are read later: [`MembershipExec`] is then on the build side of a
//! join whose probe side contains the join that publishes.
//!
//! ```text
//!              HybridJoinExec ── publishes ──▶ MembershipSlot
//!               /          \                         │
//!         build side     AggregateExec               │
//!                             \                      │
//!                         HybridJoinExec             │
//!                          /          \              ▼
//!                     build side    MembershipExec  reads
//!                                         \
//!                                     DataSourceExec
//! ```

mod exec;
mod pace;
mod slot;
mod stream;

pub(crate) use exec::KeyFilter;
pub use exec::MembershipExec;
pub(crate) use slot::{BuildKeys, MembershipSlot, MembershipSource};
