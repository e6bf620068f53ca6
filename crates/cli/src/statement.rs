//! Runs one statement and writes its results.

use arrow::array::AsArray;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;
use overspill_session::{Kind, Results, Session};

use crate::args::Format;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::progress::Progress;

/// Runs one statement. Writes rows to the output as they arrive. Returns the number of rows that went to a table or to files
/// instead. Dropping the future stops the statement.
pub async fn answer(session: &Session, output: &mut Output, progress: Progress, sql: &str) -> Outcome<Option<u64>> {
    let changing = progress.watch(session.monitor());
    let results = session.run(sql).await?;
    drop(changing);
    let watched = progress.watch(results.monitor());
    match results.kind() {
        Kind::Nothing => Ok(None),
        Kind::Count => Ok(Some(results.count().await?)),
        Kind::Explanation if output.format == Format::Table => {
            let batches: Vec<_> = results.try_collect().await?;
            drop(watched);
            output.text(&explanation(&batches)).map(|()| None)
        }
        Kind::Rows | Kind::Explanation => write_rows(output, results, || watched.hide()).await.map(|()| None),
    }
}

async fn write_rows(output: &mut Output, mut results: Results, before_rows: impl Fn()) -> Outcome<()> {
    let scrolls = output.is_terminal();
    // A query that fails before its first row writes nothing, not even a header.
    let mut next = results.try_next().await?;
    let mut writer = output.begin(&results.schema())?;
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
        match results.try_next().await {
            Ok(batch) => next = batch,
            Err(error) => failed = Some(Failure::from(error)),
        }
    }
    // A truncated result must not look complete: the format is only closed after the last row.
    if failed.is_none() && written.is_ok() {
        before_rows();
        written = writer.finish();
    }
    drop(writer);
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
