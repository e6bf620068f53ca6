//! Rows of build sides that are dropped by the keys of joins on the probe side.

use super::{agree_in, run, session};
use crate::harness::session::{Engine, Memory};

/// Joins whose build side `some` is restricted by `few`, and how many rows its filters drop at least.
const RESTRICTED: [(&str, usize); 8] = [
    (
        "SELECT sum(v), count(*) FROM some JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.k",
        9_900,
    ),
    // By the equality with the column of `few` itself.
    (
        "SELECT sum(v), count(*) FROM some JOIN (SELECT few.k, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.k",
        9_900,
    ),
    // By one of two keys.
    (
        "SELECT sum(v), count(*) FROM some AS s JOIN (SELECT many.k, v, many.g AS h FROM few JOIN many ON few.k = many.k) AS j ON s.k = j.k AND s.g = j.h",
        9_900,
    ),
    // Below filters and group keys, and above a join that keeps its probe side.
    (
        "SELECT sum(s), count(*) FROM some JOIN (SELECT many.k, sum(v) AS s FROM few JOIN many ON few.k = many.k GROUP BY many.k HAVING count(*) > 1) AS j ON some.k = j.k",
        9_900,
    ),
    (
        "SELECT sum(v), count(u) FROM some JOIN (SELECT m.k, v, u FROM (SELECT k AS u FROM few) AS f RIGHT JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS m ON m.v = u) AS j ON some.k = j.k",
        9_900,
    ),
    // Build rows without a partner are not in these outputs.
    ("SELECT count(*), sum(k) FROM some WHERE k IN (SELECT many.k FROM few JOIN many ON few.k = many.k)", 0),
    (
        "SELECT sum(v), count(*), count(t) FROM some RIGHT JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.k",
        9_900,
    ),
    // Joins over joins: each restricts the one above.
    (
        "SELECT sum(a.g), count(*) FROM some AS a JOIN (SELECT b.k, v FROM some AS b JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS j ON b.k = j.k) AS i ON a.k = i.k",
        19_800,
    ),
];

/// Joins whose build rows without a partner matter, or that have no key of `few`.
const KEPT: [&str; 5] = [
    "SELECT sum(v), count(*), count(t) FROM some LEFT JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.k",
    "SELECT sum(v), count(*), count(t) FROM some FULL JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.k",
    "SELECT count(*), count(t) FROM some WHERE k IS NOT NULL AND k NOT IN (SELECT many.k FROM few JOIN many ON few.k = many.k WHERE many.k IS NOT NULL)",
    // The join with `few` keeps its probe rows, or its key is another column.
    "SELECT sum(v), count(*), count(f) FROM some JOIN (SELECT many.k, v, f FROM few RIGHT JOIN many ON few.k = many.k) AS j ON some.k = j.k",
    "SELECT sum(v), count(*) FROM some JOIN (SELECT many.g, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.g",
];

/// Whether the build side of the topmost join drops rows by keys.
fn restricts_build(plan: &str) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut below = plan.lines().skip_while(|line| !line.contains("HybridJoinExec")).skip(1);
    let first = below.next().unwrap_or_default();
    let rest = below.take_while(|line| indent(line) > indent(first));
    std::iter::once(first).chain(rest).any(|line| line.contains("MembershipExec"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smaller_build_sides_restrict_larger_ones_above() {
    let stock = session(Engine::Stock, Memory::Ample).await;
    let ours = session(Engine::Overspill, Memory::Ample).await;
    for (sql, least) in RESTRICTED {
        let expected = run(&stock, sql).await.answer.unwrap();
        let found = run(&ours, sql).await;
        assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}\n{}", found.plan);
        assert!(restricts_build(&found.plan), "{sql}\n{}", found.plan);
        let dropped: usize = found.report.dropped_rows.iter().sum();
        assert!(dropped >= least, "{dropped}: {sql}\n{}", found.plan);
        assert_eq!(ours.leftovers().await, None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn build_rows_that_matter_are_kept() {
    let stock = session(Engine::Stock, Memory::Ample).await;
    let ours = session(Engine::Overspill, Memory::Ample).await;
    for sql in KEPT {
        let expected = run(&stock, sql).await.answer.unwrap();
        let found = run(&ours, sql).await;
        assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}\n{}", found.plan);
        assert!(!restricts_build(&found.plan), "{sql}\n{}", found.plan);
        assert_eq!(ours.leftovers().await, None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_memory_changes_no_answer_of_restricted_builds() {
    let queries = RESTRICTED.iter().map(|(sql, _)| *sql).chain(KEPT);
    agree_in(&[1 << 20, 2 << 20, 8 << 20], queries).await;
}

/// A join that finds no build row never executes its probe side, where a build side has been read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_side_read_for_nothing_leaves_nothing() {
    let ours = session(Engine::Overspill, Memory::Ample).await;
    let sql = "SELECT sum(v), count(*) FROM (SELECT k FROM some WHERE g > 100) AS some \
               JOIN (SELECT many.k, v FROM few JOIN many ON few.k = many.k) AS j ON some.k = j.k";
    for _ in 0..3 {
        let found = run(&ours, sql).await;
        let rows: usize = found.answer.unwrap().batches.iter().map(|batch| batch.num_rows()).sum();
        assert_eq!(rows, 1, "{}", found.plan);
        assert_eq!(ours.leftovers().await, None, "{}", found.plan);
    }
}
