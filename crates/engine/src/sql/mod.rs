//! SQL text on its way to a plan, however long its expressions are.
//!
//! The parser makes a tree as deep as its longest chain of operators: 20,000 `OR`s are 20,000 levels. DataFusion and the
//! parser walk such trees by recursion, and not every recursion of theirs looks at the stack that is left. So chains of
//! associative operators are balanced right after parsing ([`parse`]), what stays deeper than [`MAX_DEPTH`] is refused in a
//! sentence, there and once it is planned ([`plan`]), and everything up to the physical plan runs on a stack that is sure
//! to suffice ([`on_large_stack`]).
//!
//! [`sql`] does all of it, as `SessionContext::sql` does without:
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
mod row_membership;
mod stack;

use std::ops::ControlFlow;

use datafusion::common::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{VisitMut, VisitorMut};

use crate::memory::execute_logical_plan;

pub use depth::{MAX_DEPTH, depth};
pub use stack::on_large_stack;

/// A statement, and what planning it takes.
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
/// What the parser fails with, a plan error where the statement is nested deeper than [`MAX_DEPTH`], and an execution error
/// where there is no address space for the stack.
pub fn parse(state: &SessionState, text: &str) -> Result<Parsed> {
    let dialect = state.config().options().sql_parser.dialect;
    stack::for_text(text, || {
        let mut statement = state.sql_to_statement(text, &dialect)?;
        let depth = balance::balance(&mut statement)?;
        Ok(Parsed { statement, depth })
    })
}

/// Plans a statement that [`parse`] has parsed, to be polled by [`on_large_stack`].
///
/// `USING` and `NATURAL` are planned as `ON`: what they merge has the value of the side that has the row, wherever it is
/// named, and `a.k` stays the column of `a`. A row of several values may be on the left of `IN (SELECT …)` in `WHERE`.
///
/// # Errors
/// What DataFusion fails with, and a plan error where common table expressions make it deeper than [`MAX_DEPTH`].
pub async fn plan(state: &SessionState, mut statement: Statement) -> Result<LogicalPlan> {
    // Values of a row that are merged columns are known before the row is in a subquery.
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
/// Theirs.
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
