//! `ROLLUP`, `CUBE` and `GROUPING SETS`: the rows of DataFusion's aggregates, which group each row once a set.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::{AGGREGATES, answer, metric, over, plan, run, session};
use crate::harness::session::{Engine, Memory, Session, Settings};

const KEYS: [&str; 9] = ["a", "b", "c", "t", "d", "e", "a % 7", "s", "l"];

/// Sessions with our aggregates and with DataFusion's. Both hide constant columns from grouping sets, which stock DataFusion does not.
async fn sessions(settings: &Settings) -> (Session, Session) {
    let ours = session(Engine::Overspill, settings, Memory::Ample).await;
    let theirs = over(&ours, Engine::Overspill, settings, Memory::Ample);
    run(&theirs, "SET overspill.hybrid_aggregates = false").await.answer.unwrap();
    (ours, theirs)
}

/// The grouping clause of a random query: a `ROLLUP`, a `CUBE`, or different sets of `keys`.
fn random_sets(rng: &mut StdRng, keys: &[&str]) -> String {
    match rng.random_range(0..4) {
        0 => format!("ROLLUP ({})", keys.join(", ")),
        1 => format!("CUBE ({})", keys.join(", ")),
        2 => format!("{}, ROLLUP ({})", keys[0], keys[1..].join(", ")),
        _ => {
            let mut subsets: Vec<u32> = (0..1 << keys.len()).collect();
            subsets.shuffle(rng);
            subsets.truncate(rng.random_range(1..=subsets.len().min(5)));
            let all = (1 << keys.len()) - 1;
            // All keys must be in some set.
            subsets.retain(|subset| *subset != all);
            let of = |subset: &u32| {
                let keys: Vec<&str> = (0..keys.len()).filter(|at| subset >> at & 1 == 1).map(|at| keys[at]).collect();
                format!("({})", keys.join(", "))
            };
            let sets: Vec<String> = subsets.iter().chain([&all]).map(of).collect();
            format!("GROUPING SETS ({})", sets.join(", "))
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_sets_give_the_rows_of_datafusion() {
    let rng = &mut StdRng::seed_from_u64(17);
    let (mut taken, mut queries) = (0, 0);
    for (partitions, batch_size) in [(1, 500), (2, 1000), (3, 64), (8, 8192)] {
        let settings = Settings { target_partitions: partitions, batch_size, ..Settings::default() };
        let (ours, theirs) = sessions(&settings).await;
        for _ in 0..40 {
            let (key_count, function_count) = (rng.random_range(2..5), rng.random_range(0..5));
            let keys: Vec<&str> = KEYS.choose_multiple(rng, key_count).copied().collect();
            let functions: Vec<&str> = AGGREGATES.choose_multiple(rng, function_count).copied().collect();
            let grouping: Vec<String> = keys.iter().map(|key| format!("grouping({key})")).collect();
            let sets = random_sets(rng, &keys);
            let filter =
                *["", "WHERE v > 0", "WHERE v > 100000", "WHERE a IS NULL", "WHERE b = 3"].choose(rng).unwrap();
            let having = *["", "HAVING count(*) > 3"].choose(rng).unwrap();
            let grouping: Vec<&str> = grouping.iter().map(String::as_str).collect();
            let columns = [keys.as_slice(), &grouping, &functions].concat().join(", ");
            let sql = format!("SELECT {columns} FROM mixed {filter} GROUP BY {sets} {having}");
            let expected = run(&theirs, &sql).await;
            assert!(!expected.plan.contains("HybridAggregateExec"), "{sql}\n{}", expected.plan);
            let found = run(&ours, &sql).await;
            let difference = found.answer.unwrap().difference(&expected.answer.unwrap());
            assert_eq!(difference, None, "{sql}\n{}", found.plan);
            taken += usize::from(found.plan.contains("HybridAggregateExec"));
            queries += 1;
            assert_eq!(ours.leftovers().await, None, "{sql}");
        }
    }
    assert!(taken * 10 > queries * 8, "{taken} of {queries}");
}

/// The total of no rows is a row; no other set has groups then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_set_without_keys_has_a_group_of_no_rows() {
    for partitions in [1, 3] {
        let settings = Settings { target_partitions: partitions, ..Settings::default() };
        let (ours, theirs) = sessions(&settings).await;
        for (sets, rows) in [("ROLLUP (a, s)", 1), ("CUBE (a, s)", 1), ("GROUPING SETS ((a), (s))", 0)] {
            let functions = "count(*), sum(v), max(l), avg(d), bool_and(t)";
            let sql = format!("SELECT a, s, {functions} FROM mixed WHERE v > 100000 GROUP BY {sets}");
            let (found, expected) = (run(&ours, &sql).await, run(&theirs, &sql).await);
            assert!(found.plan.contains("HybridAggregateExec"), "{}", found.plan);
            let found = found.answer.unwrap();
            assert_eq!(found.difference(&expected.answer.unwrap()), None, "{sql}");
            assert_eq!(found.rows(), rows, "{sql}");
            let without_functions =
                format!("SELECT count(*) FROM (SELECT a, s FROM mixed WHERE v > 100000 GROUP BY {sets})");
            let counted = run(&ours, &without_functions).await;
            let expected = run(&theirs, &without_functions).await.answer.unwrap();
            assert_eq!(counted.answer.unwrap().difference(&expected), None, "{without_functions}\n{}", counted.plan);
        }
    }
}

/// Sets whose rows are not worth to be grouped first, and sets of few groups.
const MANY_GROUPS: [&str; 5] = [
    "SELECT k, w, v, grouping(k), grouping(w), count(*), sum(v) FROM scattered WHERE k < 300000 GROUP BY ROLLUP (v, w, k)",
    "SELECT k, w, count(*), avg(v), min(k) FROM scattered WHERE k < 300000 GROUP BY CUBE (k, w)",
    "SELECT k, v, count(*) FILTER (WHERE v > 2), sum(v) FROM clustered WHERE k < 60000 GROUP BY GROUPING SETS ((k, v), (k), ())",
    "SELECT k % 1000 AS m, k, sum(v), max('text ' || v) FROM scattered WHERE k < 300000 GROUP BY GROUPING SETS ((k % 1000), (k))",
    "SELECT 'the long number ' || k AS text, w, sum(v) FROM scattered WHERE k < 300000 GROUP BY ROLLUP ('the long number ' || k, w)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_groups_are_partitioned_and_spilled() {
    let settings = Settings { batch_size: 4096, ..Settings::default() };
    let (ample, theirs) = sessions(&settings).await;
    for sql in MANY_GROUPS {
        let expected = run(&theirs, sql).await.answer.unwrap();
        for memory in [Memory::Ample, Memory::Greedy(1 << 20), Memory::Greedy(8 << 20), Memory::Fair(8 << 20)] {
            let ours = over(&ample, Engine::Overspill, &settings, memory);
            let plan = plan(&ours, sql).await;
            let found = answer(&ours, &plan).await.unwrap_or_else(|error| panic!("{memory:?}: {sql}: {error}"));
            assert_eq!(found.difference(&expected), None, "{memory:?}: {sql}");
            let spilled = metric(&plan, "spill_count").unwrap();
            assert_eq!(spilled > 0, !matches!(memory, Memory::Ample), "{memory:?}: {spilled} files: {sql}");
            drop(plan);
            assert_eq!(ours.leftovers().await, None, "{memory:?}: {sql}");
        }
    }
}

/// A set is made of another one: fewer states leave a stream than if each row were grouped once a set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sets_are_made_of_others() {
    let settings = Settings { target_partitions: 1, ..Settings::default() };
    let (ours, _) = sessions(&settings).await;
    let sql = "SELECT a, c, t, sum(v) FROM mixed GROUP BY CUBE (a, c, t)";
    let plan = plan(&ours, sql).await;
    let groups = answer(&ours, &plan).await.unwrap().rows();
    assert_eq!(metric(&plan, "partitioned_rows"), Some(groups));
}

/// Joins above rely on the partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_those_of_a_repartition() {
    for partitions in [2, 5] {
        let settings = Settings { partitioned: true, target_partitions: partitions, ..Settings::default() };
        let (ours, theirs) = sessions(&settings).await;
        for sql in [
            "SELECT count(*), sum(n), sum(v) FROM (SELECT a, c, count(*) AS n FROM mixed GROUP BY ROLLUP (a, c)) AS g JOIN scattered ON a = k",
            "SELECT a, count(*), sum(n) FROM (SELECT a, c, count(*) AS n FROM mixed GROUP BY CUBE (a, c)) AS g GROUP BY a",
        ] {
            let (found, expected) = (run(&ours, sql).await, run(&theirs, sql).await);
            assert!(found.plan.contains("HybridAggregateExec: gby=[("), "{}", found.plan);
            let difference = found.answer.unwrap().difference(&expected.answer.unwrap());
            assert_eq!(difference, None, "{partitions}: {sql}\n{}", found.plan);
        }
    }
}

/// A set that comes twice has each group twice, and many sets need many tables: DataFusion's aggregate stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_sets_stay_as_they_are() {
    let (ours, theirs) = sessions(&Settings::default()).await;
    for sql in [
        "SELECT a, count(*) FROM mixed GROUP BY GROUPING SETS ((a), (a), ())",
        "SELECT a, count(DISTINCT v), count(DISTINCT b) FROM mixed GROUP BY ROLLUP (a)",
        "SELECT x, c, count(*) FROM mixed GROUP BY ROLLUP (x, c)",
        "SELECT a, count(*) FROM mixed WHERE a < 4 GROUP BY CUBE (a, b, c, t, d, e, v, s, a % 2)",
    ] {
        let (found, expected) = (run(&ours, sql).await, run(&theirs, sql).await);
        assert!(!found.plan.contains("HybridAggregateExec"), "{}", found.plan);
        assert_eq!(found.answer.unwrap().difference(&expected.answer.unwrap()), None, "{sql}");
    }
}
