//! Runs the join operator for experiments: takes tables in memory, and counts and sums the result.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::compute::{cast, sum};
use arrow::datatypes::{DataType, Int64Type, Schema};
use datafusion::common::{Result, exec_err};
use overspill_gpu_join::DeviceRequest;
use overspill_join::hash_table::TableChoice;
use overspill_join::hybrid::{
    Accelerator, AggregatingStreams, BuildSide, HybridBuild, JoinPlan, PairAggregation, PairFinder, Prober, Step,
    SubqueryFacts, pair_finder,
};
use overspill_join::keys::KeyCodec;
use overspill_join::memory::{UnitMemory, Unlimited};
use overspill_join::radix::ProbeRegions;
use overspill_join::selection::Aggregate;
use overspill_join::spec::{ColumnSource, JoinSpec, KeyExpressions, Side};
use overspill_join::spill::{SpillStore, SpillTuning};
use overspill_join::{JoinError, JoinType};

use crate::datagen::TablePair;
use crate::report::failed;
use crate::threads::on_each;

/// Rows of a batch, as in DataFusion.
const BATCH_ROWS: usize = 8192;

/// 2^64 divided by the golden ratio: its multiples spread consecutive keys evenly.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// A join's memory as a multiple of its tables: the tables, and about as much again.
pub(crate) const MEMORY_PER_TABLES: u64 = 2;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Seconds {
    pub(crate) build: f64,
    pub(crate) probe: f64,
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) seconds: Seconds,
    pub(crate) answer: Answer,
    /// Whether probe rows were partitioned.
    pub(crate) is_radix: bool,
}

/// The parameters of a join.
#[derive(Debug, Default)]
pub(crate) struct How {
    pub(crate) probe_regions: Option<ProbeRegions>,
    pub(crate) table_choice: TableChoice,
    pub(crate) device: Option<DeviceRequest>,
    /// Whether a GPU gives pairs to the CPU, which sums their payloads. If not, kernels sum them, as in the papers.
    pub(crate) wants_pairs: bool,
}

/// Both tables, in memory.
pub(crate) struct Tables {
    build: Vec<RecordBatch>,
    probe: Vec<RecordBatch>,
    /// The number of key columns, which come first.
    keys: usize,
    pub(crate) build_rows: usize,
    pub(crate) probe_rows: usize,
}

/// The number of rows and the sum of their payloads.
pub(crate) type Answer = (usize, i64);

impl Joined {
    /// # Errors
    /// If the answer differs from the expected one.
    pub(crate) fn check(&self, expected: Answer) -> Result<()> {
        if self.answer != expected {
            return exec_err!(
                "A join gave a wrong answer: {:?} rows and sum of payloads, not {expected:?}.",
                self.answer
            );
        }
        Ok(())
    }
}

impl Tables {
    pub(crate) fn generate(pair: &TablePair, threads: usize) -> Result<Self> {
        let (build, probe) = pair.in_memory(threads, BATCH_ROWS)?;
        Ok(Self::of(build, probe))
    }

    /// Tables of these batches, at least one each, whose first column is the key.
    pub(crate) fn of(build: Vec<RecordBatch>, probe: Vec<RecordBatch>) -> Self {
        let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum();
        Self { build_rows: rows(&build), probe_rows: rows(&probe), build, probe, keys: 1 }
    }

    /// The tables with `keys` key columns, after `convert` has replaced their only key column in each batch.
    pub(crate) fn with_keys(self, keys: usize, convert: impl Fn(&RecordBatch) -> Result<RecordBatch>) -> Result<Self> {
        let convert = |batches: Vec<RecordBatch>| batches.iter().map(&convert).collect::<Result<_>>();
        Ok(Self { build: convert(self.build)?, probe: convert(self.probe)?, keys, ..self })
    }

    /// The answer of any join of these tables by one key column, computed with maps from keys to payloads instead of a join
    /// operator. Each thread reads all rows, and has a map of its share of the keys.
    pub(crate) fn expected(&self, threads: usize) -> Result<Answer> {
        let answers = on_each((0..threads as u64).collect(), |own| {
            let is_own = |key: i64| ((key as u64).wrapping_mul(MULTIPLIER) >> 32) % threads as u64 == own;
            let mut payloads = HashMap::with_capacity(self.build_rows / threads);
            for batch in &self.build {
                let (keys, sums) = keys_and_sums(batch)?;
                payloads.extend(keys.values().iter().copied().zip(sums).filter(|(key, _)| is_own(*key)));
            }
            let mut answer = (0, 0i64);
            for batch in &self.probe {
                let (keys, sums) = keys_and_sums(batch)?;
                for (key, sum) in keys.values().iter().zip(sums).filter(|(key, _)| is_own(**key)) {
                    if let Some(payload) = payloads.get(key) {
                        answer = (answer.0 + 1, answer.1.wrapping_add(sum).wrapping_add(*payload));
                    }
                }
            }
            Ok(answer)
        })?;
        Ok(answers.into_iter().fold((0, 0), |all, one| (all.0 + one.0, all.1.wrapping_add(one.1))))
    }

