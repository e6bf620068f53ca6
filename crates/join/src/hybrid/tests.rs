//! Compares the hybrid join with nested loops, with ample and with scarce memory.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};

use super::*;
use crate::error::{JoinError, Result};
use crate::hash_table::TableChoice;
use crate::join_type::JoinType;
use crate::keys::KeyCodec;
use crate::memory::{MemoryHost, Purpose, UnitMemory};
use crate::radix::ProbeRegions;
use crate::spec::{ColumnSource, JoinSpec, KeyExpressions, ResidualFilter, Side};
use crate::spill::{SpillStore, SpillTuning, SpilledPartition};

/// Grants memory up to a limit, and counts it.
#[derive(Debug)]
struct Budget {
    limit: usize,
    lent: Arc<AtomicUsize>,
}

impl MemoryHost for Budget {
    fn try_grow(&self, bytes: usize, _held: usize, _purpose: Purpose) -> Result<()> {
        if self.lent.load(Ordering::Relaxed) + bytes > self.limit {
            return Err(JoinError::Limit("the budget of the test is spent".to_string()));
        }
        self.grow(bytes);
        Ok(())
    }
    fn grow(&self, bytes: usize) {
        self.lent.fetch_add(bytes, Ordering::Relaxed);
    }
    fn shrink(&self, bytes: usize, _held: usize) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Files that are lists of batches.
#[derive(Debug, Default)]
struct Files {
    batches: AtomicUsize,
}

impl SpillStore for Files {
    type Writer = Vec<RecordBatch>;
    type File = Arc<Mutex<VecDeque<RecordBatch>>>;
    fn create(&self, _side: Side) -> Result<Self::Writer> {
        Ok(Vec::new())
    }
    fn append(&self, writer: &mut Self::Writer, batch: &RecordBatch) -> Result<()> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        writer.push(batch.clone());
        Ok(())
    }
    fn finish(&self, writer: Self::Writer) -> Result<Self::File> {
        Ok(Arc::new(Mutex::new(writer.into())))
    }
}

#[derive(Debug)]
struct FirstColumn;

impl KeyExpressions for FirstColumn {
    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::clone(batch.column(0))])
    }
}

/// Lets a pair pass if the sum of the payloads is even.
#[derive(Debug)]
struct EvenSum;

impl ResidualFilter for EvenSum {
    fn columns(&self) -> &[ColumnSource] {
        &[ColumnSource::Build(1), ColumnSource::Probe(1)]
    }
    fn evaluate(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<BooleanArray> {
        let (build, probe) = (columns[0].as_primitive::<Int64Type>(), columns[1].as_primitive::<Int64Type>());
        Ok((0..rows).map(|row| Some((build.value(row) + probe.value(row)) % 2 == 0)).collect())
    }
}

type Row = (Option<i64>, i64);
/// Pairs of rows, with the mark if there is one; the mark may be unknown.
type Output = Vec<(Option<Row>, Option<Row>, Option<Option<bool>>)>;

fn side_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true), Field::new("p", DataType::Int64, true)]))
}

fn batches(rows: &[Row]) -> Vec<RecordBatch> {
    rows.chunks(1_000)
        .map(|rows| {
            let keys: Int64Array = rows.iter().map(|row| row.0).collect();
            let payloads: Int64Array = rows.iter().map(|row| Some(row.1)).collect();
            RecordBatch::try_new(side_schema(), vec![Arc::new(keys), Arc::new(payloads)]).unwrap()
        })
        .collect()
}

fn joined(join_type: JoinType, null_equal: bool, filtered: bool) -> Arc<JoinPlan> {
    let mut output_columns = Vec::new();
    let mut fields = Vec::new();
    let is_mark = matches!(join_type, JoinType::LeftMark | JoinType::RightMark);
    if !matches!(join_type, JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark) {
        output_columns.extend([ColumnSource::Build(0), ColumnSource::Build(1)]);
        fields.extend(["bk", "bp"]);
    }
    if !matches!(join_type, JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark) {
        output_columns.extend([ColumnSource::Probe(0), ColumnSource::Probe(1)]);
        fields.extend(["pk", "pp"]);
    }
    let mut fields: Vec<_> = fields.into_iter().map(|name| Field::new(name, DataType::Int64, true)).collect();
    if is_mark {
        output_columns.push(ColumnSource::Mark);
        fields.push(Field::new("mark", DataType::Boolean, true));
    }
    let spec = JoinSpec {
        join_type,
        null_aware: false,
        codec: KeyCodec::try_new(&[DataType::Int64], null_equal).unwrap(),
        build_keys: Arc::new(FirstColumn),
        probe_keys: Arc::new(FirstColumn),
        filter: filtered.then(|| Arc::new(EvenSum) as _),
        build_schema: side_schema(),
        probe_schema: side_schema(),
        output_schema: Arc::new(Schema::new(fields)),
        output_columns,
    };
    plan(spec, None)
}

