//! The rows of a batch while conjuncts are evaluated.

use arrow::array::{ArrayRef, BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{FilterBuilder, FilterPredicate, filter_record_batch};
use datafusion::common::Result;

use super::conjuncts::Conjunct;

/// Nanoseconds that finding the place of a copied row takes.
const FOUND: f64 = 1.0;

/// The rows of a batch that have passed the conjuncts so far. Conjuncts are evaluated on all rows or on copies.
pub(super) struct Rows<'a> {
    batch: &'a RecordBatch,
    /// Which rows have passed; `None` while all have.
    passed: Option<BooleanBuffer>,
    /// Number of rows that have passed.
    count: usize,
    copies: Option<Copies>,
}

/// Copies of the rows that had passed at some time. Rows dropped since are among them.
struct Copies {
    rows: BooleanBuffer,
    filter: FilterPredicate,
    /// The columns that were needed so far, by their numbers in the batch.
    columns: Vec<(usize, ArrayRef)>,
}

impl<'a> Rows<'a> {
    pub fn new(batch: &'a RecordBatch) -> Self {
        Self { batch, passed: None, count: batch.num_rows(), copies: None }
    }

    /// Number of rows that have passed.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of rows that the next conjunct is evaluated on.
    pub fn evaluated(&self) -> usize {
        self.copies.as_ref().map_or(self.batch.num_rows(), |copies| copies.filter.count())
    }

    /// Copies the rows that have passed if evaluating a conjunct on the copies alone takes less time. `cost` is what the conjunct takes for a row.
    pub fn copy_if_cheaper(&mut self, conjunct: &Conjunct, cost: f64) {
        let copied = |column: &usize| {
            self.copies.as_ref().is_none_or(|copies| copies.columns.iter().any(|(number, _)| number == column))
        };
        let columns = || conjunct.columns.iter().zip(&conjunct.copies);
        let missing: f64 = columns().filter(|(column, _)| !copied(column)).map(|(_, copy)| copy).sum();
        let all: f64 = columns().map(|(_, copy)| copy).sum();
        let as_they_are = self.evaluated() as f64 * (cost + missing);
        if (self.count as f64) * (cost + all + FOUND) < as_they_are {
            self.copy();
        }
    }

    /// Copies the rows that have passed, unless no others are evaluated anyway.
    pub fn copy(&mut self) {
        if self.count == self.evaluated() {
            return;
        }
        let Some(passed) = &self.passed else { return };
        let filter = FilterBuilder::new(&BooleanArray::new(passed.clone(), None)).optimize().build();
        self.copies = Some(Copies { rows: passed.clone(), filter, columns: vec![] });
    }

    /// Columns of the rows that are evaluated.
    pub fn columns(&mut self, columns: &[usize]) -> Result<Vec<ArrayRef>> {
        let batch = self.batch;
        let Some(copies) = &mut self.copies else {
            return Ok(columns.iter().map(|column| ArrayRef::clone(batch.column(*column))).collect());
        };
        let mut copied = vec![];
        for column in columns {
            let known =
                copies.columns.iter().find(|(number, _)| number == column).map(|(_, copy)| ArrayRef::clone(copy));
            let copy = match known {
                Some(copy) => copy,
                None => {
                    let copy = copies.filter.filter(batch.column(*column))?;
                    copies.columns.push((*column, ArrayRef::clone(&copy)));
                    copy
                }
            };
            copied.push(copy);
        }
        Ok(copied)
    }

    /// Drops the evaluated rows that are not set here.
    pub fn retain(&mut self, passing: BooleanBuffer) {
        let passed = match (&self.copies, &self.passed) {
            (Some(copies), Some(passed)) if self.count < copies.filter.count() => {
                passed & &spread(&copies.rows, &passing)
            }
            (Some(copies), _) => spread(&copies.rows, &passing),
            (None, Some(passed)) => passed & &passing,
            (None, None) => passing,
        };
        self.count = passed.count_set_bits();
        self.passed = (self.count < self.batch.num_rows()).then_some(passed);
    }

    /// These columns of the rows that have passed; all columns if `None`.
    pub fn selected(&self, projection: Option<&[usize]>) -> Result<RecordBatch> {
        let columns = match projection {
            Some(projection) => self.batch.project(projection)?,
            None => self.batch.clone(),
        };
        Ok(match &self.passed {
            Some(passed) => filter_record_batch(&columns, &BooleanArray::new(passed.clone(), None))?,
            None => columns,
        })
    }
}

/// The set bits of `rows` for which the next bit of `kept` is set.
fn spread(rows: &BooleanBuffer, kept: &BooleanBuffer) -> BooleanBuffer {
    let mut spread = BooleanBufferBuilder::new(rows.len());
    spread.append_n(rows.len(), false);
    for (row, kept) in rows.set_indices().zip(kept) {
        if kept {
            spread.set_bit(row, true);
        }
    }
    spread.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn values(column: &ArrayRef) -> Vec<i64> {
        column.as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn rows_pass_and_are_copied_in_any_order() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).unwrap();
        let mut rows = Rows::new(&batch);
        let mut expected: Vec<i64> = (0..1000).collect();
        // Copies are made before the first, third and fourth test. Those of the third are also tested by the last.
        for (copies, divisor) in [(true, 2), (false, 3), (true, 5), (true, 7), (false, 11)] {
            if copies {
                rows.copy();
                assert_eq!(rows.evaluated(), rows.count());
            }
            let evaluated = values(&rows.columns(&[1]).unwrap()[0]);
            assert_eq!(evaluated.len(), rows.evaluated());
            rows.retain(BooleanBuffer::from_iter(evaluated.iter().map(|value| value % divisor != 0)));
            expected.retain(|value| value % divisor != 0);
            assert_eq!(rows.count(), expected.len());
            let selected = rows.selected(Some(&[0])).unwrap();
            assert_eq!(values(selected.column(0)), expected);
        }
        assert_eq!(rows.selected(None).unwrap().num_columns(), 2);
        rows.retain(BooleanBuffer::new_unset(rows.evaluated()));
        assert_eq!((rows.count(), rows.selected(None).unwrap().num_rows()), (0, 0));
    }

    #[test]
    fn rows_that_all_pass_are_not_copied() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column))]).unwrap();
        let mut rows = Rows::new(&batch);
        rows.retain(BooleanBuffer::new_set(10));
        rows.copy();
        assert!(Arc::ptr_eq(&rows.columns(&[0]).unwrap()[0], batch.column(0)));
        assert!(Arc::ptr_eq(rows.selected(None).unwrap().column(0), batch.column(0)));
    }
}
