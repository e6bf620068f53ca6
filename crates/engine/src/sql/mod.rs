//! SQL text on its way to a plan, however long its expressions are.
//!
//! The parser makes a tree as deep as its longest chain of operators: 20,000 `OR`s are 20,000 levels. DataFusion and the
//! parser walk such trees by recursion, and not every recursion of theirs looks at the stack that is left. So chains of
//! associative operators are balanced right after parsing ([`parse`]), what stays deeper than [`MAX_DEPTH`] is refused in a
//! sentence, there and once it is planned ([`check_depth`]), and everything up to the physical plan runs on a stack that is
//! sure to suffice ([`on_large_stack`]).

mod balance;
mod depth;
mod stack;

use datafusion::common::Result;
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement;

pub use depth::{MAX_DEPTH, check_depth};
pub use stack::on_large_stack;

/// Parses one statement with the session's dialect.
///
/// Chains of `AND`, `OR`, `UNION` and `INTERSECT` come back as balanced trees, which mean the same.
///
/// # Errors
/// What the parser fails with, and a plan error where the statement is nested deeper than [`MAX_DEPTH`].
pub fn parse(state: &SessionState, text: &str) -> Result<Statement> {
    let dialect = state.config().options().sql_parser.dialect;
    stack::for_text(text, || {
        let mut statement = state.sql_to_statement(text, &dialect)?;
        balance::balance(&mut statement)?;
        Ok(statement)
    })
}

#[cfg(test)]
mod tests;