/// A plan that builds a perfect table, if the keys allow it, by two threads.
fn plan(spec: JoinSpec, probe_regions: Option<ProbeRegions>) -> Arc<JoinPlan> {
    Arc::new(JoinPlan {
        spec: Arc::new(spec),
        table_choice: TableChoice::Perfect,
        build_threads: 2,
        probe_regions,
        accelerator: None,
        batch_size: 512,
    })
}

/// Runs a join like a host does: spilled rows are joined one level deeper.
struct Run {
    plan: Arc<JoinPlan>,
    files: Arc<Files>,
    memory: Arc<UnitMemory>,
    tuning: SpillTuning,
    facts: Arc<SubqueryFacts>,
    output: Vec<RecordBatch>,
    depth: usize,
    passes: usize,
    is_radix: bool,
    /// The maximum bytes of a build side that was probed.
    probed: usize,
}

impl Run {
    /// A run that has not started, with `limit` bytes of memory.
    fn new(plan: &Arc<JoinPlan>, limit: usize) -> Self {
        Self {
            plan: Arc::clone(plan),
            files: Arc::default(),
            memory: UnitMemory::new(Box::new(Budget { limit, lent: Arc::default() })),
            tuning: SpillTuning { enabled: true, max_fanout: 8, max_depth: 3, probers: 1 },
            facts: Arc::default(),
            output: Vec::new(),
            depth: 0,
            passes: 0,
            is_radix: false,
            probed: 0,
        }
    }

    fn join(&mut self, build: Vec<RecordBatch>, probe: Vec<RecordBatch>, used_bits: u32, depth: usize) -> Result<()> {
        self.depth = self.depth.max(depth);
        let (plan, files, memory) = (Arc::clone(&self.plan), Arc::clone(&self.files), Arc::clone(&self.memory));
        let (store, facts) = (Arc::clone(&files), Arc::clone(&self.facts));
        let mut builder = HybridBuild::new(plan, store, Arc::clone(&memory), facts, self.tuning, used_bits);
        for batch in build {
            builder.push(batch)?;
        }
        let built = builder.finish()?;
        let side = Arc::new(built.side);
        let spill = ProbeSpill::try_new(&self.plan.spec, &side, files, &memory, self.tuning)?;
        let finder = pair_finder(&self.plan, &side, &memory, None, depth == 0);
        self.is_radix |= finder.partitions_rows();
        self.probed = self.probed.max(side.probed_bytes());
        let mut prober =
            Prober::new(&self.plan, Arc::<BuildSide>::clone(&side), Arc::clone(&self.facts), spill, finder);
        for batch in probe {
            prober.start(batch)?;
            self.steps(&mut prober)?;
        }
        if prober.end().unwrap() {
            self.steps(&mut prober)?;
        }
        let probe_files = prober.into_spill().map_or(Ok(Vec::new()), ProbeSpill::finish)?;
        self.emit(&side)?;
        let radix = side.radix();
        drop(side);
        for (number, partition) in built.spilled.into_iter().enumerate() {
            let Some(partition) = partition else { continue };
            let rows = |file: &SpilledPartition<_>| -> Vec<RecordBatch> {
                let file: &Arc<Mutex<VecDeque<RecordBatch>>> = &file.file;
                file.lock().unwrap().iter().cloned().collect()
            };
            let build = rows(&partition);
            assert_eq!(build.iter().map(RecordBatch::num_rows).sum::<usize>(), partition.rows);
            let probe = probe_files[number].as_ref().map_or(Vec::new(), rows);
            if partition.splittable && depth < 3 {
                self.join(build, probe, radix.unwrap().used_bits(), depth + 1)?;
            } else {
                self.passes(build, probe)?;
            }
        }
        Ok(())
    }

