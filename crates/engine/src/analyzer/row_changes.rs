//! `DELETE`, `UPDATE` and `TRUNCATE` change exactly the rows that a query with the same filter would return.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, internal_datafusion_err, not_impl_err};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{
    DmlStatement, EmptyRelation, Expr, JoinType, LogicalPlan, LogicalPlanBuilder, TableScanBuilder, WriteOp,
};

use super::map_statement;
use crate::row_changes::{ChangeableTable, ChangedRows, NumberedRows, ROW_NUMBER, RowChange};

/// Turns `DELETE`, `UPDATE` and `TRUNCATE` of tables in memory into queries for the numbers of the rows to change (the
/// comment of `row_changes` shows such plans), and refuses statements on other tables that would change the wrong rows.
///
/// DataFusion 55 passes a table only the simple predicates of the optimized plan, and ignores the rest: with a subquery, a
/// `LIMIT` or a filter that is never true, every row is deleted or updated. It also changes rows already when the statement
/// is planned, even by `EXPLAIN`, and keeps half of the changes when an expression fails.
pub(super) fn row_changes(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_statement(plan, |node| match node {
        LogicalPlan::Dml(statement) => rewrite(statement).map(LogicalPlan::Dml),
        node => Ok(node),
    })
}

fn rewrite(statement: DmlStatement) -> Result<DmlStatement> {
    if !matches!(statement.op, WriteOp::Delete | WriteOp::Update | WriteOp::Truncate) {
        return Ok(statement);
    }
    let Ok(provider) = source_as_provider(&statement.target) else { return Ok(statement) };
    let Some(table) = ChangeableTable::new(statement.table_name.to_string(), Arc::clone(&provider)) else {
        if !matches!(statement.op, WriteOp::Truncate) {
            refuse_what_is_forgotten(&statement)?;
        }
        return Ok(statement);
    };
    let rows = Target { provider, rows: NumberedRows::new(table) };
    let (change, input) = match &statement.op {
        WriteOp::Update => update(&statement, &rows)?,
        WriteOp::Truncate => (RowChange::Delete, project(rows.scan(&statement)?, vec![])?),
        _ => (RowChange::Delete, project(rows.numbered(&statement, &statement.input)?, vec![])?),
    };
    let target = provider_as_source(Arc::new(ChangedRows { rows: rows.rows, change }));
    Ok(DmlStatement::new(statement.table_name, target, WriteOp::Insert(InsertOp::Overwrite), Arc::new(input)))
}

/// Takes an `UPDATE` apart. Its input is a projection to the table's columns with their values.
fn update(statement: &DmlStatement, target: &Target) -> Result<(RowChange, LogicalPlan)> {
    let schema = statement.target.schema();
    let projection = match statement.input.as_ref() {
        LogicalPlan::Projection(projection) if projection.expr.len() == schema.fields().len() => projection,
        // The optimizer has already processed a prepared statement, and found that its filter is never true.
        LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, .. }) => {
            let input = target.numbered(statement, &statement.input)?;
            return Ok((RowChange::Update(vec![]), project(input, vec![])?));
        }
        _ => return not_supported(statement),
    };
    let input = target.numbered(statement, &projection.input)?;
    let qualifier = row_number(&input)?.relation;
    let (mut columns, mut values) = (vec![], vec![]);
    for (column, (field, value)) in schema.fields().iter().zip(&projection.expr).enumerate() {
        let unaliased = value.clone().unalias();
        let is_itself =
            matches!(&unaliased, Expr::Column(from) if from.name == *field.name() && from.relation == qualifier);
        if !is_itself {
            columns.push(column);
            values.push(unaliased.alias(field.name()));
        }
    }
    Ok((RowChange::Update(columns), project(input, values)?))
}

/// Projects to `values`, followed by the row number.
fn project(input: LogicalPlan, mut values: Vec<Expr>) -> Result<LogicalPlan> {
    values.push(Expr::Column(row_number(&input)?));
    LogicalPlanBuilder::from(input).project(values)?.build()
}

