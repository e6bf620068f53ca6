//! Predicts which join strategy is fastest on a machine, by one cost model for CPUs and GPUs.
//!
//! A [`Machine`] holds figures from a profile ([`Machine::named`], [`Machine::from_json`]) or from measurements
//! ([`Machine::measured`]). A [`Join`] holds sizes. [`Machine::advise`] predicts the time of each [`Strategy`], what the time
//! is spent on, and which strategy to take. [`Machine::advise_shuffle`] does the same for a [`RepartitionedJoin`] over a
//! [`Network`]. The crate is pure logic: it measures, opens and runs nothing.
//!
//! ```
//! use overspill_advisor::{Join, Machine, Strategy};
//!
//! let machine = Machine::named("ac922").unwrap();
//! let advice = machine.advise(&Join::new(2_048_000_000, 2_048_000_000, 16));
//! assert_eq!(advice.choice, Strategy::Triton);
//! assert!(advice.of(Strategy::Triton).tuples_per_second > 1.5e9);
//! ```
//!
//! Paper 1 is Lutz et al., "Triton Join", SIGMOD 2022; paper 2 is Lutz et al., "Pump Up the Volume", SIGMOD 2020;
//! paper 3 is Schmeißer et al., "Efficiently Indexing Large Data on GPUs", EDBT 2025; paper 4 is Gao and Sakharnykh, "Scaling
//! Joins to a Thousand GPUs", ADMS 2021. The formulas are documented with the strategies in the folder `cost`, and together in
//! `docs/advisor.md`. Constants are either figures of a machine, in its profile, or properties of an algorithm that hold on
//! all machines, documented with their reason.
//!
//! The model does not cover disks, skew, several GPUs without a network, or the load of the queries around a join.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod advise;
mod advise_shuffle;
mod cost;
mod index_join;
mod join;
mod machine;
mod measured;
mod network;
mod prediction;
mod profile;
mod repartitioned_join;
mod triton_traffic;

pub use cost::cpu::ProbeRows;
pub use cost::link::{compression_gain, transfer_seconds};
pub use index_join::{IndexJoin, IndexKind, IndexPrediction, LookupWay};
pub use join::{HashTable, Join, Side, Strategy};
pub use machine::{Cpu, Gpu, LargeData, Link, Machine, Translation};
pub use network::{Codec, Level, Network};
pub use prediction::{Advice, Bound, LinkBytes, Phase, Prediction, Refusal};
pub use profile::ProfileError;
pub use repartitioned_join::{
    Levels, Messages, RankSide, RepartitionedJoin, Shuffle, ShuffleAdvice, ShufflePhase, ShufflePrediction,
};
pub use triton_traffic::{PrefixSumProcessor, TritonTraffic, triton_link_bytes};
