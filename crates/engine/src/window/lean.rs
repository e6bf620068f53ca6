//! Batches without the values that a window does not read.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryViewArray, RecordBatch, RecordBatchOptions, StringViewArray};
use arrow::compute::concat;
use arrow::compute::kernels::cmp::distinct;
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::InputOrderMode;
use datafusion::physical_plan::windows::BoundedWindowAggExec;

/// What happens to a view column on its way to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A function reads it, or it is not a view column: it is kept.
    Read,
    /// It orders rows: it is replaced by texts of a few bytes in the same order.
    Orders {
        /// The order of the column.
        descending: bool,
    },
    /// The window does not read it: it is replaced by empty texts.
    Unread,
}

/// Replaces the texts that a window function does not read.
#[derive(Debug)]
pub(super) struct LeanColumns {
    roles: Vec<Role>,
    /// For columns that order rows: how often their value has changed, and the last value.
    changes: Vec<(u64, Option<ArrayRef>)>,
}

impl LeanColumns {
    /// Finds the columns that can be replaced: texts that are not arguments of the window's functions. The filters of
    /// aggregates are not accessible, so a window with an aggregate keeps all columns. So does a window whose input is not in
    /// the order of its keys, where equal values need not be adjacent.
    pub fn of(window: &BoundedWindowAggExec) -> Self {
        let fields = window.input().schema();
        let fields = fields.fields();
        let mut roles = vec![Role::Read; fields.len()];
        let functions = window.window_expr();
        let is_filtered = |function: &Arc<dyn WindowExpr>| !function.as_any().is::<StandardWindowExpr>();
        if window.input_order_mode == InputOrderMode::Sorted && !functions.iter().any(is_filtered) {
            for (role, field) in roles.iter_mut().zip(fields) {
                if matches!(field.data_type(), DataType::Utf8View | DataType::BinaryView) {
                    *role = Role::Unread;
                }
            }
            for function in functions {
                mark(&mut roles, function.as_ref());
            }
        }
        let changes = roles.iter().map(|_| (0, None)).collect();
        Self { roles, changes }
    }

    /// Whether texts remain that DataFusion will hold until the partition of the window ends.
    pub fn keeps_views(&self, batch: &RecordBatch) -> bool {
        let is_view = |column: &ArrayRef| matches!(column.data_type(), DataType::Utf8View | DataType::BinaryView);
        batch.columns().iter().zip(&self.roles).any(|(column, role)| is_view(column) && *role == Role::Read)
    }

    /// The batch without the values that the window does not read.
    pub fn apply(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = batch.columns().iter().zip(&self.roles).zip(&mut self.changes);
        let columns = columns.map(|((column, role), changes)| match role {
            Role::Read => Ok(Arc::clone(column)),
            Role::Orders { descending } => stand_in(column, *descending, changes),
            Role::Unread => Ok(texts(column, |_| String::new())),
        });
        // A batch without columns still has rows.
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(batch.schema(), columns.collect::<Result<_>>()?, &options)?)
    }
}

/// Marks the view columns that a function orders by or reads.
fn mark(roles: &mut [Role], function: &dyn WindowExpr) {
    let order = function.order_by().iter().map(|key| (&key.expr, key.options.descending));
    let keys = order.chain(function.partition_by().iter().map(|key| (key, false)));
    for (key, descending) in keys {
        match key.downcast_ref::<Column>() {
            Some(column) if roles[column.index()] == Role::Unread => {
                roles[column.index()] = Role::Orders { descending }
            }
            Some(_) => {}
            None => read(roles, key),
        }
    }
    for argument in function.expressions() {
        read(roles, &argument);
    }
}

fn read(roles: &mut [Role], expression: &Arc<dyn PhysicalExpr>) {
    for column in collect_columns(expression) {
        roles[column.index()] = Role::Read;
    }
}

/// Texts in the same order as the values of an ordered column. Views hold them inline, without a buffer.
fn stand_in(column: &ArrayRef, descending: bool, changes: &mut (u64, Option<ArrayRef>)) -> Result<ArrayRef> {
    let (count, last) = changes;
    let rows = column.len();
    let first = last.as_ref().map_or_else(|| column.slice(0, 1), Arc::clone);
    let before = concat(&[&first, &column.slice(0, rows - 1)])?;
    let changed = distinct(column, &before)?;
    *last = Some(concat(&[&column.slice(rows - 1, 1)])?);
    let numbers: Vec<u64> = changed
        .values()
        .iter()
        .map(|changed| {
            *count += u64::from(changed);
            *count
        })
        .collect();
    Ok(texts(column, |row| format!("{:012x}", if descending { MOST_CHANGES - numbers[row] } else { numbers[row] })))
}

/// The largest number of 12 hexadecimal digits.
const MOST_CHANGES: u64 = (1 << 48) - 1;

/// A column of the same type and nulls as another with other texts.
fn texts(column: &ArrayRef, text: impl Fn(usize) -> String) -> ArrayRef {
    let values = (0..column.len()).map(|row| column.is_valid(row).then(|| text(row)));
    match column.data_type() {
        DataType::BinaryView => Arc::new(values.collect::<BinaryViewArray>()),
        _ => Arc::new(values.collect::<StringViewArray>()),
    }
}
