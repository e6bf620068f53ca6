//! Enforces the `PRIMARY KEY` and `UNIQUE` constraints of a table in memory.
//!
//! DataFusion relies on constraints when it plans: over a key it removes `DISTINCT`, for instance. So a table may only
//! declare constraints that hold.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Schema};
use arrow::row::{RowConverter, Rows, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{Constraint, Constraints, Result, exec_err, not_impl_err};
use parking_lot::Mutex;

/// The bytes of a set's entry besides those of its key: the pointer, its share of free slots, the allocation.
const ENTRY_BYTES: usize = 48;

type Values = HashSet<Box<[u8]>>;

/// The keys of a table.
#[derive(Debug)]
pub(super) struct Keys {
    table: String,
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    is_primary: bool,
    columns: Vec<usize>,
    /// The columns' names for messages.
    names: String,
    converter: RowConverter,
    /// The values of the rows in the table. Only the holder of the table's lock changes them.
    values: Mutex<Values>,
}

/// The changes of a statement to the values of keys, applied on commit.
#[derive(Debug, Default)]
pub(super) struct KeyChanges {
    changes: Vec<KeyChange>,
    /// The bytes that the change adds.
    pub bytes: usize,
}

#[derive(Debug)]
struct KeyChange {
    key: usize,
    /// Whether the values replace all previous ones instead of being added.
    replaces: bool,
    values: Values,
}

impl Keys {
    /// # Errors
    /// Fails if a key has a column of a type that does not support comparison of values.
    pub fn new(table: &str, constraints: &Constraints, schema: &Schema) -> Result<Self> {
        let key = |constraint: &Constraint| {
            let (is_primary, columns) = match constraint {
                Constraint::PrimaryKey(columns) => (true, columns),
                Constraint::Unique(columns) => (false, columns),
            };
            let fields: Vec<_> = columns.iter().map(|column| schema.field(*column)).collect();
            if let Some(field) = fields.iter().find(|field| !is_comparable(field.data_type())) {
                return not_impl_err!(
                    "A {} of table '{table}' has column '{}' of the type {}, for which it cannot be enforced. Leave the \
                     constraint out",
                    constraint_name(is_primary),
                    field.name(),
                    field.data_type()
                );
            }
            let names: Vec<_> = fields.iter().map(|field| field.name().as_str()).collect();
            Ok(Key {
                is_primary,
                columns: columns.clone(),
                names: names.join(", "),
                converter: RowConverter::new(
                    fields.iter().map(|field| SortField::new(field.data_type().clone())).collect(),
                )?,
                values: Mutex::default(),
            })
        };
        Ok(Self { table: table.to_owned(), keys: constraints.iter().map(key).collect::<Result<_>>()? })
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Checks rows before they are added to the table.
    pub fn add(&self, rows: &[RecordBatch]) -> Result<KeyChanges> {
        let mut changes = KeyChanges::default();
        for (number, key) in self.keys.iter().enumerate() {
            changes.push(number, false, self.distinct(key, rows, &key.values.lock())?);
        }
        Ok(changes)
    }

    /// Checks the new rows of the whole table. Keys without any of these columns are unchanged.
    pub fn replace(&self, columns: &[usize], rows: &[RecordBatch]) -> Result<KeyChanges> {
        let mut changes = KeyChanges::default();
        for (number, key) in self.keys.iter().enumerate() {
            if key.columns.iter().any(|column| columns.contains(column)) {
                changes.push(number, true, self.distinct(key, rows, &Values::default())?);
            }
        }
        Ok(changes)
    }

    /// Applies a change. Returns the bytes of the values that it removes.
    pub fn commit(&self, changes: KeyChanges) -> usize {
        let mut freed = 0;
        for KeyChange { key, replaces, values } in changes.changes {
            let mut known = self.keys[key].values.lock();
            if replaces {
                freed += known.iter().map(|value| value.len() + ENTRY_BYTES).sum::<usize>();
                *known = values;
            } else {
                known.extend(values);
            }
        }
        freed
    }

    /// Removes the values of rows that have left the table. Returns the bytes of these values.
    pub fn remove(&self, rows: &[RecordBatch]) -> Result<usize> {
        let mut freed = 0;
        for key in &self.keys {
            let mut known = key.values.lock();
            for batch in rows {
                let converted = key.convert(batch)?;
                for row in converted.iter().filter(|row| known.remove(row.as_ref())) {
                    freed += row.as_ref().len() + ENTRY_BYTES;
                }
            }
        }
        Ok(freed)
    }

    /// The values of a key in `rows`. Fails if one of them is among `known` or occurs twice.
    fn distinct(&self, key: &Key, rows: &[RecordBatch], known: &Values) -> Result<Values> {
        let mut values = Values::default();
        for batch in rows {
            let converted = key.convert(batch)?;
            for (row, value) in converted.iter().enumerate() {
                if key.columns.iter().any(|column| batch.column(*column).is_null(row)) {
                    if key.is_primary {
                        return exec_err!(
                            "PRIMARY KEY ({}) of table '{}': a row has a null in it. The table is unchanged.",
                            key.names,
                            self.table
                        );
                    }
                    // In SQL two nulls are not equal for a constraint.
                    continue;
                }
                let value = value.as_ref();
                if known.contains(value) || !values.insert(value.into()) {
                    return exec_err!(
                        "{} ({}) of table '{}': more than one row has ({}). The table is unchanged.",
                        constraint_name(key.is_primary),
                        key.names,
                        self.table,
                        key.shown(batch, row)?
                    );
                }
            }
        }
        Ok(values)
    }
}

impl KeyChanges {
    fn push(&mut self, key: usize, replaces: bool, values: Values) {
        self.bytes += values.iter().map(|value| value.len() + ENTRY_BYTES).sum::<usize>();
        self.changes.push(KeyChange { key, replaces, values });
    }
}

impl Key {
    fn convert(&self, batch: &RecordBatch) -> Result<Rows> {
        let columns: Vec<ArrayRef> = self.columns.iter().map(|column| comparable(batch.column(*column))).collect();
        Ok(self.converter.convert_columns(&columns)?)
    }

    /// The values of a row as text.
    fn shown(&self, batch: &RecordBatch, row: usize) -> Result<String> {
        let options = FormatOptions::default();
        let values = self.columns.iter().map(|column| {
            let formatter = ArrayFormatter::try_new(batch.column(*column), &options)?;
            Ok(formatter.value(row).to_string())
        });
        Ok(values.collect::<Result<Vec<_>>>()?.join(", "))
    }
}

fn constraint_name(is_primary: bool) -> &'static str {
    if is_primary { "PRIMARY KEY" } else { "UNIQUE" }
}

/// Whether rows encode equal values of the type identically, after [`comparable`].
fn is_comparable(data_type: &DataType) -> bool {
    !data_type.is_nested()
        && RowConverter::supports_fields(&[SortField::new(data_type.clone())])
        && *data_type != DataType::Float16
}

/// The column with one zero and one NaN, as SQL compares them.
fn comparable(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float32 => Arc::new(
            column
                .as_primitive::<Float32Type>()
                .unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + 0.0 }),
        ),
        DataType::Float64 => Arc::new(
            column
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + 0.0 }),
        ),
        _ => Arc::clone(column),
    }
}
