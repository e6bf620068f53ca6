//! How a join is planned to run in memory, and that large tables give stock DataFusion's answers each way.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use overspill::OverspillRuntime;
use overspill::{Choice, Strategy, TableChoice};

use crate::harness::session::{Engine, Memory, Session, Settings};

fn session(engine: Engine, strategy: Choice<Strategy>, hash_table: Choice<TableChoice>, memory: Memory) -> Session {
    // Whatever is collected is collected by Overspill's own rule.
    let settings = Settings {
        strategy,
        hash_table,
        partitioned: true,
        batch_size: 8192,
        join_reordering: false,
        ..Settings::default()
    };
    Session::open(engine, &settings, memory).unwrap()
}

/// Tables `a` and `b`, of a key and a value each, in two partitions of several batches.
fn register(ctx: &SessionContext, keys: [&[i64]; 2], narrow: bool) {
    for (name, keys) in ["a", "b"].into_iter().zip(keys) {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values((0..keys.len() as i64).map(|row| row % 1000)));
        let keys: ArrayRef = match narrow {
            true => Arc::new(Int32Array::from_iter_values(keys.iter().map(|key| *key as i32))),
            false => Arc::new(Int64Array::from_iter_values(keys.iter().copied())),
        };
        let all = RecordBatch::try_from_iter([(format!("{name}_k"), keys), (format!("{name}_v"), values)]).unwrap();
        let mut parts = vec![vec![]; 2];
        for (number, start) in (0..all.num_rows()).step_by(10_000).enumerate() {
            parts[number % 2].push(all.slice(start, 10_000.min(all.num_rows() - start)));
        }
        ctx.register_table(name, Arc::new(MemTable::try_new(all.schema(), parts).unwrap())).unwrap();
    }
}

async fn plan(session: &Session, sql: &str) -> String {
    let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).indent(false).to_string()
}

const JOIN: &str = "SELECT sum(a_v + b_v) FROM a JOIN b ON a_k = b_k";
const GROUPED: &str = "SELECT a_k, sum(a_v + b_v) FROM a JOIN b ON a_k = b_k GROUP BY a_k";

#[tokio::test]
async fn build_sides_that_fit_are_shared_and_nothing_is_partitioned() {
    let keys: Vec<i64> = (0..50_000).collect();
    for (strategy, memory, sql, shared) in [
        (Choice::AUTO, Memory::Ample, JOIN, true),
        (Choice(Some(Strategy::Hybrid)), Memory::Ample, JOIN, false),
        // An aggregate above can use the partitions of the join.
        (Choice::AUTO, Memory::Ample, GROUPED, false),
        (Choice(Some(Strategy::NoPartition)), Memory::Ample, GROUPED, true),
        // 50 000 rows of 16 bytes, and their table.
        (Choice::AUTO, Memory::Greedy(50 << 20), JOIN, true),
        (Choice::AUTO, Memory::Greedy(5 << 20), JOIN, false),
        (Choice::AUTO, Memory::Fair(5 << 20), JOIN, false),
        (Choice::AUTO, Memory::JoinLimit(5 << 20), JOIN, false),
        (Choice(Some(Strategy::NoPartition)), Memory::Greedy(5 << 20), JOIN, true),
    ] {
        let session = session(Engine::Overspill, strategy, Choice::AUTO, memory);
        register(&session.ctx, [&keys, &keys], false);
        let plan = plan(&session, sql).await;
        let case = format!("{strategy} in {memory:?}:\n{plan}");
        assert_eq!(plan.contains("mode=CollectLeft"), shared, "{case}");
        let join = plan.find("HybridJoinExec").expect(&case);
        assert_eq!(plan[join..].contains("RepartitionExec: partitioning=Hash"), !shared, "{case}");
    }
}

