//! Runs one statement and writes what it answers.

use std::sync::Arc;

use arrow::array::{Array, AsArray, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use overspill::memory::execute_logical_plan;

use super::summarize;
use crate::args::Format;
use crate::failure::{Failure, Outcome, describe};
use crate::output::Output;
use crate::progress::Progress;
use crate::session::Session;

/// What a statement gave, beside what it wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Rows went to the output.
    Rows,
    /// Rows went to a table or to files.
    Stored(u64),
    /// Nothing to show.
    Done,
}

/// What the rows of a plan are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Result,
    /// A plan to read: text of several lines.
    Explanation,
    /// The count of rows that INSERT or COPY wrote.
    Count,
    Nothing,
}

/// Runs one statement. Rows go to the output as they come.
pub async fn answer(session: &Session, output: &mut Output, progress: Progress, sql: &str) -> Outcome<Answer> {
    let planned = plan(&session.context, sql).await;
    let runtime = session.context.runtime_env();
    let fail = |error| Failure::Message(describe(error, &runtime));
    let (kind, frame) = planned.map_err(fail)?;
    if kind == Kind::Nothing {
        return Ok(Answer::Done);
    }
    let context = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.map_err(fail)?;
    let watched = progress.watch(&plan, context.memory_pool());
    let stream = execute_stream(Arc::clone(&plan), context).map_err(fail)?;
    match kind {
        Kind::Count => {
            let batches: Vec<_> = stream.try_collect().await.map_err(fail)?;
            Ok(Answer::Stored(count_in(&batches)))
        }
        Kind::Explanation if output.format == Format::Table => {
            let batches: Vec<_> = stream.try_collect().await.map_err(fail)?;
            drop(watched);
            output.text(&explanation(&batches))?;
            Ok(Answer::Rows)
        }
        _ => {
            let schema = plan.schema();
            write_rows(output, &schema, stream, || watched.hide(), &fail).await?;
            Ok(Answer::Rows)
        }
    }
}

/// Plans the statement; what only changes the session is done at once.
async fn plan(context: &SessionContext, sql: &str) -> Result<(Kind, DataFrame)> {
    if let Some(subject) = summarize::subject(sql) {
        return Ok((Kind::Result, summarize::summary(context, subject).await?));
    }
    let state = context.state();
    let dialect = state.config().options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, &dialect)?;
    let plan = state.statement_to_plan(statement).await?;
    let kind = kind_of(&plan);
    let frame = execute_logical_plan(context, plan).await?;
    // EXECUTE is known by the plan that was prepared.
    let kind = if kind == Kind::Nothing { kind } else { kind_of(frame.logical_plan()) };
    Ok((kind, frame))
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
    mut stream: SendableRecordBatchStream,
    before_rows: impl Fn(),
    fail: &impl Fn(datafusion::error::DataFusionError) -> Failure,
) -> Outcome<()> {
    let scrolls = output.is_terminal();
    // A query that fails before its first row writes nothing, not even a header.
    let mut next = stream.try_next().await.map_err(fail)?;
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
        match stream.try_next().await {
            Ok(batch) => next = batch,
            Err(error) => failed = Some(fail(error)),
        }
    }
    // A result that stops in the middle must not look whole: the format is only closed after the last row.
    if failed.is_none() && written.is_ok() {
        before_rows();
        written = writer.finish();
    } else {
        drop(writer);
    }
    output.settle(written)?;
    failed.map_or(Ok(()), Err)
}

/// The plans of EXPLAIN, each under its name, as lines instead of a table's cells.
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
