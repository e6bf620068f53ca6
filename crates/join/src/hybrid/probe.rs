//! Joins probe rows with the build rows in memory.

use std::sync::Arc;

use arrow::array::{BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter_record_batch;

use super::build_side::{BuildSide, SubqueryFacts};
use super::output::{Pairs, Rows, SideRows};
use super::pairs::{BuildRows, Found, Lane, PairBlock, PairFinder, PairRows, ProbeRows, Wanted, retain};
use crate::error::Result;
use crate::join_type::JoinType;
use crate::keys::Keys;
use crate::memory::{RowSizes, UnitMemory};
use crate::spec::{JoinSpec, Side};
use crate::spill::{Radix, RadixPartitions, SpillStore, SpillTuning, SpilledPartition};

/// A batch is staged as it is if at least one in so many of its rows goes to files.
const MAX_STAGE_WASTE: usize = 2;

/// Which rows of a probe batch have found a match, kept from one pass to the next.
pub type MatchedRows = BooleanBuffer;

/// Joins the batches of one stream of probe rows, one after the other: rows of partitions in files go there, a [`PairFinder`] finds
/// the pairs of the others, and the pairs become rows as the join type and the residual filter say.
#[derive(Debug)]
pub struct Prober<S: SpillStore> {
    spec: Arc<JoinSpec>,
    /// Dropped before the build rows: it may wait for a GPU that reads them.
    finder: Box<dyn PairFinder>,
    build: Arc<dyn BuildRows>,
    facts: Arc<SubqueryFacts>,
    /// Takes the rows whose build partition is in a file; `None` if all build rows are in memory.
    spill: Option<ProbeSpill<S>>,
    /// The units of either lane whose pairs are being found.
    units: [Option<Unit>; 2],
    /// The next unit, if it goes on from one pass to another.
    pass: Option<Pass>,
    /// The pairs found last.
    pairs: PairBlock,
    /// Pairs of a unit that have been found and wait for those before them: copies of the rows of all would take too much memory.
    waiting: Option<(Lane, PairBlock)>,
}

/// What a step of a [`Prober`] came to.
#[derive(Debug)]
pub enum Step {
    /// Output rows.
    Output(RecordBatch),
    /// Nothing yet; there is more to do.
    Working,
    /// Nothing, and nothing more to come from the current batch.
    Finished,
}

/// The probe rows that wait for build partitions in files.
#[derive(Debug)]
pub struct ProbeSpill<S: SpillStore> {
    partitions: RadixPartitions<S>,
    radix: Radix,
    /// Which build partitions are in files.
    is_spilled: Vec<bool>,
}

/// Probe rows whose pairs are found together.
#[derive(Debug)]
struct Unit {
    batch: RecordBatch,
    /// What copies of its rows take.
    sizes: RowSizes,
    /// The rows that have found a match so far; only for joins that put out probe rows by it.
    matched: Option<BooleanBufferBuilder>,
    /// Whether a later pass will go on with it, so that rows are not yet put out by their matches.
    more_passes: bool,
}

/// What a pass goes on with, and whether another follows.
#[derive(Debug)]
struct Pass {
    matched: Option<MatchedRows>,
    more_passes: bool,
}

impl<S: SpillStore> ProbeSpill<S> {
    /// Takes probe rows for a build side that is partly in files; `None` if it is in memory.
    ///
    /// # Errors
    /// Fails if the memory for the working buffers cannot be had.
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
    /// A prober that has no rows yet, of the build rows among which the finder looks.
    pub fn new(
        spec: Arc<JoinSpec>,
        build: Arc<dyn BuildRows>,
        facts: Arc<SubqueryFacts>,
        spill: Option<ProbeSpill<S>>,
        finder: Box<dyn PairFinder>,
    ) -> Self {
        Self {
            spec,
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

    /// Starts on the next batch; the one before must have been finished.
    pub fn start(&mut self, batch: RecordBatch) -> Result<()> {
        self.start_pass(batch, None, false)
    }

    /// Starts on a batch in one of several passes: `matched` comes from the pass before, and with `more_passes`
    /// [`Prober::finish_pass`] gives it for the pass after.
    pub fn start_pass(&mut self, batch: RecordBatch, matched: Option<&MatchedRows>, more_passes: bool) -> Result<()> {
        let keys = self.spec.keys(Side::Probe, &batch)?;
        if self.spec.null_aware && self.spec.join_type != JoinType::RightMark {
            self.facts.note(&keys);
        }
        let (batch, keys) = self.spill_rows(batch, keys)?;
        // The rows of a pass are told apart by their batches.
        let is_apart = matched.is_some() || more_passes;
        self.pass = is_apart.then(|| Pass { matched: matched.cloned(), more_passes });
        let handed_back = self.finder.push(ProbeRows { batch, keys, is_apart })?;
        debug_assert!(handed_back.is_none(), "a finder that hands rows back has another behind it");
        Ok(())
    }

    /// Sends the rows on whose build partition is in a file; returns the others.
    fn spill_rows(&mut self, batch: RecordBatch, keys: Keys) -> Result<(RecordBatch, Keys)> {
        let Some(ProbeSpill { partitions, radix, is_spilled }) = &mut self.spill else { return Ok((batch, keys)) };
        // A row that cannot match needs no partner: it stays.
        let hashes = keys.hashes();
        let leaving = BooleanBuffer::collect_bool(hashes.len(), |row| {
            is_spilled[radix.partition(hashes[row])] && keys.is_matchable(row)
        });
        let leaving_rows = leaving.count_set_bits();
        if leaving_rows == 0 {
            return Ok((batch, keys));
        }
        let staying = filter_record_batch(&batch, &BooleanArray::new(!&leaving, None))?;
        // The stage keeps the whole batch alive for the rows that it is given; few rows are better copied.
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

    /// Goes on with the batches that have been started, for a time that does not depend on how many pairs they have.
    pub fn step(&mut self) -> Result<Step> {
        if let Some((lane, pairs)) = self.waiting.take() {
            self.pairs.restore(pairs);
            return Ok(self.join_pairs(lane)?.map_or(Step::Working, Step::Output));
        }
        let join_type = self.spec.join_type;
        let is_filtered = self.spec.filter.is_some();
        let marks_build = matches!(join_type, JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark);
        let first_only = !is_filtered && !join_type.emits_pairs() && !marks_build;
        let wanted = Wanted { pairs: self.spec.batch_size, first_only };
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
                Found::Idle => Step::Finished,
                Found::Left(_) | Found::HandedBack(_) => {
                    unreachable!("a finder that leaves rows has another behind it")
                }
            });
        }
    }

    /// Says that no batch follows; whether there is still something to do, by [`Prober::step`], after which this is asked again.
    pub fn end(&mut self) -> Result<bool> {
        self.finder.end()
    }

    /// Ends the batch of a pass that is not the last; gives the rows that have found a match so far.
    pub fn finish_pass(&mut self) -> Option<MatchedRows> {
        let unit = self.units.iter_mut().find_map(Option::take)?;
        unit.matched.map(|mut matched| matched.finish())
    }

    /// Whether most rows were lately found to have no partner, so that a filter is asked before the hash table.
    pub fn is_filtered(&self) -> bool {
        self.finder.is_filtered()
    }

    /// What is left for the files, once all batches are done.
    pub fn into_spill(self) -> Option<ProbeSpill<S>> {
        self.spill
    }

    /// Ends a unit of which all pairs have been found; `None` if no rows are put out by their matches and no pass is over.
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

    /// Filters the pairs found last, notes their matches, and makes rows of those that fit a batch, while the others wait; none if
    /// the join puts out no pairs or there are none.
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

    /// The rows of a finished batch that are put out by whether they found a match.
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
    /// A unit that goes on where the pass before has left it, or of which no row has found a match yet.
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

/// A bit for each row of a batch, if rows are put out by whether they found a match.
fn no_matches(spec: &JoinSpec, batch: &RecordBatch) -> Option<BooleanBufferBuilder> {
    spec.join_type.emits_probe_by_match().then(|| {
        let mut bits = BooleanBufferBuilder::new(batch.num_rows());
        bits.append_n(batch.num_rows(), false);
        bits
    })
}
