//! The values of steps, block by block.

use arrow::buffer::NullBuffer;
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use super::arithmetic::{Arithmetic, Operation, Operator, Step};
use super::column::NarrowColumn;
use super::range::Range;

/// Rows whose values are computed together, so that they stay in a core's cache.
pub const BLOCK: usize = 1024;

/// The values of the steps of an [`Arithmetic`], for the rows of a batch. All of them fit.
#[derive(Debug)]
pub struct Values<'a> {
    arithmetic: &'a Arithmetic,
    columns: Vec<NarrowColumn>,
    /// The range and the nulls of each step.
    of_steps: Vec<(Range, Option<NullBuffer>)>,
}

impl Arithmetic {
    /// The values of all steps for rows of these columns, which have one length. `None` if some may not fit.
    pub fn over(&self, columns: Vec<NarrowColumn>) -> Option<Values<'_>> {
        let mut of_steps: Vec<(Range, Option<NullBuffer>)> = Vec::with_capacity(self.steps.len());
        for operation in &self.steps {
            of_steps.push(match *operation {
                Operation::Column(number) => (columns[number].range, columns[number].nulls.clone()),
                Operation::Constant(value) => (Range::of(value), None),
                Operation::Of { left, operator, right, most } => {
                    let [(left, left_nulls), (right, right_nulls)] = [&of_steps[left.0], &of_steps[right.0]];
                    let range = match operator {
                        Operator::Plus => left.plus(*right),
                        Operator::Minus => left.minus(*right),
                        Operator::Times => left.times(*right),
                    };
                    let range = range.filter(|range| range.magnitude() <= most)?;
                    (range, NullBuffer::union(left_nulls.as_ref(), right_nulls.as_ref()))
                }
            });
        }
        Some(Values { arithmetic: self, columns, of_steps })
    }
}

/// What is done with the values of a step.
///
/// `block` and the functions it calls must always be inlined, so that they are compiled for the widest vectors.
pub trait Work {
    /// Takes the values of the rows from `start` on: [`BLOCK`], or those that are left. `number` is that of the step among those that were asked for. The values of
    /// nulls are arbitrary.
    fn block(&mut self, number: usize, start: usize, values: &[i64]);
}

impl Values<'_> {
    /// The range of a step's values.
    pub fn range(&self, step: Step) -> Range {
        self.of_steps[step.0].0
    }

    /// The rows for which a step has no value; `None` without any.
    pub fn nulls(&self, step: Step) -> Option<&NullBuffer> {
        self.of_steps[step.0].1.as_ref()
    }

    /// Computes all steps for `rows` rows, and gives the values of some of them to `work`.
    pub fn compute(&self, steps: &[Step], rows: usize, work: &mut impl Work) {
        with_widest_vectors(Blocks { values: self, steps, rows, work });
    }

    /// The values of some steps, for `rows` rows.
    pub fn of(&self, steps: &[Step], rows: usize) -> Vec<Vec<i64>> {
        let mut copies = Copies(vec![Vec::with_capacity(rows); steps.len()]);
        self.compute(steps, rows, &mut copies);
        copies.0
    }

    /// The values of a step for the rows from `start` on: those of columns, or from the results of all steps.
    #[inline(always)]
    fn block<'a>(&'a self, step: Step, results: &'a [i64], start: usize, rows: usize) -> &'a [i64] {
        match self.arithmetic.steps[step.0] {
            Operation::Column(number) => &self.columns[number].values[start..start + rows],
            Operation::Constant(_) | Operation::Of { .. } => &results[step.0 * BLOCK..][..rows],
        }
    }
}

/// The values of each step.
struct Copies(Vec<Vec<i64>>);

impl Work for Copies {
    #[inline(always)]
    fn block(&mut self, number: usize, _: usize, values: &[i64]) {
        self.0[number].extend_from_slice(values);
    }
}

struct Blocks<'a, W> {
    values: &'a Values<'a>,
    steps: &'a [Step],
    rows: usize,
    work: &'a mut W,
}

impl<W: Work> VectorLoop for Blocks<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Vectors) {
        let Self { values, steps, rows: all, work } = self;
        let operations = &values.arithmetic.steps;
        let mut results = vec![0; operations.len() * BLOCK];
        for (operation, results) in operations.iter().zip(results.chunks_mut(BLOCK)) {
            if let Operation::Constant(value) = operation {
                results.fill(*value);
            }
        }
        for start in (0..all).step_by(BLOCK) {
            let rows = BLOCK.min(all - start);
            for (number, operation) in operations.iter().enumerate() {
                let Operation::Of { left, operator, right, .. } = *operation else { continue };
                let (before, results) = results.split_at_mut(number * BLOCK);
                let [left, right] = [left, right].map(|step| values.block(step, before, start, rows));
                let results = &mut results[..rows];
                match operator {
                    Operator::Plus => each(left, right, results, i64::wrapping_add),
                    Operator::Minus => each(left, right, results, i64::wrapping_sub),
                    Operator::Times => each(left, right, results, i64::wrapping_mul),
                }
            }
            for (number, step) in steps.iter().enumerate() {
                work.block(number, start, values.block(*step, &results, start, rows));
            }
        }
    }
}

/// Ranges show that no result wraps around.
#[inline(always)]
fn each(left: &[i64], right: &[i64], results: &mut [i64], result: impl Fn(i64, i64) -> i64) {
    for ((left, right), place) in left.iter().zip(right).zip(results) {
        *place = result(*left, *right);
    }
}
