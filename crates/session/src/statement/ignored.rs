//! Refuses clauses that DataFusion 55 parses and ignores, as their effect would be missing.

use std::collections::HashSet;

use datafusion::common::{Result, plan_err};
use datafusion::sql::parser;
use datafusion::sql::sqlparser::ast::{
    AssignmentTarget, ColumnDef, ColumnOption, FromTable, NullsDistinctOption, Statement, TableConstraint, TableFactor,
    TableWithJoins,
};

/// Refuses a statement with such a clause.
pub fn refuse_ignored(statement: &parser::Statement) -> Result<()> {
    match statement {
        parser::Statement::Statement(statement) => refuse(statement),
        parser::Statement::CreateExternalTable(table) => columns(&table.columns, true),
        parser::Statement::Explain(explain) => refuse_ignored(&explain.statement),
        _ => Ok(()),
    }
}

fn refuse(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Prepare { statement, .. } => refuse(statement),
        Statement::CreateTable(table) => {
            // Columns of the query keep their nullability.
            columns(&table.columns, table.query.is_none())?;
            table.constraints.iter().try_for_each(constraint)
        }
        Statement::Update(update) => {
            if update.from.is_some() {
                return plan_err!(
                    "UPDATE … FROM is not supported. Take the values from subqueries: UPDATE t SET x = (SELECT max(s.x) \
                     FROM s WHERE s.k = t.k) WHERE k IN (SELECT k FROM s)"
                );
            }
            let mut assigned = HashSet::new();
            for assignment in &update.assignments {
                // The planner identifies columns by their last name only.
                if let AssignmentTarget::ColumnName(name) = &assignment.target
                    && let Some(column) = name.0.last().and_then(|part| part.as_ident())
                    && !assigned.insert(&column.value)
                {
                    return plan_err!("UPDATE sets column '{name}' more than once");
                }
            }
            sampled(&update.table)
        }
        Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables)) = &delete.from;
            tables.iter().try_for_each(sampled)
        }
        _ => Ok(()),
    }
}

/// Refuses ignored options in column definitions.
fn columns(columns: &[ColumnDef], not_null: bool) -> Result<()> {
    for column in columns {
        for option in &column.options {
            match &option.option {
                ColumnOption::NotNull if !not_null => {
                    return plan_err!(
                        "NOT NULL of column '{}' is not enforced in CREATE TABLE … AS. Create the table first, and INSERT the \
                         rows",
                        column.name
                    );
                }
                ColumnOption::Null
                | ColumnOption::NotNull
                | ColumnOption::Default(_)
                | ColumnOption::Comment(_)
                | ColumnOption::PrimaryKey(_)
                // The planner refuses these.
                | ColumnOption::ForeignKey(_)
                | ColumnOption::Check(_) => {}
                ColumnOption::Unique(unique) => nulls_are_distinct(&unique.nulls_distinct)?,
                other => return plan_err!("{other} of column '{}' is not supported. Leave it out", column.name),
            }
        }
    }
    Ok(())
}

fn constraint(constraint: &TableConstraint) -> Result<()> {
    match constraint {
        TableConstraint::Unique(unique) => nulls_are_distinct(&unique.nulls_distinct),
        _ => Ok(()),
    }
}

fn nulls_are_distinct(nulls: &NullsDistinctOption) -> Result<()> {
    match nulls {
        NullsDistinctOption::NotDistinct => plan_err!("UNIQUE NULLS NOT DISTINCT is not supported"),
        NullsDistinctOption::Distinct | NullsDistinctOption::None => Ok(()),
    }
}

/// Refuses to change a table if FROM names only a sample or partitions of it.
fn sampled(table: &TableWithJoins) -> Result<()> {
    match &table.relation {
        TableFactor::Table { name, sample, partitions, .. } if sample.is_some() || !partitions.is_empty() => {
            plan_err!(
                "A part of table '{name}' cannot be changed by naming it in FROM. Say in WHERE which rows are meant"
            )
        }
        _ => Ok(()),
    }
}
