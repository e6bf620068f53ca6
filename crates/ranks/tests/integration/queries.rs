//! Queries of every kind give the rows that one process gives.

use overspill_exchange::transport::Network;

use crate::harness::{Ranks, Shape, Tables, alone, rows, runtime};

const QUERIES: &[&str] = &[
    // Joins of each type, by partitions.
    "SELECT o_key, l_number FROM orders JOIN lines ON o_key = l_key",
    "SELECT o_key, l_number FROM orders LEFT JOIN lines ON o_key = l_key AND l_quantity > 20",
    "SELECT o_key, l_number FROM orders RIGHT JOIN lines ON o_key = l_key AND o_price > 3",
    "SELECT o_key, l_number FROM orders FULL JOIN lines ON o_key = l_key",
    "SELECT o_key FROM orders WHERE EXISTS (SELECT 1 FROM lines WHERE l_key = o_key AND l_quantity > 30)",
    "SELECT o_key FROM orders WHERE NOT EXISTS (SELECT 1 FROM lines WHERE l_key = o_key)",
    "SELECT o_key FROM orders WHERE o_customer IN (SELECT l_quantity FROM lines WHERE l_number < 300)",
    "SELECT o_key, o_customer FROM orders WHERE o_customer NOT IN (SELECT l_quantity FROM lines WHERE l_number < 20)",
    "SELECT l_number FROM lines WHERE l_key NOT IN (SELECT o_key FROM orders WHERE o_key < 500)",
    "SELECT l_number FROM lines WHERE l_key NOT IN (SELECT n_key FROM nothing)",
    "SELECT count(*) FROM lines WHERE l_key NOT IN (SELECT o_customer FROM orders)",
    "SELECT o_key, o_key IN (SELECT l_key FROM lines) AS found FROM orders",
    // Keys of several types.
    "SELECT o_text, count(*), sum(l_price) FROM orders JOIN lines ON o_text = l_text GROUP BY o_text",
    "SELECT a.o_key, b.o_key FROM orders a JOIN orders b ON a.o_priority = b.o_priority AND a.o_price = b.o_price \
     WHERE a.o_key < 200 AND b.o_key < 200",
    "SELECT o_priority, o_price, count(*) FROM orders GROUP BY o_priority, o_price",
    "SELECT a.o_key FROM orders a JOIN lines ON a.o_key + 1 = l_key * 2",
    // Small tables are broadcast or gathered.
    "SELECT s_name, count(*) FROM small JOIN orders ON s_key = o_customer GROUP BY s_name",
    "SELECT s_key, o_key FROM small JOIN orders ON s_key < o_key AND o_key < s_key + 3",
    "SELECT s_key, o_key FROM small LEFT JOIN orders ON s_key < o_key AND o_key < s_key + 3 AND s_key > 10",
    "SELECT count(*) FROM small CROSS JOIN orders",
    "SELECT * FROM nothing JOIN lines ON n_key = l_key",
    "SELECT l_number, n_text FROM lines LEFT JOIN nothing ON n_key = l_key WHERE l_number < 50",
    // Groups, also of nulls, and without keys.
    "SELECT o_customer, count(*), min(o_text), max(o_key) FROM orders GROUP BY o_customer",
    "SELECT count(*), sum(l_price), avg(l_quantity), count(DISTINCT l_key) FROM lines",
    "SELECT count(*) FROM lines WHERE l_number < 0",
    "SELECT DISTINCT l_key FROM lines",
    "SELECT o_priority, o_customer, count(*) FROM orders GROUP BY ROLLUP(o_priority, o_customer)",
    "SELECT o_customer, count(*) FROM orders LEFT JOIN lines ON o_customer = l_key GROUP BY o_customer",
    // Order and limits.
    "SELECT l_number, l_key FROM lines ORDER BY 1",
    "SELECT l_number FROM lines ORDER BY 1 DESC LIMIT 17 OFFSET 5",
    "SELECT count(*) FROM (SELECT * FROM lines LIMIT 1234)",
    "SELECT count(*) FROM (SELECT * FROM lines JOIN orders ON l_key = o_key LIMIT 100)",
    "SELECT * FROM (SELECT o_key FROM orders ORDER BY o_key LIMIT 30) JOIN lines ON o_key = l_key",
    // Windows, unions, subqueries, lists.
    "SELECT l_number, row_number() OVER (PARTITION BY l_key ORDER BY l_number) FROM lines",
    "SELECT l_number, sum(l_quantity) OVER (ORDER BY l_number) FROM lines WHERE l_number < 900",
    "SELECT o_key, sum(o_key) FILTER (WHERE o_key > 9) OVER (PARTITION BY o_customer) FROM orders",
    "SELECT o_key FROM orders UNION SELECT l_key FROM lines",
    "SELECT o_key FROM orders UNION ALL SELECT s_key FROM small UNION ALL SELECT l_key FROM lines",
    "SELECT o_key FROM orders INTERSECT SELECT l_key FROM lines",
    "SELECT o_key FROM orders EXCEPT SELECT l_key FROM lines",
    "SELECT o_key FROM orders WHERE o_price > (SELECT avg(l_quantity) / 4 FROM lines)",
    "SELECT o_key FROM orders JOIN lines ON o_key = l_key AND l_quantity > (SELECT max(s_key) - 20 FROM small)",
    "SELECT o_key, (SELECT max(l_number) FROM lines WHERE l_key = o_key) FROM orders",
    "SELECT l_key, unnest([l_number, l_quantity]) FROM lines WHERE l_number < 100",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 20) SELECT n, o_text FROM r JOIN orders ON n = o_key",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT o_key + 1 FROM r JOIN orders ON o_key = n WHERE n < 9) SELECT n FROM r",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT o_key FROM r JOIN orders ON o_key > n AND o_key < n + 2 WHERE n < 9) \
     SELECT n FROM r",
    "SELECT count(*) FROM (SELECT sum(l_quantity) AS q FROM lines GROUP BY l_key) a JOIN orders ON q = o_key",
];

#[test]
fn ranks_return_the_rows_of_one_process() {
    let runtime = runtime();
    runtime.block_on(async {
        let tables = Tables::write().await;
        let one = alone();
        tables.register(&one).await;
        let mut expected = vec![];
        for sql in QUERIES {
            expected.push(rows(&one, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}")));
        }
        for (ranks, ranks_per_node, lanes) in [(1, 1, 2), (2, 1, 1), (3, 2, 2), (4, 2, 1)] {
            let network = Network { seed: ranks as u64, ..Network::default() };
            let ranks = Ranks::start(Shape { ranks, ranks_per_node, lanes }, Some(network));
            tables.register(&ranks.context).await;
            for (sql, expected) in QUERIES.iter().zip(&expected) {
                let found = rows(&ranks.context, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                assert_eq!(found.len(), expected.len(), "{sql}");
                assert!(found == *expected, "{sql}");
            }
            ranks.end().await;
        }
    });
}

#[test]
fn a_subquery_of_several_rows_is_an_error() {
    runtime().block_on(async {
        let tables = Tables::write().await;
        let ranks = Ranks::start(Shape { ranks: 3, ranks_per_node: 3, lanes: 1 }, None);
        tables.register(&ranks.context).await;
        let error = rows(&ranks.context, "SELECT o_key FROM orders WHERE o_key = (SELECT l_key FROM lines)").await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("more than one row"), "{error}");
        // The next query finds all ranks ready.
        let count = rows(&ranks.context, "SELECT sum(o_key) FROM orders").await.unwrap();
        assert_eq!(count, ["3918600"]);
        ranks.end().await;
    });
}