    fn passes(&mut self, build: Vec<RecordBatch>, probe: Vec<RecordBatch>) -> Result<()> {
        let mut build: VecDeque<_> = build.into();
        let mut matched: Vec<Option<MatchedRows>> = vec![None; probe.len()];
        let mut count = 0;
        while !build.is_empty() {
            count += 1;
            let mut chunk = ChunkBuild::new(Arc::clone(&self.plan), &self.memory);
            while let Some(batch) = build.pop_front() {
                if let Some(batch) = chunk.push(batch)? {
                    build.push_front(batch);
                    break;
                }
            }
            let side = Arc::new(chunk.finish()?);
            let finder = pair_finder(&self.plan, &side, &self.memory, None, false);
            let mut prober: Prober<Files> =
                Prober::new(&self.plan, Arc::<BuildSide>::clone(&side), Arc::clone(&self.facts), None, finder);
            for (batch, matched) in probe.iter().zip(&mut matched) {
                prober.start_pass(batch.clone(), matched.as_ref(), !build.is_empty())?;
                self.steps(&mut prober)?;
                *matched = prober.finish_pass();
            }
            self.emit(&side)?;
        }
        self.passes = self.passes.max(count);
        Ok(())
    }

    fn steps(&mut self, prober: &mut Prober<Files>) -> Result<()> {
        loop {
            match prober.step()? {
                Step::Output(batch) => self.output.push(batch),
                Step::Working => {}
                Step::Waiting(_) => unreachable!("tables in CPU memory need no waiting"),
                Step::Finished => return Ok(()),
            }
        }
    }

    fn emit(&mut self, side: &Arc<BuildSide>) -> Result<()> {
        let mut emitter = BuildEmitter::new(Arc::clone(&self.plan), Arc::clone(side), Arc::clone(&self.facts));
        while let Some(batch) = emitter.next_batch()? {
            self.output.push(batch);
        }
        Ok(())
    }
}

fn run_batches(plan: &Arc<JoinPlan>, build: &[Row], probe: &[Row], limit: usize) -> (RecordBatch, Run) {
    let mut run = Run::new(plan, limit);
    run.join(batches(build), batches(probe), 0, 0).unwrap();
    assert_eq!(run.memory.used(), 0, "memory is left over");
    let rows = concat_batches(&plan.spec.output_schema, &run.output.split_off(0)).unwrap();
    (rows, run)
}

fn run(plan: &Arc<JoinPlan>, build: &[Row], probe: &[Row], limit: usize) -> (Output, Run) {
    let (rows, run) = run_batches(plan, build, probe, limit);
    let column = |source: ColumnSource| {
        let index = plan.spec.output_columns.iter().position(|column| *column == source)?;
        Some(rows.column(index).as_primitive::<Int64Type>())
    };
    let pair = |key: ColumnSource, payload: ColumnSource, row: usize| {
        let (key, payload) = (column(key)?, column(payload)?);
        payload.is_valid(row).then(|| (key.is_valid(row).then(|| key.value(row)), payload.value(row)))
    };
    let mut output: Output = (0..rows.num_rows())
        .map(|row| {
            let mark = plan.spec.output_columns.iter().position(|column| *column == ColumnSource::Mark);
            let mark = mark.map(|index| rows.column(index).as_boolean());
            (
                pair(ColumnSource::Build(0), ColumnSource::Build(1), row),
                pair(ColumnSource::Probe(0), ColumnSource::Probe(1), row),
                mark.map(|mark| mark.is_valid(row).then(|| mark.value(row))),
            )
        })
        .collect();
    output.sort();
    (output, run)
}

fn nested_loops(join_type: JoinType, null_equal: bool, filtered: bool, build: &[Row], probe: &[Row]) -> Output {
    let matches =
        |b: &Row, p: &Row| (b.0 == p.0 && (null_equal || b.0.is_some())) && (!filtered || (b.1 + p.1) % 2 == 0);
    let mut output = Output::new();
    for b in build {
        let found = probe.iter().any(|p| matches(b, p));
        match join_type {
            JoinType::Left | JoinType::Full if !found => output.push((Some(*b), None, None)),
            JoinType::LeftSemi if found => output.push((Some(*b), None, None)),
            JoinType::LeftAnti if !found => output.push((Some(*b), None, None)),
            JoinType::LeftMark => output.push((Some(*b), None, Some(Some(found)))),
            _ => {}
        }
    }
    for p in probe {
        let partners = build.iter().filter(|b| matches(b, p));
        let mut found = false;
        for b in partners {
            found = true;
            if join_type.emits_pairs() {
                output.push((Some(*b), Some(*p), None));
            }
        }
        match join_type {
            JoinType::Right | JoinType::Full if !found => output.push((None, Some(*p), None)),
            JoinType::RightSemi if found => output.push((None, Some(*p), None)),
            JoinType::RightAnti if !found => output.push((None, Some(*p), None)),
            JoinType::RightMark => output.push((None, Some(*p), Some(Some(found)))),
            _ => {}
        }
    }
    output.sort();
    output
}

