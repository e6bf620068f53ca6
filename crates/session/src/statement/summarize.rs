//! `SUMMARIZE TABLE` and `SUMMARIZE QUERY`: statistics of each column.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::{Column, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::{approx_distinct, avg, count, max, min, stddev};
use datafusion::logical_expr::{Expr, cast as cast_expr, lit};
use datafusion::prelude::SessionContext;

/// The statistics of a column, in display order after its name and type.
const FIGURES: [&str; 7] = ["min", "max", "approx_distinct", "avg", "std", "count", "null_percentage"];

/// The subject of a SUMMARIZE statement: the text after its first word.
pub fn subject(sql: &str) -> Option<&str> {
    let word = sql.get(..9)?;
    let rest = &sql[9..];
    let ends = rest.is_empty() || rest.starts_with(|next: char| !next.is_alphanumeric() && next != '_');
    (word.eq_ignore_ascii_case("summarize") && ends).then(|| rest.trim())
}

/// The summary of a table or query, computed in one pass.
pub async fn summary(context: &SessionContext, subject: &str) -> Result<DataFrame> {
    let frame = rows_of(context, subject).await?;
    let columns: Vec<_> = frame
        .schema()
        .iter()
        .map(|(qualifier, field)| (Column::from((qualifier, field)), field.data_type().clone()))
        .collect();
    let mut figures = Vec::new();
    for (position, (column, data_type)) in columns.iter().enumerate() {
        let expressions = figures_of(&Expr::Column(column.clone()), data_type);
        for (name, expression) in FIGURES.iter().zip(expressions) {
            if let Some(expression) = expression {
                figures.push(expression.alias(figure_name(position, name)));
            }
        }
    }
    // A table without columns has no statistics, and an aggregate without expressions is not a valid plan.
    let figures = if figures.is_empty() { Vec::new() } else { frame.aggregate(vec![], figures)?.collect().await? };
    context.read_batch(lines(&columns, figures.iter().find(|batch| batch.num_rows() > 0))?)
}

async fn rows_of(context: &SessionContext, subject: &str) -> Result<DataFrame> {
    if subject.is_empty() {
        return plan_err!("SUMMARIZE needs a table, a path in quotes, or a query");
    }
    let first = subject.split(|next: char| !next.is_alphanumeric()).next().unwrap_or_default().to_ascii_lowercase();
    let is_query =
        matches!(first.as_str(), "select" | "with" | "values" | "table" | "from") || subject.starts_with('(');
    if is_query { context.sql(subject).await } else { context.sql(&format!("SELECT * FROM {subject}")).await }
}

/// The statistics that apply to a type, in the order of [`FIGURES`].
fn figures_of(column: &Expr, data_type: &DataType) -> [Option<Expr>; 7] {
    let ordered = !data_type.is_nested() && !matches!(data_type, DataType::Null);
    let numeric = data_type.is_numeric();
    let number = || cast_expr(column.clone(), DataType::Float64);
    let rows = || count(lit(1_i64));
    let nulls = || cast_expr(rows() - count(column.clone()), DataType::Float64);
    [
        ordered.then(|| min(column.clone())),
        ordered.then(|| max(column.clone())),
        // Types that the sketch does not support are converted to text.
        ordered.then(|| approx_distinct(cast_expr(column.clone(), DataType::Utf8))),
        numeric.then(|| avg(number())),
        numeric.then(|| stddev(number())),
        Some(count(column.clone())),
        // Without rows there is no percentage instead of a division by zero.
        Some(nulls() * lit(100.0) / cast_expr(rows(), DataType::Float64)),
    ]
}

fn figure_name(position: usize, figure: &str) -> String {
    format!("{position} {figure}")
}

/// Converts the single row of statistics to a line per column.
fn lines(columns: &[(Column, DataType)], figures: Option<&RecordBatch>) -> Result<RecordBatch> {
    let names = columns.iter().map(|(column, _)| Some(column.name.clone()));
    let types = columns.iter().map(|(_, data_type)| Some(data_type.to_string()));
    let mut fields = vec![Field::new("column", DataType::Utf8, false), Field::new("type", DataType::Utf8, false)];
    let mut arrays: Vec<ArrayRef> = vec![text(names), text(types)];
    for figure in FIGURES {
        let values = (0..columns.len()).map(|position| value(figures, &figure_name(position, figure)));
        let text = text(values.collect::<Result<Vec<_>>>()?.into_iter());
        let data_type = match figure {
            "approx_distinct" | "count" => DataType::UInt64,
            "avg" | "std" | "null_percentage" => DataType::Float64,
            _ => DataType::Utf8,
        };
        fields.push(Field::new(figure, data_type.clone(), true));
        arrays.push(cast(&text, &data_type)?);
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

fn value(figures: Option<&RecordBatch>, name: &str) -> Result<Option<String>> {
    use arrow::util::display::{ArrayFormatter, FormatOptions};
    let Some(column) = figures.and_then(|batch| batch.column_by_name(name)) else { return Ok(None) };
    if column.is_null(0) {
        return Ok(None);
    }
    let options = FormatOptions::default();
    Ok(Some(ArrayFormatter::try_new(column.as_ref(), &options)?.value(0).try_to_string()?))
}

fn text(values: impl Iterator<Item = Option<String>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_follows_the_word() {
        assert_eq!(subject("summarize orders"), Some("orders"));
        assert_eq!(subject("SUMMARIZE 'a.parquet' "), Some("'a.parquet'"));
        assert_eq!(subject("Summarize(select 1)"), Some("(select 1)"));
        assert_eq!(subject("summarize"), Some(""));
        for other in ["summarized", "select summarize", "", "summarize_all x", "sumé"] {
            assert_eq!(subject(other), None, "{other}");
        }
    }
}
