//! Frames as messages of MPI: a head, with what is short behind it, and then what is long as messages of their own.

use std::sync::Arc;

use arrow::buffer::Buffer;

use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::transport::frame::{Frame, FrameKind, JobId};
use crate::transport::message::Message;

/// The version of the heads.
const VERSION: u8 = 2;

/// Bytes of a head.
const HEAD: usize = 32;

/// The most bytes that follow a head in its message.
pub const SHORT: usize = 4096;

/// The most bytes of a message. Ranks that agree on windows send far less.
const MOST_BYTES: usize = 64 << 30;

/// A frame whose message of a stream may still be missing.
#[derive(Debug)]
pub struct Head {
    pub frame: Frame,
    /// The bytes of the message that follow by themselves.
    pub missing: usize,
}

/// The head of a frame, and the message that follows it. GPU memory, which the CPU does not read, always follows by itself.
pub fn write(frame: Frame) -> (Buffer, Option<Message>) {
    let (kind, number, value, body) = match frame.kind {
        FrameKind::Data(number, message) => (0, number, message.bytes(), Some(message)),
        FrameKind::End(number) => (1, number, 0, None),
        FrameKind::Abandoned(number) => (2, number, 0, None),
        FrameKind::Credit(number, bytes) => (3, number, bytes, None),
        FrameKind::Closed(number) => (4, number, 0, None),
        FrameKind::Failed(rank, cause) => {
            // Words that are longer than that are cut: the rank that failed has them whole.
            let words = cause.as_bytes();
            let words = Buffer::from_slice_ref(&words[..words.len().min(SHORT)]);
            (5, rank as u64, words.len() as u64, Some(Message::Host(words)))
        }
    };
    let (with_head, behind) = match body {
        Some(Message::Host(body)) if body.len() <= SHORT => (Some(body), None),
        body => (None, body.filter(|body| body.bytes() > 0)),
    };
    let mut head = Vec::with_capacity(HEAD + SHORT);
    head.extend_from_slice(&[b'O', VERSION, kind, u8::from(behind.is_some()), 0, 0, 0, 0]);
    for word in [frame.job.0, number, value] {
        head.extend_from_slice(&word.to_le_bytes());
    }
    head.extend_from_slice(with_head.as_deref().unwrap_or_default());
    (Buffer::from_vec(head), behind)
}

/// Reads the message with a head.
///
/// # Errors
/// If it is of another version.
pub fn read(message: &Buffer, from: Rank) -> Result<Head> {
    let wrong = |what: &str| Error::Unexpected { rank: from, what: what.to_owned() };
    let head = message.get(..HEAD).ok_or_else(|| wrong("a message without a head"))?;
    if head[..2] != [b'O', VERSION] {
        return Err(wrong("a message of another version"));
    }
    let words = head.as_chunks::<8>().0;
    let [_, job, number, value] = [0, 1, 2, 3].map(|place| u64::from_le_bytes(words[place]));
    let body = message.slice(HEAD);
    let follows = match head[3] {
        0 => false,
        1 => true,
        _ => return Err(wrong("a message of another kind")),
    };
    let mut missing = 0;
    let kind = match head[2] {
        0 => {
            let length = usize::try_from(value).ok().filter(|length| *length <= MOST_BYTES);
            let length = length.ok_or_else(|| wrong("a message larger than memory"))?;
            if body.len() != if follows { 0 } else { length } {
                return Err(wrong("a message of another length"));
            }
            if follows {
                missing = length;
            }
            FrameKind::Data(number, body.into())
        }
        1 => FrameKind::End(number),
        2 => FrameKind::Abandoned(number),
        3 => FrameKind::Credit(number, value),
        4 => FrameKind::Closed(number),
        5 => FrameKind::Failed(number as Rank, Arc::from(String::from_utf8_lossy(&body))),
        _ => return Err(wrong("a message of another kind")),
    };
    Ok(Head { frame: Frame { job: JobId(job), kind }, missing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let kinds = [
            FrameKind::Data(7, Buffer::from_vec(vec![1_u8; SHORT]).into()),
            FrameKind::Data(7, Buffer::from_vec(vec![0_u8; 0]).into()),
            FrameKind::End(1),
            FrameKind::Abandoned(2),
            FrameKind::Credit(3, u64::MAX),
            FrameKind::Closed(4),
            FrameKind::Failed(5, "its disk is full".into()),
        ];
        for kind in kinds {
            let frame = Frame { job: JobId(9), kind };
            let (head, body) = write(frame.clone());
            let again = read(&head, 1).unwrap();
            assert!(body.is_none() && again.missing == 0);
            assert_eq!(again.frame, frame);
        }
    }

    #[test]
    fn long_messages_follow_their_head() {
        let long = Buffer::from_vec(vec![3_u8; SHORT + 1]);
        let (head, body) = write(Frame { job: JobId(9), kind: FrameKind::Data(7, long.clone().into()) });
        assert_eq!((body.unwrap(), read(&head, 1).unwrap().missing), (long.into(), SHORT + 1));
        let (head, body) = write(Frame { job: JobId(9), kind: FrameKind::Failed(1, "ä".repeat(SHORT).into()) });
        assert!(body.is_none());
        let FrameKind::Failed(1, words) = read(&head, 2).unwrap().frame.kind else { panic!("a failure") };
        assert!(words.starts_with("ää"));
    }

    #[test]
    fn foreign_messages_are_refused() {
        let (head, _) =
            write(Frame { job: JobId(9), kind: FrameKind::Data(7, Buffer::from_vec(vec![1_u8; 9]).into()) });
        for (place, byte) in [(0, b'X'), (1, 1), (2, 77), (3, 1), (3, 2), (24, 8)] {
            let mut forged = head.to_vec();
            forged[place] = byte;
            assert!(read(&Buffer::from_vec(forged), 1).is_err(), "byte {place}");
        }
        for length in [0, 31, head.len() - 1] {
            assert!(read(&head.slice_with_length(0, length), 1).is_err(), "{length} bytes");
        }
    }
}
