//! Runs one statement and writes its result.

use std::sync::Arc;

use arrow::array::{Array, AsArray, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{DataFrame, SessionContext};
use futures::StreamExt;
use overspill::memory::execute_logical_plan;
use overspill::sql::{self, Parsed, on_large_stack};
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tracing::debug_span;

use super::ignored::refuse_ignored;
use super::summarize;
use crate::args::Format;
use crate::failure::{Failure, Outcome, describe};
use crate::files::{read_names, refuse_equal_names, why_no_table, with_files_named};
use crate::output::Output;
use crate::progress::Progress;
use crate::session::Session;
use crate::settings;
use crate::workers::Workers;

/// The lane of statements in timelines.
pub const STATEMENTS: &str = "statements";

/// The outcome of a statement, besides its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Rows went to the output.
    Rows,
    /// Rows went to a table or to files.
    Stored(u64),
    /// Nothing to show.
    Done,
}

/// The kind of rows that a plan returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Result,
    /// A plan as text of several lines.
    Explanation,
    /// The count of rows that INSERT or COPY wrote.
    Count,
    Nothing,
}

/// Runs one statement. Writes rows to the output as they arrive.
///
/// Tasks on the threads of `workers` do the work, and dropping the future stops them. An operator that computes for long
/// without yielding therefore blocks neither Ctrl-C nor the shell.
pub async fn answer(
    session: &Session,
    workers: &Workers,
    output: &mut Output,
    progress: Progress,
    sql: &str,
) -> Outcome<Answer> {
    let fail = |error| describe(error, sql, &session.context);
    // CREATE TABLE AS completes during preparation.
    let preparing = debug_span!("prepare", group = STATEMENTS, lane = STATEMENTS);
    let prepared = on(workers, || SpawnedTask::spawn(prepare(session.context.clone(), sql.to_string())));
    let Some(prepared) = prepared.join().await.unwrap_or_else(|error| Err(stopped(error))).map_err(fail)? else {
        return Ok(Answer::Done);
    };
    drop(preparing);
    let _running = debug_span!("run", group = STATEMENTS, lane = STATEMENTS);
    let Prepared { kind, plan, context } = prepared;
    let fail = |error| fail(with_files_named(error, &plan));
    let watched = progress.watch(&plan, context.memory_pool());
    let mut rows = on(workers, || Rows::of(Arc::clone(&plan), context));
    match kind {
        Kind::Count => Ok(Answer::Stored(count_in(&rows.all().await.map_err(fail)?))),
        Kind::Explanation if output.format == Format::Table => {
            let batches = rows.all().await.map_err(fail)?;
            drop(watched);
            output.text(&explanation(&batches))?;
            Ok(Answer::Rows)
        }
        _ => {
            write_rows(output, &plan.schema(), rows, || watched.hide(), &fail).await?;
            Ok(Answer::Rows)
        }
    }
}

/// Calls `spawn` such that its tasks run on the workers.
fn on<T>(workers: &Workers, spawn: impl FnOnce() -> T) -> T {
    let _entered = workers.enter();
    spawn()
}

/// A statement that is ready to return rows.
struct Prepared {
    kind: Kind,
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
}

/// Plans the statement. A statement that only changes the session is executed here and leaves nothing to run.
async fn prepare(context: SessionContext, text: String) -> Result<Option<Prepared>> {
    match prepare_or_miss(&context, text).await {
        Err(error) => Err(why_no_table(&context.state(), error).await),
        prepared => prepared,
    }
}

/// As `prepare`, but errors do not say why a folder is not a table.
async fn prepare_or_miss(context: &SessionContext, text: String) -> Result<Option<Prepared>> {
    if let Some(subject) = summarize::subject(&text) {
        let frame = summarize::summary(context, subject).await?;
        return Ok(Some(Prepared::of(Kind::Result, frame).await?));
    }
    let state = context.state();
    let Parsed { mut statement, depth } = sql::parse(&state, &text)?;
    refuse_ignored(&statement)?;
    read_names(&mut statement)?;
    let plan = on_large_stack(depth, sql::plan(&state, statement)).await?;
    refuse_equal_names(&plan)?;
    let kind = kind_of(&plan);
    let set = settings::Change::of(&plan);
    let frame = on_large_stack(sql::depth(&plan)?, execute_logical_plan(context, plan)).await;
    let frame = match set {
        Some(change) => frame.map_err(|error| change.refused(&error, context.state().config().options()))?,
        None => frame?,
    };
    if kind == Kind::Nothing {
        return Ok(None);
    }
    // The plan gives the kind of an EXECUTE.
    Ok(Some(Prepared::of(kind_of(frame.logical_plan()), frame).await?))
}

