//! Joins of rows in GPU memory, on the emulated device.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch, UInt64Array};
use arrow::compute::{SortColumn, concat_batches, lexsort_to_indices, take_record_batch};
use arrow::datatypes::{Int64Type, Schema, SchemaRef};
use arrow::util::display::array_value_to_string;
use futures::executor::block_on;
use overspill_exchange::{
    DeviceJoinSide, DeviceJoinSpec, DeviceTable, Error, GpuBytes, GpuPath, Levels, Result, Topology,
};
use rand::Rng;

use crate::device::paths;
use crate::emulated::{Emulated, keys, random, rows, tables};
use crate::shuffles::topology;

type Side = Vec<Vec<RecordBatch>>;

/// What makes a join one that is refused.
type Change = fn(&mut DeviceJoinSpec);

/// The columns of the probe side that pairs have. The build side gives all.
const PROBE_OUTPUT: [usize; 3] = [5, 0, 4];

fn spec(keys: &[usize], levels: Levels, path: GpuPath) -> DeviceJoinSpec {
    let side = |output: &[usize]| DeviceJoinSide { keys: keys.to_vec(), output: output.to_vec() };
    DeviceJoinSpec { number: 1, build: side(&[0, 1, 2, 3, 4, 5]), probe: side(&PROBE_OUTPUT), levels, path }
}

/// The type of pairs.
fn joined_schema(schema: &SchemaRef) -> SchemaRef {
    let probe = schema.project(&PROBE_OUTPUT).unwrap();
    Schema::new(schema.fields().iter().chain(probe.fields()).cloned().collect::<Vec<_>>()).into()
}

/// Joins what ranks have. Returns the pairs of each, and what it has sent from GPU memory.
fn joined(
    emulated: &Emulated,
    topology: Topology,
    spec: impl Fn(usize) -> DeviceJoinSpec + Sync,
    [build, probe]: [&Side; 2],
) -> Vec<Result<(RecordBatch, GpuBytes)>> {
    let schema = rows(&mut random(0), 0, 0, 1, false).schema();
    emulated.on_each(topology, None, |rank, job, kernels, stream| {
        let upload = |side: &Side| DeviceTable::upload(stream, &schema, &side[rank]);
        let join = block_on(spec(rank).run(job, kernels, stream, upload(build)?, upload(probe)?))?;
        let sent = join.metrics.iter().map(|metrics| metrics.exchanged().sent_from_gpu);
        let sent = sent.fold(GpuBytes::default(), |sum, sent| sum + sent);
        Ok((join.table.download(stream, &joined_schema(&schema))?, sent))
    })
}

/// The pairs of all rows, by a hash table of the keys in words.
fn reference([build, probe]: [&RecordBatch; 2], keys: &[usize]) -> RecordBatch {
    let key = |batch: &RecordBatch, row: usize| -> Option<Vec<String>> {
        let word = |column: &usize| {
            let column = batch.column(*column);
            let word = column.is_valid(row).then(|| array_value_to_string(column, row).unwrap());
            word.map(|word| if word == "-0.0" { "0.0".to_owned() } else { word })
        };
        keys.iter().map(word).collect()
    };
    let mut table: HashMap<Vec<String>, Vec<u64>> = HashMap::new();
    for row in 0..build.num_rows() {
        if let Some(key) = key(build, row) {
            table.entry(key).or_default().push(row as u64);
        }
    }
    let matches = |row: usize| key(probe, row).and_then(|key| table.get(&key)).into_iter().flatten();
    let pairs = (0..probe.num_rows()).flat_map(|row| matches(row).map(move |built| (*built, row as u64)));
    let (built, probed): (Vec<u64>, Vec<u64>) = pairs.unzip();
    let built = take_record_batch(build, &UInt64Array::from(built)).unwrap();
    let probed = take_record_batch(&probe.project(&PROBE_OUTPUT).unwrap(), &UInt64Array::from(probed)).unwrap();
    let columns = built.columns().iter().chain(probed.columns()).cloned().collect();
    RecordBatch::try_new(joined_schema(&build.schema()), columns).unwrap()
}

/// In the order of the rows of both sides.
fn sorted(pairs: &RecordBatch) -> RecordBatch {
    let by = [5, 6].map(|column| SortColumn { values: pairs.column(column).clone(), options: None });
    take_record_batch(pairs, &lexsort_to_indices(&by, None).unwrap()).unwrap()
}

