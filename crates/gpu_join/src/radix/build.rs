//! The build side of a partitioned join.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use overspill_kernels::{FinePartitions, Kernels, SecondPass};
use overspill_machine::Result;
use overspill_machine::driver::Queued;

use super::fine::{FirstPass, whole};
use super::plan::RadixPlan;
use crate::device::{DeviceRequest, Resident};

/// A partition after the second pass, or while it is in that pass.
pub(super) type Refined = Arc<Queued<FinePartitions>>;

/// A build side that a first pass has partitioned.
#[derive(Debug)]
pub(crate) struct RadixBuild {
    pub(crate) plan: RadixPlan,
    pub(crate) relation: Box<dyn FirstPass>,
    /// Second-pass output of some partitions, with the GPU memory reserved for it.
    kept: Mutex<HashMap<usize, (Refined, Resident)>>,
    _resident: Option<Resident>,
}

impl RadixBuild {
    /// Creates a build side from a partitioned relation. `resident` is the GPU memory reserved for the relation, if any.
    pub(crate) fn new(plan: RadixPlan, relation: impl FirstPass + 'static, resident: Option<Resident>) -> Self {
        Self { plan, relation: Box::new(relation), kept: Mutex::default(), _resident: resident }
    }

    fn kept(&self, partition: usize) -> Option<Refined> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(&partition).map(|(fine, _)| Arc::clone(fine))
    }

    /// Queues the second pass over the partition; `None` if it is larger than planned. Keeps the result if there is GPU memory
    /// for it.
    pub(super) fn fine(
        &self,
        request: &DeviceRequest,
        pass: &mut SecondPass<'_>,
        kernels: &Kernels,
        partition: usize,
    ) -> Result<Option<Refined>> {
        if self.relation.tuples(partition) > self.plan.piece {
            return Ok(None);
        }
        if let Some(fine) = self.kept(partition) {
            return Ok(Some(fine));
        }
        let tuples = whole(&*self.relation, &request.gpu, partition, self.plan.piece)?;
        let Some(tuples) = tuples else { return Ok(None) };
        let count = tuples.count();
        let fine = Arc::new(tuples.refine(request, pass, kernels, self.plan.second(count)?)?);
        if self.relation.is_staged()
            && let Ok(resident) = request.gpu.reserve_resident(fine.result().bytes())
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.insert(partition, (Arc::clone(&fine), resident));
        }
        Ok(Some(fine))
    }

    /// Runs the second pass over partitions and keeps the results, as many as fit GPU memory.
    pub(crate) fn keep_what_fits(&self, request: &DeviceRequest) -> Result<()> {
        let gpu = &request.gpu;
        let mut bench = request.turn()?;
        bench.drop_pipeline();
        let stream = &bench.stream;
        let most = (0..self.relation.fanout()).map(|partition| self.relation.tuples(partition)).max().unwrap_or(0);
        let mut pass = SecondPass::new(stream, most.min(self.plan.piece));
        for partition in 0..self.relation.fanout() {
            let tuples = self.relation.tuples(partition);
            if tuples > 0 && self.kept(partition).is_none() {
                // Bytes of the second-pass output per tuple, including alignment.
                if gpu.resident_left() < tuples * 20 {
                    break;
                }
                // The memory that a pass needs beside its result is planned for one pass.
                self.fine(request, &mut pass, &gpu.kernels, partition)?.iter().for_each(|fine| fine.settle());
            }
        }
        Ok(())
    }
}
