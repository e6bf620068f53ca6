//! One output stream: one row.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::filter::batch_filter;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, RecordOutput};
use datafusion::physical_plan::stream::{EmptyRecordBatchStream, RecordBatchStreamAdapter};
use futures::StreamExt;
use overspill_gpu_join::DeviceProblem;
use overspill_gpu_join::selection::DeviceSelection;
use overspill_join::memory::HeldMemory;
use overspill_join::selection::{CpuSelection, Evaluation, Selection};
use overspill_machine::DeviceKind;

use super::metrics::{DeviceMetrics, FilterAggregateMetrics};
use super::planned::Planned;
use crate::config::OverspillConfig;
use crate::device::{lost, share_of};
use crate::fused_aggregate::Accumulators;
use crate::runtime::OverspillRuntime;

/// Reads a partition of the input and aggregates its rows that pass the filter.
pub(super) struct FilterAggregateStream {
    input: SendableRecordBatchStream,
    selection: Arc<Selection>,
    cpu: CpuSelection,
    device: Option<Device>,
    /// Metrics of the GPU that was meant to select. They are kept after it has stopped selecting.
    device_metrics: Option<DeviceMetrics>,
    planned: Unfused,
    metrics: FilterAggregateMetrics,
}

/// DataFusion's filter and accumulators for rows that selections do not support. The aggregates of all other rows are merged
/// into them.
struct Unfused {
    predicate: Arc<dyn PhysicalExpr>,
    columns: Vec<usize>,
    accumulators: Accumulators,
}

/// Rows on their way to a GPU.
struct Device {
    selection: DeviceSelection,
    /// The collected batches, in case the GPU fails.
    batches: Vec<RecordBatch>,
    held: HeldMemory,
    held_bytes: usize,
    reservation: MemoryReservation,
    metrics: DeviceMetrics,
}

impl FilterAggregateStream {
    pub fn new(
        planned: &Planned,
        selection: &Arc<Selection>,
        input: SendableRecordBatchStream,
        config: &OverspillConfig,
        context: &TaskContext,
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
    ) -> Result<Self> {
        let evaluation = config.selection.evaluation();
        let share = share_of(context.session_config());
        let mut device_metrics = None;
        let device = match config.device.0 {
            None | Some(DeviceKind::Cpu) => None,
            Some(DeviceKind::Gpu | DeviceKind::Emulated) if share.is_taken_back() => None,
            Some(DeviceKind::Gpu | DeviceKind::Emulated) => {
                let metrics = DeviceMetrics::new(metrics, partition);
                device_metrics = Some(metrics.clone());
                let opened = match OverspillRuntime::of(context.session_config()).gpu(config) {
                    Ok(gpu) => {
                        let transfer = config.transfer_method.0;
                        let selection = Arc::clone(selection);
                        DeviceSelection::new(gpu, share, selection, &input.schema(), transfer, evaluation)
                    }
                    Err(error) => {
                        let reason = lost(&error).cloned().ok_or(error)?;
                        Err(DeviceProblem::Failed(reason))
                    }
                };
                let opened = opened.inspect_err(|problem| metrics.count_problem(problem)).ok();
                opened.map(|selection| Device {
                    selection,
                    batches: Vec::new(),
                    held: HeldMemory::default(),
                    held_bytes: 0,
                    reservation: MemoryConsumer::new(format!("FilterAggregate[{partition}] rows for the GPU"))
                        .register(context.memory_pool()),
                    metrics,
                })
            }
        };
        Ok(Self {
            planned: Unfused::new(planned)?,
            cpu: CpuSelection::new(Arc::clone(selection), evaluation),
            selection: Arc::clone(selection),
            metrics: FilterAggregateMetrics::new(metrics, partition),
            device,
            device_metrics,
            input,
        })
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.planned.accumulators.schema();
        Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::once(self.run())))
    }

    async fn run(mut self) -> Result<RecordBatch> {
        let elapsed = self.metrics.baseline.elapsed_compute().clone();
        while let Some(batch) = self.input.next().await {
            let batch = batch?;
            let _timer = elapsed.timer();
            self.metrics.input_rows.add(batch.num_rows());
            self.offer(&batch).await?;
        }
        // The input may free its memory.
        self.input = Box::pin(EmptyRecordBatchStream::new(self.input.schema()));
        let _timer = elapsed.timer();
        self.run_device().await?;
        self.metrics.selected_rows.add(usize::try_from(self.cpu.state().selected()).unwrap_or(usize::MAX));
        self.planned.accumulators.merge(&self.selection, self.cpu.state())?;
        self.planned.accumulators.finish().record_output(&self.metrics.baseline)
    }

    /// Selects the rows of a batch on the CPU.
    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        match self.cpu.push(batch) {
            Some(Evaluation::Branching) => self.metrics.branching_batches.add(1),
            Some(Evaluation::Predicated | Evaluation::Auto) => self.metrics.predicated_batches.add(1),
            None => {
                self.metrics.unfused_rows.add(batch.num_rows());
                let selected = self.planned.take(batch)?;
                self.metrics.selected_rows.add(selected);
            }
        }
        Ok(())
    }

    /// Selects a batch on the CPU, and counts its rows as returned if there was a GPU.
    fn take_returned(&mut self, batch: &RecordBatch) -> Result<()> {
        if let Some(metrics) = &self.device_metrics {
            metrics.returned_rows.add(batch.num_rows());
        }
        self.take(batch)
    }

    /// Gives a batch to the GPU, or to the CPU if the GPU does not take it.
    async fn offer(&mut self, batch: &RecordBatch) -> Result<()> {
        loop {
            match self.device.as_mut().map(|device| device.collect(batch)) {
                Some(Collected::Yes) => return Ok(()),
                Some(Collected::Full) => return self.run_device().await,
                // No other rows are left when it is offered again.
                Some(Collected::AfterOthers) => self.run_device().await?,
                Some(Collected::No) | None => return self.take_returned(batch),
            }
        }
    }

    /// Lets the GPU select the collected rows. If it does not, the CPU selects them and continues alone.
    async fn run_device(&mut self) -> Result<()> {
        let Some(device) = self.device.as_mut().filter(|device| !device.batches.is_empty()) else { return Ok(()) };
        // Their memory stays reserved.
        let batches = std::mem::take(&mut device.batches);
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        match device.selection.run().await {
            Ok(found) => {
                device.metrics.rows.add(rows);
                device.metrics.link_bytes.add(usize::try_from(found.link_bytes).unwrap_or(usize::MAX));
                self.cpu.merge(&found.state);
                device.free();
            }
            Err(problem) => {
                device.metrics.count_problem(&problem);
                // The memory is released when the batches are processed.
                let _device = self.device.take();
                for batch in &batches {
                    self.take_returned(batch)?;
                }
            }
        }
        Ok(())
    }
}

