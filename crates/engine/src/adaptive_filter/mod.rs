//! A filter that evaluates its conjuncts in the order of their measured costs and pass rates.
//!
//! [`AdaptiveFilterExec`] replaces a filter of several conjuncts. Each stream measures on samples of its input what a conjunct costs
//! for a row and which rows pass it, and ranks the conjuncts by cost / (1 - pass rate): this order has the least expected cost (rank
//! ordering of predicates: Hanani, 1977; Hellerstein and Stonebraker, SIGMOD 1993). The pass rate of a conjunct is that among the
//! rows which pass the conjuncts ranked before it, as rates depend on each other (Babu et al., SIGMOD 2004).
//!
//! ```text
//!  written order   shipmode IN (…)   commitdate < receiptdate   10 / quantity > 1   shipdate < commitdate
//!                  └──────────── may change places ─────────┘   └── may fail ───┘   └──── stays last ────┘
//!
//!  a batch   ──▶  conjunct  ──▶  conjunct  ──▶  …  ──▶  the output columns of the rows that passed
//!                 all rows       all rows, or copies of
//!                                the rows that passed, if copying them takes less time than evaluating the others
//! ```
//!
//! A conjunct that may fail, or that is volatile, is a barrier: no other moves across it, and it is evaluated only on rows that have
//! passed those before it.

mod conjuncts;
mod dictionary;
mod exec;
mod order;
mod rows;
mod stream;

pub use exec::AdaptiveFilterExec;
