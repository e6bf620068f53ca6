//! Parses and plans a statement.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::prelude::{DataFrame, SessionContext};
use overspill::memory::changes_indexes;
use overspill::memory::execute_logical_plan;
use overspill::sql::{self, Parsed, on_large_stack};

use super::ignored::refuse_ignored;
use super::summarize;
use crate::files::{read_names, refuse_equal_names, why_no_table};
use crate::settings::Change;

/// What the rows of a statement are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The answer to a query.
    Rows,
    /// The plan of `EXPLAIN`, as text of several lines.
    Explanation,
    /// The number of rows that a statement such as `INSERT` or `COPY` has stored, changed or deleted.
    Count,
    /// None: the statement has changed the session, and has done so already.
    Nothing,
}

/// A statement that is ready to return rows.
pub struct Prepared {
    pub kind: Kind,
    pub plan: Arc<dyn ExecutionPlan>,
    pub context: Arc<TaskContext>,
}

/// Plans the statement. A statement that only changes the session is executed here and leaves nothing to run: its plan returns
/// no rows.
pub async fn prepare(context: SessionContext, text: String) -> Result<Prepared> {
    match prepare_or_miss(&context, text).await {
        Err(error) => Err(why_no_table(&context.state(), error).await),
        prepared => prepared,
    }
}

/// As `prepare`, but errors do not say why a folder is not a table.
async fn prepare_or_miss(context: &SessionContext, text: String) -> Result<Prepared> {
    if let Some(subject) = summarize::subject(&text) {
        let frame = summarize::summary(context, subject).await?;
        return Prepared::of(Kind::Rows, frame).await;
    }
    let state = context.state();
    let Parsed { mut statement, depth } = sql::parse(&state, &text)?;
    refuse_ignored(&statement)?;
    read_names(&mut statement)?;
    let plan = on_large_stack(depth, sql::plan(&state, statement)).await?;
    refuse_equal_names(&plan)?;
    let kind = kind_of(&plan);
    let set = Change::of(&plan);
    let frame = on_large_stack(sql::depth(&plan)?, execute_logical_plan(context, plan)).await;
    let frame = match set {
        Some(change) => frame.map_err(|error| change.refused(&error, context.state().config().options()))?,
        None => frame?,
    };
    if kind == Kind::Nothing {
        let plan = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        return Ok(Prepared { kind, plan, context: context.task_ctx() });
    }
    // The plan gives the kind of an EXECUTE.
    Prepared::of(kind_of(frame.logical_plan()), frame).await
}

impl Prepared {
    async fn of(kind: Kind, frame: DataFrame) -> Result<Self> {
        let context = Arc::new(frame.task_ctx());
        let plan = on_large_stack(sql::depth(frame.logical_plan())?, frame.create_physical_plan()).await?;
        Ok(Self { kind, plan, context })
    }
}

fn kind_of(plan: &LogicalPlan) -> Kind {
    match plan {
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => Kind::Explanation,
        LogicalPlan::Dml(_) | LogicalPlan::Copy(_) => Kind::Count,
        LogicalPlan::Statement(Statement::Execute(_)) => Kind::Rows,
        LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => Kind::Nothing,
        plan if changes_indexes(plan) => Kind::Nothing,
        _ => Kind::Rows,
    }
}