/// The result of offering a batch to the GPU.
enum Collected {
    /// The GPU took it, and there is room for more.
    Yes,
    /// The GPU took it, and the collected rows must be selected next.
    Full,
    /// The collected rows must be selected before there is room for the batch.
    AfterOthers,
    /// The CPU must take it.
    No,
}

impl Device {
    fn collect(&mut self, batch: &RecordBatch) -> Collected {
        if batch.num_rows() == 0 {
            return Collected::Yes;
        }
        let Some(columns) = self.selection.columns(batch) else { return Collected::No };
        let grown = self.held_bytes + self.held.add(batch);
        if self.reservation.try_resize(grown + self.selection.host_bytes(batch.num_rows())).is_err() {
            if !self.batches.is_empty() {
                return Collected::AfterOthers;
            }
            self.free();
            return Collected::No;
        }
        self.held_bytes = grown;
        self.metrics.peak_mem_used.set_max(self.reservation.size());
        self.selection.collect(columns);
        self.batches.push(batch.clone());
        if self.selection.is_full() { Collected::Full } else { Collected::Yes }
    }

    fn free(&mut self) {
        self.held = HeldMemory::default();
        self.held_bytes = 0;
        self.reservation.free();
    }
}

impl Unfused {
    fn new(planned: &Planned) -> Result<Self> {
        let columns = planned.columns().ok_or_else(|| {
            DataFusionError::Internal("FilterAggregateExec over a projection of more than columns".to_owned())
        })?;
        Ok(Self {
            predicate: Arc::clone(planned.filter()?.predicate()),
            columns,
            accumulators: Accumulators::new(planned.aggregate.node())?,
        })
    }

    /// Filters and aggregates a batch as DataFusion does; returns how many rows passed.
    fn take(&mut self, batch: &RecordBatch) -> Result<usize> {
        let filtered = batch_filter(batch, &self.predicate)?.project(&self.columns)?;
        self.accumulators.take(&filtered)?;
        Ok(filtered.num_rows())
    }
}
