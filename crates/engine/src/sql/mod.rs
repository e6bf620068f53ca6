//! Plans SQL text with expressions of any length.
//!
//! The parser makes a tree as deep as its longest chain of operators: 20,000 `OR`s are 20,000 levels. DataFusion and the
//! parser walk such trees by recursion, and some of their recursive functions do not check the remaining stack. So this
//! module balances chains of associative operators right after parsing ([`parse`]), refuses what stays deeper than
//! [`MAX_DEPTH`] with a clear error, both there and after planning ([`plan`]), and runs everything up to the physical plan on
//! a stack that is large enough ([`on_large_stack`]).
//!
//! [`sql`] does all of it in place of `SessionContext::sql`:
//!
//! ```
//! # use datafusion::prelude::SessionContext;
//! # use datafusion::error::Result;
//! # #[tokio::main]
//! # async fn main() -> Result<()> {
//! # let context = SessionContext::new();
//! let long: Vec<_> = (0..20_000).map(|number| format!("value = {number}")).collect();
//! let text = format!("SELECT count(*) FROM range(10) WHERE {}", long.join(" OR "));
//! let frame = overspill::sql::sql(&context, &text).await?;
//! // The optimizer walks the plan, too.
//! let depth = overspill::sql::depth(frame.logical_plan())?;
//! let plan = overspill::sql::on_large_stack(depth, frame.create_physical_plan()).await?;
//! # let _ = plan;
//! # Ok(())
//! # }
//! ```

mod balance;
mod depth;
mod merged_columns;
mod reindex;
mod row_membership;
mod stack;

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{VisitMut, VisitorMut};

use crate::indexes;
use crate::memory::execute_logical_plan;

pub use depth::{MAX_DEPTH, depth};
pub use stack::on_large_stack;

/// A parsed statement and the depth that planning it needs.
#[derive(Debug)]
pub struct Parsed {
    /// The statement. Its chains of `AND`, `OR`, `UNION` and `INTERSECT` are balanced trees, which mean the same.
    pub statement: Statement,
    /// Levels that are below one another, for [`on_large_stack`].
    pub depth: usize,
}

/// Parses one statement with the session's dialect.
///
/// # Errors
/// Returns the errors of the parser, a plan error if the statement is nested deeper than [`MAX_DEPTH`], and an execution
/// error if there is no address space for the stack.
pub fn parse(state: &SessionState, text: &str) -> Result<Parsed> {
    let dialect = state.config().options().sql_parser.dialect;
    stack::for_text(text, || {
        let mut statement = state.sql_to_statement(&reindex::known(text), &dialect)?;
        let depth = balance::balance(&mut statement)?;
        Ok(Parsed { statement, depth })
    })
}

/// Plans a statement that [`parse`] has parsed, to be polled by [`on_large_stack`].
///
/// `USING` and `NATURAL` are planned as `ON`. A merged column has the value of the side that has the row, wherever it is
/// named, and `a.k` remains the column of `a`. A row of several values may be on the left of `IN (SELECT …)` in `WHERE`.
///
/// # Errors
/// Returns the errors of DataFusion, and a plan error if common table expressions make the plan deeper than [`MAX_DEPTH`].
pub async fn plan(state: &SessionState, mut statement: Statement) -> Result<LogicalPlan> {
    let normalizes = state.config().options().sql_parser.enable_ident_normalization;
    if let Some(statement) = indexes::statement_of(&statement, normalizes)? {
        return Ok(LogicalPlan::Extension(Extension { node: Arc::new(statement) }));
    }
    // Merged columns in a row of values are resolved before the row moves into a subquery.
    merged_columns::write_out(state, &mut statement).await?;
    row_membership::write_out(&mut statement)?;
    let plan = state.statement_to_plan(statement).await?;
    depth::check_depth(&plan)?;
    Ok(plan)
}

/// Runs a statement as `SessionContext::sql` does, parsed by [`parse`], planned by [`plan`] and executed by
/// [`execute_logical_plan`], on a large stack.
///
/// # Errors
/// Returns the errors of these functions.
pub async fn sql(context: &SessionContext, text: &str) -> Result<DataFrame> {
    let state = context.state();
    let Parsed { statement, depth } = parse(&state, text)?;
    let plan = on_large_stack(depth, plan(&state, statement)).await?;
    on_large_stack(self::depth(&plan)?, execute_logical_plan(context, plan)).await
}

/// Visits the expressions and queries of a statement, whichever kind it is of.
fn visit<V: VisitorMut>(statement: &mut Statement, visitor: &mut V) -> ControlFlow<V::Break> {
    match statement {
        Statement::Statement(statement) => statement.visit(visitor),
        Statement::Explain(explain) => visit(&mut explain.statement, visitor),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => query.visit(visitor),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        Statement::CreateExternalTable(_) | Statement::Reset(_) => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests;