const ALL_TYPES: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::LeftAnti,
    JoinType::LeftMark,
    JoinType::RightSemi,
    JoinType::RightAnti,
    JoinType::RightMark,
];

/// Rows whose keys are mostly distinct, with some nulls and one hot key.
fn rows(count: i64, seed: i64, hot_share: i64) -> Vec<Row> {
    (0..count)
        .map(|row| {
            let mixed = (row * 7_919 + seed).wrapping_mul(6_364_136_223_846_793_005) >> 20 & 0x7FFF_FFFF;
            let key = match mixed % 100 {
                0..5 => None,
                share if share < 5 + hot_share => Some(-1),
                _ => Some(mixed % (count / 2)),
            };
            (key, row)
        })
        .collect()
}

#[test]
fn every_join_type_agrees_with_nested_loops_under_any_budget() {
    let (build, probe) = (rows(6_000, 1, 0), rows(3_000, 5, 0));
    for join_type in ALL_TYPES {
        for (null_equal, filtered) in [(false, false), (true, false), (false, true)] {
            // 300 nulls on one side and 150 on the other make 45,000 pairs: enough.
            let expected = nested_loops(join_type, null_equal, filtered, &build, &probe);
            let spec = joined(join_type, null_equal, filtered);
            let (ample, run_in_memory) = run(&spec, &build, &probe, usize::MAX);
            assert_eq!(run_in_memory.files.batches.load(Ordering::Relaxed), 0);
            assert!(ample == expected, "{join_type:?} in memory");
            let (scarce, run_spilled) = run(&spec, &build, &probe, 256 * 1024);
            assert!(run_spilled.files.batches.load(Ordering::Relaxed) > 0);
            assert!(scarce == expected, "{join_type:?} spilled");
        }
    }
}

/// The result of `IN` for each row.
fn membership(rows: &[Row], subquery: &[Row]) -> Vec<(Row, Option<bool>)> {
    let members: HashSet<_> = subquery.iter().map(|row| row.0).collect();
    let of = |key: Option<i64>| match key {
        _ if members.is_empty() => Some(false),
        Some(key) if members.contains(&Some(key)) => Some(true),
        Some(_) if !members.contains(&None) => Some(false),
        _ => None,
    };
    rows.iter().map(|row| (*row, of(row.0))).collect()
}

#[test]
fn null_aware_marks_are_those_of_in_under_any_budget() {
    let without_nulls = |rows: Vec<Row>| rows.into_iter().filter(|row| row.0.is_some()).collect::<Vec<_>>();
    let sides = [rows(6_000, 1, 0), rows(6_000, 5, 30)];
    let sides = [sides.clone(), sides.map(without_nulls)];
    let nothing = vec![];
    let nulls = vec![(None, 0); 3];
    for join_type in [JoinType::LeftMark, JoinType::RightMark] {
        let spec = Arc::into_inner(Arc::into_inner(joined(join_type, false, false)).unwrap().spec).unwrap();
        let spec = plan(JoinSpec { null_aware: true, ..spec }, None);
        for [first, _] in &sides {
            for second in [&sides[0][1], &sides[1][1], &nothing, &nulls] {
                let is_left = join_type == JoinType::LeftMark;
                let mut expected: Output = membership(first, second)
                    .into_iter()
                    .map(
                        |(row, mark)| {
                            if is_left { (Some(row), None, Some(mark)) } else { (None, Some(row), Some(mark)) }
                        },
                    )
                    .collect();
                expected.sort();
                let (build, probe) = if is_left { (first, second) } else { (second, first) };
                for limit in [usize::MAX, 256 * 1024] {
                    let (output, run) = run(&spec, build, probe, limit);
                    assert!(output == expected, "{join_type:?} in {limit} bytes");
                    let is_spilled = run.files.batches.load(Ordering::Relaxed) > 0;
                    assert_eq!(is_spilled, limit < usize::MAX && build.len() > 1_000, "{join_type:?} in {limit} bytes");
                }
            }
        }
    }
}

