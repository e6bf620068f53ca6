//! Sums of few groups.

use crate::narrow::{Step, Values, Work};

/// The most groups of a [`FewSums`]. Their numbers fit a byte, and leave one for rows without a value.
pub const MOST_FEW: usize = NOWHERE as usize;

/// The group that rows without a value are added to. No caller reads its sum.
const NOWHERE: u8 = u8::MAX;

/// Rows that follow each other are added to sums of different lanes: a sum of one lane would wait for the row before, which is often of the same group.
const LANES: usize = 4;

/// The numbers of a byte.
const NUMBERS: usize = 1 << u8::BITS;

/// The sums of all groups, lane after lane.
type Lanes = [i64; LANES * NUMBERS];

/// The sums of the values of steps, for up to [`MOST_FEW`] groups, in words of 64 bits.
///
/// `O(1)` for a step of a row, without a branch.
#[derive(Debug)]
pub struct FewSums {
    steps: Vec<Step>,
    sums: Vec<Box<Lanes>>,
    /// The greatest absolute value that a sum of each step may have.
    bounds: Vec<u64>,
    /// Rows of each group.
    rows: Box<Lanes>,
    /// Rows of each group for which a step has no value.
    nulls: Vec<Box<Lanes>>,
    /// Numbers of the groups of a batch's rows, or [`NOWHERE`] for rows without a value, for each step with such rows.
    with_values: Vec<Vec<u8>>,
}

/// The sum of a step, for each group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FewSum {
    /// The sum of the values; 0 if there are none.
    pub sums: Vec<i64>,
    /// The number of values.
    pub values: Vec<u64>,
}

fn zeros() -> Box<Lanes> {
    Box::new([0; LANES * NUMBERS])
}

impl FewSums {
    /// Sums of these steps, of no rows.
    pub fn new(steps: Vec<Step>) -> Self {
        let lanes = || (0..steps.len()).map(|_| zeros()).collect();
        Self {
            sums: lanes(),
            nulls: lanes(),
            bounds: vec![0; steps.len()],
            rows: zeros(),
            with_values: vec![vec![]; steps.len()],
            steps,
        }
    }

    /// Adds the rows of a batch to the groups with these numbers, each below [`MOST_FEW`]. Adds none and returns `false` if a sum might not fit: then there
    /// is room after [`FewSums::take`].
    pub fn add(&mut self, values: &Values<'_>, numbers: &[u8]) -> bool {
        let rows = numbers.len() as u64;
        let bound = |(step, bound): (&Step, &u64)| {
            let added = values.range(*step).magnitude().checked_mul(rows)?;
            bound.checked_add(added).filter(|bound| *bound <= i64::MAX as u64)
        };
        let Some(bounds) = self.steps.iter().zip(&self.bounds).map(bound).collect() else { return false };
        self.bounds = bounds;
        for (number, step) in self.steps.iter().enumerate() {
            let with_values = &mut self.with_values[number];
            with_values.clear();
            let Some(nulls) = values.nulls(*step) else { continue };
            with_values.extend_from_slice(numbers);
            for row in (!nulls.inner()).set_indices() {
                self.nulls[number][usize::from(numbers[row])] += 1;
                with_values[row] = NOWHERE;
            }
        }
        let Self { steps, sums, with_values, .. } = self;
        values.compute(steps, numbers.len(), &mut Adding { sums, numbers, with_values });
        let (by_lane, rest) = numbers.as_chunks::<LANES>();
        for numbers in by_lane {
            for (lane, number) in numbers.iter().enumerate() {
                self.rows[lane * NUMBERS + usize::from(*number)] += 1;
            }
        }
        rest.iter().for_each(|number| self.rows[usize::from(*number)] += 1);
        true
    }

    /// The number of rows of each of the first `groups` groups, and the sums of each step. All are 0 afterwards.
    pub fn take(&mut self, groups: usize) -> (Vec<u64>, Vec<FewSum>) {
        let total = |lanes: &mut Lanes| -> Vec<i64> {
            let of_group = |number: usize| (0..LANES).map(|lane| lanes[lane * NUMBERS + number]).sum();
            let totals = (0..groups).map(of_group).collect();
            lanes.fill(0);
            totals
        };
        let rows: Vec<u64> = total(&mut self.rows).into_iter().map(|rows| rows as u64).collect();
        self.bounds.fill(0);
        let sums = self.sums.iter_mut().zip(&mut self.nulls).map(|(sums, nulls)| {
            let nulls = total(nulls);
            FewSum {
                sums: total(sums),
                values: rows.iter().zip(nulls).map(|(rows, nulls)| rows - nulls as u64).collect(),
            }
        });
        let sums = sums.collect();
        (rows, sums)
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|rows| *rows == 0)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let numbers: usize = self.with_values.iter().map(Vec::capacity).sum();
        (self.sums.len() + self.nulls.len() + 1) * size_of::<Lanes>() + numbers
    }
}

