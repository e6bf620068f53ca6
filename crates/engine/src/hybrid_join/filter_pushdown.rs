//! The ways of filters through the join.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter_pushdown::{ChildFilterDescription, FilterDescription};
use datafusion::physical_plan::joins::HashJoinExec;
use overspill_join::spec::ColumnSource;

use super::schema::output_columns;

/// A column that no input has.
const NONE: usize = usize::MAX;

/// Which filters of a join's output each of its inputs may apply as well: those of its own columns, if the join keeps their values, and for a
/// semi join those of keys. `own` are filters of the join itself, by input.
///
/// DataFusion's join finds columns by name, and mistakes them for others where names repeat.
pub(super) fn describe(
    join: &HashJoinExec,
    filters: &[PhysicalExprRef],
    own: Vec<Vec<PhysicalExprRef>>,
) -> Result<FilterDescription> {
    let (kind, output, equal) = (*join.join_type(), output_columns(join), equal_columns(join));
    let of_build = output.iter().map(|source| match *source {
        ColumnSource::Build(column) if keeps_build_columns(kind) => Some(column),
        ColumnSource::Probe(column) if kind == JoinType::RightSemi => {
            equal.iter().find(|(_, probe)| *probe == column).map(|(build, _)| *build)
        }
        _ => None,
    });
    let of_probe = output.iter().map(|source| match *source {
        ColumnSource::Probe(column) if keeps_probe_columns(kind) => Some(column),
        ColumnSource::Build(column) if kind == JoinType::LeftSemi => {
            equal.iter().find(|(build, _)| *build == column).map(|(_, probe)| *probe)
        }
        _ => None,
    });
    let mut own = own.into_iter();
    let mut description = FilterDescription::new();
    for (columns, input) in [(of_build.collect::<Vec<_>>(), join.left()), (of_probe.collect(), join.right())] {
        let for_input = for_input(filters, &columns, input)?.with_self_filters(own.next().unwrap_or_default());
        description = description.with_child(for_input);
    }
    Ok(description)
}

/// The filters over an input's columns. `columns` are those that the output's columns come from.
fn for_input(
    filters: &[PhysicalExprRef],
    columns: &[Option<usize>],
    input: &Arc<dyn ExecutionPlan>,
) -> Result<ChildFilterDescription> {
    let schema = input.schema();
    let over_input = |filter: &PhysicalExprRef| {
        let moved = Arc::clone(filter).transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            let moved = match columns[column.index()] {
                Some(index) => Column::new(schema.field(index).name(), index),
                None => Column::new(column.name(), NONE),
            };
            Ok(Transformed::yes(Arc::new(moved) as _))
        });
        moved.data()
    };
    let filters = filters.iter().map(over_input).collect::<Result<Vec<_>>>()?;
    // A filter is given to the input by its columns' names.
    let named = named_once(&schema).into_values().collect();
    ChildFilterDescription::from_child_with_allowed_indices(&filters, named, input)
}

/// The columns of a schema whose names no other column has.
pub(crate) fn named_once(schema: &Schema) -> HashMap<&str, usize> {
    let mut columns = HashMap::new();
    let mut repeated = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        if columns.insert(field.name().as_str(), index).is_some() {
            repeated.push(field.name().as_str());
        }
    }
    repeated.iter().for_each(|name| {
        columns.remove(name);
    });
    columns
}

/// The columns that a join's condition has as equal: one of the build side, one of the probe side.
pub(super) fn equal_columns(join: &HashJoinExec) -> Vec<(usize, usize)> {
    let column = |expression: &PhysicalExprRef| expression.downcast_ref::<Column>().map(Column::index);
    join.on().iter().filter_map(|(build, probe)| Some((column(build)?, column(probe)?))).collect()
}

/// Whether a column of the build side in the output is that of a build row in every output row.
pub(crate) fn keeps_build_columns(join_type: JoinType) -> bool {
    use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi};
    matches!(join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark)
}

/// The same for the probe side.
pub(crate) fn keeps_probe_columns(join_type: JoinType) -> bool {
    use JoinType::{Inner, Right, RightAnti, RightMark, RightSemi};
    matches!(join_type, Inner | Right | RightSemi | RightAnti | RightMark)
}
