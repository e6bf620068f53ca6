//! Finds pairs elsewhere than in a hash table in CPU memory: the seam for a GPU.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::aggregation::AggregatingStream;
use super::pairs::PairFinder;
use super::payload::PackedPayload;
use crate::error::Result;
use crate::memory::{Grant, UnitMemory};
use crate::spec::JoinSpec;

/// A processor that may take the build side of a join.
pub trait Accelerator: Debug + Send + Sync {
    /// Gives the build rows to the accelerator. Returns `None` if it does not take them, so that the CPU joins. `memory`
    /// already pays for the rows and for a hash table in CPU memory, which is built only if the accelerator fails. `threads` is
    /// the number of CPU threads that may work on the rows.
    ///
    /// Pairs contain the build rows as `payload` packs them. Without it they contain row numbers, and there is one batch at most.
    ///
    /// # Errors
    /// Fails if the keys cannot be computed.
    fn take(
        &self,
        spec: &JoinSpec,
        batches: &[RecordBatch],
        payload: Option<PackedPayload>,
        threads: usize,
        memory: &mut Grant,
    ) -> Result<Option<Arc<dyn AcceleratedRows>>>;
}

/// Build rows that an accelerator has taken.
pub trait AcceleratedRows: Debug + Send + Sync {
    /// How the build values of pairs unpack into columns; `None` if they are row numbers.
    fn payload(&self) -> Option<&PackedPayload>;

    /// Creates the finder for a stream of probe rows. `memory` pays for the rows that it collects, and `on_cpu` finds the pairs
    /// of the rows that the accelerator leaves. Pairs that the accelerator aggregates are not returned: their aggregates go to
    /// `aggregating`, or to another stream of the join. Without `aggregating`, it aggregates no pairs.
    fn finder(
        self: Arc<Self>,
        spec: &Arc<JoinSpec>,
        memory: &Arc<UnitMemory>,
        aggregating: Option<AggregatingStream>,
        on_cpu: Box<dyn PairFinder>,
    ) -> Box<dyn PairFinder>;
}
