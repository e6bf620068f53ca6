//! What the schedule's decisions do to queries.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use overspill_schedule::{Class, Place};

use super::prediction::Prediction;
use super::ticket::Admitted;
use super::{QueryId, QueryState, QueryUser, Scheduler, SchedulerConfig, Ticket};

fn scheduler() -> Arc<Scheduler> {
    let config = SchedulerConfig { most_running: 8, brief: Duration::ZERO, ..SchedulerConfig::default() };
    Arc::new(Scheduler::new(config).unwrap())
}

/// A query with these predicted seconds arrives. Plans of the same shape have the same CPU time.
fn arrives(scheduler: &Arc<Scheduler>, cpu: f64, gpu: f64) -> Ticket {
    let memory: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let prediction = Prediction { cpu, gpu: Some(gpu), gpu_memory: 0, class: Class::Join, shape: cpu as u64 };
    Ticket::new(scheduler, QueryUser::default(), prediction, &memory, 1)
}

async fn admitted(ticket: &Ticket) -> Admitted {
    tokio::time::timeout(Duration::from_secs(20), ticket.admitted()).await.unwrap().unwrap()
}

fn place(scheduler: &Scheduler, id: u64) -> Option<Place> {
    let found = scheduler.queries().into_iter().find(|query| query.id == QueryId(id))?;
    match found.state {
        QueryState::Running { place, .. } => Some(place),
        QueryState::Waiting | QueryState::Stopping => None,
    }
}

#[tokio::test]
async fn a_query_that_gains_little_leaves_the_gpu_to_one_that_gains_much() {
    let scheduler = scheduler();
    let first = arrives(&scheduler, 1000.0, 800.0);
    let of_first = admitted(&first).await;
    assert_eq!((of_first.place, of_first.gpu.is_taken_back()), (Place::Gpu, false));
    let second = arrives(&scheduler, 3000.0, 500.0);
    let of_second = admitted(&second).await;
    assert_eq!((of_second.place, of_second.gpu.is_taken_back()), (Place::Gpu, false));
    // It was told so, and shows it.
    assert!(of_first.gpu.is_taken_back());
    assert_eq!([1, 2].map(|id| place(&scheduler, id)), [Some(Place::Cpu), Some(Place::Gpu)]);
    // A time at two places tells of neither: another like it is predicted as before.
    first.complete();
    drop(first);
    let third = arrives(&scheduler, 1000.0, 800.0);
    assert_eq!(scheduler.queries().last().unwrap().predicted, (1000.0, Some(800.0)));
    drop((second, third));
    overspill_schedule::check(&scheduler.log(), &scheduler.config().gpu_limits, 8).unwrap();
    assert!(scheduler.queries().is_empty());
}

#[tokio::test]
async fn a_query_that_is_stopped_waits_for_no_turn_on_the_gpu() {
    let scheduler = scheduler();
    let query = arrives(&scheduler, 1000.0, 100.0);
    let admitted = admitted(&query).await;
    assert!(scheduler.cancel(QueryId(1)));
    assert!(admitted.gpu.is_taken_back());
}
