//! `IN`, `NOT IN`, `= ANY` and `<> ALL` over subqueries: three-valued, wherever they stand, in any memory and on a device.
//!
//! - `positions`: small random tables against a model of SQL's three values.
//! - `large`: tables that spill, with each strategy, and on the emulated device.
//! - `upstream`: what DataFusion still answers wrongly, an issue of its own each.
//! - `refused`: what joins cannot compute is an error that says so.
//! - `plans`: what stays as DataFusion plans it, and what is pushed below our joins.

mod large;
mod plans;
mod positions;
mod refused;
mod upstream;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use crate::harness::session::{Engine, Memory, Session, Settings};

/// A number, a truth value as 0 or 1, or null.
type Value = Option<i64>;

fn session(engine: Engine) -> Session {
    Session::open(engine, &Settings::default(), Memory::Ample).unwrap()
}

/// Adds a table of these rows, in batches of a few.
fn register(ctx: &SessionContext, name: &str, columns: &[&str], rows: &[Vec<Value>]) {
    let column = |index: usize| Arc::new(rows.iter().map(|row| row[index]).collect::<Int64Array>()) as ArrayRef;
    let arrays = columns.iter().enumerate().map(|(index, name)| (name.to_string(), column(index), true));
    let all = RecordBatch::try_from_iter_with_nullable(arrays).unwrap();
    let size = (rows.len() / 7).max(3);
    let batches = (0..rows.len()).step_by(size).map(|start| all.slice(start, size.min(rows.len() - start))).collect();
    ctx.register_table(name, Arc::new(MemTable::try_new(all.schema(), vec![batches]).unwrap())).unwrap();
}

/// The rows of a query, sorted.
async fn rows(ctx: &SessionContext, sql: &str) -> Result<Vec<Vec<Value>>> {
    Ok(values_of(&ctx.sql(sql).await?.collect().await?))
}

fn values_of(batches: &[RecordBatch]) -> Vec<Vec<Value>> {
    let value = |column: &ArrayRef, row: usize| {
        let value = || match column.data_type() {
            DataType::Boolean => i64::from(column.as_boolean().value(row)),
            DataType::Int64 => column.as_primitive::<Int64Type>().value(row),
            other => panic!("a column of type {other}"),
        };
        column.is_valid(row).then(value)
    };
    let all = |batch: &RecordBatch| {
        let row = |row: usize| batch.columns().iter().map(|column| value(column, row)).collect();
        (0..batch.num_rows()).map(row).collect::<Vec<Vec<Value>>>()
    };
    let mut rows: Vec<_> = batches.iter().flat_map(all).collect();
    rows.sort();
    rows
}

/// What `value IN (members)` is.
fn is_in(value: Value, members: &[Value]) -> Option<bool> {
    if value.is_some() && members.contains(&value) {
        return Some(true);
    }
    let is_known = members.is_empty() || (value.is_some() && !members.contains(&None));
    is_known.then_some(false)
}
