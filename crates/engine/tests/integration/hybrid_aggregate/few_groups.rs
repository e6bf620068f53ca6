//! Sums of few groups in words of 64 bits: the rows that sums in wider numbers give, and their errors.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::{metric, over, plan, run};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Few groups; amounts as TPC-H has them; nulls; integers of all widths; and `edge`, whose values need 64 bits and more.
const SALES: &str = "CREATE TABLE sales AS SELECT value % 5 AS k, CASE WHEN value % 3 = 0 THEN 'R' ELSE 'AF' END AS flag, value % 300 AS many, \
    CAST((value * 7919 % 1000000) / 100.0 AS DECIMAL(15, 2)) AS price, \
    CAST((value * 31 % 11) / 100.0 AS DECIMAL(15, 2)) AS discount, \
    CASE WHEN value % 7 > 0 THEN CAST((value * 17 % 9) / 100.0 AS DECIMAL(7, 4)) END AS tax, \
    CAST(value * 13 % 1000 AS INT) - 500 AS quantity, \
    CASE WHEN value % 4 > 0 THEN CAST(value % 100 AS SMALLINT) END AS small, \
    value * 1000003 AS wide, \
    CASE WHEN value % 1000 = 999 THEN 1e30 ELSE value END :: DECIMAL(38, 0) AS edge \
    FROM generate_series(0, 29999)";

async fn session(engine: Engine, settings: &Settings) -> Session {
    let session = Session::open(engine, settings, Memory::Ample).unwrap();
    run(&session, SALES).await.answer.unwrap();
    session
}