/// Adds blocks of a batch.
struct Adding<'a> {
    sums: &'a mut [Box<Lanes>],
    numbers: &'a [u8],
    with_values: &'a [Vec<u8>],
}

impl Work for Adding<'_> {
    #[inline(always)]
    fn block(&mut self, number: usize, start: usize, values: &[i64]) {
        let with_values = &self.with_values[number];
        let numbers = if with_values.is_empty() { self.numbers } else { with_values };
        let numbers = &numbers[start..start + values.len()];
        let sums = self.sums[number].as_mut();
        let (values_by_lane, last_values) = values.as_chunks::<LANES>();
        let (numbers_by_lane, last_numbers) = numbers.as_chunks::<LANES>();
        for (values, numbers) in values_by_lane.iter().zip(numbers_by_lane) {
            for lane in 0..LANES {
                sums[lane * NUMBERS + usize::from(numbers[lane])] += values[lane];
            }
        }
        for (value, number) in last_values.iter().zip(last_numbers) {
            sums[usize::from(*number)] += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::narrow::{Arithmetic, NarrowColumn, Operator};

    fn narrow(values: Vec<Option<i64>>) -> NarrowColumn {
        NarrowColumn::of(&(Arc::new(Int64Array::from(values)) as ArrayRef)).unwrap()
    }

    #[test]
    fn sums_are_those_of_each_group() {
        let random = &mut StdRng::seed_from_u64(3);
        let mut arithmetic = Arithmetic::default();
        let (a, b) = (arithmetic.column(0), arithmetic.column(1));
        let sum = arithmetic.apply(a, Operator::Plus, b, i64::MAX as u64);
        for groups in [1, 2, 7, 200, MOST_FEW] {
            let mut few = FewSums::new(vec![a, sum]);
            assert!(few.is_empty());
            let mut expected = vec![(0_u64, [(0, 0_u64); 2]); groups];
            for rows in [0, 1, 3, 4, 1000, 1024, 5000] {
                let has_nulls = random.random_bool(0.5);
                let numbers: Vec<u8> = (0..rows).map(|_| random.random_range(0..groups) as u8).collect();
                let value = |has_nulls: bool, random: &mut StdRng| {
                    (!has_nulls || random.random_bool(0.7)).then(|| random.random_range(-1_000_000..1_000_000))
                };
                let left: Vec<Option<i64>> = (0..rows).map(|_| value(has_nulls, random)).collect();
                let right: Vec<Option<i64>> = (0..rows).map(|_| value(false, random)).collect();
                for ((number, left), right) in numbers.iter().zip(&left).zip(&right) {
                    let (of_group, steps) = &mut expected[usize::from(*number)];
                    *of_group += 1;
                    for (step, value) in steps.iter_mut().zip([*left, left.zip(*right).map(|(a, b)| a + b)]) {
                        *step = (step.0 + value.unwrap_or(0), step.1 + u64::from(value.is_some()));
                    }
                }
                let values = arithmetic.over(vec![narrow(left), narrow(right)]).unwrap();
                assert!(few.add(&values, &numbers));
            }
            let (rows, sums) = few.take(groups);
            let of_step = |step: usize| FewSum {
                sums: expected.iter().map(|(_, steps)| steps[step].0).collect(),
                values: expected.iter().map(|(_, steps)| steps[step].1).collect(),
            };
            assert_eq!(rows, expected.iter().map(|(rows, _)| *rows).collect::<Vec<_>>());
            assert_eq!(sums, [of_step(0), of_step(1)]);
            assert!(few.is_empty());
            assert_eq!(few.take(groups).0, vec![0; groups]);
        }
    }

    #[test]
    fn sums_that_may_not_fit_are_refused() {
        let mut arithmetic = Arithmetic::default();
        let step = arithmetic.column(0);
        let half = i64::MAX / 2;
        for sign in [1, -1] {
            let mut few = FewSums::new(vec![step]);
            let add = |few: &mut FewSums, values: &[i64]| {
                let values = arithmetic.over(vec![narrow(values.iter().map(|value| Some(value * sign)).collect())]);
                few.add(&values.unwrap(), &vec![0; 2][..])
            };
            assert!(add(&mut few, &[half, half]));
            assert!(!add(&mut few, &[1, 1]), "the sum of four values may be beyond 64 bits");
            assert_eq!(few.take(1).1[0].sums, [2 * half * sign]);
            assert!(add(&mut few, &[1, 1]), "there is room after the sums were taken");
            assert!(!add(&mut few, &[i64::MAX, i64::MAX]), "two values alone may be beyond 64 bits");
            assert_eq!(few.take(1).1[0], FewSum { sums: vec![2 * sign], values: vec![2] });
        }
    }
}
