//! All ranks in one process.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use overspill_machine::driver::Device;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::endpoint::{Endpoint, Wire};
use super::frame::{Frame, FrameKind};
use crate::rank::Rank;
use crate::topology::Topology;

/// What a network does to frames, in place of bringing them at once.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// Where delays are drawn from.
    pub seed: u64,
    /// Each frame takes up to so long, so that frames of different pairs of ranks overtake each other.
    pub most_delay: Duration,
    /// The bytes that a rank receives in a second, if they are limited.
    pub bytes_per_second: Option<f64>,
    /// A rank that is lost, and the number of frames that there are before.
    pub loses: Option<(Rank, u64)>,
}

type Endpoints = Arc<OnceLock<Vec<Weak<Endpoint>>>>;

/// The endpoints of ranks in this process. Frames arrive at once, in the thread that sends them, or as a network lets them. Ranks share the
/// memory of messages, which GPUs copy from each other's.
pub fn in_process(topology: &Arc<Topology>, network: Option<Network>) -> Vec<Arc<Endpoint>> {
    let endpoints = Endpoints::default();
    let queue = network.map(|network| {
        let (queue, arriving) = mpsc::channel();
        let carrier = Carrier::new(network, Arc::clone(&endpoints), topology.ranks());
        std::thread::spawn(move || carrier.run(&arriving));
        queue
    });
    let all: Vec<_> = (0..topology.ranks())
        .map(|rank| {
            let wire: Box<dyn Wire> = match &queue {
                Some(queue) => Box::new(Delayed { from: rank, queue: queue.clone() }),
                None => Box::new(Direct { from: rank, endpoints: Arc::clone(&endpoints) }),
            };
            Arc::new(Endpoint::new(rank, Arc::clone(topology), wire))
        })
        .collect();
    let _ = endpoints.set(all.iter().map(Arc::downgrade).collect());
    all
}

fn endpoint(endpoints: &Endpoints, rank: Rank) -> Option<Arc<Endpoint>> {
    endpoints.get()?.get(rank)?.upgrade()
}

#[derive(Debug)]
struct Direct {
    from: Rank,
    endpoints: Endpoints,
}

impl Wire for Direct {
    fn send(&self, to: Rank, frame: Frame) {
        // A rank that has ended wants nothing more.
        if let Some(endpoint) = endpoint(&self.endpoints, to) {
            endpoint.deliver(self.from, frame);
        }
    }

    fn takes_memory_of(&self, _: &Device) -> bool {
        // The ranks share a driver, which copies from each GPU to each.
        true
    }
}

#[derive(Debug)]
struct Sending {
    from: Rank,
    to: Rank,
    frame: Frame,
}

#[derive(Debug)]
struct Delayed {
    from: Rank,
    queue: mpsc::Sender<Sending>,
}

impl Wire for Delayed {
    fn send(&self, to: Rank, frame: Frame) {
        let _ = self.queue.send(Sending { from: self.from, to, frame });
    }

    fn takes_memory_of(&self, _: &Device) -> bool {
        true
    }
}

/// The thread that is the network.
struct Carrier {
    network: Network,
    endpoints: Endpoints,
    random: StdRng,
    /// For each pair of ranks its frames in their order, with the time at which each arrives.
    pairs: Vec<VecDeque<(Instant, Frame)>>,
    ranks: usize,
    /// When each rank has received what was sent to it.
    free: Vec<Instant>,
    frames: u64,
}

impl Carrier {
    fn new(network: Network, endpoints: Endpoints, ranks: usize) -> Self {
        let random = StdRng::seed_from_u64(network.seed);
        let pairs = vec![VecDeque::new(); ranks * ranks];
        Self { network, endpoints, random, pairs, ranks, free: vec![Instant::now(); ranks], frames: 0 }
    }

    /// Until all ranks have gone and their frames have arrived.
    fn run(mut self, arriving: &mpsc::Receiver<Sending>) {
        let mut is_open = true;
        loop {
            let next = self.next();
            if !is_open && next.is_none() {
                return;
            }
            let now = Instant::now();
            let due = next.map(|(at, _)| at.saturating_duration_since(now));
            let taken = match due {
                Some(Duration::ZERO) => arriving.try_recv().map_err(|error| error == mpsc::TryRecvError::Disconnected),
                Some(wait) if is_open => {
                    arriving.recv_timeout(wait).map_err(|error| error == RecvTimeoutError::Disconnected)
                }
                Some(wait) => {
                    std::thread::sleep(wait);
                    Err(false)
                }
                None => arriving.recv().map_err(|_| true),
            };
            match taken {
                Ok(sending) => self.take(sending, Instant::now()),
                Err(has_closed) => is_open &= !has_closed,
            }
            while let Some((at, pair)) = self.next()
                && at <= Instant::now()
            {
                self.bring(pair);
            }
        }
    }

    /// The pair whose frame arrives next, and when.
    fn next(&self) -> Option<(Instant, usize)> {
        let first = |(pair, frames): (usize, &VecDeque<(Instant, Frame)>)| frames.front().map(|(at, _)| (*at, pair));
        self.pairs.iter().enumerate().filter_map(first).min()
    }

    fn take(&mut self, Sending { from, to, frame }: Sending, now: Instant) {
        let delay = self.random.random_range(0.0..=self.network.most_delay.as_secs_f64());
        let mut at = now + Duration::from_secs_f64(delay);
        if let (Some(rate), FrameKind::Data(_, message)) = (self.network.bytes_per_second, &frame.kind)
            && from != to
        {
            let free = self.free[to].max(now) + Duration::from_secs_f64(message.bytes() as f64 / rate);
            self.free[to] = free;
            at = at.max(free);
        }
        let frames = &mut self.pairs[from * self.ranks + to];
        // No frame overtakes another of its pair.
        let at = frames.back().map_or(at, |(before, _)| at.max(*before));
        frames.push_back((at, frame));
    }

    fn bring(&mut self, pair: usize) {
        let Some((_, frame)) = self.pairs[pair].pop_front() else { return };
        let (from, to) = (pair / self.ranks, pair % self.ranks);
        self.frames += 1;
        match self.network.loses {
            Some((rank, before)) if self.frames > before => {
                if self.frames == before + 1 {
                    let all = (0..self.ranks).filter_map(|rank| endpoint(&self.endpoints, rank));
                    all.for_each(|endpoint| endpoint.lose(rank, "it no longer answers"));
                }
                if from == rank || to == rank {
                    return;
                }
            }
            _ => (),
        }
        if let Some(endpoint) = endpoint(&self.endpoints, to) {
            endpoint.deliver(from, frame);
        }
    }
}
