//! Narrow values against numbers of 128 bits.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Decimal128Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, UInt8Array,
    UInt16Array, UInt32Array, UInt64Array,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Arithmetic, BLOCK, NarrowColumn, Operator, Range, Step, takes_type};

/// A column of some type, and its values.
fn column(rows: usize, random: &mut StdRng) -> (ArrayRef, Vec<Option<i128>>) {
    let most = 1_i128 << random.random_range(1..50);
    let has_nulls = random.random_bool(0.3);
    let kind = random.random_range(0..8);
    let least = if kind > 4 { 0 } else { -most };
    let most = match kind {
        3 | 7 => most.min(100),
        2 | 6 => most.min(30_000),
        1 | 5 => most.min(2_000_000_000),
        _ => most,
    };
    let value = |random: &mut StdRng| {
        (!has_nulls || random.random_bool(0.8)).then(|| random.random_range(least.max(-most)..=most))
    };
    let values: Vec<Option<i128>> = (0..rows).map(|_| value(random)).collect();
    let of = values.iter().copied();
    let column: ArrayRef = match kind {
        0 => Arc::new(of.map(|value| Some(value? as i64)).collect::<Int64Array>()),
        1 => Arc::new(of.map(|value| Some(value? as i32)).collect::<Int32Array>()),
        2 => Arc::new(of.map(|value| Some(value? as i16)).collect::<Int16Array>()),
        3 => Arc::new(of.map(|value| Some(value? as i8)).collect::<Int8Array>()),
        5 => Arc::new(of.map(|value| Some(value? as u32)).collect::<UInt32Array>()),
        6 => Arc::new(of.map(|value| Some(value? as u16)).collect::<UInt16Array>()),
        7 => Arc::new(of.map(|value| Some(value? as u8)).collect::<UInt8Array>()),
        _ => Arc::new(of.collect::<Decimal128Array>()),
    };
    assert!(takes_type(column.data_type()));
    (column, values)
}

/// The exact result of an operation; `None` for a null.
fn exact(operator: Operator, left: Option<i128>, right: Option<i128>) -> Option<i128> {
    let (left, right) = left.zip(right)?;
    Some(match operator {
        Operator::Plus => left + right,
        Operator::Minus => left - right,
        Operator::Times => left * right,
    })
}

#[test]
fn results_are_exact_or_refused() {
    let random = &mut StdRng::seed_from_u64(5);
    let (mut taken, mut refused) = (0, 0);
    for round in 0..400 {
        let rows = [0, 1, 7, BLOCK, BLOCK + 1, 3 * BLOCK - 5][round % 6];
        let (columns, of_columns): (Vec<_>, Vec<_>) = (0..3).map(|_| column(rows, random)).unzip();
        let mut arithmetic = Arithmetic::default();
        let mut steps: Vec<(Step, Vec<Option<i128>>)> = vec![];
        for (number, values) in of_columns.into_iter().enumerate() {
            steps.push((arithmetic.column(number), values));
        }
        let constant = random.random_range(-1000..1000);
        steps.push((arithmetic.constant(constant), vec![Some(i128::from(constant)); rows]));
        let mut fits = true;
        for _ in 0..random.random_range(1..4) {
            let [left, right] = [(); 2].map(|()| random.random_range(0..steps.len()));
            let operator = [Operator::Plus, Operator::Minus, Operator::Times][random.random_range(0..3)];
            let most = if random.random_bool(0.2) { 1_000_000 } else { i64::MAX as u64 };
            let step = arithmetic.apply(steps[left].0, operator, steps[right].0, most);
            let pairs = steps[left].1.iter().zip(&steps[right].1);
            let values: Vec<_> = pairs.map(|(left, right)| exact(operator, *left, *right)).collect();
            fits &= values.iter().flatten().all(|value| value.unsigned_abs() <= u128::from(most));
            if !fits {
                break;
            }
            steps.push((step, values));
        }
        let columns = columns.iter().map(|column| NarrowColumn::of(column).unwrap()).collect();
        let Some(narrow) = arithmetic.over(columns) else {
            refused += 1;
            continue;
        };
        assert!(fits, "a result that does not fit is not refused");
        taken += 1;
        let asked: Vec<Step> = steps.iter().map(|(step, _)| *step).collect();
        for ((step, expected), found) in steps.iter().zip(narrow.of(&asked, rows)) {
            let range = narrow.range(*step);
            for (row, (expected, found)) in expected.iter().zip(found).enumerate() {
                assert_eq!(expected.is_none(), narrow.nulls(*step).is_some_and(|nulls| nulls.is_null(row)));
                if let Some(expected) = expected {
                    assert_eq!(*expected, i128::from(found));
                    assert!(range.least <= found && found <= range.most);
                }
            }
        }
    }
    assert!(taken > 100 && refused > 50, "{taken} taken, {refused} refused");
}

#[test]
fn wide_values_and_other_types_are_refused() {
    let edges = [i64::MIN, i64::MAX];
    let column = NarrowColumn::of(&(Arc::new(Int64Array::from_iter_values(edges)) as ArrayRef)).unwrap();
    assert_eq!(column.range, Range { least: i64::MIN, most: i64::MAX });
    for beyond in [i128::from(i64::MAX) + 1, i128::from(i64::MIN) - 1, i128::MAX, 1 << 64] {
        let with = |value| Arc::new(Decimal128Array::from(vec![Some(1), None, value])) as ArrayRef;
        assert!(NarrowColumn::of(&with(Some(beyond))).is_none(), "{beyond}");
        assert!(NarrowColumn::of(&with(None)).is_some());
        assert!(NarrowColumn::of(&(Arc::new(Decimal128Array::from(vec![beyond])) as ArrayRef)).is_none());
    }
    let others: [ArrayRef; 2] = [Arc::new(UInt64Array::from(vec![1])), Arc::new(Float64Array::from(vec![1.0]))];
    for other in others {
        assert!(NarrowColumn::of(&other).is_none() && !takes_type(other.data_type()));
    }
    // The ranges of results at the edges.
    let (one, all) = (Range::of(1), Range { least: i64::MIN, most: i64::MAX });
    assert_eq!(all.plus(Range::of(0)), Some(all));
    assert_eq!([all.plus(one), all.minus(one), all.times(Range::of(-1)), Range::of(0).minus(all)], [None; 4]);
    assert_eq!(all.magnitude(), 1 << 63);
}

#[test]
fn equal_steps_are_one() {
    let mut arithmetic = Arithmetic::default();
    let (a, b) = (arithmetic.column(0), arithmetic.column(1));
    let product = arithmetic.apply(a, Operator::Times, b, 9);
    assert_eq!(arithmetic.column(0), a);
    assert_eq!(arithmetic.apply(a, Operator::Times, b, 9), product);
    // Of other limits they are not.
    assert_ne!(arithmetic.apply(a, Operator::Times, b, 10), product);
    assert_ne!(arithmetic.apply(b, Operator::Times, a, 9), product);
}