/// A join that emits only those second columns of each side that are in `columns`.
fn narrow_plan(columns: &[ColumnSource], join_type: JoinType, probe_region: Option<usize>) -> Arc<JoinPlan> {
    let JoinSpec { codec, build_keys, probe_keys, filter, build_schema, probe_schema, .. } =
        Arc::into_inner(Arc::into_inner(joined(join_type, false, false)).unwrap().spec).unwrap();
    let fields: Vec<_> =
        columns.iter().map(|column| Field::new(format!("{column:?}"), DataType::Int64, true)).collect();
    let spec = JoinSpec {
        join_type,
        null_aware: false,
        codec,
        build_keys,
        probe_keys,
        filter,
        build_schema,
        probe_schema,
        output_schema: Arc::new(Schema::new(fields)),
        output_columns: columns.to_vec(),
    };
    plan(spec, probe_region.map(|region| ProbeRegions { region, beyond: 0 }))
}

/// Unique build keys, spread over 64 bits or close together. Half of the probe keys are among them, many of them repeated, and
/// one batch has nulls.
fn narrow_rows(count: i64, probe_count: i64, spread: i64) -> (Vec<Row>, Vec<Row>) {
    let key = |number: i64| number.wrapping_mul(spread);
    let build = (0..count).map(|row| (Some(key(row * 77_777 % count)), row)).collect();
    let probe = (0..probe_count)
        .map(|row| ((!(5_000..6_000).contains(&row) || row % 3 != 0).then(|| key(row * 31 % (2 * count))), row))
        .collect();
    (build, probe)
}

#[test]
fn payloads_in_the_table_and_partitioned_probe_rows_give_the_same_pairs() {
    const SPARSE: i64 = 0x1E37_79B9_7F4A_7C15;
    let (build_column, probe_column) = (ColumnSource::Build(1), ColumnSource::Probe(1));
    // More than two chunks of probe rows.
    for (count, probe_count) in [(1 << 17, 600_000), (3_000, 7_000)] {
        for (kind, spread) in [("far apart", SPARSE), ("close together", 1), ("one in three", 3)] {
            let (build, probe) = narrow_rows(count, probe_count, spread);
            let row_of: std::collections::HashMap<_, _> = build.iter().copied().collect();
            let mut pairs: Vec<_> =
                probe.iter().filter_map(|(key, row)| Some((*row_of.get(&(*key)?.into())?, *row))).collect();
            pairs.sort();
            for columns in [&[build_column, probe_column][..], &[build_column], &[probe_column]] {
                for region in [None, Some(64 << 10), Some(1 << 40)] {
                    let (spec, case) = (
                        narrow_plan(columns, JoinType::Inner, region),
                        format!("{count} keys {kind}, {columns:?}, regions of {region:?} bytes"),
                    );
                    let (output, run) = run_batches(&spec, &build, &probe, usize::MAX);
                    // One in three of the large table: rows, not keys, are at random.
                    assert_eq!(run.is_radix, region == Some(64 << 10) && run.probed > 64 << 10, "{case}");
                    let column = |source: ColumnSource| {
                        let index = columns.iter().position(|column| *column == source)?;
                        Some(output.column(index).as_primitive::<Int64Type>().values().to_vec())
                    };
                    let (found_build, found_probe) = (column(build_column), column(probe_column));
                    let mut found: Vec<_> = (0..output.num_rows())
                        .map(|row| {
                            (found_build.as_ref().map(|rows| rows[row]), found_probe.as_ref().map(|rows| rows[row]))
                        })
                        .collect();
                    found.sort();
                    let mut expected: Vec<_> = pairs
                        .iter()
                        .map(|(build, probe)| {
                            (found_build.is_some().then_some(*build), found_probe.is_some().then_some(*probe))
                        })
                        .collect();
                    expected.sort();
                    assert!(found == expected, "{case}: {} of {} pairs", found.len(), expected.len());
                }
            }
        }
    }
}

#[test]
fn a_hot_key_is_joined_in_passes() {
    let (build, probe) = (rows(40_000, 1, 60), rows(60, 5, 20));
    for join_type in ALL_TYPES {
        let expected = nested_loops(join_type, false, true, &build, &probe);
        let (output, run) = run(&joined(join_type, false, true), &build, &probe, 256 * 1024);
        assert!(output == expected, "{join_type:?}");
        assert!(run.passes >= 2, "{join_type:?} took {} passes", run.passes);
    }
}

