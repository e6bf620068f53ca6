//! Shuffles of rows in GPU memory, on the emulated device.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use futures::FutureExt;
use futures::executor::block_on;
use overspill_exchange::transport::{Job, JobId, LentBuffer, Network, Receiver, Sender};
use overspill_exchange::{
    DeviceShuffleSpec, DeviceTable, Error, Exchanged, GpuBytes, GpuPath, Levels, Result, ShuffleSpec, Topology,
};
use overspill_kernels::Kernels;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, DividedBuffer};
use rand::Rng;

use crate::emulated::{Emulated, MIB, keys, polled, random, row_numbers, rows, sorted, tables};
use crate::ranks::{on_each, ranks, shuffle_all};
use crate::shuffles::topology;

/// What a rank has after a shuffle, and what it has exchanged on each level.
type Outcome = Result<(RecordBatch, Vec<Exchanged>)>;

impl Emulated {
    /// Runs a part on each rank, with its GPU. Whatever fails on one fails on all.
    pub fn on_each<T: Send>(
        &self,
        topology: Topology,
        network: Option<Network>,
        part: impl Fn(usize, &Job, &Kernels, &Stream) -> Result<T> + Sync,
    ) -> Vec<Result<T>> {
        let endpoints = ranks(topology, network);
        let all = on_each(&endpoints, JobId(0), |rank, job| {
            let run = || {
                let device = self.device(rank)?;
                let (kernels, stream) = (Kernels::load(&device)?, Stream::new(&device)?);
                part(rank, &job, &kernels, &stream)
            };
            run().map_err(|error| match error {
                Error::Failed { .. } | Error::Abandoned(_) => error,
                other => job.fail(&other.to_string()),
            })
        });
        assert!(endpoints.iter().all(|endpoint| endpoint.jobs() == 0), "a job is left");
        all
    }

    /// Shuffles the rows of each rank by its own specification. A rank with a number of polls drops its shuffle after that many.
    fn shuffled(
        &self,
        topology: Topology,
        spec: impl Fn(usize) -> DeviceShuffleSpec + Sync,
        schema: &SchemaRef,
        batches: &[Vec<RecordBatch>],
        Case { network, dropped }: Case,
    ) -> Vec<Outcome> {
        self.on_each(topology, network, |rank, job, kernels, stream| {
            let table = DeviceTable::upload(stream, schema, &batches[rank])?;
            let spec = spec(rank);
            let polls = dropped.filter(|(dropped, _)| *dropped == rank).map(|(_, polls)| polls);
            let shuffle = spec.run(job, kernels, stream, table);
            let shuffled = block_on(polled(shuffle, polls)).unwrap_or(Err(Error::Abandoned(rank)))?;
            let rows = shuffled.table.download(stream, schema)?;
            Ok((rows, shuffled.metrics.iter().map(|metrics| metrics.exchanged()).collect()))
        })
    }

