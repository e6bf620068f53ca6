//! Writes `USING` and `NATURAL` as `ON`, and the columns that they merge as what they mean.
//!
//! | join | its merged column `k` |
//! |---|---|
//! | `a JOIN b USING (k)`, `a LEFT JOIN b USING (k)` | `a.k` |
//! | `a RIGHT JOIN b USING (k)` | `b.k` |
//! | `a FULL JOIN b USING (k)` | `coalesce(a.k, b.k)` |
//!
//! The planner of DataFusion 55 names a merged column by one of the two, and then takes it for the same expression as that
//! side's own: `SELECT sum(k), sum(a.k)` adds up one column twice. It also reports merged columns in `WHERE` and in further
//! joins as ambiguous, and shows those of a chain of joins twice for `*`. For statements that are planned without this
//! module, the rule `using_columns` corrects what can be recognized in a plan.
//!
//! The meaning of a name without a table depends on the columns of all tables of `FROM`. So each table is planned first to
//! get its schema.

mod joins;
mod names;
mod scope;
mod select;

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    self, Cte, Query, Select, SetExpr, TableFactor, TableWithJoins, VisitorMut, With, visit_relations,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::row_membership;
use joins::merged_tables;
use names::Subqueries;
use scope::only_part;
use select::rewrite_select;

/// Rewrites all queries of a statement that have a join with `USING` or `NATURAL`.
///
/// A query is left unchanged if a table in its `FROM` cannot be planned alone, because it refers to other tables (`LATERAL`)
/// or has an error. Planning the statement then reports the error.
///
/// # Errors
/// Returns a plan error if it is unclear whether a name in a subquery means a merged column, or if a result would have a
/// merged column next to another column of the same name.
pub(super) async fn write_out(state: &SessionState, statement: &mut Statement) -> Result<()> {
    let normalizer = IdentNormalizer::new(state.config().options().sql_parser.enable_ident_normalization);
    let mut schemas = Schemas::new();
    loop {
        match next_outcome(statement, &normalizer, &schemas) {
            None => return Ok(()),
            Some(Outcome::Rewritten) => {}
            Some(Outcome::Refused(reason)) => return plan_err!("{reason}"),
            Some(Outcome::Needs(queries)) => {
                for query in queries {
                    let text = query.to_string();
                    let query = ast::Statement::Query(Box::new(query));
                    let mut statement = Statement::Statement(Box::new(query));
                    let planned = match row_membership::write_out(&mut statement) {
                        Ok(()) => state.statement_to_plan(statement).await,
                        Err(refused) => Err(refused),
                    };
                    schemas.insert(text, planned.ok().map(|plan| plan.schema().clone()));
                }
            }
        }
    }
}

/// Walks over a statement up to the first query that needs work. Inner queries come first, as the outer ones are planned with
/// them.
fn next_outcome(statement: &mut Statement, normalizer: &IdentNormalizer, schemas: &Schemas) -> Option<Outcome> {
    let mut writing = Writing { normalizer, schemas, queries: vec![], outcome: None };
    let _ = super::visit(statement, &mut writing);
    writing.outcome
}

/// The schemas of tables of `FROM`, keyed by the text of the query that selects all their columns. None if that query has an
/// error.
type Schemas = HashMap<String, Option<DFSchemaRef>>;

/// Why a walk over a statement stops.
enum Outcome {
    /// The schemas of these queries are needed.
    Needs(Vec<Query>),
    /// A query was rewritten, so that the queries around it can be visited.
    Rewritten,
    /// The statement has no plan, for this reason.
    Refused(String),
}

/// A walk over a statement up to the first query that needs work.
struct Writing<'a> {
    normalizer: &'a IdentNormalizer,
    schemas: &'a Schemas,
    /// The queries around the visited one, and the visited query itself.
    queries: Vec<Enclosing>,
    outcome: Option<Outcome>,
}

/// The names that a query makes visible to the queries inside it.
struct Enclosing {
    with: Option<With>,
    /// How many of its common table expressions the visited inner query may name: an expression sees only those before it.
    visible: usize,
    /// Its common table expressions, by address.
    expressions: Vec<*const Query>,
}

impl Enclosing {
    fn of(query: &Query) -> Self {
        let expressions = query.with.iter().flat_map(|with| &with.cte_tables).map(|table| &raw const *table.query);
        let expressions: Vec<_> = expressions.collect();
        Self { with: query.with.clone(), visible: expressions.len(), expressions }
    }

    /// Continues with an inner query.
    fn enter(&mut self, query: &Query) {
        let position = self.expressions.iter().position(|expression| std::ptr::eq(*expression, query));
        self.visible = position.unwrap_or(self.expressions.len());
    }

    /// Continues after its common table expressions.
    fn leave(&mut self) {
        self.visible = self.expressions.len();
    }
}

