//! The output columns of a join.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::build_join_schema;
use overspill_join::spec::ColumnSource;

use crate::join_execution::expressions::column_source;

/// The output schema of a mark join with a nullable mark.
pub(super) fn with_nullable_mark(join: &HashJoinExec) -> SchemaRef {
    let schema = join.schema();
    let fields = output_columns(join).into_iter().zip(schema.fields()).map(|(column, field)| match column {
        ColumnSource::Mark => Arc::new(field.as_ref().clone().with_nullable(true)),
        _ => Arc::clone(field),
    });
    Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Where each column of the output comes from.
pub(super) fn output_columns(join: &HashJoinExec) -> Vec<ColumnSource> {
    let (_, columns) = build_join_schema(&join.left().schema(), &join.right().schema(), join.join_type());
    match &join.projection {
        Some(projection) => projection.iter().map(|index| column_source(&columns[*index])).collect(),
        None => columns.iter().map(column_source).collect(),
    }
}