    /// No memory of any GPU is held, nor pinned. Messages may still be on a network, where their ranks have gone.
    pub fn assert_nothing_is_held(&self, case: &str) {
        let began = Instant::now();
        while (self.held().device_bytes, self.held().pinned_bytes) != (0, 0) {
            assert!(began.elapsed() < Duration::from_secs(10), "{case}: memory is still held");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How a case begins and ends.
#[derive(Default)]
struct Case {
    network: Option<Network>,
    /// A rank that drops its shuffle after it has polled it so often.
    dropped: Option<(usize, usize)>,
}

fn spec(keys: &[usize], levels: Levels, path: GpuPath) -> DeviceShuffleSpec {
    DeviceShuffleSpec { number: 0, keys: keys.to_vec(), levels, path }
}

/// The paths of the ranks of a case: direct, pinned, or one in turn with the other.
pub fn paths(case: usize) -> impl Fn(usize) -> GpuPath + Copy {
    move |rank| [GpuPath::Direct, GpuPath::Pinned][if case < 2 { case } else { rank % 2 }]
}

#[test]
fn rows_come_where_ranks_without_a_gpu_bring_them() {
    let emulated = Emulated::start();
    for seed in 0..24 {
        let random = &mut random(seed);
        let topology = topology(random);
        let (count, levels) = (topology.ranks(), [Levels::One, Levels::Two][seed as usize % 2]);
        let batches = tables(random, count, [1, 5, 1000][seed as usize % 3], 400);
        let schema = rows(random, 0, 0, 1, false).schema();
        let keys = keys(random);
        let on_cpu = ShuffleSpec {
            number: 0,
            schema: schema.clone(),
            keys: keys.clone(),
            null_equal: false,
            levels,
            is_compressed: false,
            round_bytes: 1 << 30,
            heavy: None,
        };
        let theirs = shuffle_all(&ranks(topology.clone(), None), &on_cpu, &batches);
        let theirs: Vec<_> = theirs.iter().map(|(batches, _)| concat_batches(&schema, batches).unwrap()).collect();
        for case in 0..3 {
            let path = paths(case);
            let spec = |rank| spec(&keys, levels, path(rank));
            let ours = emulated.shuffled(topology.clone(), spec, &schema, &batches, Case::default());
            let mut moved = [GpuBytes::default(); 2];
            for (rank, (ours, theirs)) in ours.into_iter().zip(&theirs).enumerate() {
                let (ours, exchanged) = ours.unwrap();
                assert_eq!(sorted(&ours), sorted(theirs), "seed {seed}, rank {rank}, keys {keys:?}");
                if levels == Levels::One {
                    // Rows of lower ranks come first, each rank's in their order.
                    assert!(row_numbers(&ours).is_sorted(), "seed {seed}, rank {rank}");
                }
                for level in exchanged {
                    let all = level.across.bytes + level.within.bytes;
                    let expected = match path(rank) {
                        GpuPath::Direct => GpuBytes { direct: all, through_cpu: 0 },
                        GpuPath::Pinned => GpuBytes { direct: 0, through_cpu: all },
                    };
                    assert_eq!(level.sent_from_gpu, expected, "seed {seed}, rank {rank}");
                    moved = [moved[0] + level.sent_from_gpu, moved[1] + level.received_on_gpu];
                }
            }
            // Of one process, ranks receive as was sent: they take each other's GPU memory, whatever they send.
            assert_eq!(moved[0], moved[1], "seed {seed}, case {case}");
        }
    }
    emulated.assert_nothing_is_held("shuffles");
}

#[test]
fn direct_messages_take_no_pinned_memory() {
    let emulated = Emulated::start();
    let batches: Vec<_> = (0..4).map(|rank| vec![rows(&mut random(1), 300, rank * 1000, 50, false)]).collect();
    let schema = batches[0][0].schema();
    for (path, has_pinned) in [(GpuPath::Direct, false), (GpuPath::Pinned, true)] {
        let before = emulated.held().registrations_made;
        let topology = Topology::of_nodes(4, 2).unwrap();
        let spec = |_| spec(&[0], Levels::Two, path);
        for outcome in emulated.shuffled(topology, spec, &schema, &batches, Case::default()) {
            outcome.unwrap();
        }
        assert_eq!(emulated.held().registrations_made > before, has_pinned, "{path:?}");
    }
}

#[test]
fn each_column_is_a_message_to_each_rank() {
    let emulated = Emulated::start();
    let random = &mut random(1);
    let batches: Vec<_> = (0..8).map(|rank| vec![rows(random, 500, rank * 1000, 1_000_000, false)]).collect();
    let schema = batches[0][0].schema();
    // Six columns among eight ranks on two nodes of four.
    for (levels, across, within) in [(Levels::One, 8 * 4, 8 * 3), (Levels::Two, 8, 8 * 3)] {
        let topology = Topology::of_nodes(8, 4).unwrap();
        let spec = |_| DeviceShuffleSpec { number: 3, ..spec(&[0], levels, GpuPath::Direct) };
        let outcomes = emulated.shuffled(topology, spec, &schema, &batches, Case::default());
        let exchanged = outcomes.into_iter().flat_map(|rank| rank.unwrap().1);
        let sum = exchanged.fold([0; 3], |[a, w, bytes], level| {
            [a + level.across.messages, w + level.within.messages, bytes + level.across.bytes + level.within.bytes]
        });
        assert_eq!(sum[..2], [across * 6, within * 6], "{levels:?}");
        assert!(sum[2] > 0 && sum[2] % (8 + 4 + 1 + 16 + 8 + 8) == 0, "{levels:?}");
    }
}

/// The n-th call of a GPU's driver fails, or a rank is lost: all ranks end with the same words, and hold nothing.
#[test]
fn a_failure_of_a_gpu_is_one_error_on_all_ranks() {
    let emulated = Emulated::start();
    let mut failed = 0;
    for seed in 0..60 {
        let random = &mut random(seed);
        let topology = topology(random);
        let count = topology.ranks();
        let batches = tables(random, count, 50, 400);
        let schema = rows(random, 0, 0, 1, false).schema();
        let path = paths(seed as usize % 3);
        let levels = [Levels::One, Levels::Two][seed as usize / 3 % 2];
        let kind =
            ["allocation", "registration", "copy", "launch", "synchronisation", "rank"][random.random_range(0..6)];
        let loses = (kind == "rank").then(|| (random.random_range(0..count), random.random_range(0..200)));
        let network = Network { seed, most_delay: Duration::from_micros(100), loses, ..Network::default() };
        let network = (loses.is_some() || random.random_bool(0.5)).then_some(network);
        if kind != "rank" {
            let calls = random.random_range(1..30 * count);
            emulated.configure(&format!("fail={kind}:{calls}"));
        }
        let spec = |rank| spec(&[0], levels, path(rank));
        let outcomes = emulated.shuffled(topology, spec, &schema, &batches, Case { network, dropped: None });
        emulated.succeed();
        let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        failed += usize::from(!errors.is_empty());
        // Whoever has all its rows may have ended before.
        let causes: Vec<String> = errors.iter().map(ToString::to_string).collect();
        // A lost GPU is seen by each rank that has it or copies from it.
        let is_one = kind == "synchronisation" || causes.iter().all(|cause| cause == &causes[0]);
        assert!(is_one, "seed {seed}, {kind}: {causes:?}");
        assert!(errors.iter().all(|error| matches!(error, Error::Failed { .. })), "seed {seed}, {kind}: {causes:?}");
        drop(outcomes);
        emulated.assert_nothing_is_held(&format!("seed {seed}, {kind}"));
    }
    assert!(failed >= 20, "only {failed} of 60 failed");
}

/// A rank drops its shuffle half way: the others end, with their rows or one error, and nothing is held.
#[test]
fn a_dropped_shuffle_leaves_nothing() {
    let emulated = Emulated::start();
    let mut dropped = 0;
    for seed in 0..60 {
        let random = &mut random(seed);
        let topology = topology(random);
        let count = topology.ranks();
        let batches = tables(random, count, 50, 400);
        let schema = rows(random, 0, 0, 1, false).schema();
        let path = paths(seed as usize % 3);
        let levels = [Levels::One, Levels::Two][seed as usize / 3 % 2];
        let network = Network { seed, most_delay: Duration::from_micros(100), ..Network::default() };
        let network = random.random_bool(0.5).then_some(network);
        let victim = random.random_range(0..count);
        let case = Case { network, dropped: Some((victim, random.random_range(1..12))) };
        let spec = |rank| spec(&[0], levels, path(rank));
        let outcomes = emulated.shuffled(topology, spec, &schema, &batches, case);
        dropped += usize::from(matches!(outcomes[victim], Err(Error::Abandoned(_))));
        let expected = format!("rank {victim} failed: its shuffle of GPU memory was dropped before the end");
        let errors = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).map(ToString::to_string);
        let errors: Vec<_> = errors.filter(|error| !error.contains("stopped before")).collect();
        assert!(errors.iter().all(|error| *error == expected), "seed {seed}: {errors:?}");
        drop(outcomes);
        emulated.assert_nothing_is_held(&format!("seed {seed}"));
    }
    assert!(dropped >= 15, "only {dropped} of 60 were dropped half way");
}

#[test]
fn lent_memory_is_complete_and_stays_until_it_is_returned() {
    let emulated = Emulated::start();
    let device = emulated.driver.device(0, 64 * MIB).unwrap();
    let (writing, reading) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let mut buffer = DeviceBuffer::new(&device, 10).unwrap();
    // Queued: the stand-in fills it when the stream is waited for.
    buffer.fill(&writing, 7).unwrap();
    let lent = LentBuffer::lend(&writing, vec![buffer]).unwrap().pop().unwrap();
    assert!(lent.part(4..11).is_err() && lent.part(Range { start: 5, end: 4 }).is_err());
    let part = lent.part(4..10).unwrap().slice(1, 3).unwrap();
    assert!(part.slice(1, 3).is_err());
    assert_eq!((part.bytes(), part.range()), (3, 5..8));
    let mut room = DividedBuffer::new(DeviceBuffer::from_slice(&reading, &[0_u8; 4]).unwrap());
    room.take(3).unwrap().copy(&reading, part.buffer(), part.range()).unwrap();
    assert_eq!(room.into_whole().unwrap().read::<u8>(&reading, 4).unwrap(), [7, 7, 7, 0]);
    let mut returned = Box::pin(lent.returned());
    assert!(returned.as_mut().now_or_never().is_none());
    let again = part.clone();
    drop(part);
    assert!(returned.as_mut().now_or_never().is_none() && emulated.held().device_bytes == 10);
    drop(again);
    assert!(returned.now_or_never().is_some() && emulated.held().device_bytes == 0);
}

/// A rank that tells other sizes than it sends, or sends other columns, ends the job.
#[test]
fn forged_sizes_and_columns_are_refused() {
    /// Sets streams of columns apart from those of sizes.
    const COLUMNS: u64 = 1 << 62;
    const WIDTHS: [u64; 6] = [8, 4, 1, 16, 8, 8];
    let emulated = Emulated::start();
    let batch = rows(&mut random(1), 20, 0, 9, false);
    let schema = batch.schema();
    let told = |rows: u64| [&[rows], &WIDTHS[..]].concat();
    let nothing: &[usize] = &[];
    for (sizes, columns, words) in [
        (vec![1, 8], nothing, "columns of other widths"),
        (vec![], nothing, "columns of other widths"),
        (told(u64::MAX), nothing, "more rows than can be counted"),
        (told(1 << 40), nothing, "GPU memory"),
        (told(3), &[25], "a column of 25 bytes in place of 24"),
        (told(3), &[24, 12, 3, 48, 24], "an end before its last column"),
        (told(3), &[24, 12, 3, 48, 24, 24, 24], "a message for which there is no place"),
    ] {
        let topology = Topology::of_nodes(2, 1).unwrap();
        let outcomes = emulated.on_each(topology, None, |rank, job, kernels, stream| {
            if rank == 0 {
                let table = DeviceTable::upload(stream, &schema, std::slice::from_ref(&batch))?;
                let spec = spec(&[0], Levels::One, GpuPath::Direct);
                return block_on(spec.run(job, kernels, stream, table)).map(drop);
            }
            let _receivers = [0, COLUMNS].map(|number| Receiver::open(job, 0, number, 1 << 20));
            let forging = async {
                let mut sender = Sender::open(job, 0, 0);
                sender.send(Buffer::from_vec(sizes.clone())).await?;
                sender.end();
                let mut sender = Sender::open(job, 0, COLUMNS);
                for bytes in columns {
                    sender.send(Buffer::from_vec(vec![1_u8; *bytes])).await?;
                }
                sender.end();
                Ok::<_, Error>(())
            };
            block_on(forging)?;
            Err(block_on(job.failed()))
        });
        let errors: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().to_string()).collect();
        assert!(errors.iter().all(|error| error.contains(words)), "{words}: {errors:?}");
        emulated.assert_nothing_is_held(words);
    }
}

#[test]
fn tables_keep_their_nulls() {
    let emulated = Emulated::start();
    let device = emulated.driver.device(0, 64 * MIB).unwrap();
    let stream = Stream::new(&device).unwrap();
    let batches: Vec<_> = [true, false, true].iter().map(|nulls| rows(&mut random(1), 70, 0, 9, *nulls)).collect();
    // The batches are slices of larger arrays. The second batch has no nulls.
    let batches: Vec<_> = batches.iter().map(|batch| batch.slice(7, 41)).collect();
    let table = DeviceTable::upload(&stream, &batches[0].schema(), &batches).unwrap();
    assert!(table.columns()[0].validity.is_some() && table.columns()[5].validity.is_none());
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(table.download(&stream, &all.schema()).unwrap(), all);
}

#[test]
fn what_kernels_do_not_move_is_refused() {
    let emulated = Emulated::start();
    let device = emulated.driver.device(0, 64 * MIB).unwrap();
    let stream = Stream::new(&device).unwrap();
    let refused = |column: ArrayRef| {
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        DeviceTable::upload(&stream, &batch.schema(), &[batch]).unwrap_err().to_string()
    };
    let error = refused(Arc::new(StringArray::from(vec!["x"])));
    assert!(error.contains("column a has values of the type Utf8"), "{error}");
    let batch = rows(&mut random(1), 5, 0, 9, false);
    let table = DeviceTable::upload(&stream, &batch.schema(), std::slice::from_ref(&batch)).unwrap();
    let few = batch.project(&[0, 1]).unwrap().schema();
    assert!(table.download(&stream, &few).unwrap_err().to_string().contains("6 columns in GPU memory are not the 2"));
    let other = batch.project(&[1, 0, 2, 3, 4, 5]).unwrap().schema();
    assert!(table.download(&stream, &other).unwrap_err().to_string().contains("column int is of the type Int32"));
    let spec = |_| spec(&[6], Levels::One, GpuPath::Direct);
    let topology = Topology::of_nodes(1, 1).unwrap();
    let outcome = emulated.shuffled(topology, spec, &batch.schema(), &[vec![batch.clone()]], Case::default());
    let error = outcome[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("rows of 6 columns have no key [6]"), "{error}");
}
