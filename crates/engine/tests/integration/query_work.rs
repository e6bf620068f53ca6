//! What `overspill machine --measure` finds of queries, on small tables.

use overspill::query_work::measure_queries;
use overspill::{DeviceKind, OverspillRuntime};

use crate::test_gpu::TestGpu;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_cost_is_a_number_on_both_processors() {
    let emulated = TestGpu::start();
    emulated.configure("memory=67108864");
    let runtime = OverspillRuntime::default();
    let measured = measure_queries(&runtime, Some(DeviceKind::Emulated), 2, 2_500).await.unwrap();
    assert!(measured.operators.len() > 10, "{measured:?}");
    assert!(measured.operators.values().all(|cost| *cost > 0.0 && *cost < 1e6), "{measured:?}");
    assert!((1.0..=8.0).contains(&measured.overlap), "{measured:?}");
    let gpu = measured.gpu.unwrap();
    assert!([gpu.join_cost, gpu.aggregate_cost].iter().all(|cost| (0.02..=50.0).contains(cost)), "{measured:?}");
    assert!(gpu.join_loss >= 0.0 && gpu.aggregate_loss.is_finite(), "{measured:?}");
    assert!([gpu.joins, gpu.aggregates, gpu.both].iter().all(|most| (1..=8).contains(most)), "{measured:?}");
    // The device has run them.
    assert!(emulated.statistics().launches_made > 100);
    assert_eq!(measure_queries(&runtime, None, 2, 1).await.unwrap().gpu, None);
}
