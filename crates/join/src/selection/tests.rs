//! Compares both methods with each other and with known answers; the engine's tests compare random selections with DataFusion.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Date32Array, Decimal128Array, Int64Array, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Decimal128Type, Int64Type, UInt64Type};

use super::{Aggregate, ColumnRange, CpuSelection, Evaluation, Selection};

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    RecordBatch::try_from_iter(columns.into_iter().enumerate().map(|(number, column)| (number.to_string(), column)))
        .unwrap()
}

/// The aggregates of a batch, computed with one of the methods.
fn select(selection: &Selection, batch: &RecordBatch, types: &[DataType]) -> Vec<ArrayRef> {
    let [branching, predicated] = [Evaluation::Branching, Evaluation::Predicated].map(|evaluation| {
        let mut cpu = CpuSelection::new(Arc::new(selection.clone()), evaluation);
        assert_eq!(cpu.push(batch), Some(evaluation));
        cpu.state().clone()
    });
    assert_eq!(branching, predicated);
    let values = types.iter().enumerate();
    values.map(|(number, data_type)| branching.to_array(selection, number, data_type).unwrap()).collect()
}

#[test]
fn products_of_decimals_are_summed_in_128_bits() {
    // More than one block, with days that pass in two blocks.
    let days = Date32Array::from_iter_values((0..3000).map(|row| row % 1500));
    let values = Decimal128Array::from_iter((0..3000).map(|row| (row % 2 == 0).then_some(i128::from(i64::MAX) - row)));
    let selection = Selection {
        ranges: vec![ColumnRange { column: 0, lowest: 100, highest: 102 }],
        aggregates: vec![Aggregate::SumOfProducts(1, 1), Aggregate::CountRows, Aggregate::Count(1)],
    };
    let decimal = DataType::Decimal128(38, 0);
    let found = select(
        &selection,
        &batch(vec![Arc::new(days), Arc::new(values)]),
        &[decimal, DataType::Int64, DataType::Int64],
    );
    let expected = [100, 102, 1600, 1602].map(|row| (i128::from(i64::MAX) - row).pow(2));
    let expected = expected.into_iter().fold(0, i128::wrapping_add);
    assert_eq!(found[0].as_primitive::<Decimal128Type>().value(0), expected);
    assert_eq!(found[1].as_primitive::<Int64Type>().value(0), 6);
    assert_eq!(found[2].as_primitive::<Int64Type>().value(0), 4);
}

#[test]
fn sums_of_decimals_are_exact_or_left_to_others() {
    let most = 10_i128.pow(38) - 1;
    let selection = Selection { ranges: vec![], aggregates: vec![Aggregate::Sum(0)] };
    let decimals = |values: Vec<i128>| batch(vec![Arc::new(Decimal128Array::from(values))]);
    for evaluation in [Evaluation::Branching, Evaluation::Predicated] {
        let mut cpu = CpuSelection::new(Arc::new(selection.clone()), evaluation);
        for _ in 0..4 {
            assert!(cpu.push(&decimals(vec![most, 1])).is_some());
        }
        // Two such numbers in one block exceed 128 bits.
        assert!(cpu.push(&decimals(vec![most, most])).is_none());
        let decimal = DataType::Decimal128(38, 0);
        let sum = cpu.state().to_array(&selection, 0, &decimal).unwrap();
        let wrapped = (most + 1).wrapping_mul(4);
        assert_eq!(sum.as_primitive::<Decimal128Type>().value(0), wrapped);
        // 4 * 10^38 = 2^128 + 59,717,633,079,061,536,536,625,392,568,231,788,544.
        assert_eq!((cpu.state().carry(0, &decimal), wrapped), (1, 59_717_633_079_061_536_536_625_392_568_231_788_544));
    }
}

#[test]
fn sums_of_integers_are_exact() {
    let signed: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, 5, i64::MAX, -7]));
    let unsigned: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, 3, u64::MAX, 9]));
    let selection =
        Selection { ranges: vec![], aggregates: vec![Aggregate::Sum(0), Aggregate::Sum(1), Aggregate::Max(1)] };
    let sum = DataType::Decimal128(38, 0);
    let found = select(&selection, &batch(vec![signed, unsigned]), &[sum.clone(), sum, DataType::UInt64]);
    assert_eq!(found[0].as_primitive::<Decimal128Type>().value(0), 2 * i128::from(i64::MAX) - 2);
    assert_eq!(found[1].as_primitive::<Decimal128Type>().value(0), 2 * i128::from(u64::MAX) + 12);
    assert_eq!(found[2].as_primitive::<UInt64Type>().value(0), u64::MAX);
}

