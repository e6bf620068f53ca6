//! Shared parts of the operators that run an aggregate without groups together with the node below it.

mod accumulators;
mod expressions;
mod planned;

pub(crate) use accumulators::Accumulators;
pub(crate) use planned::{PlannedAggregate, displayed};
