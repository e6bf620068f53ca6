//! Shuffles of random tables among the ranks of one process.

mod all_to_all;
mod device;
mod device_joins;
mod emulated;
mod failures;
mod messages;
mod overlap;
mod ranks;
mod rows;
mod shuffles;
mod skew;
