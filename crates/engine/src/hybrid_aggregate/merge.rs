//! The groups of an output stream.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use futures::StreamExt;
use overspill_join::grouping::Groups;

use super::Accumulators;
use super::files::Files;
use super::functions::{Functions, Layout};
use super::partitions::{Part, Rows, StatePartitions};
use crate::join_execution::to_datafusion;
use crate::memory::RAISE_MEMORY_LIMIT;

/// Bytes of groups that are merged even if the pool has no memory for them: a table that is much smaller cannot be split further.
const FLOOR: usize = 256 << 10;

/// The rows that are worth a table of their own, about.
pub(super) const FEW_ROWS: usize = 16 << 10;

/// Merges the states of one output's parts, one after the other, and returns the results of their groups.
pub(super) struct Merge {
    functions: Arc<Functions>,
    schema: SchemaRef,
    /// The parts that are to be merged; the last comes next.
    parts: Vec<Part>,
    groups: Groups,
    accumulators: Accumulators,
    numbers: Vec<usize>,
    /// Pays for the groups, and then for their results until the next part is merged.
    memory: MemoryReservation,
    results: VecDeque<RecordBatch>,
    files: Option<Arc<Files>>,
    baseline: BaselineMetrics,
    context: Arc<TaskContext>,
}

impl Merge {
    pub fn new(
        functions: &Arc<Functions>,
        schema: &SchemaRef,
        (partition, baseline): (usize, BaselineMetrics),
        files: Option<Arc<Files>>,
        context: &Arc<TaskContext>,
    ) -> Result<Self> {
        let consumer = MemoryConsumer::new(format!("HybridAggregateExec[{partition}]")).with_can_spill(true);
        Ok(Self {
            functions: Arc::clone(functions),
            schema: Arc::clone(schema),
            parts: vec![],
            groups: functions.groups()?,
            accumulators: functions.accumulators()?,
            numbers: vec![],
            memory: consumer.register(context.memory_pool()),
            results: VecDeque::new(),
            files,
            baseline,
            context: Arc::clone(context),
        })
    }

    /// Begins with the parts of the output.
    pub fn begin(&mut self, mut parts: Vec<Part>) {
        parts.reverse();
        self.parts = parts;
    }

    /// The next results; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.results.pop_front() {
                return Ok(Some(batch.record_output(&self.baseline)));
            }
            let Some(part) = self.parts.pop() else {
                self.memory.free();
                return Ok(None);
            };
            self.merge(part).await?;
            // The parts of a stream may all be in memory.
            tokio::task::consume_budget().await;
        }
    }

    /// Merges a part, or splits it into several if its groups need too much memory.
    async fn merge(&mut self, part: Part) -> Result<()> {
        let elapsed = self.baseline.elapsed_compute().clone();
        let mut split = None;
        for block in &part.blocks.blocks {
            let _timer = elapsed.timer();
            self.add(block.layout, block.rows(&part.partitions), part.level, &mut split)?;
        }
        for (layout, file) in part.files {
            let Some(files) = self.files.clone() else { return internal_err!("an aggregate has files without a disk") };
            let mut rows = files.read(layout, file);
            while let Some(batch) = rows.next().await {
                let _timer = elapsed.timer();
                self.add(layout, batch?.columns().to_vec(), part.level, &mut split)?;
            }
        }
        let _timer = elapsed.timer();
        let Some(split) = split else { return self.finish() };
        // Only this output's parts. Those of several partitions would again be too large.
        let parts = split.complete(1)?.into_iter().flatten();
        self.parts.extend(parts);
        Ok(())
    }

    /// Adds rows to the groups, or to the parts that this part is split into.
    fn add(
        &mut self,
        layout: Layout,
        columns: Vec<ArrayRef>,
        level: u32,
        split: &mut Option<StatePartitions>,
    ) -> Result<()> {
        if columns[0].is_empty() {
            return Ok(());
        }
        if let Some(split) = split {
            return split.add(&Rows::of(layout, columns));
        }
        self.numbers.clear();
        self.groups.number(&columns[..self.functions.keys()], &mut self.numbers).map_err(to_datafusion)?;
        let groups = self.groups.len();
        let values = (layout, &columns[self.functions.keys()..]);
        self.functions.merge(&mut self.accumulators, values, &self.numbers, groups)?;
        let bytes = self.bytes();
        // In steps, as the pool is shared.
        let has_room = bytes <= self.memory.size()
            || self.memory.try_resize(bytes + bytes / 4).is_ok()
            || self.memory.try_resize(bytes).is_ok();
        if has_room || bytes <= FLOOR {
            return Ok(());
        }
        if !StatePartitions::can_split(level) {
            return exec_err!(
                "An aggregate needs {bytes} bytes for groups whose keys have almost the same hash, more than the memory limit leaves. \
                 {RAISE_MEMORY_LIMIT}"
            );
        }
        let pool = self.context.memory_pool();
        let parts = StatePartitions::new(&self.functions, 1, level + 1, self.files.clone(), pool);
        let states = self.take(|accumulator| accumulator.state(EmitTo::All))?;
        // The table of these groups is too large for those of a part of them.
        self.groups = self.functions.groups()?;
        self.memory.free();
        parts.add(&Rows::of(Layout::States, states))?;
        *split = Some(parts);
        Ok(())
    }

    /// Bytes of the groups.
    fn bytes(&self) -> usize {
        let states = self.accumulators.iter().map(|accumulator| accumulator.size()).sum::<usize>();
        self.groups.bytes() + states + self.numbers.capacity() * size_of::<usize>()
    }

    /// The keys of all groups, with columns of each accumulator. No group is left.
    fn take(
        &mut self,
        columns_of: impl Fn(&mut Box<dyn GroupsAccumulator>) -> Result<Vec<ArrayRef>>,
    ) -> Result<Vec<ArrayRef>> {
        let mut columns = self.groups.take().map_err(to_datafusion)?;
        for accumulator in &mut self.accumulators {
            columns.extend(columns_of(accumulator)?);
        }
        Ok(columns)
    }

    /// Makes results of the groups.
    fn finish(&mut self) -> Result<()> {
        let columns = self.take(|accumulator| Ok(vec![accumulator.evaluate(EmitTo::All)?]))?;
        let results = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let size = self.context.session_config().batch_size();
        let starts = (0..results.num_rows()).step_by(size);
        self.results = starts.map(|start| results.slice(start, size.min(results.num_rows() - start))).collect();
        Ok(())
    }
}
