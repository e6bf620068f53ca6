//! What ranks tell each other before rows move.

use arrow::buffer::Buffer;
use futures::StreamExt;
use futures::future::{try_join, try_join_all};

use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shuffle::failure;
use crate::transport::{Job, Receiver, Sender, StreamNumber};

/// What one rank sends to another: rows of columns with values of these widths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    pub rows: u64,
    /// The bytes of a value of each column.
    pub widths: Vec<u64>,
}

impl Sizes {
    fn write(&self) -> Buffer {
        Buffer::from_vec([&[self.rows], &self.widths[..]].concat())
    }

    /// # Errors
    /// If columns differ from those of this rank.
    fn read(message: &[u8], widths: &[u64], rank: Rank) -> Result<Self> {
        let (words, rest) = message.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let rows = words.next();
        let theirs = Self { rows: rows.unwrap_or(0), widths: words.collect() };
        if rows.is_none() || !rest.is_empty() || theirs.widths != widths {
            return Err(Error::Unexpected { rank, what: "columns of other widths".to_owned() });
        }
        Ok(theirs)
    }
}

/// Tells each other rank what it gets, which `to` lists. Returns what comes from each of the ranks `from`, by `to` for the rank itself.
///
/// # Errors
/// If a rank has failed, or has other columns.
pub async fn tell(job: &Job, number: StreamNumber, to: &[(Rank, Sizes)], from: &[Rank]) -> Result<Vec<Sizes>> {
    let here = job.endpoint().rank();
    let telling = to.iter().filter(|(rank, _)| *rank != here).map(|(rank, sizes)| {
        let mut sender = Sender::open(job, *rank, number);
        async move {
            sender.send(sizes.write()).await?;
            sender.end();
            Ok(())
        }
    });
    let hearing = from.iter().map(|rank| {
        let receiver = (*rank != here).then(|| Receiver::open(job, *rank, number, 1));
        async move {
            match receiver {
                // The job fails before the streams are gone, so that other ranks learn why.
                Some(receiver) => hear(receiver, to).await.map_err(|error| failure(job, error)),
                None => {
                    Ok(to.iter().find(|(to, _)| to == rank).map_or_else(|| nothing(to), |(_, sizes)| sizes.clone()))
                }
            }
        }
    });
    Ok(try_join(try_join_all(telling), try_join_all(hearing)).await?.1)
}

async fn hear(mut receiver: Receiver, to: &[(Rank, Sizes)]) -> Result<Sizes> {
    let rank = receiver.from();
    let message = receiver.next().await.transpose()?;
    let message =
        message.ok_or_else(|| Error::Unexpected { rank, what: "an end before the sizes of its rows".to_owned() })?;
    Sizes::read(&message, &nothing(to).widths, rank)
}

/// No rows of the columns that this rank has.
fn nothing(to: &[(Rank, Sizes)]) -> Sizes {
    Sizes { rows: 0, widths: to.first().map_or_else(Vec::new, |(_, sizes)| sizes.widths.clone()) }
}
