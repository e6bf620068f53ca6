//! Filters of floats.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};

use super::has_floats;
use super::unprunable::Unprunable;
use crate::config::OverspillConfig;
use crate::optimizer::Node;

/// Hides conditions on floats from pruning by Parquet statistics, unless no NaN satisfies them.
pub(crate) fn float_filters(node: &Node, _: &ConfigOptions, _: &OverspillConfig) -> Result<Option<Node>> {
    let Some(scan) = node.downcast_ref::<DataSourceExec>() else { return Ok(None) };
    let Some((config, parquet)) = scan.downcast_to_file_source::<ParquetSource>() else { return Ok(None) };
    let Some(predicate) = parquet.filter() else { return Ok(None) };
    let schema = config.file_source().table_schema().table_schema();
    let Some(predicate) = without_statistics(&predicate, schema) else { return Ok(None) };
    let source = Arc::new(parquet.with_predicate(predicate));
    let config = FileScanConfigBuilder::from(config.clone()).with_source(source).build();
    Ok(Some(Arc::new(scan.clone().with_data_source(Arc::new(config)))))
}

/// The predicate with its conditions on floats hidden; `None` if there are none.
fn without_statistics(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Option<Arc<dyn PhysicalExpr>> {
    let conditions = split_conjunction(predicate);
    if !conditions.iter().any(|condition| is_on_floats(condition, schema)) {
        return None;
    }
    let bounds: Vec<_> = conditions.iter().map(|condition| Bound::of(condition)).collect();
    let is_bounded = |column: &Column| {
        let of_column = || bounds.iter().flatten().filter(|bound| bound.column == *column);
        of_column().any(|bound| bound.excludes_greater) && of_column().any(|bound| bound.excludes_less)
    };
    let mut bounded = BTreeSet::new();
    let mut hidden: Vec<Arc<dyn PhysicalExpr>> = vec![];
    for (condition, bound) in conditions.into_iter().zip(&bounds) {
        match bound {
            _ if !is_on_floats(condition, schema) => hidden.push(Arc::clone(condition)),
            Some(bound) if is_bounded(&bound.column) => {
                hidden.push(Arc::clone(condition));
                bounded.insert((bound.column.index(), bound.column.name().to_owned()));
            }
            _ => hidden.push(Arc::new(Unprunable(Arc::clone(condition)))),
        }
    }
    // Such bounds may exclude row groups, but must not prove that all rows of a group satisfy the condition.
    for (index, name) in bounded {
        let column = Arc::new(Column::new(&name, index));
        hidden.push(Arc::new(Unprunable(Arc::new(IsNotNullExpr::new(column)))));
    }
    Some(conjunction(hidden))
}

/// Whether evaluating a condition would use statistics of floats.
fn is_on_floats(condition: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    // The number of NULLs is reliable.
    let operand = match (condition.downcast_ref::<IsNullExpr>(), condition.downcast_ref::<IsNotNullExpr>()) {
        (Some(is_null), _) => Some(is_null.arg()),
        (_, Some(is_not_null)) => Some(is_not_null.arg()),
        _ => None,
    };
    if operand.is_some_and(|operand| operand.is::<Column>()) || condition.is::<Unprunable>() {
        return false;
    }
    // A column that is not in the schema is assumed to hold floats.
    let is_float = |column: &Column| schema.field_with_name(column.name()).map_or(true, |f| has_floats(f.data_type()));
    condition.exists(|part| Ok(part.downcast_ref::<Column>().is_some_and(is_float))).unwrap_or(true)
}

/// A comparison of a column with numbers.
struct Bound {
    column: Column,
    /// No value that is greater than all numbers, as NaN is, satisfies it.
    excludes_greater: bool,
    /// No value that is less than all numbers, as NaN with a sign bit is, satisfies it.
    excludes_less: bool,
}

impl Bound {
    fn of(condition: &Arc<dyn PhysicalExpr>) -> Option<Self> {
        if let Some(list) = condition.downcast_ref::<InListExpr>() {
            let column = list.expr().downcast_ref::<Column>()?.clone();
            let are_numbers = !list.negated() && list.list().iter().all(is_number);
            return are_numbers.then_some(Self { column, excludes_greater: true, excludes_less: true });
        }
        let comparison = condition.downcast_ref::<BinaryExpr>()?;
        let (column, operator) = match (comparison.left(), comparison.right()) {
            (column, number) if is_number(number) => (column, *comparison.op()),
            (number, column) if is_number(number) => (column, comparison.op().swap()?),
            _ => return None,
        };
        let column = column.downcast_ref::<Column>()?.clone();
        let (excludes_greater, excludes_less) = match operator {
            Operator::Eq => (true, true),
            Operator::Lt | Operator::LtEq => (true, false),
            Operator::Gt | Operator::GtEq => (false, true),
            _ => return None,
        };
        Some(Self { column, excludes_greater, excludes_less })
    }
}

/// Whether an expression is a float that is neither NULL nor NaN.
fn is_number(expr: &Arc<dyn PhysicalExpr>) -> bool {
    match expr.downcast_ref::<Literal>().map(Literal::value) {
        Some(ScalarValue::Float16(Some(value))) => !value.is_nan(),
        Some(ScalarValue::Float32(Some(value))) => !value.is_nan(),
        Some(ScalarValue::Float64(Some(value))) => !value.is_nan(),
        _ => false,
    }
}