    pub(crate) fn join(&self, threads: usize, how: How) -> Result<Joined> {
        let How { probe_regions, table_choice, mut device, wants_pairs } = how;
        let schemas = [&self.build, &self.probe].map(|batches| batches[0].schema());
        let keys = self.keys;
        let key_types: Vec<_> = schemas[0].fields()[..keys].iter().map(|field| field.data_type().clone()).collect();
        // All payload columns of both sides.
        let build_columns = (keys..schemas[0].fields().len()).map(ColumnSource::Build);
        let output_columns: Vec<_> =
            build_columns.chain((keys..schemas[1].fields().len()).map(ColumnSource::Probe)).collect();
        if let Some(request) = device.as_mut().filter(|_| !wants_pairs) {
            let sums = (0..output_columns.len()).map(Aggregate::Sum);
            request.aggregates = Some(std::iter::once(Aggregate::CountRows).chain(sums).collect());
        }
        let aggregates = device.as_ref().and_then(|request| request.aggregates.clone());
        // Shared by all threads.
        let aggregation = aggregates.map(|aggregates| Arc::new(PairAggregation::new(&aggregates)));
        let fields: Vec<_> =
            schemas.iter().flat_map(|schema| schema.fields().iter().skip(keys)).map(Arc::clone).collect();
        let [build_schema, probe_schema] = schemas.clone();
        let spec = Arc::new(JoinSpec {
            join_type: JoinType::Inner,
            null_aware: false,
            codec: KeyCodec::try_new(&key_types, false).map_err(failed)?,
            build_keys: Arc::new(LeadingColumns(keys)),
            probe_keys: Arc::new(LeadingColumns(keys)),
            filter: None,
            build_schema,
            probe_schema,
            output_schema: Arc::new(Schema::new(fields)),
            output_columns,
        });
        let plan = Arc::new(JoinPlan {
            spec,
            table_choice,
            build_threads: threads,
            probe_regions,
            accelerator: device.map(|request| Arc::new(request) as Arc<dyn Accelerator>),
            batch_size: BATCH_ROWS,
        });
        let memory = UnitMemory::new(Box::new(Unlimited));
        let tuning = SpillTuning { enabled: false, max_fanout: 64, max_depth: 1, probers: threads };
        let begin = Instant::now();
        let facts = Arc::default();
        let mut build = HybridBuild::new(Arc::clone(&plan), Arc::new(NoFiles), Arc::clone(&memory), facts, tuning, 0);
        for batch in &self.build {
            build.push(batch.clone()).map_err(failed)?;
        }
        let side = Arc::new(build.finish().map_err(failed)?.side);
        let built = begin.elapsed().as_secs_f64();
        let next = AtomicUsize::new(0);
        let is_radix = AtomicBool::new(false);
        let aggregating = Arc::<AggregatingStreams>::default();
        let streams = (0..threads).map(|_| aggregation.clone().map(|aggregation| aggregating.add(aggregation)));
        let answers = on_each(streams.collect(), |stream| {
            let finder = pair_finder(&plan, &side, &memory, stream, true);
            is_radix.fetch_or(finder.partitions_rows(), Ordering::Relaxed);
            self.probe(&plan, &side, finder, &next)
        })?;
        let probe = begin.elapsed().as_secs_f64() - built;
        let by_kernels = aggregation.map_or(Ok((0, 0)), |aggregation| answer_of(&aggregation))?;
        let answers = answers.into_iter().chain([by_kernels]);
        let answer = answers.fold((0, 0i64), |all, one| (all.0 + one.0, all.1.wrapping_add(one.1)));
        Ok(Joined { seconds: Seconds { build: built, probe }, answer, is_radix: is_radix.into_inner() })
    }

    /// Joins batches until none is left.
    fn probe(
        &self,
        plan: &JoinPlan,
        side: &Arc<BuildSide>,
        finder: Box<dyn PairFinder>,
        next: &AtomicUsize,
    ) -> Result<Answer> {
        let mut prober: Prober<NoFiles> =
            Prober::new(plan, Arc::<BuildSide>::clone(side), Arc::new(SubqueryFacts::default()), None, finder);
        let mut answer = (0, 0i64);
        let mut drain = |prober: &mut Prober<NoFiles>| -> Result<()> {
            loop {
                match prober.step().map_err(failed)? {
                    Step::Output(batch) => {
                        answer.0 += batch.num_rows();
                        for column in batch.columns() {
                            answer.1 = answer.1.wrapping_add(total(column)?);
                        }
                    }
                    Step::Working => {}
                    Step::Waiting(wait) => futures::executor::block_on(wait),
                    Step::Finished => return Ok(()),
                }
            }
        };
        while let Some(batch) = self.probe.get(next.fetch_add(1, Ordering::Relaxed)) {
            prober.start(batch.clone()).map_err(failed)?;
            drain(&mut prober)?;
        }
        while prober.end().map_err(failed)? {
            drain(&mut prober)?;
        }
        Ok(answer)
    }
}

