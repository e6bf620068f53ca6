//! A build side that a GPU joins.

use std::sync::Arc;

use arrow::array::RecordBatch;
use overspill_kernels::PairSide;

use super::payload::PackedPayload;
use crate::device::{BuildColumns, DeviceRequest, DeviceTable, PairAggregates};
use crate::error::Result;
use crate::keys::Keys;
use crate::memory::Grant;
use crate::spec::{JoinSpec, Side};

/// What a GPU has taken in of a build side, and what the CPU needs to make rows of the pairs that it finds.
#[derive(Debug)]
pub(super) struct DeviceBuild {
    pub(super) request: DeviceRequest,
    pub(super) table: Arc<DeviceTable>,
    /// How the values of build rows are their columns; `None` if they are the rows' numbers.
    pub(super) payload: Option<PackedPayload>,
    /// What kernels aggregate pairs to, where nobody wants the pairs.
    pub(super) aggregates: Option<Arc<PairAggregates>>,
    /// The keys, if the GPU joins their hashes, so that rows whose hashes agree can be told apart.
    pub(super) keys: Option<Keys>,
}

impl DeviceBuild {
    /// Gives the rows of a build side to a GPU; `None` if it does not take them. `memory` pays for them and for the making of an
    /// index, which is not made now.
    pub(super) fn try_new(
        spec: &JoinSpec,
        request: &DeviceRequest,
        batch: &RecordBatch,
        memory: &mut Grant,
    ) -> Result<Option<Self>> {
        let rows = batch.num_rows();
        // Keys are looked at only if somebody wants the rows.
        let Some(strategy) = request.advisor.strategies(rows as u64, true).first().copied().filter(|_| rows > 0) else {
            return Ok(None);
        };
        let keys = spec.keys(Side::Build, batch)?;
        // Beside those for an index, which the CPU makes if the GPU fails.
        let needed = DeviceTable::host_bytes(rows) + rows * spec.codec.packed_bytes().unwrap_or(0) + keys.bytes();
        if memory.try_grow(needed).is_err() {
            let reason =
                format!("there are no {needed} bytes of memory to give {rows} rows of its build side to the GPU");
            request.observer.refused(strategy, &reason);
            return Ok(None);
        }
        let payload = PackedPayload::of(spec, Side::Build)
            .filter(|payload| wants_no_numbers(spec) && !payload.is_empty() && payload.takes(batch));
        let words = payload.as_ref().map(|payload| payload.pack(batch));
        let columns = match BuildColumns::new(&request.gpu, &keys, words.as_ref(), spec.build_threads) {
            Ok(columns) => columns,
            Err(error) => {
                request.report(strategy, &error);
                return Ok(None);
            }
        };
        drop(words);
        let Some(table) = DeviceTable::build(request, columns, spec.build_threads, memory) else { return Ok(None) };
        let key_bytes =
            if spec.codec.is_word() { 0 } else { rows * spec.codec.packed_bytes().unwrap_or(0) + keys.bytes() };
        memory.shrink(needed.saturating_sub(table.resident_host_bytes() + key_bytes));
        let keys = (!spec.codec.is_word()).then_some(keys);
        let probe = PackedPayload::of(spec, Side::Probe);
        let aggregates = request.aggregates.as_ref().and_then(|aggregates| {
            PairAggregates::new(spec, aggregates, |side, index| match side {
                PairSide::Build => payload.as_ref()?.place(index),
                PairSide::Probe => probe.as_ref()?.place(index),
            })
        });
        let aggregates = aggregates.map(Arc::new);
        Ok(Some(Self { request: request.clone(), table: Arc::new(table), payload, aggregates, keys }))
    }
}

impl DeviceBuild {
    /// Leaves the pairs whose keys are the same: of those with the same word keys are compared again, and rows without a
    /// key have one that others may have.
    pub(super) fn keep_equal(&self, keys: &Keys, build: &mut Vec<u64>, probe: &mut Vec<u64>) {
        let mut kept = 0;
        for place in 0..build.len() {
            let (build_row, row) = (build[place] as usize, probe[place] as usize);
            let is_same = |build_keys: &Keys| keys.are_equal(row, build_keys, build_row);
            if keys.is_matchable(row) && self.keys.as_ref().is_none_or(is_same) {
                (build[kept], probe[kept]) = (build[place], probe[place]);
                kept += 1;
            }
        }
        build.truncate(kept);
        probe.truncate(kept);
    }
}

/// Whether rows of the build side are put out only with their matches, and keys are joined as they are: then nobody asks
/// which row a pair is of.
pub(super) fn wants_no_numbers(spec: &JoinSpec) -> bool {
    spec.codec.is_word() && spec.join_type.emits_pairs() && !spec.join_type.emits_build_at_end()
}
