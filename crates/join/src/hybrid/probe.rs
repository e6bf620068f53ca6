//! Joins probe rows with the build rows in memory.

use std::sync::Arc;

use arrow::array::{BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter_record_batch;

use super::build_side::{BuildSide, SubqueryFacts};
use super::output::{BuildRows, Pairs, Rows, SideRows};
use super::pairs::{Found, Lane, PairBlock, PairFinder, PairRows, ProbeRows, Wait, Wanted, retain};
use super::plan::JoinPlan;
use crate::error::Result;
use crate::join_type::JoinType;
use crate::keys::Keys;
use crate::memory::{RowSizes, UnitMemory};
use crate::spec::{JoinSpec, Side};
use crate::spill::{Radix, RadixPartitions, SpillStore, SpillTuning, SpilledPartition};

/// A batch is staged uncopied if at least one in `MAX_STAGE_WASTE` of its rows goes to files.
const MAX_STAGE_WASTE: usize = 2;

/// Which rows of a probe batch have matched, kept from one pass to the next.
pub type MatchedRows = BooleanBuffer;

/// Joins the batches of one stream of probe rows, one after the other. Rows of spilled partitions go to files. A [`PairFinder`]
/// finds the pairs of the other rows, and the prober builds output rows from the pairs according to the join type and the
/// residual filter.
#[derive(Debug)]
pub struct Prober<S: SpillStore> {
    spec: Arc<JoinSpec>,
    /// Maximum rows of an output batch.
    batch_size: usize,
    /// Dropped before the build rows: it may wait for a GPU that reads them.
    finder: Box<dyn PairFinder>,
    build: Arc<dyn BuildRows>,
    facts: Arc<SubqueryFacts>,
    /// Receives the rows whose build partition is in a file; `None` if all build rows are in memory.
    spill: Option<ProbeSpill<S>>,
    /// The unit of each lane that is being searched.
    units: [Option<Unit>; 2],
    /// The state of the next unit, if it continues from one pass to another.
    pass: Option<Pass>,
    /// The pairs found last.
    pairs: PairBlock,
    /// Found pairs that wait for the pairs before them: copying the rows of all at once would take too much memory.
    waiting: Option<(Lane, PairBlock)>,
}

/// The result of a step of a [`Prober`].
#[derive(Debug)]
pub enum Step {
    /// Output rows.
    Output(RecordBatch),
    /// No output yet, but there is more to do.
    Working,
    /// No output, and nothing to do before this resolves.
    Waiting(Wait),
    /// No output, and no more from the current batch.
    Finished,
}

/// The probe rows of build partitions that are in files.
#[derive(Debug)]
pub struct ProbeSpill<S: SpillStore> {
    partitions: RadixPartitions<S>,
    radix: Radix,
    /// Which build partitions are in files.
    is_spilled: Vec<bool>,
}

/// Probe rows that are searched together.
#[derive(Debug)]
struct Unit {
    batch: RecordBatch,
    /// Bytes that copies of the unit's rows take.
    sizes: RowSizes,
    /// The rows that have matched so far; only for joins that emit probe rows by whether they matched.
    matched: Option<BooleanBufferBuilder>,
    /// Whether a later pass continues the unit, so that its rows are not yet emitted by match.
    more_passes: bool,
}

/// The matches that a pass continues from, and whether another pass follows.
#[derive(Debug)]
struct Pass {
    matched: Option<MatchedRows>,
    more_passes: bool,
}

impl<S: SpillStore> ProbeSpill<S> {
    /// Creates the spill of probe rows for a build side that is partly in files; `None` if the build side is in memory.
    ///
    /// # Errors
    /// Fails if the memory for the working buffers is not granted.
    pub fn try_new(
        spec: &JoinSpec,
        build: &BuildSide,
        store: Arc<S>,
        memory: &Arc<UnitMemory>,
        tuning: SpillTuning,
    ) -> Result<Option<Self>> {
        let Some(spilled) = &build.spilled else { return Ok(None) };
        let columns = spec.build_schema.fields().len().max(spec.probe_schema.fields().len());
        memory.raise_floor(SpillTuning::floor(columns))?;
        let stage = tuning.probe_stage(columns, spilled.stage);
        let partitions = RadixPartitions::in_files(Side::Probe, spilled.radix, store, stage);
        Ok(Some(Self { partitions, radix: spilled.radix, is_spilled: spilled.is_spilled.clone() }))
    }

    /// Completes the files, one for each partition that has rows.
    pub fn finish(self) -> Result<Vec<Option<SpilledPartition<S::File>>>> {
        Ok(self.partitions.finish()?.files)
    }
}

impl<S: SpillStore> Prober<S> {
    /// Creates a prober without rows. `finder` searches the rows of `build`.
    pub fn new(
        plan: &JoinPlan,
        build: Arc<dyn BuildRows>,
        facts: Arc<SubqueryFacts>,
        spill: Option<ProbeSpill<S>>,
        finder: Box<dyn PairFinder>,
    ) -> Self {
        Self {
            spec: Arc::clone(&plan.spec),
            batch_size: plan.batch_size,
            finder,
            build,
            facts,
            spill,
            units: [None, None],
            pass: None,
            pairs: PairBlock::default(),
            waiting: None,
        }
    }

    /// Starts the next batch; the previous one must have been finished.
    pub fn start(&mut self, batch: RecordBatch) -> Result<()> {
        self.start_pass(batch, None, false)
    }

    /// Starts a batch in one of several passes. `matched` comes from the previous pass. With `more_passes`,
    /// [`Prober::finish_pass`] returns it for the next pass.
    pub fn start_pass(&mut self, batch: RecordBatch, matched: Option<&MatchedRows>, more_passes: bool) -> Result<()> {
        let keys = self.spec.keys(Side::Probe, &batch)?;
        if self.spec.null_aware && self.spec.join_type != JoinType::RightMark {
            self.facts.note(keys.len(), keys.matchable.as_ref());
        }
        let (batch, keys) = self.spill_rows(batch, keys)?;
        // Each batch of a pass is a unit of its own, so that its matches are kept by batch.
        let is_apart = matched.is_some() || more_passes;
        self.pass = is_apart.then(|| Pass { matched: matched.cloned(), more_passes });
        let handed_back = self.finder.push(ProbeRows { batch, keys, is_apart })?;
        debug_assert!(handed_back.is_none(), "a finder that hands rows back has another behind it");
        Ok(())
    }

    /// Writes the rows of spilled build partitions to files; returns the others.
    fn spill_rows(&mut self, batch: RecordBatch, keys: Keys) -> Result<(RecordBatch, Keys)> {
        let Some(ProbeSpill { partitions, radix, is_spilled }) = &mut self.spill else { return Ok((batch, keys)) };
        // A row that cannot match stays: it needs no build row.
        let hashes = keys.hashes();
        let leaving = BooleanBuffer::collect_bool(hashes.len(), |row| {
            is_spilled[radix.partition(hashes[row])] && keys.is_matchable(row)
        });
        let leaving_rows = leaving.count_set_bits();
        if leaving_rows == 0 {
            return Ok((batch, keys));
        }
        let staying = filter_record_batch(&batch, &BooleanArray::new(!&leaving, None))?;
        // The stage keeps the whole batch alive for the rows written to it, so few rows are copied instead.
        if leaving_rows * MAX_STAGE_WASTE >= batch.num_rows() {
            partitions.push(&batch, &keys, &hashes, Some(&leaving))?;
        } else {
            let leaving = filter_record_batch(&batch, &BooleanArray::new(leaving, None))?;
            let keys = self.spec.keys(Side::Probe, &leaving)?;
            partitions.push(&leaving, &keys, &keys.hashes(), None)?;
        }
        let keys = self.spec.keys(Side::Probe, &staying)?;
        Ok((staying, keys))
    }

    /// Continues with the started batches, for a time that does not depend on the number of their pairs.
    pub fn step(&mut self) -> Result<Step> {
        if let Some((lane, pairs)) = self.waiting.take() {
            self.pairs.restore(pairs);
            return Ok(self.join_pairs(lane)?.map_or(Step::Working, Step::Output));
        }
        let join_type = self.spec.join_type;
        let is_filtered = self.spec.filter.is_some();
        let marks_build = matches!(join_type, JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark);
        let first_only = !is_filtered && !join_type.emits_pairs() && !marks_build;
        let wanted = Wanted { pairs: self.batch_size, first_only };
        loop {
            if marks_build && !is_filtered {
                self.finder.mark(self.build.visited())?;
            }
            return Ok(match self.finder.next(wanted, &mut self.pairs)? {
                Found::Started(lane, batch) => {
                    let unit = Unit::new(&self.spec, batch, self.pass.take());
                    self.units[lane as usize] = Some(unit);
                    continue;
                }
                Found::Pairs(lane) => self.join_pairs(lane)?.map_or(Step::Working, Step::Output),
                Found::Done(lane) => match self.finish_unit(lane)? {
                    Some(step) => step,
                    None => continue,
                },
                Found::Working => Step::Working,
                Found::Waiting(wait) => Step::Waiting(wait),
                Found::Idle => Step::Finished,
                Found::Left(_) | Found::HandedBack(_) => {
                    unreachable!("a finder that leaves rows has another behind it")
                }
            });
        }
    }

    /// Signals that no batch follows. Returns true if [`Prober::step`] has more to do; call this again afterwards.
    pub fn end(&mut self) -> Result<bool> {
        self.finder.end()
    }

    /// Ends the batch of a pass that is not the last. Returns the rows that have matched so far.
    pub fn finish_pass(&mut self) -> Option<MatchedRows> {
        let unit = self.units.iter_mut().find_map(Option::take)?;
        unit.matched.map(|mut matched| matched.finish())
    }

    /// Whether most recent rows had no match, so that lookups check a filter before the hash table.
    pub fn is_filtered(&self) -> bool {
        self.finder.is_filtered()
    }

    /// The spilled rows, once all batches are done.
    pub fn into_spill(self) -> Option<ProbeSpill<S>> {
        self.spill
    }

    /// Ends a unit after all its pairs have been found. Returns `None` if it emits no rows by match and no pass is over.
    fn finish_unit(&mut self, lane: Lane) -> Result<Option<Step>> {
        let place = &mut self.units[lane as usize];
        if place.as_ref().is_some_and(|unit| unit.more_passes) {
            return Ok(Some(Step::Finished));
        }
        match place.take() {
            Some(unit) => Ok(self.by_match(unit)?.map(Step::Output)),
            None => Ok(None),
        }
    }

    /// Filters the pairs found last, records their matches, and returns output rows for those that fit a batch; the others
    /// wait. Returns `None` if the join emits no pairs or there are none.
    fn join_pairs(&mut self, lane: Lane) -> Result<Option<RecordBatch>> {
        if self.pairs.len() == 0 {
            return Ok(None);
        }
        let (spec, build, unit) = (&self.spec, self.build.as_ref(), &mut self.units[lane as usize]);
        let join_type = spec.join_type;
        if spec.filter.is_some() || join_type.emits_pairs() {
            let fitting = self.pairs.fitting(build.sizes(), unit.as_ref().map(|unit| &unit.sizes));
            if fitting < self.pairs.len() {
                self.waiting = Some((lane, self.pairs.split_off(fitting)));
            }
        }
        let PairBlock { build: partners, probe } = &mut self.pairs;
        let (rows, unit) = match (probe, unit) {
            (PairRows::Numbers(rows), Some(unit)) => (rows, unit),
            (PairRows::Packed(words), _) => {
                let Some(payload) = self.finder.packed_rows() else { unreachable!("packed rows have a layout") };
                let probe = SideRows::Packed(payload, words.lend());
                return Pairs { build: partners.take(build), probe, mark: None }.output(spec).map(Some);
            }
            (PairRows::Numbers(_), None) => unreachable!("a unit starts before its pairs"),
        };
        if let Some(filter) = &spec.filter {
            let passed = {
                let numbers = Rows::from_numbers(rows.to_vec().into());
                let pairs =
                    Pairs { build: partners.copy(build), probe: SideRows::Of(&unit.batch, numbers), mark: None };
                filter.evaluate(pairs.columns(filter.columns())?, rows.len())?
            };
            partners.retain(&passed);
            retain(rows, &passed);
        }
        if let (PairRows::Numbers(rows), true) = (&*partners, join_type.emits_build_at_end()) {
            rows.iter().for_each(|row| build.visited().set(*row));
        }
        if let Some(matched) = &mut unit.matched {
            for row in rows.iter() {
                matched.set_bit(*row as usize, true);
            }
        }
        if !join_type.emits_pairs() || rows.is_empty() {
            return Ok(None);
        }
        let probe = SideRows::Of(&unit.batch, Rows::from_numbers(rows.lend()));
        Pairs { build: partners.take(build), probe, mark: None }.output(spec).map(Some)
    }

    /// The output rows of a finished batch that depend on whether its rows matched.
    fn by_match(&self, unit: Unit) -> Result<Option<RecordBatch>> {
        let Some(matched) = unit.matched.map(|mut matched| matched.finish()) else { return Ok(None) };
        let mut mark = None;
        let rows = match self.spec.join_type {
            JoinType::RightMark => {
                mark = Some(if self.spec.null_aware {
                    let keys = self.spec.keys(Side::Probe, &unit.batch)?;
                    self.facts.marks(matched, keys.matchable.as_ref())
                } else {
                    BooleanArray::new(matched, None)
                });
                Rows::Range(0, unit.batch.num_rows())
            }
            JoinType::RightSemi => Rows::from_numbers(matched.set_indices_u32().collect::<Vec<_>>().into()),
            _ => Rows::from_numbers((!&matched).set_indices_u32().collect::<Vec<_>>().into()),
        };
        if rows.len() == 0 {
            return Ok(None);
        }
        let build = self.build.nulls(rows.len());
        Pairs { build, probe: SideRows::Of(&unit.batch, rows), mark }.output(&self.spec).map(Some)
    }
}

impl Unit {
    /// Creates a unit that continues from the previous pass, or has no matches yet.
    fn new(spec: &JoinSpec, batch: RecordBatch, pass: Option<Pass>) -> Self {
        let (sizes, mut matched) = (spec.row_sizes(Side::Probe, &batch), no_matches(spec, &batch));
        let Pass { matched: before, more_passes } = pass.unwrap_or(Pass { matched: None, more_passes: false });
        if let (Some(bits), Some(before)) = (&mut matched, before) {
            bits.truncate(0);
            bits.append_buffer(&before);
        }
        Self { batch, sizes, matched, more_passes }
    }
}

/// A bit for each row of a batch, if the join emits rows by whether they matched.
fn no_matches(spec: &JoinSpec, batch: &RecordBatch) -> Option<BooleanBufferBuilder> {
    spec.join_type.emits_probe_by_match().then(|| {
        let mut bits = BooleanBufferBuilder::new(batch.num_rows());
        bits.append_n(batch.num_rows(), false);
        bits
    })
}
