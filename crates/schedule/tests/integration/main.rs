//! Policies on simulated machines.

mod bounds;
mod mixes;
mod paper;
