//! What a join asks of a GPU.

use std::sync::Arc;

use datafusion::common::{Result, config_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use overspill_advisor::Strategy;
use overspill_gpu_join::{DeviceObserver, DeviceRequest, DeviceShare, DeviceTuning, LinkCompressor};
use overspill_join::selection::Aggregate;

use super::exec::HybridJoinExec;
use super::metrics::DeviceMetrics;
use crate::advisor::GpuAdvisor;
use crate::config::{Choice, OverspillConfig};
use crate::device::{lost, with_advice};
use crate::runtime::OverspillRuntime;

impl HybridJoinExec {
    /// Chooses among the strategies of a GPU; `None` if the CPU joins. With `wants_pairs`, the GPU returns its pairs.
    pub(crate) fn gpu_advisor(
        &self,
        config: &OverspillConfig,
        runtime: &OverspillRuntime,
        wants_pairs: bool,
    ) -> Option<GpuAdvisor> {
        let rows = |input: &Arc<dyn ExecutionPlan>| {
            let statistics = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new()).ok()?;
            statistics.num_rows.get_value().map(|rows| *rows as u64)
        };
        let rows = if config.strategy == Choice::AUTO { [rows(self.left()), rows(self.right())] } else { [None; 2] };
        let (parts, threads) = self.parts_and_threads();
        let rows = rows.map(|rows| rows.map(|rows| rows / parts as u64));
        GpuAdvisor::new(config, runtime.machine(), rows, threads, wants_pairs)
    }

    /// The number of joins in this node and the threads of each: in `Partitioned` mode each partition is a join of its own.
    fn parts_and_threads(&self) -> (usize, usize) {
        let partitions = self.probe_partitions().max(1);
        if self.partition_mode() == PartitionMode::Partitioned { (partitions, 1) } else { (1, partitions) }
    }

    /// The GPU that runs the join, if the settings ask for one and its query has it, and the aggregates that kernels may compute of its
    /// pairs.
    pub(super) fn device_request(
        &self,
        config: &OverspillConfig,
        runtime: &OverspillRuntime,
        share: Arc<DeviceShare>,
        aggregates: Option<&[Aggregate]>,
    ) -> Result<Option<DeviceRequest>> {
        if share.is_taken_back() {
            return Ok(None);
        }
        let Some(mut advisor) = self.gpu_advisor(config, runtime, aggregates.is_none()) else { return Ok(None) };
        let cached_share = config.gpu_cached_share;
        if !(0.0..=1.0).contains(&cached_share) {
            return config_err!("overspill.gpu_cached_share = {cached_share} is not a share: it may be 0 to 1");
        }
        let observer = Arc::new(DeviceMetrics::new(&self.metrics));
        let gpu = match runtime.gpu(config) {
            Ok(gpu) => gpu,
            // The user did not ask for a GPU by name.
            Err(error) if advisor.may_choose_cpu() => {
                observer.refused(Strategy::GpuNoPartition, &error.to_string());
                return Ok(None);
            }
            Err(error) => match lost(&error) {
                Some(reason) => {
                    observer.failed(Strategy::GpuNoPartition, &with_advice(reason));
                    return Ok(None);
                }
                None => return Err(error),
            },
        };
        advisor.expect_gpus(gpu.joining());
        // Without measurements, partitioning is assumed to be faster than random reads of a table across the link.
        let tables_may_span = config.strategy.0 == Some(Strategy::GpuNoPartition) || advisor.is_measured();
        let (parts, threads) = self.parts_and_threads();
        let compression = runtime.machine().link_compression(config, parts * threads, gpu.joining());
        Ok(Some(DeviceRequest {
            prefix_sum: runtime.machine().prefix_sum(config, threads, &gpu),
            gpu,
            share,
            advisor: Arc::new(advisor),
            tables_may_span,
            transfer: config.transfer_method.0,
            compressor: Arc::new(LinkCompressor::new(compression)),
            cached_share,
            aggregates: aggregates.map(Arc::from),
            observer,
            tuning: DeviceTuning::default(),
        }))
    }
}
