//! `COPY` and `INSERT` put files in place when all of them are complete.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, not_impl_err};
use datafusion::datasource::file_format::{file_type_to_format, format_as_file_type};
use datafusion::datasource::stream::StreamTable;
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::dml::{CopyTo, InsertOp};
use datafusion::logical_expr::{DmlStatement, LogicalPlan, WriteOp};

use super::map_statement;
use crate::write_aside::{WrittenAside, appended_aside};

/// Makes `COPY`, and `INSERT` into tables of files, write aside and rename; see the comment of `write_aside`.
///
/// In DataFusion 55 a failing statement leaves a part of its result in place of the previous files. Unbounded tables, which
/// are meant as pipes, are appended to while the rows arrive.
pub(super) fn write_aside(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_statement(plan, |node| match node {
        LogicalPlan::Copy(copy) => copied_aside(copy).map(LogicalPlan::Copy),
        LogicalPlan::Dml(statement) => inserted_aside(statement).map(LogicalPlan::Dml),
        node => Ok(node),
    })
}

fn copied_aside(mut copy: CopyTo) -> Result<CopyTo> {
    let format = file_type_to_format(&copy.file_type)?;
    if !format.is::<WrittenAside>() {
        copy.file_type = format_as_file_type(Arc::new(WrittenAside { format }));
    }
    Ok(copy)
}

fn inserted_aside(mut statement: DmlStatement) -> Result<DmlStatement> {
    let WriteOp::Insert(op) = &statement.op else { return Ok(statement) };
    let Ok(table) = source_as_provider(&statement.target) else { return Ok(statement) };
    // It would be appended anyway.
    if table.downcast_ref::<StreamTable>().is_some() && *op != InsertOp::Append {
        return not_impl_err!("{op} is not supported for unbounded table '{}'", statement.table_name);
    }
    if let Some(table) = appended_aside(table.as_ref()) {
        statement.target = provider_as_source(Arc::new(table));
    }
    Ok(statement)
}
