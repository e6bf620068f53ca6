//! Reads both sides of a join until one ends.

use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use overspill_join::memory::{Grant, UnitMemory};

use super::exchanged::Exchanged;
use crate::hybrid_join::estimate::EstimatedRows;
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::read_ahead::{Kept, ReadAhead, Reading};

/// How many times its estimate a build side has when the probe side is read, too.
const TIMES_ESTIMATE: f64 = 4.0;

/// The rows of a build side that are not worth a look at the other side: a hash table of them takes some milliseconds.
const FEW_ROWS: f64 = 262_144.0;

/// When the build sides of an execution race with their probe sides, and what becomes of the join if they lose.
pub(in crate::hybrid_join) struct RaceRules {
    exchanged: Exchanged,
    /// The rows of a build side at which its race begins; `None` if races begin at once and probe sides are to win them.
    begins_at: Option<f64>,
}

impl RaceRules {
    /// Races begin once a build side has many more rows than the join was estimated to have in `parts` of them.
    pub fn unexpected(exchanged: Exchanged, estimate: EstimatedRows, parts: usize) -> Self {
        let begins_at = (TIMES_ESTIMATE * estimate.build).max(FEW_ROWS) / parts.max(1) as f64;
        Self { exchanged, begins_at: Some(begins_at) }
    }

    /// Probe sides win all races, if there is memory for them.
    pub fn forced(exchanged: Exchanged) -> Self {
        Self { exchanged, begins_at: None }
    }
}

/// A build side's race with its probe side.
pub(in crate::hybrid_join) struct Race {
    pub rules: Arc<RaceRules>,
    pub probe: Arc<ReadAhead>,
}

/// A build side that races with its probe side.
pub(in crate::hybrid_join) trait RacingBuild: Sized {
    /// Adds rows.
    ///
    /// # Errors
    /// Those of their expressions, and of the disk.
    fn push(&mut self, batch: RecordBatch) -> Result<()>;

    /// Whether no row has left memory.
    fn is_in_memory(&self) -> bool;

    /// The rows read so far, each batch with its bytes, and the memory that pays for them; `None` if some have left memory.
    fn into_rows(self) -> Option<(Vec<(RecordBatch, usize)>, Grant)>;

    /// The memory of the join.
    fn memory(&self) -> &JoinMemory;
}

/// How a race ended.
pub(in crate::hybrid_join) enum Raced<B> {
    /// The join goes on as planned.
    Planned(B),
    /// The join with exchanged sides.
    Exchanged(Arc<dyn ExecutionPlan>),
}

/// The next batch of a side; `None` at its end.
enum Next {
    Build(Option<RecordBatch>),
    Probe(Option<(usize, RecordBatch)>),
}

impl Race {
    /// Whether the race begins. `rows` is the number of build rows that the join has read.
    pub fn is_due(&self, rows: usize) -> bool {
        self.rules.begins_at.is_none_or(|begins_at| rows as f64 > begins_at)
    }

    /// Reads both sides until one of them ends, or there is no more memory to keep what is read, or for another join.
    ///
    /// `input` is the rest of the build side; none is left once that has ended.
    ///
    /// # Errors
    /// Those of both sides.
    pub async fn run<B: RacingBuild>(
        &self,
        mut build: B,
        input: &mut Option<SendableRecordBatchStream>,
        memory: &Arc<UnitMemory>,
    ) -> Result<Raced<B>> {
        let mut probe = self.probe.begin(memory)?;
        let is_forced = self.rules.begins_at.is_none();
        let mut is_probe_first = true;
        while build.is_in_memory() {
            is_probe_first = is_forced || !is_probe_first;
            // The build side is read in a forced race, too: other processes may wait for their part of it.
            let next =
                std::future::poll_fn(|context| next(input.as_mut(), &mut probe, is_probe_first, context)).await?;
            // Tasks that read the other side may wait for this thread.
            tokio::task::yield_now().await;
            match next {
                Next::Build(Some(batch)) => build.push(batch)?,
                Next::Build(None) => {
                    *input = None;
                    if !is_forced {
                        break;
                    }
                }
                Next::Probe(Some((partition, batch))) => {
                    if !probe.keep(partition, batch) {
                        break;
                    }
                }
                Next::Probe(None) => {
                    let Some(room) = self.rules.exchanged.room(build.memory()) else { break };
                    let Some((rows, paid)) = build.into_rows() else {
                        return internal_err!("a build side that is in memory does not give its rows back");
                    };
                    let kept = probe.into_kept().collect();
                    let build = Kept::new(rows, paid);
                    return self.rules.exchanged.join(kept, build, input.take(), room).map(Raced::Exchanged);
                }
            }
        }
        self.probe.end(probe);
        Ok(Raced::Planned(build))
    }
}

/// The next batch of a side that has one.
fn next(
    mut build: Option<&mut SendableRecordBatchStream>,
    probe: &mut Reading,
    is_probe_first: bool,
    context: &mut Context<'_>,
) -> Poll<Result<Next>> {
    let mut of_build = |context: &mut Context<'_>| match build.as_mut() {
        Some(build) => build.poll_next_unpin(context).map(|batch| batch.transpose().map(Next::Build)),
        None => Poll::Pending,
    };
    if !is_probe_first && let Poll::Ready(next) = of_build(context) {
        return Poll::Ready(next);
    }
    if let Poll::Ready(batch) = probe.poll_next(context) {
        return Poll::Ready(batch.transpose().map(Next::Probe));
    }
    if is_probe_first { of_build(context) } else { Poll::Pending }
}
