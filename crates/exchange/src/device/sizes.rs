//! What ranks tell each other before rows move.

use arrow::buffer::Buffer;
use futures::StreamExt;
use futures::future::{try_join, try_join_all};

use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::shuffle::failure;
use crate::transport::{Job, Receiver, Sender, StreamNumber};

/// Says of a column's word that the column has nulls. The other bits are the width of its values.
const HAS_NULLS: u64 = 1 << 63;

/// What one rank sends to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    pub rows: u64,
    pub columns: Vec<ColumnSize>,
}

/// The arrays of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSize {
    /// Bytes of a value.
    pub width: u64,
    /// Whether a byte for each value follows that says whether it is there. Ranks may differ in that.
    pub has_validity: bool,
}

impl Sizes {
    /// The bytes of each array of the columns: values and, if there is one, validity.
    pub fn arrays(&self) -> impl Iterator<Item = u64> {
        let of_column = |column: &ColumnSize| [Some(column.width), column.has_validity.then_some(1)];
        self.columns.iter().flat_map(of_column).flatten().map(|width| width.saturating_mul(self.rows))
    }

    fn write(&self) -> Buffer {
        let word = |column: &ColumnSize| column.width | if column.has_validity { HAS_NULLS } else { 0 };
        Buffer::from_vec(std::iter::once(self.rows).chain(self.columns.iter().map(word)).collect::<Vec<u64>>())
    }

    /// # Errors
    /// If columns have other widths than those of this rank.
    fn read(message: &[u8], own: &[ColumnSize], rank: Rank) -> Result<Self> {
        let (words, rest) = message.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let rows = words.next();
        let column = |word| ColumnSize { width: word & !HAS_NULLS, has_validity: word & HAS_NULLS != 0 };
        let theirs = Self { rows: rows.unwrap_or(0), columns: words.map(column).collect() };
        let widths = |columns: &[ColumnSize]| columns.iter().map(|column| column.width).collect::<Vec<_>>();
        if rows.is_none() || !rest.is_empty() || widths(&theirs.columns) != widths(own) {
            return Err(Error::Unexpected { rank, what: "columns of other widths".to_owned() });
        }
        Ok(theirs)
    }
}

/// Tells each other rank how many rows it gets, which `to` lists, of columns that are the same for all. Returns what comes from each of the
/// ranks `from`; from the rank itself comes what it keeps.
///
/// # Errors
/// If a rank has failed, or has other columns.
pub async fn tell(
    job: &Job,
    number: StreamNumber,
    columns: &[ColumnSize],
    to: &[(Rank, u64)],
    from: &[Rank],
) -> Result<Vec<Sizes>> {
    let here = job.endpoint().rank();
    let sizes = |rows: u64| Sizes { rows, columns: columns.to_vec() };
    let telling = to.iter().filter(|(rank, _)| *rank != here).map(|(rank, rows)| {
        let mut sender = Sender::open(job, *rank, number);
        let message = sizes(*rows).write();
        async move {
            sender.send(message).await?;
            sender.end();
            Ok(())
        }
    });
    let kept = to.iter().find(|(rank, _)| *rank == here).map_or(0, |(_, rows)| *rows);
    let hearing = from.iter().map(|rank| {
        let receiver = (*rank != here).then(|| Receiver::open(job, *rank, number, 1));
        async move {
            match receiver {
                // The job fails before the streams are gone, so that other ranks learn why.
                Some(receiver) => hear(receiver, columns).await.map_err(|error| failure(job, error)),
                None => Ok(sizes(kept)),
            }
        }
    });
    Ok(try_join(try_join_all(telling), try_join_all(hearing)).await?.1)
}

async fn hear(mut receiver: Receiver, columns: &[ColumnSize]) -> Result<Sizes> {
    let rank = receiver.from();
    let message = receiver.next().await.transpose()?;
    let message =
        message.ok_or_else(|| Error::Unexpected { rank, what: "an end before the sizes of its rows".to_owned() })?;
    Sizes::read(&message, columns, rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_were_written() {
        let column = |width, has_validity| ColumnSize { width, has_validity };
        let sizes = Sizes { rows: 7, columns: vec![column(8, true), column(1, false)] };
        assert_eq!(sizes.arrays().collect::<Vec<_>>(), [56, 7, 7]);
        // Ranks may differ in nulls, and in nothing else.
        let own = [column(8, false), column(1, true)];
        let message = sizes.write();
        assert_eq!(Sizes::read(&message, &own, 1).unwrap(), sizes);
        for forged in [&message[..16], &message[..23], &[], &[&message[..], &[0; 8]].concat()] {
            assert!(Sizes::read(forged, &own, 1).is_err(), "{} bytes", forged.len());
        }
        assert!(Sizes::read(&message, &[column(8, true), column(2, false)], 1).is_err());
    }
}
