//! Small messages of all ranks to all ranks.

use arrow::buffer::Buffer;
use futures::StreamExt;
use futures::future::{try_join, try_join_all};

use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::transport::{Job, Receiver, Sender, StreamNumber};

/// Sets gathers apart from other streams of their numbers.
const GATHER: StreamNumber = 1 << 63;

/// Gives each rank the messages of all ranks, in the order of the ranks. It ends only after all have called it, so it is a barrier too. `P`
/// ranks send `P(P-1)` messages. Gathers of a job have numbers of their own, below 2^63.
///
/// # Errors
/// If a rank has failed.
pub async fn all_gather(job: &Job, number: StreamNumber, message: Buffer) -> Result<Vec<Buffer>> {
    let number = number | GATHER;
    let (here, ranks) = (job.endpoint().rank(), job.endpoint().topology().ranks());
    let sending = (0..ranks).filter(|rank| *rank != here).map(|rank| {
        let mut sender = Sender::open(job, rank, number);
        let message = message.clone();
        async move {
            sender.send(message).await?;
            sender.end();
            Ok::<_, Error>(())
        }
    });
    let receiving = (0..ranks).map(|rank| {
        let receiver = (rank != here).then(|| Receiver::open(job, rank, number, 1));
        let own = message.clone();
        async move {
            match receiver {
                Some(receiver) => received(receiver, rank).await,
                None => Ok(own),
            }
        }
    });
    Ok(try_join(try_join_all(sending), try_join_all(receiving)).await?.1)
}

async fn received(mut receiver: Receiver, rank: Rank) -> Result<Buffer> {
    let message = receiver.next().await.transpose()?;
    message.ok_or_else(|| Error::Unexpected { rank, what: "no message where all ranks send one".to_owned() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;
    use crate::topology::Topology;
    use crate::transport::{JobId, in_process};

    #[test]
    fn every_rank_has_the_messages_of_all() {
        for ranks in [1, 2, 5] {
            let endpoints = in_process(&Arc::new(Topology::of_nodes(ranks, 2).unwrap()), None);
            let gathering = endpoints.iter().enumerate().map(async |(rank, endpoint)| {
                let job = Job::begin(endpoint, JobId(3));
                all_gather(&job, 0, Buffer::from_vec(vec![rank as u8; rank])).await.unwrap()
            });
            for messages in block_on(join_all(gathering)) {
                assert!(messages.into_iter().eq((0..ranks).map(|rank| Buffer::from_vec(vec![rank as u8; rank]))));
            }
        }
    }
}
