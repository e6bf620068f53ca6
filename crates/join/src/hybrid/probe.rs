//! Joins probe rows with the build rows in memory.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray, BooleanBufferBuilder, RecordBatch, UInt32Array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::filter_record_batch;

use super::build_side::{BuildSide, SpilledBuild, SubqueryFacts};
use super::device_probe::{DeviceProbe, Found, Taken};
use super::output::{Pairs, Rows, SideRows};
use super::radix_probe::RadixProbe;
use crate::device::{DeviceCount, PairAggregation};
use crate::error::Result;
use crate::hash_table::MatchCursor;
use crate::join_type::JoinType;
use crate::keys::Keys;
use crate::memory::{LentVec, MAX_COPY_BYTES, RowSizes, SideSizes, UnitMemory, fitting_pairs};
use crate::spec::{JoinSpec, Side};
use crate::spill::{RadixPartitions, SpillStore, SpillTuning, SpilledPartition};

/// A batch is staged as it is if at least one in so many of its rows goes to files.
const MAX_STAGE_WASTE: usize = 2;

/// The bytes of packed columns.
const WORD: usize = size_of::<u64>();

/// Which rows of a probe batch have found a match, kept from one pass to the next.
pub type MatchedRows = BooleanBuffer;

/// Joins the batches of one stream of probe rows, one after the other.
#[derive(Debug)]
pub struct Prober<S: SpillStore> {
    spec: Arc<JoinSpec>,
    /// Collects rows for a GPU; `None` if the CPU joins. It is dropped first: it waits for a GPU that is at work on what others
    /// here pay for.
    device: Option<DeviceProbe>,
    build: Arc<BuildSide>,
    facts: Arc<SubqueryFacts>,
    /// Takes the rows whose build partition is in a file; `None` if all build rows are in memory.
    spill: Option<ProbeSpill<S>>,
    /// Partitions rows before they look into the hash table; `None` if they do so as they come.
    radix: Option<RadixProbe>,
    current: Option<ProbeBatch>,
    /// A chunk that a GPU joins while others are looked up.
    parked: Option<ProbeBatch>,
    cursor: MatchCursor,
    partners: Partners,
    probe_rows: LentVec<u32>,
    /// The values of the pairs that a GPU has found last.
    build_values: LentVec<u64>,
    probe_values: LentVec<u64>,
    waiting: Option<Waiting>,
}

/// Pairs that have been found and wait for those before them: copies of the rows of all would take too much memory.
#[derive(Debug)]
struct Waiting {
    partners: Partners,
    probe: ProbeRows,
}

/// The probe rows of pairs.
#[derive(Debug)]
enum ProbeRows {
    /// By their numbers.
    Numbers(Vec<u32>),
    /// As their packed columns.
    Packed(Vec<u64>),
}

/// The build rows of the pairs found last, as the hash table tells them.
#[derive(Debug)]
pub(super) enum Partners {
    Rows(LentVec<u32>),
    Payloads(LentVec<u64>),
}

impl Partners {
    /// None, of those that this build side gives.
    pub(super) fn none_of(build: &BuildSide) -> Self {
        match build.payload {
            Some(_) => Self::Payloads(LentVec::default()),
            None => Self::Rows(LentVec::default()),
        }
    }

    /// How many of the first pairs may be put out together.
    pub(super) fn fitting(&self, build: &BuildSide, probe: SideSizes<'_>) -> usize {
        match self {
            Self::Rows(rows) => fitting_pairs(rows.len(), MAX_COPY_BYTES, [SideSizes::Rows(&build.sizes, rows), probe]),
            Self::Payloads(words) => fitting_pairs(words.len(), MAX_COPY_BYTES, [SideSizes::Fixed(WORD), probe]),
        }
    }

    /// Takes the pairs from this one on away.
    pub(super) fn split_off(&mut self, pair: usize) -> Self {
        match self {
            Self::Rows(rows) => Self::Rows(rows.split_off(pair).into()),
            Self::Payloads(words) => Self::Payloads(words.split_off(pair).into()),
        }
    }

