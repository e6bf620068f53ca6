//! A failure is one error, and the ranks go on.

use std::time::Duration;

use futures::StreamExt;
use overspill_exchange::transport::Network;

use crate::harness::{Ranks, Shape, Tables, register, rows, runtime};

const SHAPE: Shape = Shape { ranks: 3, ranks_per_node: 2, lanes: 2 };

#[test]
fn a_damaged_file_is_named_once() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(SHAPE, None);
        tables.register(&ranks.context).await;
        // The footer stays, so that planning succeeds.
        let damaged = tables.0.path().join("lines/4.parquet");
        let mut bytes = std::fs::read(&damaged).unwrap();
        bytes[4..1000].fill(0xff);
        std::fs::write(&damaged, bytes).unwrap();
        let error = rows(
            &ranks.context,
            "SELECT o_text, sum(l_number) FROM orders JOIN lines ON o_key = l_key GROUP BY o_text",
        );
        let error = error.await.unwrap_err().to_string();
        assert!(error.contains("rank 2: ") && error.contains("4.parquet"), "{error}");
        assert_eq!(rows(&ranks.context, "SELECT sum(o_key) FROM orders").await.unwrap(), ["3918600"]);
        ranks.end().await;
    });
}

#[test]
fn a_file_that_is_gone_is_an_error() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(SHAPE, None);
        tables.register(&ranks.context).await;
        register(&ranks.context, "gone", &tables.0.path().join("lines")).await;
        let frame = ranks.context.sql("SELECT sum(l_number) FROM gone").await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        std::fs::remove_file(tables.0.path().join("lines/3.parquet")).unwrap();
        let error = datafusion::physical_plan::collect(plan, ranks.context.task_ctx()).await.unwrap_err().to_string();
        assert!(error.contains("3.parquet"), "{error}");
        ranks.end().await;
    });
}

#[test]
fn a_rank_that_cannot_serve_says_so() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start_with(SHAPE, None, Some("no disk here"));
        tables.register(&ranks.context).await;
        for _ in 0..2 {
            let error = rows(&ranks.context, "SELECT sum(l_number) FROM lines").await.unwrap_err().to_string();
            assert!(error.contains("rank 2: no disk here"), "{error}");
        }
        ranks.end().await;
    });
}

#[test]
fn a_query_may_be_dropped_at_any_time() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let network = Network { seed: 5, most_delay: Duration::from_millis(2), ..Network::default() };
        let ranks = Ranks::start(SHAPE, Some(network));
        tables.register(&ranks.context).await;
        let sql = "SELECT o_key, l_number FROM orders JOIN lines ON o_text = l_text";
        for batches in 0..4 {
            let mut stream = ranks.context.sql(sql).await.unwrap().execute_stream().await.unwrap();
            for _ in 0..batches {
                stream.next().await.unwrap().unwrap();
            }
        }
        for milliseconds in 0..8 {
            let query = rows(&ranks.context, sql);
            let _ = tokio::time::timeout(Duration::from_millis(milliseconds * 3), query).await;
        }
        assert_eq!(rows(&ranks.context, "SELECT sum(o_key) FROM orders").await.unwrap(), ["3918600"]);
        ranks.end().await;
    });
}
