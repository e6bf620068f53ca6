//! What operators have in common that run an aggregate without groups together with what is below it.

mod accumulators;
mod expressions;
mod planned;

pub(crate) use accumulators::Accumulators;
pub(crate) use planned::{PlannedAggregate, displayed};