    /// The rows of the build side that gave them; none are left.
    pub(super) fn take<'a>(&mut self, build: &'a BuildSide) -> SideRows<'a> {
        match self {
            Self::Rows(rows) => build_rows(build, rows.lend()),
            Self::Payloads(words) => build_payloads(build, words.lend()),
        }
    }

    /// The same, and they are left.
    fn copy<'a>(&self, build: &'a BuildSide) -> SideRows<'a> {
        match self {
            Self::Rows(rows) => build_rows(build, rows.to_vec().into()),
            Self::Payloads(words) => build_payloads(build, words.to_vec().into()),
        }
    }

    /// Takes the values of build rows over that a GPU has found.
    fn take_values(&mut self, build: &BuildSide, values: &mut LentVec<u64>) {
        let is_packed = build.device.as_ref().is_some_and(|device| device.payload.is_some());
        match self {
            Self::Payloads(words) if is_packed => std::mem::swap(words, values),
            Self::Rows(rows) if !is_packed => {
                let rows = rows.refill();
                rows.clear();
                rows.extend(values.iter().map(|row| *row as u32));
            }
            other => {
                *other = if is_packed { Self::Payloads(LentVec::default()) } else { Self::Rows(LentVec::default()) };
                other.take_values(build, values);
            }
        }
    }

    fn retain(&mut self, passed: &BooleanArray) {
        match self {
            Self::Rows(rows) => retain(rows, passed),
            Self::Payloads(words) => retain(words, passed),
        }
    }
}

fn build_rows(build: &BuildSide, rows: ScalarBuffer<u32>) -> SideRows<'_> {
    SideRows::Of(&build.batch, Rows::Numbers(UInt32Array::new(rows, None)))
}

fn build_payloads(build: &BuildSide, words: ScalarBuffer<u64>) -> SideRows<'_> {
    let on_device = || build.device.as_ref().and_then(|device| device.payload.as_ref());
    let Some(payload) = build.payload.as_ref().or_else(on_device) else {
        unreachable!("payloads come from a table that has them")
    };
    SideRows::Packed(payload, words)
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
}

#[derive(Debug)]
struct ProbeBatch {
    batch: RecordBatch,
    /// What copies of its rows take.
    sizes: RowSizes,
    search: Search,
    /// The rows that have found a match so far; only for joins that put out probe rows by it.
    matched: Option<BooleanBufferBuilder>,
    /// Whether a later pass will go on with this batch, so that rows are not yet put out by their matches.
    more_passes: bool,
}

/// Who looks for the pairs of a batch.
#[derive(Debug)]
enum Search {
    /// The CPU, with these keys.
    Host(Keys),
    /// A GPU.
    Device,
    /// The CPU, in the table that a GPU reads as well, or in a copy of it.
    Beside,
    /// Nobody: all have been found.
    Done,
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
        Ok(Some(Self { partitions: RadixPartitions::in_files(Side::Probe, spilled.radix, store, stage) }))
    }

    /// Completes the files, one for each partition that has rows.
    pub fn finish(self) -> Result<Vec<Option<SpilledPartition<S::File>>>> {
        Ok(self.partitions.finish()?.files)
    }
}

impl<S: SpillStore> Prober<S> {
    /// A prober that has no rows yet.
    pub fn new(
        spec: Arc<JoinSpec>,
        build: Arc<BuildSide>,
        facts: Arc<SubqueryFacts>,
        spill: Option<ProbeSpill<S>>,
        radix: Option<RadixProbe>,
    ) -> Self {
        debug_assert_eq!(build.is_spilled(), spill.is_some());
        let partners = Partners::none_of(&build);
        Self {
            spec,
            build,
            facts,
            spill,
            radix,
            device: None,
            current: None,
            parked: None,
            cursor: MatchCursor::default(),
            partners,
            probe_rows: LentVec::default(),
            build_values: LentVec::default(),
            probe_values: LentVec::default(),
            waiting: None,
        }
    }

