//! Many queries at once.

use std::time::Duration;

use futures::StreamExt;
use overspill::OverspillConfig;
use overspill::scheduler::SchedulerConfig;
use overspill_schedule::{Action, Decision, QueryId, What, check};

use super::{Sessions, one_at_a_time, text};

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_queries_at_once_all_end() {
    let sessions = Sessions::new(SchedulerConfig { brief: Duration::ZERO, ..Default::default() }, 256 * MIB);
    let mut queries = tokio::task::JoinSet::new();
    for number in 0..1000_usize {
        let session = sessions.session(&format!("user {}", number % 7), OverspillConfig::default());
        queries.spawn(async move {
            let sql = format!("SELECT count(*) FROM range({}) a JOIN range(500) b ON a.value = b.value", number % 700);
            let rows = text(&session, &sql).await;
            assert!(rows.contains(&format!(" {} ", (number % 700).min(500))), "{rows}");
        });
    }
    while let Some(query) = queries.join_next().await {
        query.unwrap();
    }
    sessions.assert_nothing_left().await;
    let log = sessions.scheduler.log();
    check(&log, &sessions.scheduler.config().gpu_limits, sessions.scheduler.config().most_running).unwrap();
    let ends = log.iter().filter(|entry| matches!(entry.what, What::Ended(_))).count();
    assert_eq!(ends, 1000);
}

/// The only query of a user starts after at most as many ends as users wait, however many another has sent before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_many_queries_does_not_keep_another_waiting() {
    let sessions = Sessions::new(one_at_a_time(), 256 * MIB);
    let mut queries = tokio::task::JoinSet::new();
    let spawn = |queries: &mut tokio::task::JoinSet<()>, user: &str, rows: usize| {
        let session = sessions.session(user, OverspillConfig::default());
        let sql = format!("SELECT count(DISTINCT value % 1000) FROM range({rows})");
        queries.spawn(async move { drop(text(&session, &sql).await) });
    };
    // All others come while this one runs.
    let session = sessions.session("first", OverspillConfig::default());
    let mut first = session.sql("SELECT value FROM range(100000000)").await.unwrap().execute_stream().await.unwrap();
    first.next().await.unwrap().unwrap();
    for _ in 0..20 {
        spawn(&mut queries, "many", 100_000);
    }
    sessions.reach("all have come", |states| states.len() == 21).await;
    // It takes longer than each of them.
    spawn(&mut queries, "one", 1_000_000);
    sessions.reach("it has come", |states| states.len() == 22).await;
    drop(first);
    while let Some(query) = queries.join_next().await {
        query.unwrap();
    }
    let log = sessions.scheduler.log();
    let mut arrivals = log.iter().filter_map(|entry| match entry.what {
        What::Arrived(demand) => Some(demand),
        _ => None,
    });
    let of_one = arrivals.next_back().unwrap();
    let place = |wanted: &dyn Fn(&What) -> bool| log.iter().position(|entry| wanted(&entry.what)).unwrap();
    let arrived = place(&|what| matches!(what, What::Arrived(demand) if demand.id == of_one.id));
    let started = place(&|what| is_start(what, of_one.id));
    let ends = log[arrived..started].iter().filter(|entry| matches!(entry.what, What::Ended(_))).count();
    let left = log[started..].iter().filter(|entry| matches!(entry.what, What::Ended(_))).count();
    assert!(ends <= 2, "{ends} queries ended before it started");
    assert!(left > 2, "the others had ended: {left}");
    sessions.assert_nothing_left().await;
}

fn is_start(what: &What, id: QueryId) -> bool {
    matches!(what, What::Decided(Decision { id: started, action: Action::Start(_), .. }) if *started == id)
}
