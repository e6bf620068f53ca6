//! Shuffles of rows in GPU memory, on the emulated device.

use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{
    ArrayRef, AsArray, Decimal128Array, Float64Array, Int8Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow::compute::{concat_batches, lexsort_to_indices, take_record_batch};
use arrow::datatypes::{Int64Type, SchemaRef};
use futures::executor::block_on;
use overspill_exchange::transport::JobId;
use overspill_exchange::{DeviceShuffleSpec, DeviceTable, Error, Exchanged, Levels, Result, ShuffleSpec, Topology};
use overspill_kernels::Kernels;
use overspill_machine::driver::{Driver, Stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::ranks::{on_each, ranks, shuffle_all};
use crate::shuffles::topology;

const MIB: u64 = 1 << 20;

/// The stand-in, to oneself: its failures are counted over all devices.
struct Emulated {
    driver: &'static Driver,
    _alone: MutexGuard<'static, ()>,
}

impl Emulated {
    fn start() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let emulated = Self { driver: Driver::emulated(&Self::library()).unwrap(), _alone: alone };
        emulated.configure(c"multiprocessors=2;workers=2");
        emulated.configure(c"fail=allocation:0;fail=registration:0;fail=copy:0;fail=launch:0");
        emulated
    }

    fn library() -> PathBuf {
        std::env::current_exe().unwrap().with_file_name("liboverspill_emulated_driver.so")
    }

    fn configure(&self, settings: &CStr) {
        // SAFETY: the library is loaded already, and the function has this type.
        let configured = unsafe {
            let library = libloading::Library::new(Self::library()).unwrap();
            let configure: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> i32> =
                library.get(c"overspill_emulated_configure").unwrap();
            configure(settings.as_ptr())
        };
        assert_eq!(configured, 0, "{settings:?}");
    }

    /// What each rank has after a shuffle of what it has, and what it has exchanged on each level.
    fn shuffled(
        &self,
        topology: Topology,
        spec: &DeviceShuffleSpec,
        schema: &SchemaRef,
        batches: &[Vec<RecordBatch>],
    ) -> Vec<Result<(RecordBatch, Vec<Exchanged>)>> {
        let endpoints = ranks(topology, None);
        let all = on_each(&endpoints, JobId(0), |rank, job| {
            let run = || {
                let device = self.driver.device(0, 64 * MIB)?;
                let (kernels, stream) = (Kernels::load(&device)?, Stream::new(&device)?);
                let table = DeviceTable::upload(&stream, schema, &batches[rank])?;
                let shuffled = block_on(spec.run(&job, &kernels, &stream, table))?;
                let rows = shuffled.table.download(&stream, schema)?;
                Ok((rows, shuffled.metrics.iter().map(|metrics| metrics.exchanged()).collect()))
            };
            // Whatever fails beside the shuffle fails for all, too.
            run().map_err(|error| match error {
                Error::Failed { .. } => error,
                other => job.fail(&other.to_string()),
            })
        });
        assert!(endpoints.iter().all(|endpoint| endpoint.jobs() == 0), "a job is left");
        all
    }
}

/// Rows whose keys have several types, and whose last column tells them apart.
fn rows(random: &mut StdRng, count: usize, first: i64, keys: i64) -> RecordBatch {
    let key: Vec<i64> = (0..count).map(|_| random.random_range(0..keys)).collect();
    let columns: [(&str, ArrayRef); 6] = [
        ("long", Arc::new(Int64Array::from_iter_values(key.iter().copied()))),
        ("int", Arc::new(Int32Array::from_iter_values(key.iter().map(|key| *key as i32 - 7)))),
        ("byte", Arc::new(Int8Array::from_iter_values(key.iter().map(|key| *key as i8)))),
        ("decimal", Arc::new(Decimal128Array::from_iter_values(key.iter().map(|key| i128::from(*key) << 40)))),
        // Zero has two forms, which are equal.
        (
            "float",
            Arc::new(Float64Array::from_iter_values(
                key.iter().enumerate().map(|(row, key)| if row % 2 == 0 && *key == 0 { -0.0 } else { *key as f64 }),
            )),
        ),
        ("row", Arc::new(Int64Array::from_iter_values(first..first + count as i64))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Batches of each rank, some ranks without rows.
fn tables(random: &mut StdRng, ranks: usize, keys: i64) -> Vec<Vec<RecordBatch>> {
    let mut of_rank = |rank: usize| -> Vec<RecordBatch> {
        let batches = random.random_range(0..3_usize);
        let batch = |batch: usize| {
            let count = random.random_range(0..400);
            let rows = rows(random, count, (rank * 10_000 + batch * 1000) as i64, keys);
            // A part of a larger array.
            rows.slice(0, count - count / 5)
        };
        (0..batches).map(batch).collect()
    };
    (0..ranks).map(&mut of_rank).collect()
}

fn row_numbers(batch: &RecordBatch) -> Vec<i64> {
    batch.column(5).as_primitive::<Int64Type>().values().to_vec()
}

fn sorted(batch: &RecordBatch) -> RecordBatch {
    let by_row = arrow::compute::SortColumn { values: batch.column(5).clone(), options: None };
    take_record_batch(batch, &lexsort_to_indices(&[by_row], None).unwrap()).unwrap()
}

#[test]
fn rows_come_where_ranks_without_a_gpu_bring_them() {
    let emulated = Emulated::start();
    for seed in 0..24 {
        let random = &mut StdRng::seed_from_u64(seed);
        let topology = topology(random);
        let (count, levels) = (topology.ranks(), [Levels::One, Levels::Two][seed as usize % 2]);
        let batches = tables(random, count, [1, 5, 1000][seed as usize % 3]);
        let schema = rows(random, 0, 0, 1).schema();
        let keys = [&[0][..], &[1], &[3], &[4], &[1, 2], &[0, 1], &[2]][random.random_range(0..7)].to_vec();
        let spec = DeviceShuffleSpec { number: 0, keys: keys.clone(), levels };
        let ours = emulated.shuffled(topology.clone(), &spec, &schema, &batches);
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
        let theirs = shuffle_all(&ranks(topology, None), &on_cpu, &batches);
        for (rank, (ours, (theirs, _))) in ours.into_iter().zip(theirs).enumerate() {
            let (ours, _) = ours.unwrap();
            let theirs = concat_batches(&schema, &theirs).unwrap();
            assert_eq!(sorted(&ours), sorted(&theirs), "seed {seed}, rank {rank}, keys {keys:?}");
            if levels == Levels::One {
                // Rows of lower ranks come first, each rank's in their order.
                assert!(row_numbers(&ours).is_sorted(), "seed {seed}, rank {rank}");
            }
        }
    }
}

#[test]
fn each_column_is_a_message_to_each_rank() {
    let emulated = Emulated::start();
    let random = &mut StdRng::seed_from_u64(1);
    let batches: Vec<_> = (0..8).map(|rank| vec![rows(random, 500, rank * 1000, 1_000_000)]).collect();
    let schema = batches[0][0].schema();
    // Six columns among eight ranks on two nodes of four.
    for (levels, across, within) in [(Levels::One, 8 * 4, 8 * 3), (Levels::Two, 8, 8 * 3)] {
        let topology = Topology::of_nodes(8, 4).unwrap();
        let spec = DeviceShuffleSpec { number: 3, keys: vec![0], levels };
        let exchanged =
            emulated.shuffled(topology, &spec, &schema, &batches).into_iter().flat_map(|rank| rank.unwrap().1);
        let sum = exchanged.fold([0; 3], |[a, w, bytes], level| {
            [a + level.across.messages, w + level.within.messages, bytes + level.across.bytes + level.within.bytes]
        });
        assert_eq!(sum[..2], [across * 6, within * 6], "{levels:?}");
        assert!(sum[2] > 0 && sum[2] % (8 + 4 + 1 + 16 + 8 + 8) == 0, "{levels:?}");
    }
}

#[test]
fn a_failure_of_a_gpu_is_one_error_on_all_ranks() {
    let emulated = Emulated::start();
    let random = &mut StdRng::seed_from_u64(2);
    let batches: Vec<_> = (0..4).map(|rank| vec![rows(random, 300, rank * 1000, 50)]).collect();
    let schema = batches[0][0].schema();
    let spec = DeviceShuffleSpec { number: 0, keys: vec![0], levels: Levels::Two };
    let mut failed = 0;
    for settings in [
        c"fail=allocation:30",
        c"fail=allocation:60",
        c"fail=registration:2",
        c"fail=copy:30",
        c"fail=copy:90",
        c"fail=launch:3",
        c"fail=launch:15",
    ] {
        emulated.configure(settings);
        let outcomes = emulated.shuffled(Topology::of_nodes(4, 2).unwrap(), &spec, &schema, &batches);
        emulated.configure(c"fail=allocation:0;fail=registration:0;fail=copy:0;fail=launch:0");
        let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        failed += usize::from(!errors.is_empty());
        // Whoever has all its rows may have ended before.
        let causes: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(causes.iter().all(|cause| cause == &causes[0]), "{settings:?}: {causes:?}");
        assert!(errors.iter().all(|error| matches!(error, Error::Failed { .. })), "{settings:?}: {causes:?}");
    }
    assert!(failed >= 5, "only {failed} of 7 failed");
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
    let error = refused(Arc::new(Int32Array::from(vec![Some(1), None])));
    assert!(error.contains("column a has nulls"), "{error}");
    let batch = rows(&mut StdRng::seed_from_u64(1), 5, 0, 9);
    let table = DeviceTable::upload(&stream, &batch.schema(), std::slice::from_ref(&batch)).unwrap();
    assert_eq!(table.download(&stream, &batch.schema()).unwrap(), batch);
    let other = batch.project(&[1, 0, 2, 3, 4, 5]).unwrap().schema();
    assert!(table.download(&stream, &other).unwrap_err().to_string().contains("column int is of the type Int32"));
    let spec = DeviceShuffleSpec { number: 0, keys: vec![6], levels: Levels::One };
    let outcome = emulated.shuffled(Topology::of_nodes(1, 1).unwrap(), &spec, &batch.schema(), &[vec![batch.clone()]]);
    let error = outcome[0].as_ref().unwrap_err().to_string();
    assert!(error.contains("rows of 6 columns have no key [6]"), "{error}");
}
