//! A build side that is joined on a GPU.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use overspill_kernels::PairSide;

use crate::co_processing::SharedTable;
use crate::collected::LeftRows;
use crate::device::{BuildColumns, DeviceCount, DeviceRequest, PairAggregates};
use crate::table::DeviceTable;
use overspill_join::Result;
use overspill_join::hybrid::{AcceleratedRows, Accelerator, PackedPayload};
use overspill_join::keys::Keys;
use overspill_join::memory::Grant;
use overspill_join::parallel::in_parallel;
use overspill_join::spec::{JoinSpec, Side};

/// A build side on a GPU, and what the CPU needs to build rows from the pairs that the GPU finds.
#[derive(Debug)]
pub(crate) struct DeviceBuild {
    pub(crate) request: DeviceRequest,
    /// The table; `None` once the query's share was taken back.
    table: Mutex<Option<Arc<DeviceTable>>>,
    /// The same, if the CPU looks up keys in it as well. It stays until the join ends.
    shared: Option<Arc<DeviceTable>>,
    /// How build values unpack into columns; `None` if the values are row numbers.
    pub(crate) payload: Option<PackedPayload>,
    /// What kernels aggregate the pairs to, if the query needs only the aggregates.
    pub(crate) aggregates: Option<Arc<PairAggregates>>,
    /// The keys, if the GPU joins their hashes: the CPU compares the keys of rows with equal hashes.
    pub(crate) keys: Option<Keys>,
    /// Probe rows that streams have left to the last of them.
    pub(crate) left: LeftRows,
}

impl Accelerator for DeviceRequest {
    fn take(
        &self,
        spec: &JoinSpec,
        batches: &[RecordBatch],
        payload: Option<PackedPayload>,
        threads: usize,
        memory: &mut Grant,
    ) -> Result<Option<Arc<dyn AcceleratedRows>>> {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        // Computes the keys only if a GPU strategy applies.
        let Some(strategy) = self.advisor.strategies(rows as u64, true).first().copied().filter(|_| rows > 0) else {
            return Ok(None);
        };
        self.share.build_side_read(rows as u64);
        if self.share.is_taken_back() {
            self.observer.add(DeviceCount::Moves, 1);
            return Ok(None);
        }
        let keys = in_parallel(threads, batches.iter().collect(), |batch| spec.keys(Side::Build, batch));
        let keys = keys.into_iter().collect::<Result<Vec<_>>>()?;
        let key_bytes = rows * spec.codec.packed_bytes().unwrap_or(0) + keys.iter().map(Keys::bytes).sum::<usize>();
        // In addition to the memory for an index, which the CPU builds if the GPU fails.
        let needed = DeviceTable::host_bytes(rows) + key_bytes;
        if memory.try_grow(needed).is_err() {
            let reason =
                format!("there are no {needed} bytes of memory to give {rows} rows of its build side to the GPU");
            self.observer.refused(strategy, &reason);
            return Ok(None);
        }
        let words =
            payload.as_ref().map(|payload| in_parallel(threads, batches.iter().collect(), |batch| payload.pack(batch)));
        let columns = match BuildColumns::new(&self.gpu, &keys, words.as_deref(), threads) {
            Ok(columns) => columns,
            Err(error) => {
                self.report(strategy, &error);
                return Ok(None);
            }
        };
        drop(words);
        let Some(table) = DeviceTable::build(self, columns, threads, memory) else { return Ok(None) };
        // Keys that are not words are compared. Pairs then have row numbers, so that there is one batch.
        let keys = if spec.codec.is_word() { None } else { keys.into_iter().next() };
        let key_bytes = if keys.is_some() { key_bytes } else { 0 };
        memory.shrink(needed.saturating_sub(table.resident_host_bytes() + key_bytes));
        let probe = PackedPayload::of(spec, Side::Probe);
        let aggregates = self.aggregates.as_ref().and_then(|aggregates| {
            PairAggregates::new(spec, aggregates, |side, index| match side {
                PairSide::Build => payload.as_ref()?.place(index),
                PairSide::Probe => probe.as_ref()?.place(index),
            })
        });
        let aggregates = aggregates.map(Arc::new);
        let (request, table) = (self.clone(), Arc::new(table));
        let shared = table.shared().is_some().then(|| Arc::clone(&table));
        let (table, left) = (Mutex::new(Some(table)), LeftRows::default());
        Ok(Some(Arc::new(DeviceBuild { request, table, shared, payload, aggregates, keys, left })))
    }
}

impl DeviceBuild {
    /// The table that the GPU reads. Once the query's share was taken back there is none, and its GPU memory is free as soon as no chunk
    /// needs it.
    pub(crate) fn table(&self) -> Option<Arc<DeviceTable>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if self.request.share.is_taken_back() && table.take().is_some() {
            self.request.observer.add(DeviceCount::Moves, 1);
        }
        table.clone()
    }

    /// The table, if CPU and GPU look up keys in it.
    pub(crate) fn shared(&self) -> Option<&SharedTable> {
        self.shared.as_ref()?.shared()
    }

    /// The table in which rows are looked up: by a GPU, or by the CPU as well.
    pub(crate) fn searched(&self) -> Option<Arc<DeviceTable>> {
        self.shared.clone().or_else(|| self.table())
    }

    /// Keeps only the pairs with equal keys. If the GPU joins hashes, it compares the keys. It also drops probe rows that
    /// cannot match: their key word may be that of other rows.
    pub(crate) fn keep_equal(&self, keys: &Keys, build: &mut Vec<u64>, probe: &mut Vec<u64>) {
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