/// The number of rows and the sum that kernels computed.
fn answer_of(aggregation: &PairAggregation) -> Result<Answer> {
    let (selection, found) = (aggregation.selection(), aggregation.take());
    let values = (0..selection.aggregates.len()).map(|number| {
        let value = found.to_array(selection, number, &DataType::Int64);
        value.map_err(failed).and_then(|value| total(&value))
    });
    let values = values.collect::<Result<Vec<_>>>()?;
    let sum = values[1..].iter().fold(0i64, |sum, value| sum.wrapping_add(*value));
    Ok((usize::try_from(found.selected()).unwrap_or(usize::MAX), sum))
}

fn total(column: &ArrayRef) -> Result<i64> {
    Ok(sum(wide(column)?.as_primitive::<Int64Type>()).unwrap_or(0))
}

/// A column converted to 8-byte values.
fn wide(column: &ArrayRef) -> Result<ArrayRef> {
    Ok(if column.data_type() == &DataType::Int64 { Arc::clone(column) } else { cast(column, &DataType::Int64)? })
}

/// The keys of a batch, and the sum of the payloads of each row.
fn keys_and_sums(batch: &RecordBatch) -> Result<(Int64Array, Vec<i64>)> {
    let keys = wide(batch.column(0))?.as_primitive::<Int64Type>().clone();
    let mut sums = vec![0i64; batch.num_rows()];
    for column in &batch.columns()[1..] {
        let column = wide(column)?;
        let values = column.as_primitive::<Int64Type>().values();
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
    }
    Ok((keys, sums))
}

/// The first columns are the keys.
#[derive(Debug)]
struct LeadingColumns(usize);

impl KeyExpressions for LeadingColumns {
    fn evaluate(&self, batch: &RecordBatch) -> overspill_join::Result<Vec<ArrayRef>> {
        Ok(batch.columns()[..self.0].to_vec())
    }
}

/// Memory is ample, so that nothing is spilled.
#[derive(Debug)]
struct NoFiles;

impl SpillStore for NoFiles {
    type Writer = std::convert::Infallible;
    type File = std::convert::Infallible;
    fn create(&self, _: Side) -> overspill_join::Result<Self::Writer> {
        Err(JoinError::Limit("The experiment does not spill.".to_owned()))
    }
    fn append(&self, writer: &mut Self::Writer, _: &RecordBatch) -> overspill_join::Result<()> {
        match *writer {}
    }
    fn finish(&self, writer: Self::Writer) -> overspill_join::Result<Self::File> {
        match writer {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagen::Workload;

    #[test]
    fn partitioned_probe_rows_find_what_others_find() {
        let pair = TablePair { sparse: true, ..TablePair::of_workload(Workload::A, 1.0 / 1024.0) };
        let tables = Tables::generate(&pair, 2).unwrap();
        let expected = tables.expected(2).unwrap();
        assert_eq!(expected.0, 1 << 21);
        let direct = tables.join(2, How::default()).unwrap();
        direct.check(expected).unwrap();
        assert!(!direct.is_radix);
        let probe_regions = Some(ProbeRegions { region: 1 << 19, beyond: 0 });
        let partitioned = tables.join(2, How { probe_regions, ..How::default() }).unwrap();
        partitioned.check(expected).unwrap();
        assert!(partitioned.is_radix);
        let wrong = partitioned.check((expected.0, expected.1 + 1)).unwrap_err().to_string();
        assert!(wrong.contains("A join gave a wrong answer"), "{wrong}");
    }

    #[test]
    fn payloads_of_any_number_are_summed() {
        for (build_payloads, probe_payloads) in [(1, 0), (1, 5), (3, 2)] {
            let pair = TablePair {
                build_payloads,
                probe_payloads,
                match_rate: 0.5,
                ..TablePair::of_workload(Workload::C, 1e-5)
            };
            let tables = Tables::generate(&pair, 2).unwrap();
            let expected = tables.expected(2).unwrap();
            assert!((4000..6300).contains(&expected.0), "{}", expected.0);
            tables.join(2, How::default()).unwrap().check(expected).unwrap();
        }
    }
}
