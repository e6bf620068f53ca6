//! What the readers of a plan share.

use std::sync::{Arc, OnceLock, Weak};

use datafusion::common::{Result, Statistics, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::execution_plan::SchedulingType;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use parking_lot::Mutex;

use super::run::{Partition, Run};
use super::store::Store;

/// A part of a query that several readers share.
#[derive(Debug)]
pub(super) struct Subplan {
    /// Its number in the query, from 1.
    pub id: usize,
    /// Those of the input.
    pub properties: Arc<PlanProperties>,
    /// What was kept of the rows.
    metrics: ExecutionPlanMetricsSet,
    statistics: OnceLock<Arc<Statistics>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    input: Arc<dyn ExecutionPlan>,
    /// Whether each reader that there was is still in a plan.
    readers: Vec<bool>,
    /// The run that is being started. The readers share it until each of them has started all its partitions.
    run: Option<Run>,
    reset: Reset,
}

/// The subplan that readers share once they are reset.
#[derive(Debug, Default)]
struct Reset {
    subplan: Weak<Subplan>,
    /// Which readers have been reset to it. One that is reset again begins another one.
    readers: Vec<usize>,
}

/// The place of a node among those that share a subplan. Dropped with the last copy of the node, it tells the others that nothing
/// need be kept for it.
#[derive(Debug)]
pub(super) struct Reader {
    pub subplan: Arc<Subplan>,
    number: usize,
}

impl Subplan {
    /// A subplan with the rows of `input`, as yet without readers.
    pub fn new(id: usize, input: Arc<dyn ExecutionPlan>) -> Arc<Self> {
        let properties = PlanProperties::clone(input.properties()).with_scheduling_type(SchedulingType::Cooperative);
        Arc::new(Self {
            id,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            statistics: OnceLock::new(),
            state: Mutex::new(State { input, readers: vec![], run: None, reset: Reset::default() }),
        })
    }

    pub fn input(&self) -> Arc<dyn ExecutionPlan> {
        Arc::clone(&self.state.lock().input)
    }

    /// Replaces the input by one with the same rows.
    pub fn set_input(&self, input: &Arc<dyn ExecutionPlan>) {
        self.state.lock().input = Arc::clone(input);
    }

    /// The number of readers in plans.
    pub fn readers(&self) -> usize {
        self.state.lock().readers.iter().filter(|is_there| **is_there).count()
    }

    pub fn metrics(&self) -> MetricsSet {
        self.metrics.clone_inner()
    }

    /// The statistics of the input.
    pub fn statistics(&self, args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        if let (None, Some(known)) = (args.partition(), self.statistics.get()) {
            return Ok(Arc::clone(known));
        }
        let statistics = StatisticsContext::new().compute(self.input().as_ref(), args)?;
        if args.partition().is_none() {
            self.statistics.get_or_init(|| Arc::clone(&statistics));
        }
        Ok(statistics)
    }

    /// A further reader.
    pub fn add_reader(self: &Arc<Self>) -> Arc<Reader> {
        let number = {
            let readers = &mut self.state.lock().readers;
            readers.push(true);
            readers.len() - 1
        };
        Arc::new(Reader { subplan: Arc::clone(self), number })
    }

    /// The subplan of readers that are reset.
    pub fn reset(&self, reader: usize) -> Arc<Self> {
        let mut state = self.state.lock();
        if let Some(subplan) = state.reset.subplan.upgrade().filter(|_| !state.reset.readers.contains(&reader)) {
            state.reset.readers.push(reader);
            return subplan;
        }
        let subplan = Self::new(self.id, Arc::clone(&state.input));
        state.reset = Reset { subplan: Arc::downgrade(&subplan), readers: vec![reader] };
        subplan
    }

    fn open(&self, reader: usize, partition: usize, context: &Arc<TaskContext>) -> Result<(Arc<Partition>, usize)> {
        let mut state = self.state.lock();
        if let Some(run) = &state.run
            && !run.awaits(reader, partition)
        {
            if run.is_read() {
                return exec_err!(
                    "A plan with shared subplans was executed again while it runs. Reset its state before, or make another plan, \
                     or SET overspill.shared_subplans = false"
                );
            }
            state.run = None;
        }
        let State { input, readers, run, .. } = &mut *state;
        let current = run.get_or_insert_with(|| {
            let store = Store::new(self.id, &input.schema(), &self.metrics, context);
            Run::new(input, readers, Arc::new(store), context)
        });
        let opened = current.open(reader, partition);
        if current.is_started() {
            *run = None;
        }
        Ok((opened, reader))
    }

    fn leave(&self, reader: usize) {
        let mut state = self.state.lock();
        state.readers[reader] = false;
        let State { run, .. } = &mut *state;
        if let Some(current) = run {
            current.leave(reader);
            if current.is_started() {
                *run = None;
            }
        }
    }
}

impl Reader {
    /// Where it is.
    pub fn place(&self) -> (Weak<Subplan>, usize) {
        (Arc::downgrade(&self.subplan), self.number)
    }

    /// Starts a partition. Returns it with the number of the reader there.
    ///
    /// # Errors
    /// If the partition was started before and its run has not ended.
    pub fn open(&self, partition: usize, context: &Arc<TaskContext>) -> Result<(Arc<Partition>, usize)> {
        self.subplan.open(self.number, partition, context)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.subplan.leave(self.number);
    }
}
