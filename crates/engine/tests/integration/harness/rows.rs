//! Answers as multisets of rows, compared bit for bit.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type, SchemaRef};
use arrow::row::{RowConverter, SortField};
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::Result;
use datafusion::parquet::arrow::ArrowWriter;

/// The rows of a query, sorted by their encoding so that two answers with the same rows are equal byte for byte.
pub struct Answer {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
    encoded: Vec<Vec<u8>>,
}

/// Writes rows to a new Parquet file.
pub fn write_parquet_file(path: &Path, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<()> {
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path)?, Arc::clone(schema), None)?;
    for batch in batches {
        writer.write(batch)?;
    }
    writer.close()?;
    Ok(())
}

/// How one output column of an ORDER BY query must be ordered.
#[derive(Clone, Copy, Debug)]
pub struct OrderBy {
    pub column: usize,
    pub options: SortOptions,
}

impl Answer {
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self> {
        let mut encoded = encode_all(&schema, &batches)?;
        encoded.sort_unstable();
        Ok(Self { schema, batches, encoded })
    }

    pub fn rows(&self) -> usize {
        self.encoded.len()
    }

    /// Says how `self` differs from the answer that is `expected`, or nothing when both hold the same rows equally often.
    pub fn difference(&self, expected: &Answer) -> Option<String> {
        if let Some(difference) = schema_difference(&self.schema, &expected.schema) {
            return Some(difference);
        }
        if self.encoded == expected.encoded {
            return None;
        }
        let (extra, missing) = surplus(&self.encoded, &expected.encoded);
        Some(format!(
            "{} rows, expected {}; {} rows too many, such as\n{}\n{} rows missing, such as\n{}",
            self.rows(),
            expected.rows(),
            extra.len(),
            self.show(&extra),
            missing.len(),
            self.show(&missing)
        ))
    }

    /// The same rows with some of their columns only.
    pub fn project(&self, columns: &[usize]) -> Result<Answer> {
        let batches: Vec<RecordBatch> =
            self.batches.iter().map(|batch| batch.project(columns)).collect::<Result<_, _>>()?;
        Answer::new(Arc::new(self.schema.project(columns)?), batches)
    }

    /// Says why `self` is no selection of `count` rows out of `all`, the answer without the LIMIT.
    pub fn difference_to_some_of(&self, all: &Answer, count: usize) -> Option<String> {
        if let Some(difference) = schema_difference(&self.schema, &all.schema) {
            return Some(difference);
        }
        let wanted = count.min(all.rows());
        let (extra, _) = surplus(&self.encoded, &all.encoded);
        if self.rows() != wanted {
            return Some(format!("{} rows under a LIMIT that leaves {wanted}", self.rows()));
        }
        (!extra.is_empty())
            .then(|| format!("{} rows that the query without LIMIT has not\n{}", extra.len(), self.show(&extra)))
    }

    /// Says where the rows, in the order in which they came, break the order that was asked for.
    pub fn disorder(&self, order: &[OrderBy]) -> Result<Option<String>> {
        let fields = order
            .iter()
            .map(|by| SortField::new_with_options(self.schema.field(by.column).data_type().clone(), by.options))
            .collect();
        let converter = RowConverter::new(fields)?;
        let mut last: Option<Vec<u8>> = None;
        let mut position = 0;
        for batch in &self.batches {
            let columns: Vec<ArrayRef> = order.iter().map(|by| normalise(batch.column(by.column))).collect();
            for row in converter.convert_columns(&columns)?.iter() {
                if last.as_ref().is_some_and(|last| last.as_slice() > row.as_ref()) {
                    return Ok(Some(format!("row {position} comes before its predecessor in the order {order:?}")));
                }
                last = Some(row.as_ref().to_vec());
                position += 1;
            }
        }
        Ok(None)
    }

    /// Renders the first few of some encoded rows.
    fn show(&self, rows: &[&[u8]]) -> String {
        const SHOWN: usize = 5;
        let render = || -> Result<String> {
            let converter = converter(&self.schema)?;
            let parser = converter.parser();
            let columns = converter.convert_rows(rows.iter().take(SHOWN).map(|row| parser.parse(row)))?;
            let names: Vec<_> = self.schema.fields().iter().map(|field| field.name().clone()).collect();
            let batch = RecordBatch::try_from_iter(names.into_iter().zip(columns))?;
            Ok(pretty_format_batches(&[batch])?.to_string())
        };
        render().unwrap_or_else(|error| format!("(rows that cannot be shown: {error})"))
    }
}

fn converter(schema: &SchemaRef) -> Result<RowConverter> {
    let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
    Ok(RowConverter::new(fields)?)
}

fn encode_all(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<Vec<u8>>> {
    let converter = converter(schema)?;
    let mut encoded = Vec::with_capacity(batches.iter().map(|batch| batch.num_rows()).sum());
    for batch in batches {
        if schema.fields().is_empty() {
            encoded.extend(std::iter::repeat_n(Vec::new(), batch.num_rows()));
            continue;
        }
        let columns: Vec<ArrayRef> = batch.columns().iter().map(normalise).collect();
        encoded.extend(converter.convert_columns(&columns)?.iter().map(|row| row.as_ref().to_vec()));
    }
    Ok(encoded)
}

/// One zero and one NaN: which of the equal ones a join hands on is not part of its answer.
fn normalise(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float16 => {
            type F16 = <Float16Type as ArrowPrimitiveType>::Native;
            Arc::new(
                array.as_primitive::<Float16Type>().unary::<_, Float16Type>(|value| {
                    if value.is_nan() { F16::NAN } else { value.add_wrapping(F16::ZERO) }
                }),
            )
        }
        DataType::Float32 => Arc::new(
            array
                .as_primitive::<Float32Type>()
                .unary::<_, Float32Type>(|value| if value.is_nan() { f32::NAN } else { value + 0.0 }),
        ),
        DataType::Float64 => Arc::new(
            array
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|value| if value.is_nan() { f64::NAN } else { value + 0.0 }),
        ),
        _ => Arc::clone(array),
    }
}

fn schema_difference(actual: &SchemaRef, expected: &SchemaRef) -> Option<String> {
    let describe = |schema: &SchemaRef| -> Vec<String> {
        schema.fields().iter().map(|field| format!("{}: {}", field.name(), field.data_type())).collect()
    };
    let (actual, expected) = (describe(actual), describe(expected));
    (actual != expected).then(|| format!("columns {actual:?}, expected {expected:?}"))
}

/// The rows that `left` has more often than `right`, and the other way round; both are sorted.
fn surplus<'a>(left: &'a [Vec<u8>], right: &'a [Vec<u8>]) -> (Vec<&'a [u8]>, Vec<&'a [u8]>) {
    let (mut i, mut j) = (0, 0);
    let (mut only_left, mut only_right): (Vec<&[u8]>, Vec<&[u8]>) = (vec![], vec![]);
    while i < left.len() || j < right.len() {
        let order = match (left.get(i), right.get(j)) {
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => std::cmp::Ordering::Less,
            _ => std::cmp::Ordering::Greater,
        };
        if order.is_lt() {
            only_left.push(&left[i]);
        } else if order.is_gt() {
            only_right.push(&right[j]);
        }
        i += usize::from(order.is_le());
        j += usize::from(order.is_ge());
    }
    (only_left, only_right)
}