impl Prepared {
    async fn of(kind: Kind, frame: DataFrame) -> Result<Self> {
        let context = Arc::new(frame.task_ctx());
        let plan = on_large_stack(sql::depth(frame.logical_plan())?, frame.create_physical_plan()).await?;
        Ok(Self { kind, plan, context })
    }
}

/// The rows of a plan that runs in a separate task.
struct Rows {
    batches: mpsc::Receiver<Result<RecordBatch>>,
    task: SpawnedTask<()>,
}

impl Rows {
    fn of(plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>) -> Self {
        // A small channel between the query and the output, as no budget counts its content.
        let (sender, batches) = mpsc::channel(1);
        let task = SpawnedTask::spawn(async move {
            let mut stream = match execute_stream(plan, context) {
                Ok(stream) => stream,
                Err(error) => {
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            };
            while let Some(batch) = stream.next().await {
                // A stream must not be polled after an error, as some panic.
                let is_last = batch.is_err();
                // The output has ended before the query.
                if sender.send(batch).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self { batches, task }
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self.batches.recv().await {
            Some(batch) => batch.map(Some),
            // The channel also closes if the task panics, which is not the end of the rows.
            None => (&mut self.task).await.map(|()| None).map_err(stopped),
        }
    }

    async fn all(&mut self) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        while let Some(batch) = self.next().await? {
            batches.push(batch);
        }
        Ok(batches)
    }
}

fn stopped(error: JoinError) -> DataFusionError {
    DataFusionError::ExecutionJoin(Box::new(error))
}

fn kind_of(plan: &LogicalPlan) -> Kind {
    match plan {
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => Kind::Explanation,
        LogicalPlan::Dml(_) | LogicalPlan::Copy(_) => Kind::Count,
        LogicalPlan::Statement(Statement::Execute(_)) => Kind::Result,
        LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => Kind::Nothing,
        _ => Kind::Result,
    }
}

async fn write_rows(
    output: &mut Output,
    schema: &SchemaRef,
    mut rows: Rows,
    before_rows: impl Fn(),
    fail: &impl Fn(DataFusionError) -> Failure,
) -> Outcome<()> {
    let scrolls = output.is_terminal();
    // A query that fails before its first row writes nothing, not even a header.
    let mut next = rows.next().await.map_err(fail)?;
    let mut writer = output.begin(schema)?;
    let mut written: Result<(), ArrowError> = Ok(());
    let mut failed = None;
    while let Some(batch) = next.take() {
        if scrolls {
            before_rows();
        }
        written = writer.write(&batch);
        if written.is_err() {
            break;
        }
        match rows.next().await {
            Ok(batch) => next = batch,
            Err(error) => failed = Some(fail(error)),
        }
    }
    // A truncated result must not look complete: the format is only closed after the last row.
    if failed.is_none() && written.is_ok() {
        before_rows();
        written = writer.finish();
    } else {
        drop(writer);
    }
    output.settle(written)?;
    failed.map_or(Ok(()), Err)
}

/// The plans of EXPLAIN, each under its name, as lines instead of table cells.
fn explanation(batches: &[RecordBatch]) -> String {
    let mut text = String::new();
    for batch in batches {
        let columns: Option<Vec<_>> = batch.columns().iter().map(|column| column.as_string_opt::<i32>()).collect();
        let Some([names, plans]) = columns.as_deref() else { continue };
        for (name, plan) in names.iter().zip(plans.iter()) {
            text.push_str(&format!("{}\n", name.unwrap_or_default()));
            for line in plan.unwrap_or_default().lines() {
                text.push_str(&format!("  {line}\n"));
            }
        }
    }
    text
}

fn count_in(batches: &[RecordBatch]) -> u64 {
    let counts = batches.iter().flat_map(|batch| batch.columns().first());
    counts
        .filter(|column| *column.data_type() == DataType::UInt64)
        .filter_map(|column| column.as_any().downcast_ref::<UInt64Array>())
        .flat_map(|counts| counts.iter().flatten())
        .sum()
}
