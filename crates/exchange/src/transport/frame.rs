//! What a wire carries.

use std::sync::Arc;

use super::message::Message;
use crate::rank::Rank;

/// The number of a job, the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// The number of a stream among those of a job from one rank to another.
pub type StreamNumber = u64;

/// A frame from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The job that it belongs to.
    pub job: JobId,
    /// What it says.
    pub kind: FrameKind,
}

/// What a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameKind {
    /// A message of a stream. Both ranks share its memory if they are in one process.
    Data(StreamNumber, Message),
    /// The stream has no further messages.
    End(StreamNumber),
    /// The sender of the stream is gone before its end.
    Abandoned(StreamNumber),
    /// The receiver of the stream grants this number of bytes more.
    Credit(StreamNumber, u64),
    /// The receiver of the stream wants no further messages, as they have ended or it was dropped.
    Closed(StreamNumber),
    /// A rank has failed, in these words.
    Failed(Rank, Arc<str>),
}