#[test]
fn partitions_that_are_still_too_large_are_partitioned_again() {
    let (build, probe) = (rows(150_000, 1, 0), rows(500, 5, 0));
    let expected = nested_loops(JoinType::Inner, false, false, &build, &probe);
    let (output, run) = run(&joined(JoinType::Inner, false, false), &build, &probe, 300 * 1024);
    assert!(output == expected);
    assert!(run.depth >= 2, "recursion went to depth {}", run.depth);
}

#[test]
fn without_spilling_a_spent_budget_is_an_error() {
    let spec = joined(JoinType::Inner, false, false);
    let memory = UnitMemory::new(Box::new(Budget { limit: 10_000, lent: Arc::default() }));
    let tuning = SpillTuning { enabled: false, max_fanout: 8, max_depth: 3, probers: 1 };
    let mut build = HybridBuild::new(spec, Arc::new(Files::default()), memory, Arc::default(), tuning, 0);
    let error = batches(&rows(5_000, 1, 0)).into_iter().try_for_each(|batch| build.push(batch)).unwrap_err();
    assert_eq!(error.to_string(), "the budget of the test is spent");
}

#[test]
fn empty_sides_are_joined() {
    let some = rows(10, 1, 0);
    for join_type in ALL_TYPES {
        for (build, probe) in [(&some[..], &[][..]), (&[], &some), (&[], &[])] {
            let (output, _) = run(&joined(join_type, false, false), build, probe, usize::MAX);
            assert!(output == nested_loops(join_type, false, false, build, probe), "{join_type:?}");
        }
    }
}

/// Number of joined rows and the sums of both columns, with a probe side in batches of these sizes.
fn radix_sums(keys: i64, sizes: &[usize], key_of: impl Fn(i64) -> i64) -> (usize, i64) {
    let columns = [ColumnSource::Build(1), ColumnSource::Probe(1)];
    let spec = narrow_plan(&columns, JoinType::Inner, Some(64 << 10));
    let mut row = 0;
    let probe = sizes.iter().map(|size| {
        let rows: Vec<i64> = (row..row + *size as i64).collect();
        row += *size as i64;
        let keys: Int64Array = rows.iter().map(|row| key_of(*row)).collect();
        RecordBatch::try_new(side_schema(), vec![Arc::new(keys), Arc::new(Int64Array::from(rows))]).unwrap()
    });
    let build: Vec<Row> = (0..keys).map(|key| (Some(key * 7_919 % keys), key)).collect();
    let mut run = Run::new(&spec, usize::MAX);
    run.join(batches(&build), probe.collect(), 0, 0).unwrap();
    assert!(run.is_radix);
    let sum = |column: &ArrayRef| column.as_primitive::<Int64Type>().values().iter().sum::<i64>();
    run.output.iter().fold((0, 0), |(rows, all), batch| {
        (rows + batch.num_rows(), all + batch.columns().iter().map(sum).sum::<i64>())
    })
}

#[test]
fn chunks_of_probe_rows_need_not_end_where_batches_do() {
    const CHUNK: usize = 1 << 18;
    let keys = 100_003;
    let row_of: std::collections::HashMap<i64, i64> = (0..keys).map(|row| (row * 7_919 % keys, row)).collect();
    // One batch of several chunks, exactly full chunks, and empty or partial batches.
    for sizes in [&[3 * CHUNK + 5][..], &[CHUNK], &[CHUNK, CHUNK], &[CHUNK - 1, 0, 2, CHUNK], &[0], &[1]] {
        let rows = sizes.iter().sum::<usize>() as i64;
        let expected: i64 = (0..rows).map(|row| row + row_of[&(row * 31 % keys)]).sum();
        assert_eq!(radix_sums(keys, sizes, |row| row * 31 % keys), (rows as usize, expected), "{sizes:?}");
        // Outside the range of keys: all keys, then every other key.
        assert_eq!(radix_sums(keys, sizes, |row| row + keys), (0, 0), "{sizes:?}");
        let key = |row: i64| row * 31 % keys + row % 2 * keys;
        let half: i64 = (0..rows).step_by(2).map(|row| row + row_of[&(row * 31 % keys)]).sum();
        assert_eq!(radix_sums(keys, sizes, key), ((rows as usize).div_ceil(2), half), "{sizes:?}");
    }
}