    /// The same, which gives its rows to the GPU that has the build side, if one has, in chunks that `memory` pays for. Pairs that
    /// kernels aggregate are no output: `aggregation` gets what they come to; without it there are none.
    pub fn with_device(self, memory: &Arc<UnitMemory>, aggregation: Option<&Arc<PairAggregation>>) -> Self {
        let device = DeviceProbe::for_join(&self.spec, &self.build, memory, aggregation);
        Self { device, ..self }
    }

    /// Starts on the next batch; the one before must have been finished.
    pub fn start(&mut self, batch: RecordBatch) -> Result<()> {
        self.start_pass(batch, None, false)
    }

    /// Starts on a batch in one of several passes: `matched` comes from the pass before, and with `more_passes`
    /// [`Prober::finish_pass`] gives it for the pass after.
    pub fn start_pass(&mut self, batch: RecordBatch, matched: Option<&MatchedRows>, more_passes: bool) -> Result<()> {
        debug_assert!(self.current.is_none(), "one batch at a time");
        let keys = self.spec.keys(Side::Probe, &batch)?;
        if self.spec.null_aware && self.spec.join_type != JoinType::RightMark {
            self.facts.note(&keys);
        }
        let (batch, keys) = self.spill_rows(batch, keys)?;
        if let Some(radix) = &mut self.radix
            && radix.push(&batch, &keys)?
        {
            return Ok(());
        }
        // The rows of a pass are told apart by their batches.
        if matched.is_none() && !more_passes {
            return self.collect(batch, keys);
        }
        self.start_on_host(batch, keys, matched, more_passes)
    }

    /// Gives a batch to the GPU, if there is one, or starts on it.
    fn collect(&mut self, batch: RecordBatch, keys: Keys) -> Result<()> {
        let (Some(probe), Some(device)) = (&mut self.device, &self.build.device) else {
            return self.start_on_host(batch, keys, None, false);
        };
        let (observer, rows) = (&device.request.observer, batch.num_rows() as u64);
        match probe.push(device, batch, keys) {
            Taken::Collected => {}
            Taken::Full => self.start_on_device()?,
            Taken::No(batch, keys) => {
                observer.add(DeviceCount::ReturnedRows, rows);
                match device.table.shared() {
                    Some(_) => self.start_beside(batch, keys),
                    None => self.start_on_host(batch, keys, None, false)?,
                }
            }
            Taken::Beside(batch, keys) => {
                observer.add(DeviceCount::SharedRows, rows);
                self.start_beside(batch, keys);
            }
        }
        Ok(())
    }

    /// Starts on a batch that the CPU looks up in the table that it shares with the GPU.
    fn start_beside(&mut self, batch: RecordBatch, keys: Keys) {
        let Some(probe) = &mut self.device else { return };
        probe.start_beside(keys);
        self.current = Some(ProbeBatch::new(&self.spec, batch, Search::Beside));
    }

    /// Starts on the chunk that was collected for the GPU.
    fn start_on_device(&mut self) -> Result<()> {
        let (Some(probe), Some(device)) = (&mut self.device, &self.build.device) else { return Ok(()) };
        let batch = probe.start(&self.spec, device)?;
        let chunk = ProbeBatch::new(&self.spec, batch, Search::Device);
        if probe.is_away() {
            self.parked = Some(chunk);
        } else {
            self.current = Some(chunk);
        }
        Ok(())
    }

    /// Goes on with the chunk that the GPU was at work on, for which it waits.
    fn land(&mut self) {
        let (Some(probe), Some(device)) = (&mut self.device, &self.build.device) else { return };
        probe.land(device);
        self.current = self.parked.take();
    }

    /// Starts on a batch of which the CPU looks every key up.
    fn start_on_host(
        &mut self,
        batch: RecordBatch,
        keys: Keys,
        matched: Option<&MatchedRows>,
        more_passes: bool,
    ) -> Result<()> {
        self.build.table(&self.spec)?.start(&keys, &mut self.cursor);
        if self.build.device.is_some() {
            // Those of the chunk before may have been another kind.
            self.partners = Partners::none_of(&self.build);
        }
        let mut current = ProbeBatch { more_passes, ..ProbeBatch::new(&self.spec, batch, Search::Host(keys)) };
        if let (Some(bits), Some(matched)) = (&mut current.matched, matched) {
            bits.truncate(0);
            bits.append_buffer(matched);
        }
        self.current = Some(current);
        Ok(())
    }

