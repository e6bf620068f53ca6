//! Writes batches as pages of columns for kernels.

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::buffer::BooleanBuffer;
use arrow::util::bit_mask::set_bits;
use overspill_kernels::{SelectionAggregate, SelectionPlan};

use overspill_join::selection::column::{Column, Number, Values};
use overspill_join::with_values;

/// The columns of a batch, in the order of the plan, if kernels can process them. The CPU must process values that do not fit
/// 64 bits, integers with products that might not fit 64 bits, decimals with a sum of products that might not fit 128 bits, and
/// nulls in columns that are not nullable in the plan.
pub(super) fn columns(plan: &SelectionPlan, numbers: &[usize], batch: &RecordBatch) -> Option<Vec<Column>> {
    let columns = numbers.iter().zip(&plan.columns).map(|(number, planned)| {
        let column = Column::new(batch.column(*number))?;
        let fits = match &column.values {
            Values::U64(values) => fit(values, &column),
            Values::I128(values) => fit(values, &column),
            _ => true,
        };
        (fits && (planned.nullable || column.nulls.is_none())).then_some(column)
    });
    let columns: Vec<Column> = columns.collect::<Option<_>>()?;
    let are_small = |column: &usize| match &columns[*column].values {
        Values::I64(values) => are_small(values, i32::MAX.into()),
        Values::U64(values) => are_small(values, i32::MAX.into()),
        Values::I128(values) => are_small(values, LARGEST_DECIMAL),
        _ => true,
    };
    let factors = plan.aggregates.iter().filter_map(|aggregate| match aggregate {
        SelectionAggregate::SumOfProducts(left, right) => Some([left, right]),
        _ => None,
    });
    factors.flatten().all(are_small).then_some(columns)
}

/// The largest decimal in products that kernels sum: 2^27 products, more than the rows of a chunk, fit 128 bits. It has 15
/// digits.
const LARGEST_DECIMAL: i128 = 1 << 50;

/// Whether values are small enough for the products of a chunk; kernels do not check for overflow.
fn are_small<T: Number>(values: &[T], limit: i128) -> bool {
    values.iter().fold(true, |all, value| all & ((-limit..=limit).contains(&(*value).into())))
}

/// Whether all non-null values fit a signed 64-bit number.
fn fit<T: Number>(values: &[T], column: &Column) -> bool {
    let fits = |value: T| i64::try_from(value.into()).is_ok();
    match &column.nulls {
        Some(nulls) => nulls.valid_indices().all(|row| fits(values[row])),
        None => values.iter().fold(true, |all, value| all & fits(*value)),
    }
}

/// Writes rows to memory in pages that start at multiples of `chunk` bytes, in the layout of the plan.
pub(super) fn write(plan: &SelectionPlan, chunk: u64, batches: &[(usize, Vec<Column>)], memory: &mut [u8]) {
    let page_rows = plan.page_rows(chunk);
    let rows = batches.iter().map(|(rows, _)| *rows as u64).sum::<u64>();
    for (number, first) in (0..rows).step_by(page_rows.max(1) as usize).enumerate() {
        let page = plan.page(page_rows.min(rows - first));
        let memory = &mut memory[number * chunk as usize..];
        let last = first + page_rows.min(rows - first);
        for (column, (values, validity)) in page.columns.into_iter().enumerate() {
            let is_wide = plan.columns[column].is_wide;
            let width = if is_wide { 8 } else { 4 };
            let of = |range: Range<u64>| range.start as usize..range.end as usize;
            memory[of(validity.clone())].fill(0);
            let mut at = 0;
            for (part, column) in parts(batches, column, first as usize..last as usize) {
                let places = &mut memory[of(values.clone())][at * width..][..part.len() * width];
                with_values!(&column.values, values => write_values(&values[part.clone()], places, is_wide));
                if !validity.is_empty() {
                    write_validity(column, part.clone(), &mut memory[of(validity.clone())], at);
                }
                at += part.len();
            }
        }
    }
}

/// Splits a range of rows, counted over all batches, by batch.
fn parts(
    batches: &[(usize, Vec<Column>)],
    column: usize,
    rows: Range<usize>,
) -> impl Iterator<Item = (Range<usize>, &Column)> {
    let mut first = 0;
    batches.iter().filter_map(move |(length, columns)| {
        let batch = first..first + length;
        first = batch.end;
        let (start, end) = (rows.start.max(batch.start), rows.end.min(batch.end));
        (start < end).then(|| (start - batch.start..end - batch.start, &columns[column]))
    })
}

fn write_values<T: Number>(values: &[T], places: &mut [u8], is_wide: bool) {
    // Truncation only affects values of nulls, or drops only zeros and sign bits.
    if is_wide {
        let (places, _) = places.as_chunks_mut::<8>();
        places.iter_mut().zip(values).for_each(|(place, value)| *place = ((*value).into() as i64).to_ne_bytes());
    } else {
        let (places, _) = places.as_chunks_mut::<4>();
        places.iter_mut().zip(values).for_each(|(place, value)| *place = ((*value).into() as i32).to_ne_bytes());
    }
}

fn write_validity(column: &Column, rows: Range<usize>, places: &mut [u8], at: usize) {
    match &column.nulls {
        Some(nulls) => set_bits(places, nulls.validity(), at, nulls.offset() + rows.start, rows.len()),
        None => set_bits(places, BooleanBuffer::new_set(rows.len()).values(), at, 0, rows.len()),
    };
}
