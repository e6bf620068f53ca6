use std::sync::Arc;
use std::time::Duration;

use arrow::buffer::Buffer;
use futures::executor::block_on;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::topology::Topology;

const WINDOW: usize = 1000;

fn ranks(count: usize, network: Option<Network>) -> Vec<Arc<Endpoint>> {
    in_process(&Arc::new(Topology::of_nodes(count, 2).unwrap()), network)
}

fn message(seed: u64, length: usize) -> Buffer {
    let mut random = StdRng::seed_from_u64(seed);
    Buffer::from((0..length).map(|_| random.random()).collect::<Vec<u8>>())
}

/// The messages from one rank to another: some empty, some larger than the window.
fn messages(seed: u64, from: Rank, to: Rank) -> Vec<Buffer> {
    let mut random = StdRng::seed_from_u64(seed ^ (from * 31 + to) as u64);
    let count = random.random_range(0..20);
    (0..count).map(|number| message(number, random.random_range(0..2 * WINDOW))).collect()
}

/// Sends from every rank to every rank, also to itself. Returns what each job says.
fn all_to_all(seed: u64, endpoints: &[Arc<Endpoint>]) -> Vec<Result<()>> {
    let ranks = endpoints.len();
    let mut running: Vec<BoxFuture<'static, Result<()>>> = vec![];
    for (rank, endpoint) in endpoints.iter().enumerate() {
        let job = Job::begin(endpoint, JobId(seed));
        for other in 0..ranks {
            let mut sender = Sender::open(&job, other, 7);
            let sending = async move {
                for message in messages(seed, rank, other) {
                    assert!(sender.send(message).await?);
                }
                sender.end();
                Ok(())
            };
            let receiver = Receiver::open(&job, other, 7, WINDOW);
            let receiving = async move {
                let arrived: Vec<Buffer> = receiver.try_collect().await?;
                assert_eq!(arrived, messages(seed, other, rank), "{other} to {rank}");
                Ok(())
            };
            running.push(sending.boxed());
            running.push(receiving.boxed());
        }
    }
    let threads: Vec<_> = running.into_iter().map(|part| std::thread::spawn(|| block_on(part))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn messages_arrive_whole_and_in_order() {
    for seed in 0..30 {
        let network = Network { seed, most_delay: Duration::from_micros(300), ..Network::default() };
        for network in [None, Some(network)] {
            let endpoints = ranks(1 + seed as usize % 5, network);
            for ended in all_to_all(seed, &endpoints) {
                ended.unwrap();
            }
            for endpoint in &endpoints {
                assert_eq!(endpoint.jobs(), 0);
            }
        }
    }
}

#[test]
fn a_sender_waits_for_the_window() {
    let endpoints = ranks(2, None);
    let (from, to) = (Job::begin(&endpoints[0], JobId(1)), Job::begin(&endpoints[1], JobId(1)));
    let mut sender = Sender::open(&from, 1, 0);
    assert!(sender.send(message(1, 10)).now_or_never().is_none(), "there is no receiver");
    let mut receiver = Receiver::open(&to, 0, 0, WINDOW);
    // The window is open until it is used up.
    for length in [WINDOW - 300, 500] {
        assert!(sender.send(message(1, length)).now_or_never().unwrap().unwrap());
    }
    assert!(sender.send(message(1, 1)).now_or_never().is_none(), "more than the window");
    assert_eq!(receiver.next().now_or_never().unwrap().unwrap().unwrap().len(), WINDOW - 300);
    assert!(sender.send(message(1, 1)).now_or_never().unwrap().unwrap());
    sender.end();
    assert_eq!(receiver.next().now_or_never().unwrap().unwrap().unwrap().len(), 500);
    assert_eq!(receiver.next().now_or_never().unwrap().unwrap().unwrap().len(), 1);
    assert!(receiver.next().now_or_never().unwrap().is_none());
}

#[test]
fn a_dropped_receiver_cancels_and_a_dropped_sender_fails() {
    let endpoints = ranks(2, None);
    let (from, to) = (Job::begin(&endpoints[0], JobId(1)), Job::begin(&endpoints[1], JobId(1)));
    let mut sender = Sender::open(&from, 1, 0);
    let receiver = Receiver::open(&to, 0, 0, WINDOW);
    assert!(sender.send(message(1, 10)).now_or_never().unwrap().unwrap());
    drop(receiver);
    assert!(!sender.send(message(1, 10)).now_or_never().unwrap().unwrap());
    // Nothing waits for the end of a stream that was never opened.
    drop((Sender::open(&from, 1, 1), Receiver::open(&to, 0, 1, WINDOW)));
    let abandoned = Sender::open(&from, 1, 2);
    let mut receiver = Receiver::open(&to, 0, 2, WINDOW);
    assert!(receiver.next().now_or_never().is_none());
    drop(abandoned);
    assert!(matches!(receiver.next().now_or_never(), Some(Some(Err(Error::Abandoned(0))))));
    assert!(receiver.next().now_or_never().unwrap().is_none());
}

#[test]
fn the_first_failure_reaches_all_ranks() {
    let endpoints = ranks(3, None);
    let jobs: Vec<_> = endpoints.iter().map(|endpoint| Job::begin(endpoint, JobId(5))).collect();
    let mut receiver = Receiver::open(&jobs[0], 1, 0, WINDOW);
    let mut sender = Sender::open(&jobs[2], 0, 0);
    let mut failed = Box::pin(jobs[2].failed());
    assert!(receiver.next().now_or_never().is_none());
    assert!(failed.as_mut().now_or_never().is_none());
    assert_eq!(jobs[1].fail("its disk is full").to_string(), "rank 1 failed: its disk is full");
    assert_eq!(jobs[0].fail("and mine").to_string(), "rank 1 failed: its disk is full");
    for error in [
        receiver.next().now_or_never().unwrap().unwrap().unwrap_err(),
        sender.send(message(1, 1)).now_or_never().unwrap().unwrap_err(),
        failed.now_or_never().unwrap(),
    ] {
        assert_eq!(error.to_string(), "rank 1 failed: its disk is full");
    }
    // A rank that begins later learns it, and other jobs go on.
    drop((receiver, sender));
    assert!(jobs[0].failure().is_some());
    assert!(Job::begin(&endpoints[0], JobId(6)).failure().is_none());
}

/// A rank is lost at some moment: all others end, with its loss or with all their messages.
#[test]
fn a_lost_rank_ends_all_jobs() {
    let mut losses = 0;
    for seed in 0..30 {
        let network = Network {
            seed,
            most_delay: Duration::from_micros(100),
            loses: Some((seed as usize % 3, seed * 7)),
            ..Network::default()
        };
        let endpoints = ranks(3, Some(network));
        let ended = all_to_all(seed, &endpoints);
        let errors: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
        let lost = format!("rank {} failed: it no longer answers", seed % 3);
        assert!(errors.iter().all(|error| error.to_string() == lost), "{errors:?}");
        losses += usize::from(!errors.is_empty());
        for endpoint in &endpoints {
            assert_eq!(endpoint.jobs(), 0);
        }
    }
    assert!(losses > 10, "{losses} losses");
}

/// A message takes as long as its bytes.
#[test]
fn a_slow_network_takes_its_time() {
    let network = Network { bytes_per_second: Some(1e6), ..Network::default() };
    let endpoints = ranks(2, Some(network));
    let (from, to) = (Job::begin(&endpoints[0], JobId(1)), Job::begin(&endpoints[1], JobId(1)));
    let started = std::time::Instant::now();
    let mut sender = Sender::open(&from, 1, 0);
    let receiver = Receiver::open(&to, 0, 0, 1 << 20);
    let sending = async move {
        for _ in 0..5 {
            sender.send(message(1, 10_000)).await.unwrap();
        }
        sender.end();
    };
    let (_, arrived) = block_on(futures::future::join(sending, receiver.try_collect::<Vec<_>>()));
    assert_eq!(arrived.unwrap().len(), 5);
    assert!(started.elapsed() >= Duration::from_millis(50));
}
