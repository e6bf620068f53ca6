//! Ranks, each on a thread of its own.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use arrow::array::RecordBatch;
use futures::executor::block_on;
use futures::future::try_join;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{Endpoint, Job, JobId, Network, in_process};
use overspill_exchange::{Exchanged, Result, ShuffleSpec, Topology};

/// What a rank has after a shuffle, and what it has sent on each level.
pub type Shuffled = (Vec<RecordBatch>, Vec<Exchanged>);

pub fn ranks(topology: Topology, network: Option<Network>) -> Vec<Arc<Endpoint>> {
    in_process(&Arc::new(topology), network)
}

/// Longer than any test takes: ranks wait for each other for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a part on each rank, and gives what all return.
pub fn on_each<T: Send>(endpoints: &[Arc<Endpoint>], id: JobId, part: impl Fn(usize, Job) -> T + Sync) -> Vec<T> {
    let (ended, watched) = mpsc::channel::<()>();
    thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("ranks wait for each other");
            std::process::exit(1);
        }
    });
    let all = thread::scope(|scope| {
        let part = &part;
        let threads: Vec<_> = endpoints
            .iter()
            .enumerate()
            .map(|(rank, endpoint)| scope.spawn(move || part(rank, Job::begin(endpoint, id))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(ended);
    all
}

/// Shuffles the batches of a rank to their end.
pub fn shuffle(job: &Job, spec: ShuffleSpec, batches: Vec<RecordBatch>) -> Result<Shuffled> {
    let input = stream::iter(batches.into_iter().map(Ok::<_, String>));
    let shuffle = spec.start(job, input)?;
    let (_, rows) = block_on(try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>()))?;
    Ok((rows, shuffle.metrics.iter().map(|metrics| metrics.exchanged()).collect()))
}

/// Shuffles what each rank has.
pub fn shuffle_all(endpoints: &[Arc<Endpoint>], spec: &ShuffleSpec, batches: &[Vec<RecordBatch>]) -> Vec<Shuffled> {
    let all =
        on_each(endpoints, JobId(spec.number), |rank, job| shuffle(&job, spec.clone(), batches[rank].clone()).unwrap());
    for endpoint in endpoints {
        assert_eq!(endpoint.jobs(), 0, "a job is left");
    }
    all
}
