//! Messages between ranks.
//!
//! A [`Job`] is what all ranks do together, such as a query. It has streams: from one rank to another, with a number that both know. The
//! receiver grants a window of bytes, and the sender waits while the window is used up, so that a rank has no more memory for
//! messages than its receivers have granted. A stream ends when the sender says so, or is cancelled when its receiver is dropped. If one
//! rank fails, all streams of the job do, on all ranks, with its words.
//!
//! A message is bytes in CPU memory, or a part of a GPU's memory that its sender has lent ([`LentBuffer`]) until all messages of it have been
//! dropped. A wire that takes no GPU memory gets copies. A receiver may have places in GPU memory for its messages ([`PlacedReceiver`]).
//!
//! An [`Endpoint`] is a rank's part in that. It runs nothing: who carries frames, a [`Wire`], calls [`Endpoint::deliver`]. Frames from
//! one rank to another must arrive in order; those of different pairs may overtake each other.

mod endpoint;
mod frame;
mod in_process;
mod job;
mod message;
mod mpi;
mod placed;
mod state;
mod stream;

#[cfg(test)]
mod tests;

pub use endpoint::{Endpoint, Wire};
pub use frame::{Frame, FrameKind, JobId, StreamNumber};
pub use in_process::{Network, in_process};
pub use job::Job;
pub use message::{Arrival, DeviceMessage, LentBuffer, Message};
pub use mpi::{MpiRank, is_rank_of_mpi};
pub use placed::PlacedReceiver;
pub use stream::{Receiver, Sender};