#[test]
fn products_of_integers_that_overflow_are_for_others() {
    let largest: ArrayRef = Arc::new(Int64Array::from(vec![i64::from(i32::MAX), 3_037_000_499, -7]));
    let larger: ArrayRef = Arc::new(Int64Array::from(vec![1, 3_037_000_500, 2]));
    let selection = Selection { ranges: vec![], aggregates: vec![Aggregate::SumOfProducts(0, 0)] };
    let sum = DataType::Decimal128(38, 0);
    let found = select(&selection, &batch(vec![Arc::clone(&largest)]), &[sum]);
    let squares = [i128::from(i32::MAX), 3_037_000_499, 7].map(|factor| factor * factor);
    assert_eq!(found[0].as_primitive::<Decimal128Type>().value(0), squares.into_iter().sum());
    for evaluation in [Evaluation::Branching, Evaluation::Predicated] {
        let mut cpu = CpuSelection::new(Arc::new(selection.clone()), evaluation);
        assert_eq!(cpu.push(&batch(vec![Arc::clone(&larger)])), None);
    }
}

#[test]
fn no_rows_have_no_sum_and_a_range_beyond_a_type_has_no_rows() {
    let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(1), None, Some(3)]));
    for range in [
        ColumnRange { column: 0, lowest: 1 << 40, highest: i128::MAX },
        ColumnRange { column: 0, lowest: 2, highest: 2 },
    ] {
        let aggregates = vec![Aggregate::Min(0), Aggregate::Count(0)];
        let selection = Selection { ranges: vec![range], aggregates };
        let found = select(&selection, &batch(vec![Arc::clone(&days)]), &[DataType::Date32, DataType::Int64]);
        assert!(found[0].is_null(0));
        assert_eq!(found[1].as_primitive::<Int64Type>().value(0), 0);
    }
}

#[test]
fn products_beyond_64_bits_are_left_to_others_only_where_rows_are_selected() {
    let wide: ArrayRef = Arc::new(Decimal128Array::from(vec![1 << 70, 4]));
    let selection = |lowest| Selection {
        ranges: vec![ColumnRange { column: 0, lowest, highest: i128::MAX }],
        aggregates: vec![Aggregate::SumOfProducts(0, 0)],
    };
    let batch = batch(vec![wide]);
    for evaluation in [Evaluation::Branching, Evaluation::Predicated] {
        let mut cpu = CpuSelection::new(Arc::new(selection(0)), evaluation);
        assert_eq!(cpu.push(&batch), None);
        assert_eq!(cpu.state().selected(), 0);
        let highest = Selection { ranges: vec![ColumnRange { column: 0, lowest: 0, highest: 10 }], ..selection(0) };
        let mut cpu = CpuSelection::new(Arc::new(highest.clone()), evaluation);
        assert_eq!(cpu.push(&batch), Some(evaluation));
        let sum = cpu.state().to_array(&highest, 0, &DataType::Decimal128(38, 0)).unwrap();
        assert_eq!(sum.as_primitive::<Decimal128Type>().value(0), 16);
    }
}

#[test]
fn auto_goes_by_the_batch_before() {
    let none: ArrayRef = Arc::new(Int64Array::from(vec![0; 100]));
    let all: ArrayRef = Arc::new(Int64Array::from(vec![9; 100]));
    let selection = Selection {
        ranges: vec![ColumnRange { column: 0, lowest: 5, highest: 10 }],
        aggregates: vec![Aggregate::Sum(0)],
    };
    let mut cpu = CpuSelection::new(Arc::new(selection), Evaluation::Auto);
    let ways = [&none, &all, &all, &none, &none].map(|column| cpu.push(&batch(vec![Arc::clone(column)])).unwrap());
    use Evaluation::{Branching, Predicated};
    assert_eq!(ways, [Branching, Branching, Predicated, Predicated, Branching]);
}
