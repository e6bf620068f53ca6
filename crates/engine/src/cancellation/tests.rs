use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;

use super::*;
use crate::{OverspillConfig, OverspillSessionExt};

fn session() -> SessionContext {
    let state = SessionStateBuilder::new_with_default_features().with_overspill(OverspillConfig::default());
    SessionContext::new_with_state(interruptible(state).build())
}

async fn answer(session: &SessionContext, sql: &str) -> Result<String> {
    Ok(pretty_format_batches(&session.sql(sql).await?.collect().await?)?.to_string())
}

const STATEMENTS: [&str; 4] = [
    "SELECT count(*), max(length(regexp_replace(repeat(concat('text ', value, NULL), 500), '(t)(e)', '\\2\\1', 'g'))) \
     FROM range(2000)",
    "SELECT upper(CASE WHEN value % 3 = 0 THEN NULL ELSE repeat('ab', 3000) END) IS NULL AS n, count(*) FROM range(300) \
     GROUP BY n ORDER BY n",
    "SELECT sum(m) FROM (SELECT min(value) OVER (ORDER BY value DESC ROWS BETWEEN 5 PRECEDING AND 3 FOLLOWING) AS m \
     FROM range(3000))",
    "SELECT first_value(value) OVER (ORDER BY value ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS f, \
     count(*) OVER () AS c FROM range(20) ORDER BY value LIMIT 3",
];

#[tokio::test]
async fn answers_are_those_of_other_sessions() {
    for sql in STATEMENTS {
        let stock = answer(&SessionContext::new(), sql).await.unwrap();
        assert_eq!(answer(&session(), sql).await.unwrap(), stock, "{sql}");
    }
}

#[tokio::test]
async fn a_cancelled_thread_neither_plans_nor_computes() {
    let session = session();
    let cancellation = Cancellation::default();
    cancellation.apply_to_thread();
    for sql in STATEMENTS {
        let plan = session.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        cancellation.cancel();
        let planned = session.sql(sql).await.unwrap().create_physical_plan().await;
        assert!(planned.unwrap_err().to_string().contains("cancelled"), "{sql}");
        // On this thread alone: if rows were exchanged, other tasks of the same thread would compute.
        let computed = datafusion::physical_plan::collect(plan, session.task_ctx()).await;
        assert!(computed.unwrap_err().to_string().contains("cancelled"), "{sql}");
        cancellation.resume();
        assert!(answer(&session, sql).await.is_ok(), "{sql}");
    }
}
