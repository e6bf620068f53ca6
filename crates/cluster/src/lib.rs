//! Runs queries of Overspill on several machines: [`Cluster`] plans them where the user is, Apache Ballista cuts the plan into
//! stages and moves rows between machines, and every equi-join of a stage is a [`HybridJoinExec`](overspill::HybridJoinExec).
//!
//! ```text
//! client                        scheduler                          executors, one process each
//! ------                        ---------                          -----------
//! SQL -> physical plan   ---->  Guard: is every executor there?
//!                               Ballista: plan -> stages -> tasks ----> one memory pool, joins that spill
//!   rows                 <----------------------------------------  results of the last stage
//! ```
//!
//! Three processes take part. [`serve_scheduler`] and [`serve_executor`] are two of them; the third is any session that
//! [`Cluster::extend`] was called for.
//!
//! **A lost executor.** Ballista 55 reruns the stages whose output a lost executor held, and then counts some of their rows
//! twice. So it never gets to: the `Guard` around its scheduler watches the executors, ends every job that one of them had a
//! part in, and the client submits the whole query again.

#![deny(missing_docs)]

mod client;
mod declared;
mod error;
mod executor;
mod network;
mod scheduler;
mod settings;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use overspill_distributed::PlanCodec;

pub use client::Cluster;
pub use executor::{ExecutorOptions, serve_executor};
pub use network::{Network, TlsFiles};
pub use scheduler::{SchedulerOptions, serve_scheduler};
pub use settings::machine_settings;

/// The codec of clients, schedulers and executors.
type ClusterCodec = PlanCodec<BallistaPhysicalExtensionCodec>;