impl Writing<'_> {
    /// Rewrites the `SELECT`s of a query.
    fn write(&self, query: &mut Query) -> Option<Outcome> {
        // ORDER BY behind UNION names columns of the result alone.
        let is_ordered = matches!(*query.body, SetExpr::Select(_));
        let mut needed = vec![];
        let mut written = vec![];
        for select in selects_of(&mut query.body) {
            let tables = merged_tables(&select.from).into_iter();
            let probes: Vec<_> = tables.filter_map(|factor| self.probe(&[table(factor)], &[])).collect();
            let known: Vec<_> = probes.iter().map(|probe| self.schemas.get(&probe.to_string())).collect();
            let (unknown, known): (Vec<_>, Vec<_>) =
                probes.into_iter().zip(known).partition(|(_, schema)| schema.is_none());
            needed.extend(unknown.into_iter().map(|(probe, _)| probe));
            let schemas: Option<Vec<_>> = known.into_iter().map(|(_, schema)| schema.cloned().flatten()).collect();
            written.push((select, schemas.unwrap_or_default()));
        }
        if !needed.is_empty() {
            return Some(Outcome::Needs(needed));
        }
        let (mut rewritten, mut refused, mut order) = (vec![], None, query.order_by.clone());
        for (select, schemas) in written {
            if schemas.is_empty() {
                continue;
            }
            let subqueries = Subqueries::new(self);
            let mut new = select.clone();
            // An ambiguous name leaves the query unchanged.
            let Some(names) = rewrite_select(&mut new, schemas, &subqueries) else { continue };
            if let (true, Some(order)) = (is_ordered, &mut order) {
                names.write(order, &subqueries);
            }
            let findings = subqueries.findings();
            needed.extend(findings.needed);
            refused = refused.or(findings.refused);
            rewritten.push((select, new));
        }
        if !needed.is_empty() {
            return Some(Outcome::Needs(needed));
        }
        if let Some(reason) = refused {
            return Some(Outcome::Refused(reason));
        }
        if rewritten.is_empty() {
            return None;
        }
        for (select, new) in rewritten {
            *select = new;
        }
        query.order_by = order;
        Some(Outcome::Rewritten)
    }

    /// The query for all columns of tables in the visited query, or in queries `inside` it, outermost first. None for tables
    /// that cannot be queried alone.
    fn probe(&self, from: &[TableWithJoins], inside: &[&Enclosing]) -> Option<Query> {
        let mut named = vec![];
        for tables in from {
            let _ = visit_relations(tables, |name| {
                named.extend(only_part(name).map(|name| self.normalizer.normalize(name)));
                ControlFlow::<()>::Continue(())
            });
        }
        let is_named = |table: &Cte| named.contains(&self.normalizer.normalize(table.alias.name.clone()));
        let mut probe = all_columns_of(from.to_vec())?;
        for enclosing in inside.iter().copied().rev().chain(self.queries.iter().rev()) {
            let Some(with) = enclosing.with.as_ref() else { continue };
            let itself = with.cte_tables.get(enclosing.visible).filter(|table| with.recursive && is_named(table));
            let before = &with.cte_tables[..enclosing.visible];
            if itself.is_none() && !before.iter().any(is_named) {
                continue;
            }
            if probe.with.is_some() {
                let mut around = all_columns_of(from.to_vec())?;
                around.body = Box::new(SetExpr::Query(Box::new(probe)));
                probe = around;
            }
            let mut with = With { cte_tables: before.to_vec(), ..with.clone() };
            if let Some(table) = itself {
                // A recursive expression has the columns of its initial rows.
                let SetExpr::SetOperation { left, .. } = table.query.body.as_ref() else { return None };
                let query = Query { body: left.clone(), ..(*table.query).clone() };
                with.cte_tables.push(Cte { query: Box::new(query), ..table.clone() });
            }
            probe.with = Some(with);
        }
        Some(probe)
    }
}

impl VisitorMut for Writing<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Some(parent) = self.queries.last_mut() {
            parent.enter(query);
        }
        self.queries.push(Enclosing::of(query));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Some(visited) = self.queries.last_mut() {
            visited.leave();
        }
        self.outcome = self.write(query);
        self.queries.pop();
        if self.outcome.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        // A join with an alias is a table. It has its merged columns once.
        if let TableFactor::NestedJoin { table_with_joins, alias: alias @ Some(_) } = factor
            && let Some(subquery) = all_columns_of(vec![(**table_with_joins).clone()])
        {
            let subquery = Box::new(subquery);
            *factor = TableFactor::Derived { lateral: false, subquery, alias: alias.take(), sample: None };
        }
        ControlFlow::Continue(())
    }
}

/// `SELECT * FROM` these tables.
fn all_columns_of(tables: Vec<TableWithJoins>) -> Option<Query> {
    let parsed = Parser::parse_sql(&GenericDialect, "SELECT * FROM t").ok()?;
    let Some(ast::Statement::Query(mut query)) = parsed.into_iter().next() else { return None };
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.from = tables;
    }
    Some(*query)
}

fn table(factor: &TableFactor) -> TableWithJoins {
    TableWithJoins { relation: factor.clone(), joins: vec![] }
}

/// The `SELECT`s of a query and its set operations. Queries in parentheses are visited on their own.
fn selects_of(body: &mut SetExpr) -> Vec<&mut Select> {
    let selects = trees_of(body).into_iter().filter_map(|tree| match tree {
        SetExpr::Select(select) => Some(select.as_mut()),
        _ => None,
    });
    selects.collect()
}

/// The operands of set operations, or the whole body of a query without set operations.
fn trees_of(body: &mut SetExpr) -> Vec<&mut SetExpr> {
    let (mut trees, mut pending) = (vec![], vec![body]);
    while let Some(tree) = pending.pop() {
        match tree {
            SetExpr::SetOperation { left, right, .. } => pending.extend([left.as_mut(), right.as_mut()]),
            tree => trees.push(tree),
        }
    }
    trees
}
