//! What plans among ranks show.

use datafusion::common::Result;
use datafusion::prelude::SessionContext;

use crate::harness::{Ranks, Shape, Tables, rows, runtime};

async fn explained(context: &SessionContext, sql: &str) -> Result<String> {
    Ok(rows(context, &format!("{sql} -- ORDER BY 1")).await?.join("\n"))
}

/// The line of a plan with a node.
fn line<'a>(plan: &'a str, node: &str) -> &'a str {
    plan.lines().find(|line| line.contains(node)).unwrap_or_else(|| panic!("{node}: {plan}"))
}

/// A metric of a node.
fn count(node: &str, name: &str) -> f64 {
    let (_, rest) = node.split_once(name).unwrap_or_else(|| panic!("{name}: {node}"));
    let value = rest.split([',', ']']).next().unwrap().trim();
    let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
    number.parse::<f64>().unwrap() * if unit == "K" { 1000.0 } else { 1.0 }
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
        let shuffle = line(&plan, "RankShuffleExec: keys=[l_key");
        for metric in ["bytes_across_nodes=", "messages_within_nodes=", "rows_sent=", "waited_to_receive="] {
            assert!(shuffle.contains(metric), "{metric}: {shuffle}");
        }
        // All ranks have sent and kept all lines together.
        // Two levels: rows that change the node and the rail are sent twice, and rows are kept on each level.
        assert!(count(shuffle, "rows_sent=") > 7500.0 * 0.7 && count(shuffle, "rows_kept=") > 0.0, "{shuffle}");
        // Operators have what they counted on all ranks.
        let joined = rows(&ranks.context, sql).await.unwrap().len() as f64;
        let is_near = |count: f64, rows: f64| (count / rows - 1.0).abs() < 0.01;
        // Counts of more than a thousand are rounded.
        assert!(is_near(count(line(&plan, "HybridJoinExec"), "output_rows="), joined), "{joined}: {plan}");
        let lines = rows(&ranks.context, "SELECT l_key FROM lines").await.unwrap().len() as f64;
        let scans: f64 =
            plan.lines().filter(|line| line.contains("DataSourceExec")).map(|scan| count(scan, "output_rows=")).sum();
        let orders = rows(&ranks.context, "SELECT o_key FROM orders").await.unwrap().len() as f64;
        assert!(is_near(scans, lines + orders), "{scans} of {lines} and {orders}: {plan}");
        let plan = explained(&ranks.context, &format!("EXPLAIN ANALYZE VERBOSE {sql}")).await.unwrap();
        for rank in 1..4 {
            let of_rank = format!("rank={rank}}}=");
            assert!(plan.lines().any(|line| line.contains("HybridJoinExec") && line.contains(&of_rank)), "{plan}");
        }
        // The first rank has the rules of its own session, as the others do.
        let plan = explained(&ranks.context, "EXPLAIN SELECT * FROM orders ORDER BY o_text").await.unwrap();
        assert!(plan.contains("SpillingSortExec") && plan.contains("RankGatherExec"), "{plan}");
        // Each rank runs its part of both copies: readers of one input share memory.
        let sql = "WITH c AS (SELECT l_key, count(*) AS n FROM lines GROUP BY l_key) SELECT * FROM c UNION ALL SELECT * FROM c";
        let plan = explained(&ranks.context, &format!("EXPLAIN {sql}")).await.unwrap();
        assert!(plan.contains("RankQueryExec") && !plan.contains("SharedSubplanExec"), "{plan}");
        let plan = explained(&ranks.context, "EXPLAIN SELECT * FROM small").await.unwrap();
        assert!(!plan.contains("RankQueryExec"), "{plan}");
        ranks.end().await;
    });
}
