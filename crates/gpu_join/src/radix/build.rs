//! The build side of a partitioned join.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use overspill_kernels::Kernels;
use overspill_machine::Result;
use overspill_machine::driver::Stream;

use super::fine::{FinePartitions, FirstPass, whole};
use super::plan::RadixPlan;
use crate::device::{DeviceCount, DeviceRequest, Resident};

/// A build side that a first pass has partitioned.
#[derive(Debug)]
pub(crate) struct RadixBuild {
    pub(crate) plan: RadixPlan,
    pub(crate) relation: Box<dyn FirstPass>,
    /// Second-pass output of some partitions, with the GPU memory reserved for it.
    kept: Mutex<HashMap<usize, (Arc<FinePartitions>, Resident)>>,
    _resident: Option<Resident>,
}

impl RadixBuild {
    /// Creates a build side from a partitioned relation. `resident` is the GPU memory reserved for the relation, if any.
    pub(crate) fn new(plan: RadixPlan, relation: impl FirstPass + 'static, resident: Option<Resident>) -> Self {
        Self { plan, relation: Box::new(relation), kept: Mutex::default(), _resident: resident }
    }

    fn kept(&self, partition: usize) -> Option<Arc<FinePartitions>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(&partition).map(|(fine, _)| Arc::clone(fine))
    }

    /// Returns the partition after the second pass; `None` if it is larger than planned. Keeps it if there is GPU memory for
    /// it.
    pub(super) fn fine(
        &self,
        request: &DeviceRequest,
        kernels: &Kernels,
        stream: &Stream,
        partition: usize,
    ) -> Result<Option<Arc<FinePartitions>>> {
        if self.relation.tuples(partition) > self.plan.piece {
            return Ok(None);
        }
        if let Some(fine) = self.kept(partition) {
            return Ok(Some(fine));
        }
        let tuples = whole(&*self.relation, &request.gpu, partition, self.plan.piece)?;
        let Some(tuples) = tuples else { return Ok(None) };
        let radix = self.plan.second(tuples.count)?;
        let fine = Arc::new(tuples.refine(kernels, stream, 0, tuples.count, radix)?);
        request.observer.add(DeviceCount::LinkBytes, tuples.link_bytes(tuples.count));
        if self.relation.keeps_fine_partitions()
            && let Ok(resident) = request.gpu.reserve_resident(fine.bytes())
        {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.insert(partition, (Arc::clone(&fine), resident));
        }
        Ok(Some(fine))
    }

    /// Runs the second pass over partitions and keeps the results, as many as fit GPU memory.
    pub(crate) fn keep_what_fits(&self, request: &DeviceRequest) -> Result<()> {
        let gpu = &request.gpu;
        let mut bench = gpu.turn();
        bench.drop_pipeline();
        for partition in 0..self.relation.fanout() {
            let tuples = self.relation.tuples(partition);
            if tuples > 0 && self.kept(partition).is_none() {
                // Bytes of the second-pass output per tuple, including alignment.
                if gpu.resident_left() < tuples * 20 {
                    break;
                }
                self.fine(request, &gpu.kernels, &bench.stream, partition)?;
            }
        }
        Ok(())
    }
}
