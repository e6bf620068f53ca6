//! Joins whose sides change roles while the build side is read.
//!
//! A build side that turns out much larger than it was estimated is read side by side with the probe side ([`Race`]). If the probe side
//! ends first, a hash table of it is smaller: another join with the sides exchanged ([`Exchanged`]) takes the rows that were read
//! of both sides ([`HandOverExec`]) and goes on. If the build side ends first, or the memory is spent, the join goes on as planned, and what was read of the
//! probe side is kept for it.
//!
//! ```text
//!                 rows > 4 x estimate                probe side ends first
//!   read build  ----------------------->  read both  ---------------------->  join with exchanged sides
//!       |                                     |
//!       | build side ends                     | build side ends first, or no memory
//!       '------------> probe <----------------'
//! ```

mod exchanged;
mod hand_over;
mod pulled;
mod race;

pub(super) use exchanged::{Exchanged, Room};
pub(super) use race::{Race, RaceRules, Raced, RacingBuild};