    /// Sends the rows on whose build partition is in a file; returns the others.
    fn spill_rows(&mut self, batch: RecordBatch, keys: Keys) -> Result<(RecordBatch, Keys)> {
        let (Some(spill), Some(SpilledBuild { radix, is_spilled, .. })) = (&mut self.spill, &self.build.spilled) else {
            return Ok((batch, keys));
        };
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
            spill.partitions.push(&batch, &keys, &hashes, Some(&leaving))?;
        } else {
            let leaving = filter_record_batch(&batch, &BooleanArray::new(leaving, None))?;
            let keys = self.spec.keys(Side::Probe, &leaving)?;
            spill.partitions.push(&leaving, &keys, &keys.hashes(), None)?;
        }
        let keys = self.spec.keys(Side::Probe, &staying)?;
        Ok((staying, keys))
    }

    /// Goes on with the current batch, for a time that does not depend on how many pairs it has.
    pub fn step(&mut self) -> Result<Step> {
        let Some(current) = &mut self.current else {
            if self.parked.is_some() && self.device.as_ref().is_some_and(DeviceProbe::has_landed) {
                self.land();
                return Ok(Step::Working);
            }
            if let Some((batch, keys)) = self.device.as_mut().and_then(DeviceProbe::take_pending) {
                self.collect(batch, keys)?;
                return Ok(if self.current.is_some() { Step::Working } else { Step::Finished });
            }
            return match &mut self.radix {
                Some(radix) => radix.step(&self.spec, &self.build),
                None => Ok(Step::Finished),
            };
        };
        if self.waiting.is_some() || !matches!(current.search, Search::Done) {
            return Ok(self.search()?.map_or(Step::Working, Step::Output));
        }
        if current.more_passes {
            return Ok(Step::Finished);
        }
        let output = match self.current.take() {
            Some(current) => self.by_match(current)?,
            None => None,
        };
        let waits = self.device.as_ref().is_some_and(|device| device.has_pending() || device.has_landed());
        Ok(output.map_or(if waits { Step::Working } else { Step::Finished }, Step::Output))
    }

    /// Says that no batch follows; whether there is still something to do, by [`Prober::step`], after which this is asked again.
    pub fn end(&mut self) -> Result<bool> {
        if self.device.as_ref().is_some_and(DeviceProbe::has_rows) {
            self.start_on_device()?;
            return Ok(true);
        }
        if self.parked.is_some() {
            self.land();
            return Ok(true);
        }
        Ok(self.radix.as_mut().is_some_and(RadixProbe::end))
    }

    /// Ends the batch of a pass that is not the last; gives the rows that have found a match so far.
    pub fn finish_pass(&mut self) -> Option<MatchedRows> {
        self.current.take()?.matched.map(|mut matched| matched.finish())
    }

    /// Whether most rows were lately found to have no partner, so that a filter is asked before the hash table.
    pub fn is_filtered(&self) -> bool {
        self.build.table_in_memory().is_some_and(|table| table.is_filtered(&self.cursor))
    }

    /// What is left for the files, once all batches are done.
    pub fn into_spill(self) -> Option<ProbeSpill<S>> {
        self.spill
    }

    /// Goes on with pairs that wait or finds some more; output rows if the join puts out pairs and there are any.
    fn search(&mut self) -> Result<Option<RecordBatch>> {
        match self.waiting.take() {
            Some(Waiting { partners, probe }) => {
                self.partners = partners;
                match probe {
                    ProbeRows::Numbers(rows) => *self.probe_rows.refill() = rows,
                    ProbeRows::Packed(words) => {
                        *self.probe_values.refill() = words;
                        return self.packed_pairs();
                    }
                }
            }
            None if self.find()? => return self.packed_pairs(),
            None => {}
        }
        if self.probe_rows.is_empty() { Ok(None) } else { self.numbered_pairs() }
    }

    /// Finds some more pairs, of `probe_rows` or, if it says so, of packed columns in `probe_values`.
    fn find(&mut self) -> Result<bool> {
        self.probe_rows.refill().clear();
        let Some(current) = &mut self.current else { return Ok(false) };
        let (spec, build) = (&self.spec, &self.build);
        let join_type = spec.join_type;
        if build.rows() == 0 {
            current.search = Search::Done;
            return Ok(false);
        }
        match (&mut current.search, &build.device, &mut self.device) {
            (Search::Device, Some(device), Some(probe)) => {
                let (build_values, probe_values) = (self.build_values.refill(), self.probe_values.refill());
                let batch = &current.batch;
                match probe.next_pairs(spec, device, batch, spec.batch_size, build_values, probe_values)? {
                    Found::Rows => {
                        self.partners.take_values(build, &mut self.build_values);
                        let rows = self.probe_rows.refill();
                        rows.clear();
                        rows.extend(self.probe_values.iter().map(|row| *row as u32));
                    }
                    Found::Packed => {
                        self.partners.take_values(build, &mut self.build_values);
                        return Ok(true);
                    }
                    Found::Away => {
                        self.parked = self.current.take();
                        return Ok(false);
                    }
                    Found::All(None) => {
                        current.search = Search::Done;
                        return Ok(false);
                    }
                    Found::All(Some(rest)) => {
                        // The rows that have found their matches find them no more.
                        let mut keys = spec.keys(Side::Probe, &current.batch)?;
                        keys.matchable = NullBuffer::union(keys.matchable.as_ref(), Some(&NullBuffer::new(rest)));
                        if device.table.shared().is_some() {
                            probe.start_beside(keys);
                            current.search = Search::Beside;
                            return Ok(false);
                        }
                        build.table(spec)?.start(&keys, &mut self.cursor);
                        self.partners = Partners::none_of(build);
                        current.search = Search::Host(keys);
                        return Ok(false);
                    }
                }
            }
            (Search::Beside, Some(device), Some(probe)) => {
                let marks_build = matches!(join_type, JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark);
                if spec.filter.is_none() && marks_build && probe.mark_beside(device, &build.visited)? {
                    current.search = Search::Done;
                    return Ok(false);
                }
                let (build_values, probe_values) = (self.build_values.refill(), self.probe_values.refill());
                let first_only = spec.filter.is_none() && !join_type.emits_pairs() && !marks_build;
                if !probe.next_beside(device, spec.batch_size, first_only, build_values, probe_values)? {
                    current.search = Search::Done;
                }
                self.partners.take_values(build, &mut self.build_values);
                let rows = self.probe_rows.refill();
                rows.clear();
                rows.extend(self.probe_values.iter().map(|row| *row as u32));
            }
            (Search::Host(keys), ..) => {
                let is_marking = matches!(join_type, JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark);
                let table = build.table(spec)?;
                if spec.filter.is_none() && is_marking {
                    table.mark_matches(keys, &mut self.cursor, &build.visited);
                    current.search = Search::Done;
                    return Ok(false);
                }
                let first_only = spec.filter.is_none() && !join_type.emits_pairs();
                let (cursor, limit, probe_rows) = (&mut self.cursor, spec.batch_size, self.probe_rows.refill());
                let more = match &mut self.partners {
                    Partners::Rows(rows) => {
                        table.next_pairs(keys, cursor, limit, first_only, rows.refill(), probe_rows)
                    }
                    Partners::Payloads(words) => table.next_payloads(keys, cursor, limit, words.refill(), probe_rows),
                };
                if !more {
                    current.search = Search::Done;
                }
            }
            _ => current.search = Search::Done,
        }
        Ok(false)
    }

    /// Puts pairs of packed probe rows out: those that fit a batch, while the others wait.
    fn packed_pairs(&mut self) -> Result<Option<RecordBatch>> {
        let Some(payload) = self.device.as_ref().and_then(DeviceProbe::payload) else { return Ok(None) };
        if self.probe_values.is_empty() {
            return Ok(None);
        }
        let fitting = self.partners.fitting(&self.build, SideSizes::Fixed(WORD));
        if fitting < self.probe_values.len() {
            let probe = ProbeRows::Packed(self.probe_values.split_off(fitting));
            self.waiting = Some(Waiting { partners: self.partners.split_off(fitting), probe });
        }
        let probe = SideRows::Packed(payload, self.probe_values.lend());
        Pairs { build: self.partners.take(&self.build), probe, mark: None }.output(&self.spec).map(Some)
    }

    /// Filters pairs of probe rows by number, notes their matches and puts them out: those that fit a batch, while the others wait.
    fn numbered_pairs(&mut self) -> Result<Option<RecordBatch>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        let (spec, build) = (&self.spec, &self.build);
        let join_type = spec.join_type;
        if spec.filter.is_some() || join_type.emits_pairs() {
            let fitting = self.partners.fitting(build, SideSizes::Rows(&current.sizes, &self.probe_rows));
            if fitting < self.probe_rows.len() {
                let probe = ProbeRows::Numbers(self.probe_rows.split_off(fitting));
                self.waiting = Some(Waiting { partners: self.partners.split_off(fitting), probe });
            }
        }
        if let Some(filter) = &spec.filter {
            let passed = {
                let probe_rows = Rows::from_numbers(self.probe_rows.to_vec().into());
                let pairs = Pairs {
                    build: self.partners.copy(build),
                    probe: SideRows::Of(&current.batch, probe_rows),
                    mark: None,
                };
                filter.evaluate(pairs.columns(filter.columns())?, self.probe_rows.len())?
            };
            self.partners.retain(&passed);
            retain(&mut self.probe_rows, &passed);
        }
        if let Partners::Rows(rows) = &self.partners
            && join_type.emits_build_at_end()
        {
            rows.iter().for_each(|row| build.visited.set(*row));
        }
        if let Some(matched) = &mut current.matched {
            for row in self.probe_rows.iter() {
                matched.set_bit(*row as usize, true);
            }
        }
        if !join_type.emits_pairs() || self.probe_rows.is_empty() {
            return Ok(None);
        }
        let probe_rows = Rows::from_numbers(self.probe_rows.lend());
        let pairs =
            Pairs { build: self.partners.take(build), probe: SideRows::Of(&current.batch, probe_rows), mark: None };
        pairs.output(spec).map(Some)
    }

    /// The rows of a finished batch that are put out by whether they found a match.
    fn by_match(&self, current: ProbeBatch) -> Result<Option<RecordBatch>> {
        let Some(matched) = current.matched.map(|mut matched| matched.finish()) else { return Ok(None) };
        let mut mark = None;
        let rows = match self.spec.join_type {
            JoinType::RightMark => {
                mark = Some(if self.spec.null_aware {
                    let keys = self.spec.keys(Side::Probe, &current.batch)?;
                    self.facts.marks(matched, keys.matchable.as_ref())
                } else {
                    BooleanArray::new(matched, None)
                });
                Rows::Range(0, current.batch.num_rows())
            }
            JoinType::RightSemi => Rows::from_numbers(matched.set_indices_u32().collect::<Vec<_>>().into()),
            _ => Rows::from_numbers((!&matched).set_indices_u32().collect::<Vec<_>>().into()),
        };
        if rows.len() == 0 {
            return Ok(None);
        }
        let nulls = Rows::Nulls(rows.len());
        let pairs =
            Pairs { build: SideRows::Of(&self.build.batch, nulls), probe: SideRows::Of(&current.batch, rows), mark };
        pairs.output(&self.spec).map(Some)
    }
}

impl ProbeBatch {
    /// A batch of which no row has found a match yet, in the only pass.
    fn new(spec: &JoinSpec, batch: RecordBatch, search: Search) -> Self {
        let (sizes, matched) = (spec.row_sizes(Side::Probe, &batch), no_matches(spec, &batch));
        Self { batch, sizes, search, matched, more_passes: false }
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

fn retain<T>(rows: &mut Vec<T>, passed: &BooleanArray) {
    let mut row = 0;
    rows.retain(|_| {
        row += 1;
        passed.is_valid(row - 1) && passed.value(row - 1)
    });
}