#[tokio::test]
async fn a_strategy_that_is_none_is_refused_by_name() {
    let session = session(Engine::Overspill, Choice::AUTO, Choice::AUTO, Memory::Ample);
    let error = session.ctx.sql("SET overspill.strategy = fastest").await.unwrap_err().to_string();
    assert!(error.contains("overspill.strategy = 'fastest' is none of: auto, no_partition, radix, hybrid"), "{error}");
    let keys: Vec<i64> = (0..1000).collect();
    register(&session.ctx, [&keys, &keys], false);
    for (strategy, mode) in
        [("hybrid", "mode=Partitioned"), ("NO_PARTITION", "mode=CollectLeft"), ("radix", "mode=CollectLeft")]
    {
        session.ctx.sql(&format!("SET overspill.strategy = {strategy}")).await.unwrap();
        assert!(plan(&session, JOIN).await.contains(mode), "{strategy}");
    }
}

/// Joins of every kind whose sums say whether each row came out as often as it should.
const SUMS: [&str; 7] = [
    "SELECT count(*), sum(a_v), sum(b_v), sum(a_v * b_v % 997) FROM a JOIN b ON a_k = b_k",
    "SELECT count(*), sum(a_v), sum(b_v), sum(a_v * b_v % 997) FROM a LEFT JOIN b ON a_k = b_k",
    "SELECT count(*), sum(a_v), sum(b_v), sum(a_v * b_v % 997) FROM a RIGHT JOIN b ON a_k = b_k AND a_v < b_v",
    "SELECT count(*), sum(a_v), sum(b_v), sum(a_v * b_v % 997) FROM a FULL JOIN b ON a_k = b_k",
    "SELECT count(*), sum(a_v) FROM a LEFT SEMI JOIN b ON a_k = b_k",
    "SELECT count(*), sum(a_v) FROM a LEFT ANTI JOIN b ON a_k = b_k",
    "SELECT count(*), sum(b_v) FROM a RIGHT SEMI JOIN b ON a_k = b_k",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tables_of_every_kind_give_the_same_answers_each_way() {
    // Enough to be mapped.
    const BUILD: i64 = 1 << 21;
    const HALF: i64 = BUILD / 2;
    let shuffled = |row: i64| row * 777_777 % BUILD;
    let sparse = |row: i64| row.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
    let build_sides: [(&str, bool, Vec<i64>); 5] = [
        // Mapped, reordered, and found without a table.
        ("each of a range once", false, (0..BUILD).map(shuffled).collect()),
        ("32 bits, most of a range once", true, (0..BUILD).map(shuffled).filter(|key| key % 5 != 0).collect()),
        ("in order", false, (0..HALF).collect()),
        ("three rows a key", false, (0..HALF).map(|row| shuffled(row / 3)).collect()),
        ("far apart", false, (0..HALF).map(sparse).collect()),
    ];
    for (kind, narrow, build) in build_sides {
        // Half of the probe rows have a partner.
        let probe: Vec<i64> =
            build.iter().step_by(11).flat_map(|key| [*key, key.wrapping_add(BUILD)]).chain([-1, i64::MAX]).collect();
        let mut expected = vec![];
        for (engine, strategy, hash_table) in [
            (Engine::Stock, Choice::AUTO, Choice::AUTO),
            (Engine::Overspill, Choice(Some(Strategy::NoPartition)), Choice::AUTO),
            (Engine::Overspill, Choice(Some(Strategy::NoPartition)), Choice(Some(TableChoice::LinearProbing))),
            (Engine::Overspill, Choice(Some(Strategy::Radix)), Choice::AUTO),
            (Engine::Overspill, Choice(Some(Strategy::Hybrid)), Choice(Some(TableChoice::Unchained))),
        ] {
            let session = session(engine, strategy, hash_table, Memory::Ample);
            register(&session.ctx, [&build, &probe], narrow);
            let mut answers = vec![];
            for sql in SUMS {
                let batches = session.ctx.sql(sql).await.unwrap().collect().await.unwrap();
                answers.push(pretty_format_batches(&batches).unwrap().to_string());
            }
            if expected.is_empty() {
                expected = answers;
            } else {
                for ((sql, answer), expected) in SUMS.iter().zip(answers).zip(&expected) {
                    assert_eq!(&answer, expected, "{kind}, {strategy}, {hash_table}: {sql}");
                }
            }
        }
    }
}

/// A count of the join, as EXPLAIN ANALYZE shows it.
async fn count(session: &Session, sql: &str, name: &str) -> usize {
    let batches = session.ctx.sql(&format!("EXPLAIN ANALYZE {sql}")).await.unwrap().collect().await.unwrap();
    let text = pretty_format_batches(&batches).unwrap().to_string();
    let (_, rest) = text.split_once(&format!(" {name}=")).expect(&text);
    rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_beyond_memory_give_the_same_answers_each_way() {
    const BUILD: i64 = 200_000;
    let sparse = |row: i64| row.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
    for (kind, build) in [
        ("far apart", (0..BUILD).map(sparse).collect::<Vec<_>>()),
        ("two rows a key", (0..BUILD).map(|row| sparse(row / 2)).collect()),
        ("each of a range once", (0..BUILD).map(|row| row * 7_919 % BUILD).collect()),
    ] {
        let probe: Vec<i64> = build.iter().flat_map(|key| [*key, key.wrapping_add(1), *key]).collect();
        let stock = session(Engine::Stock, Choice::AUTO, Choice::AUTO, Memory::Ample);
        register(&stock.ctx, [&build, &probe], false);
        let mut expected = vec![];
        for sql in [SUMS[0], SUMS[2]] {
            expected.push((sql, stock.ctx.sql(sql).await.unwrap().collect().await.unwrap()));
        }
        for strategy in
            [Choice(Some(Strategy::NoPartition)), Choice(Some(Strategy::Radix)), Choice(Some(Strategy::Hybrid))]
        {
            for (limit, must_spill) in [(8 << 20, true), (40 << 20, false)] {
                let session = session(Engine::Overspill, strategy, Choice::AUTO, Memory::Greedy(limit));
                register(&session.ctx, [&build, &probe], false);
                let case = format!("{kind}, {strategy}, {limit} bytes");
                for (sql, expected) in &expected {
                    let answer = session.ctx.sql(sql).await.unwrap().collect().await.unwrap();
                    assert_eq!(&answer, expected, "{case}: {sql}");
                }
                let spilled = count(&session, SUMS[0], "spilled_partitions").await;
                assert_eq!(spilled > 0, must_spill, "{case}: {spilled} partitions");
                // Tables of dense keys may fit the cache of a core, and keys of two rows are not partitioned for.
                if kind == "far apart" {
                    let expected = if strategy == Choice(Some(Strategy::Radix)) && !must_spill { 2 } else { 0 };
                    assert_eq!(count(&session, SUMS[0], "radix_streams").await, expected, "{case}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probe_rows_are_partitioned_where_that_is_asked_for_and_can_be() {
    let sparse = |row: i64| row.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
    let large: Vec<i64> = (0..1 << 20).map(sparse).collect();
    let twice: Vec<i64> = (0..1 << 20).map(|row| sparse(row / 2)).collect();
    // If this machine was measured, and the table is large enough for what came of that.
    let advised = OverspillRuntime::of_process()
        .machine()
        .probe_regions(None, 2)
        .map_or(0, |regions| if regions.beyond < 27 << 20 { 2 } else { 0 });
    for (strategy, build, sql, expected) in [
        (Choice(Some(Strategy::Radix)), &large[..], JOIN, 2),
        (Choice(Some(Strategy::NoPartition)), &large, JOIN, 0),
        (Choice::AUTO, &large, JOIN, advised),
        // The table fits the cache of a core.
        (Choice(Some(Strategy::Radix)), &large[..1000], JOIN, 0),
        (Choice(Some(Strategy::Radix)), &twice, JOIN, 0),
        // Columns of the probe side of 16 bytes.
        (Choice(Some(Strategy::Radix)), &large, "SELECT sum(a_v + b_v), max(b_k) FROM a JOIN b ON a_k = b_k", 0),
        (Choice(Some(Strategy::Radix)), &large, "SELECT sum(a_v), sum(b_v) FROM a LEFT JOIN b ON a_k = b_k", 0),
    ] {
        let session = session(Engine::Overspill, strategy, Choice::AUTO, Memory::Ample);
        register(&session.ctx, [build, &large], false);
        let case = format!("{strategy}, {} build rows: {sql}", build.len());
        assert_eq!(count(&session, sql, "radix_streams").await, expected, "{case}");
    }
}
