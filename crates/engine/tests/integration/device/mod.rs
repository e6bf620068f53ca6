//! Joins and selections on the emulated device: random queries, failures of its driver, and settings.

mod aggregates;
mod faults;
mod indexes;
mod link_compression;
mod random;
mod selection;
mod settings;
mod several;
mod taken_back;

use datafusion::prelude::SessionContext;
use overspill::Strategy;

use crate::test_gpu::TestGpu;

const MIB: usize = 1 << 20;

/// All strategies that a GPU takes part in.
pub(crate) const STRATEGIES: [Strategy; 5] =
    [Strategy::GpuNoPartition, Strategy::Triton, Strategy::CpuPartitioned, Strategy::Het, Strategy::GpuHet];

/// The device, with exactly as much memory as joins may use: more than that is refused by the driver, which counts as a
/// failure.
pub(crate) fn start(memory: usize) -> TestGpu {
    let emulated = TestGpu::start();
    emulated.configure(&format!("memory={memory}"));
    emulated
}

/// Says what is left on the device once joins are over and it is let go.
pub(crate) fn leftovers(emulated: &TestGpu) -> Option<String> {
    overspill::OverspillRuntime::of_process().release();
    let statistics = emulated.statistics();
    (statistics.held() != [0; 9]).then(|| format!("{statistics:?}"))
}

async fn rows(ctx: &SessionContext, sql: &str) -> usize {
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    batches.iter().map(|batch| batch.num_rows()).sum()
}