/// An expression of amounts and integers.
fn expression(depth: usize, random: &mut StdRng) -> String {
    let leaves = [
        "price",
        "price",
        "discount",
        "discount",
        "tax",
        "quantity",
        "small",
        "wide",
        "edge",
        "1",
        "CAST(2.5 AS DECIMAL(2, 1))",
        "CAST(quantity AS BIGINT)",
    ];
    if depth == 0 || random.random_bool(0.2) {
        return (*leaves.choose(random).unwrap()).to_owned();
    }
    let [left, right] = [(); 2].map(|()| expression(depth - 1, random));
    match random.random_range(0..8) {
        0 => format!("CAST({left} AS DECIMAL(30, 5))"),
        1 => format!("CASE WHEN discount > 0.05 THEN {left} ELSE {right} END"),
        2 | 3 => format!("({left} + {right})"),
        4 | 5 => format!("({left} - {right})"),
        _ => format!("({left} * {right})"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_sums_are_those_of_wider_numbers() {
    let random = &mut StdRng::seed_from_u64(17);
    let (mut narrow, mut errors, mut queries) = (0, 0, 0);
    for (partitions, batch_size) in [(1, 8192), (3, 500)] {
        let settings = Settings { target_partitions: partitions, batch_size, ..Settings::default() };
        let stock = session(Engine::Stock, &settings).await;
        let ours = over(&stock, Engine::Overspill, &settings, Memory::Ample);
        let wide = over(&stock, Engine::Overspill, &settings, Memory::Ample);
        run(&wide, "SET overspill.hybrid_aggregates = false").await.answer.unwrap();
        for _ in 0..60 {
            let function = |random: &mut StdRng| match random.random_range(0..9) {
                0 => "count(*)".to_owned(),
                1 => format!("min({})", expression(1, random)),
                2 => format!("sum({}) FILTER (WHERE discount > 0.03)", expression(1, random)),
                3 => format!("count({})", expression(0, random)),
                4 | 5 => format!("avg(CAST({} AS DECIMAL(30, 5)))", expression(2, random)),
                _ => format!("sum({})", expression(3, random)),
            };
            let functions: Vec<String> = (0..random.random_range(1..5)).map(|_| function(random)).collect();
            let keys = *["k", "flag", "k, flag", "many", "k % 2", "tax"].choose(random).unwrap();
            let filter = *["", "WHERE wide % 3 = 1", "WHERE price < 0"].choose(random).unwrap();
            let sql = format!("SELECT {keys}, {} FROM sales {filter} GROUP BY {keys}", functions.join(", "));
            let (expected, found) = (run(&wide, &sql).await, run(&ours, &sql).await);
            queries += 1;
            assert!(!expected.plan.contains("HybridAggregateExec"), "{}", expected.plan);
            match (expected.answer, found.answer) {
                (Ok(expected), Ok(found)) => assert_eq!(found.difference(&expected), None, "{sql}"),
                (Err(_), Err(_)) => {
                    errors += 1;
                    continue;
                }
                (Ok(_), Err(error)) => panic!("{sql}: {error}"),
                (Err(error), Ok(_)) => panic!("{sql} has an answer, but: {error}"),
            }
            let plan = plan(&ours, &sql).await;
            super::answer(&ours, &plan).await.unwrap();
            narrow += usize::from(metric(&plan, "narrow_rows").unwrap() > 0);
        }
    }
    assert!(narrow * 3 > queries - errors, "{narrow} of {queries}, {errors} errors");
}

/// The sums of TPC-H's query 1, and what they are taken from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arithmetic_below_is_taken_in() {
    let settings = Settings { target_partitions: 2, ..Settings::default() };
    let stock = session(Engine::Stock, &settings).await;
    let ours = over(&stock, Engine::Overspill, &settings, Memory::Ample);
    for (functions, rows) in [
        // The product of price and what is left of it is computed once.
        ("sum(price * (1 - discount)), sum(price * (1 - discount) * (1 + price)), count(*)", 30_000),
        ("sum(tax), avg(tax), avg(price), max(price)", 30_000),
        // A value that needs more than 64 bits is in each batch.
        ("sum(edge), sum(price)", 0),
    ] {
        let sql = format!("SELECT flag, {functions} FROM sales GROUP BY flag");
        let plan = plan(&ours, &sql).await;
        let text = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
        assert!(text.contains("HybridAggregateExec"), "{text}");
        let below = text.split("HybridAggregateExec").nth(1).unwrap();
        assert!(!below.contains("ProjectionExec"), "{text}");
        let expected = run(&stock, &sql).await.answer.unwrap();
        assert_eq!(super::answer(&ours, &plan).await.unwrap().difference(&expected), None, "{sql}");
        assert_eq!(metric(&plan, "narrow_rows"), Some(rows), "{sql}");
    }
    // What others compute below stays there.
    let sql = "SELECT k, sum(a + b), sum(a - b) FROM (SELECT k, abs(quantity) AS a, quantity + 1 AS b FROM sales LIMIT 100) GROUP BY k";
    let found = run(&ours, sql).await;
    assert!(found.plan.contains("ProjectionExec") && found.plan.contains("HybridAggregateExec"), "{}", found.plan);
    assert!(found.answer.is_ok());
}

/// Groups that are few at first, and then not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_become_many() {
    let settings = Settings { target_partitions: 1, batch_size: 100, ..Settings::default() };
    let stock = session(Engine::Stock, &settings).await;
    for memory in [Memory::Ample, Memory::Greedy(64 << 10)] {
        let ours = over(&stock, Engine::Overspill, &settings, memory);
        let sql = "SELECT many, sum(price * discount), avg(tax), sum(small), count(*) FROM sales GROUP BY many";
        let expected = run(&stock, sql).await.answer.unwrap();
        let plan = plan(&ours, sql).await;
        assert_eq!(super::answer(&ours, &plan).await.unwrap().difference(&expected), None);
        let narrow = metric(&plan, "narrow_rows").unwrap();
        // The third batch brings the 256th group; in little memory tables begin anew.
        assert!(if memory == Memory::Ample { narrow == 200 } else { narrow >= 200 }, "{narrow} in {memory:?}");
        drop(plan);
        assert_eq!(ours.leftovers().await, None);
    }
}
