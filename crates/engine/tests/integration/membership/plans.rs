//! What stays as DataFusion plans it, and what is pushed below our joins.

use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;

use super::{register, rows, session};
use crate::harness::session::Engine;

async fn plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    displayable(plan.as_ref()).indent(false).to_string()
}

#[tokio::test]
async fn conjuncts_stay_semi_and_anti_joins() {
    let session = session(Engine::Overspill);
    let rows: Vec<_> = (0..100).map(|row| vec![Some(row), Some(row % 7)]).collect();
    register(&session.ctx, "t", &["id", "x"], &rows);
    register(&session.ctx, "u", &["k", "v"], &rows[..10]);
    for (sql, join_type) in [
        ("SELECT id FROM t WHERE x IN (SELECT v FROM u)", "Semi"),
        ("SELECT id FROM t WHERE x = ANY (SELECT v FROM u) AND id > 3", "Semi"),
        ("SELECT id FROM t WHERE x IN (SELECT v FROM u WHERE u.k = t.id)", "Semi"),
        ("SELECT id FROM t WHERE x NOT IN (SELECT v FROM u)", "Anti"),
        ("SELECT id FROM t WHERE NOT (x IN (SELECT v FROM u)) AND id > 3", "Anti"),
        ("SELECT id FROM t WHERE x <> ALL (SELECT v FROM u)", "Anti"),
        ("SELECT id FROM t WHERE NOT (x = ANY (SELECT v FROM u))", "Anti"),
        ("SELECT id FROM t WHERE coalesce(x, 1) NOT IN (SELECT coalesce(v, 2) FROM u WHERE u.k = t.id)", "Anti"),
        ("SELECT t.id FROM t JOIN u ON t.id = u.k AND t.x IN (SELECT v FROM u)", "Semi"),
    ] {
        let plan = plan(&session.ctx, sql).await;
        assert!(plan.contains(&format!("{join_type}, on=[")) && !plan.contains("Mark"), "{sql}\n{plan}");
    }
}

#[tokio::test]
async fn one_pass_marks_rows_of_an_uncorrelated_subquery() {
    let session = session(Engine::Overspill);
    let rows: Vec<_> = (0..100).map(|row| vec![Some(row), Some(row % 7)]).collect();
    register(&session.ctx, "t", &["id", "x"], &rows);
    register(&session.ctx, "u", &["k", "v"], &rows[..10]);
    register(&session.ctx, "small", &["id", "x"], &rows[..3]);
    for (sql, join_type) in [
        ("SELECT id FROM t WHERE x NOT IN (SELECT v FROM u) OR id = 3", "RightMark"),
        ("SELECT id, x IN (SELECT v FROM u ORDER BY k LIMIT 3) AS m FROM t", "RightMark"),
        ("SELECT id, x NOT IN (SELECT x FROM t) AS m FROM small", "LeftMark"),
    ] {
        let plan = plan(&session.ctx, sql).await;
        assert!(plan.contains(&format!("HybridJoinExec: mode=CollectLeft, join_type={join_type}")), "{sql}\n{plan}");
        assert_eq!(plan.matches(", null_aware").count(), 1, "{sql}\n{plan}");
        assert_eq!(plan.matches("DataSourceExec").count(), 2, "{sql}\n{plan}");
    }
}

#[tokio::test]
async fn unknown_is_told_from_false_only_where_that_matters() {
    let session = session(Engine::Overspill);
    let rows: Vec<_> = (0..100).map(|row| vec![Some(row), Some(row % 7)]).collect();
    register(&session.ctx, "t", &["id", "x"], &rows);
    register(&session.ctx, "u", &["k", "v"], &rows[..10]);
    for (predicate, marks, null_aware) in [
        ("x IN (SELECT v FROM u) OR id = 3", 1, 0),
        ("x IN (SELECT v FROM u WHERE u.k = t.id) OR id = 3 AND x = ANY (SELECT k FROM u)", 2, 0),
        ("x IN (SELECT v FROM u WHERE v IS NOT NULL) IS NULL OR id = 3", 1, 1),
        ("(x IN (SELECT v FROM u)) IN (SELECT k = 1 FROM u) OR id = 3", 2, 2),
        ("x NOT IN (SELECT v FROM u WHERE u.k = t.id) OR id = 3", 3, 0),
    ] {
        let plan = plan(&session.ctx, &format!("SELECT id FROM t WHERE {predicate}")).await;
        let counts = (plan.matches("Mark, on=").count(), plan.matches(", null_aware").count());
        assert_eq!(counts, (marks, null_aware), "{predicate}\n{plan}");
    }
}

#[tokio::test]
async fn a_filter_above_a_mark_is_pushed_to_the_rows_and_not_to_the_members() {
    let session = session(Engine::Overspill);
    let numbers: Vec<_> = (0..1000).map(|row| vec![Some(row), Some(row % 7)]).collect();
    register(&session.ctx, "t", &["id", "x"], &numbers);
    register(&session.ctx, "u", &["k", "v"], &numbers[..10]);
    let marked = "SELECT id, x, x IN (SELECT v FROM u) AS m FROM t";
    let pushed = plan(&session.ctx, &format!("SELECT id, m FROM ({marked}) s WHERE x = 3 AND m IS NOT NULL")).await;
    let join = pushed.find("HybridJoinExec").expect(&pushed);
    assert_eq!(pushed.matches("= 3").count(), 1, "{pushed}");
    assert!(pushed.find("= 3") > Some(join), "{pushed}");
    // A predicate without columns is not of the members either.
    let random = format!("SELECT count(*) AS c FROM ({marked}) s WHERE random() < 0.5 AND NOT m");
    let random_plan = plan(&session.ctx, &random).await;
    assert_eq!(random_plan.matches("random()").count(), 1, "{random_plan}");
    assert_eq!(rows(&session.ctx, &random).await.unwrap(), [vec![Some(0)]]);
}

#[tokio::test]
async fn a_session_with_a_planner_of_its_own_plans_marks() {
    use datafusion::execution::SessionStateBuilder;
    use overspill::{OverspillConfig, OverspillSessionExt};

    let stock = session(Engine::Stock);
    // The state brings DataFusion's planner with it.
    let builder = SessionStateBuilder::new_from_existing(stock.ctx.state());
    let ctx = SessionContext::new_with_state(builder.with_overspill(OverspillConfig::default()).build());
    assert_eq!(rows(&ctx, "SELECT 1 IN (SELECT 2 UNION ALL SELECT NULL) AS m").await.unwrap(), [vec![None]]);
    assert_eq!(rows(&ctx, "SELECT 1 AS one").await.unwrap(), [vec![Some(1)]]);
}