#[test]
fn ranks_find_the_pairs_of_all_rows() {
    let emulated = Emulated::start();
    let mut pairs = 0;
    for seed in 0..24 {
        let random = &mut random(seed);
        let topology = topology(random);
        let many = [3, 40, 1000][seed as usize % 3];
        let [build, probe] = [0, 1].map(|_| tables(random, topology.ranks(), many, 150));
        let schema = rows(random, 0, 0, 1, false).schema();
        let (keys, levels) = (keys(random), [Levels::One, Levels::Two][seed as usize % 2]);
        let path = paths(seed as usize / 2 % 3);
        let outcomes = joined(&emulated, topology, |rank| spec(&keys, levels, path(rank)), [&build, &probe]);
        let found: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
        for (rank, (batch, sent)) in found.iter().enumerate() {
            match path(rank) {
                GpuPath::Direct => assert_eq!(sent.through_cpu, 0, "seed {seed}, rank {rank}"),
                GpuPath::Pinned => assert_eq!(sent.direct, 0, "seed {seed}, rank {rank}"),
            }
            if levels == Levels::One {
                // Probe rows have come in the order of their ranks, and stay in it.
                let probe_rows = batch.column(6).as_primitive::<Int64Type>().values();
                assert!(probe_rows.is_sorted(), "seed {seed}, rank {rank}");
            }
        }
        let found = concat_batches(&joined_schema(&schema), found.iter().map(|(batch, _)| batch)).unwrap();
        let all = [&build, &probe].map(|side| concat_batches(&schema, side.iter().flatten()).unwrap());
        let expected = reference([&all[0], &all[1]], &keys);
        pairs += expected.num_rows();
        assert_eq!(sorted(&found), sorted(&expected), "seed {seed}, keys {keys:?}");
    }
    assert!(pairs > 10_000, "only {pairs} pairs");
    emulated.assert_nothing_is_held("joins");
}

#[test]
fn a_join_that_fails_leaves_nothing() {
    let emulated = Emulated::start();
    let mut failed = 0;
    for seed in 0..40 {
        let random = &mut random(seed);
        let topology = topology(random);
        let count = topology.ranks();
        let [build, probe] = [0, 1].map(|_| tables(random, count, 40, 150));
        let path = paths(seed as usize % 3);
        let kind = ["allocation", "copy", "launch"][random.random_range(0..3)];
        emulated.configure(&format!("fail={kind}:{}", random.random_range(1..60 * count)));
        let spec = |rank| spec(&[0], Levels::Two, path(rank));
        let outcomes = joined(&emulated, topology, spec, [&build, &probe]);
        emulated.succeed();
        let errors: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let causes: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(causes.iter().all(|cause| cause == &causes[0]), "seed {seed}, {kind}: {causes:?}");
        assert!(errors.iter().all(|error| matches!(error, Error::Failed { .. })), "seed {seed}, {kind}: {causes:?}");
        failed += usize::from(!errors.is_empty());
        drop(outcomes);
        emulated.assert_nothing_is_held(&format!("seed {seed}, {kind}"));
    }
    assert!(failed >= 10, "only {failed} of 40 failed");
}

#[test]
fn keys_and_columns_that_do_not_fit_are_refused() {
    let emulated = Emulated::start();
    let side: Side = (0..2).map(|rank| vec![rows(&mut random(1), 20, rank * 100, 9, false)]).collect();
    let refused = |change: Change| {
        let spec = |_| {
            let mut spec = spec(&[0], Levels::One, GpuPath::Direct);
            change(&mut spec);
            spec
        };
        let outcomes = joined(&emulated, Topology::of_nodes(2, 1).unwrap(), spec, [&side, &side]);
        outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect::<Vec<_>>()
    };
    let cases: [(&str, Change); 4] = [
        ("keys of (i32) are looked up in a table of keys of (i64)", |spec| spec.probe.keys = vec![1]),
        ("rows of 6 columns have no column [6]", |spec| spec.build.output = vec![6]),
        ("rows of 6 columns have no key [9]", |spec| spec.probe.keys = vec![9]),
        ("a shuffle needs a key", |spec| spec.build.keys = vec![]),
    ];
    for (words, change) in cases {
        let errors = refused(change);
        assert!(errors.iter().all(|error| error.contains(words)), "{words}: {errors:?}");
    }
    emulated.assert_nothing_is_held("refused joins");
}
