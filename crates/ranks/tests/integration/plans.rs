//! What plans among ranks show.

use datafusion::common::Result;
use datafusion::prelude::SessionContext;

use crate::harness::{Ranks, Shape, Tables, rows, runtime};

async fn explained(context: &SessionContext, sql: &str) -> Result<String> {
    Ok(rows(context, &format!("{sql} -- ORDER BY 1")).await?.join("\n"))
}

#[test]
fn plans_show_exchanges_and_analyzed_ones_their_bytes() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(Shape { ranks: 4, ranks_per_node: 2, lanes: 1 }, None);
        tables.register(&ranks.context).await;
        let sql = "SELECT o_key, l_number FROM orders JOIN lines ON o_key = l_key";
        let plan = explained(&ranks.context, &format!("EXPLAIN {sql}")).await.unwrap();
        for node in ["RankQueryExec: ranks=4", "RankGatherExec", "HybridJoinExec", "RankShuffleExec: keys=[o_key"] {
            assert!(plan.contains(node), "{node}: {plan}");
        }
        let plan = explained(&ranks.context, &format!("EXPLAIN ANALYZE {sql}")).await.unwrap();
        let shuffle = plan.lines().find(|line| line.contains("RankShuffleExec: keys=[l_key")).unwrap();
        for metric in ["bytes_across_nodes=", "messages_within_nodes=", "rows_sent=", "waited_to_receive="] {
            assert!(shuffle.contains(metric), "{metric}: {shuffle}");
        }
        // All ranks have sent and kept all lines together.
        let count = |name: &str| -> f64 {
            let (_, rest) = shuffle.split_once(name).unwrap();
            let value = rest.split([',', ']']).next().unwrap().trim();
            let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
            number.parse::<f64>().unwrap() * if unit == "K" { 1000.0 } else { 1.0 }
        };
        // Two levels: rows that change the node and the rail are sent twice, and rows are kept on each level.
        assert!(count("rows_sent=") > 7500.0 * 0.7 && count("rows_kept=") > 0.0, "{shuffle}");
        // The first rank has the rules of its own session, as the others do.
        let plan = explained(&ranks.context, "EXPLAIN SELECT * FROM orders ORDER BY o_text").await.unwrap();
        assert!(plan.contains("SpillingSortExec") && plan.contains("RankGatherExec"), "{plan}");
        let plan = explained(&ranks.context, "EXPLAIN SELECT * FROM small").await.unwrap();
        assert!(!plan.contains("RankQueryExec"), "{plan}");
        ranks.end().await;
    });
}