fn row_number(plan: &LogicalPlan) -> Result<Column> {
    let found = plan.schema().iter().find(|(_, field)| field.name() == ROW_NUMBER);
    found.map(Column::from).ok_or_else(|| internal_datafusion_err!("A change of rows without their numbers"))
}

/// The table to change.
struct Target {
    provider: Arc<dyn TableProvider>,
    rows: NumberedRows,
}

impl Target {
    /// All rows with their numbers.
    fn scan(&self, statement: &DmlStatement) -> Result<LogicalPlan> {
        let source = provider_as_source(Arc::new(self.rows.clone()));
        LogicalPlanBuilder::scan(statement.table_name.clone(), source, None)?.build()
    }

    /// The plan with the row number of the target as an additional column, either last or elsewhere.
    ///
    /// The target is the leftmost table of the plan. Plans of prepared statements have been optimized.
    fn numbered(&self, statement: &DmlStatement, plan: &LogicalPlan) -> Result<LogicalPlan> {
        match plan {
            LogicalPlan::TableScan(scan) => {
                let is_target = source_as_provider(&scan.source).is_ok_and(|table| Arc::ptr_eq(&table, &self.provider));
                // A table in memory accepts no filters.
                if !is_target || !scan.filters.is_empty() {
                    return not_supported(statement);
                }
                let number = self.provider.schema().fields().len();
                let projection = scan.projection.clone().map(|columns| [columns, vec![number]].concat());
                let source = provider_as_source(Arc::new(self.rows.clone()));
                let scan = TableScanBuilder::new(scan.table_name.clone(), source)
                    .with_projection(projection)
                    .with_fetch(scan.fetch)
                    .build()?;
                Ok(LogicalPlan::TableScan(scan))
            }
            LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::SubqueryAlias(_) => {
                let inputs = plan.inputs().into_iter().map(|input| self.numbered(statement, input));
                plan.with_new_exprs(plan.expressions(), inputs.collect::<Result<_>>()?)
            }
            LogicalPlan::Projection(projection) => {
                project(self.numbered(statement, &projection.input)?, projection.expr.clone())
            }
            LogicalPlan::Join(join) if keeps_left_rows(join.join_type) => {
                let left = self.numbered(statement, &join.left)?;
                plan.with_new_exprs(plan.expressions(), vec![left, join.right.as_ref().clone()])
            }
            // The optimizer found that the filter is never true: the plan of an empty set of target rows.
            LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, .. }) => {
                let schema = Arc::clone(self.scan(statement)?.schema());
                Ok(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema }))
            }
            _ => not_supported(statement),
        }
    }
}

/// Whether a join returns the columns of its left side, and each row of the result contains one of its rows.
fn keeps_left_rows(join: JoinType) -> bool {
    matches!(join, JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark)
}

fn not_supported<T>(statement: &DmlStatement) -> Result<T> {
    not_impl_err!(
        "This form of {} is not supported for table '{}'. Say which rows it is about in WHERE, as with WHERE k IN (SELECT …)",
        statement.op.name(),
        statement.table_name
    )
}

/// Refuses changes of a table if DataFusion would pass the table only a part of the filter.
fn refuse_what_is_forgotten(statement: &DmlStatement) -> Result<()> {
    let mut forgotten = None;
    statement.input.apply(|node| {
        forgotten = match node {
            LogicalPlan::Limit(_) => Some("a LIMIT"),
            LogicalPlan::Join(_) => Some("a join"),
            _ if has_subquery(node)? => Some("a subquery"),
            LogicalPlan::EmptyRelation(_) => Some("a filter that is never true"),
            _ => return Ok(TreeNodeRecursion::Continue),
        };
        Ok(TreeNodeRecursion::Stop)
    })?;
    match forgotten {
        Some(forgotten) => not_impl_err!(
            "{} with {forgotten} is not supported for table '{}', whose rows are not in memory: DataFusion would change every \
             row. Write the result of a query to new files instead",
            statement.op.name(),
            statement.table_name
        ),
        None => Ok(()),
    }
}

fn has_subquery(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_subqueries(|_| {
        found = true;
        Ok(TreeNodeRecursion::Stop)
    })?;
    Ok(found)
}
