//! Selections and their aggregates against a loop over rows with 128-bit sums.

use std::sync::Arc;

use overspill_kernels::{
    Selection, SelectionAggregate, SelectionColumn, SelectionPlan, SelectionRange, SelectionTotals, SelectionValue,
};
use overspill_machine::driver::Device;
use overspill_machine::memory::{HostBuffer, PageSize, UnifiedBuffer};
use overspill_machine::transfer::{PipelineShape, Source, SourceMemory, TransferMethod, TransferPipeline};
use overspill_machine::{Error, Result};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::faults::each_fails_once;
use crate::test_gpu::{TestGpu, scaled, seeds};

const CHUNK: u64 = 2 << 20;
const SHAPE: PipelineShape = PipelineShape { chunk_bytes: CHUNK, chunks: 2, threads: 2 };

/// Columns, row by row; nulls only where a column may have them.
type Rows = Vec<Vec<Option<i64>>>;

fn value(random: &mut ChaCha8Rng, column: SelectionColumn) -> Option<i64> {
    if column.nullable && random.random_bool(0.2) {
        return None;
    }
    let value = match random.random_range(0..10) {
        0 => *[i64::MIN, i64::MAX, i64::MIN + 1, -1, 0].choose(random).unwrap(),
        1 => random.random(),
        _ => random.random_range(-50..50),
    };
    Some(if column.is_wide { value } else { i64::from(value as i32) })
}

fn random_plan(random: &mut ChaCha8Rng, aggregates: usize) -> SelectionPlan {
    let columns: Vec<_> = (0..random.random_range(1..=6))
        .map(|_| SelectionColumn { is_wide: random.random(), nullable: random.random_bool(0.4) })
        .collect();
    let column = |random: &mut ChaCha8Rng| random.random_range(0..columns.len());
    let ranges = (0..random.random_range(0..4))
        .map(|_| {
            let (lowest, highest) = match random.random_range(0..6) {
                0 => (i64::MIN, 10),
                1 => (-3, i64::MAX),
                2 => (5, 4),
                _ => (random.random_range(-50..0), random.random_range(0..50)),
            };
            SelectionRange { column: column(random), lowest, highest }
        })
        .collect();
    let aggregates = (0..aggregates)
        .map(|_| match random.random_range(0..5) {
            0 => SelectionAggregate::Count(column(random)),
            1 => SelectionAggregate::Sum(column(random)),
            2 => SelectionAggregate::SumOfProducts(column(random), column(random)),
            3 => SelectionAggregate::Min(column(random)),
            _ => SelectionAggregate::Max(column(random)),
        })
        .collect();
    SelectionPlan { columns, ranges, aggregates }
}

fn reference(plan: &SelectionPlan, rows: &Rows) -> SelectionTotals {
    let is_in = |row: &[Option<i64>], range: &SelectionRange| {
        row[range.column].is_some_and(|value| (range.lowest..=range.highest).contains(&value))
    };
    let selected: Vec<_> = rows.iter().filter(|row| plan.ranges.iter().all(|range| is_in(row, range))).collect();
    let values = plan.aggregates.iter().map(|aggregate| {
        let of = |column: usize| selected.iter().filter_map(move |row| row[column]).map(i128::from);
        let sum = |values: Vec<i128>| (values.len(), values.into_iter().fold(0, i128::wrapping_add));
        let (rows, value) = match *aggregate {
            SelectionAggregate::Count(column) => (of(column).count(), 0),
            SelectionAggregate::Sum(column) => sum(of(column).collect()),
            SelectionAggregate::SumOfProducts(left, right) => {
                let products = selected.iter().filter_map(|row| Some(i128::from(row[left]?) * i128::from(row[right]?)));
                sum(products.collect())
            }
            SelectionAggregate::Min(column) => (of(column).count(), of(column).min().unwrap_or(0)),
            SelectionAggregate::Max(column) => (of(column).count(), of(column).max().unwrap_or(0)),
        };
        SelectionValue { rows: rows as u64, value }
    });
    SelectionTotals { selected: selected.len() as u64, values: values.collect() }
}

/// Without rows there is no smallest or largest value.
fn comparable(mut totals: SelectionTotals) -> SelectionTotals {
    totals.values.iter_mut().filter(|value| value.rows == 0).for_each(|value| value.value = 0);
    totals
}

/// Rows in pages.
fn write(plan: &SelectionPlan, rows: &Rows, memory: &mut [u8]) {
    memory.fill(0xA5);
    let page_rows = plan.page_rows(CHUNK) as usize;
    for (number, rows) in rows.chunks(page_rows).enumerate() {
        let page = &mut memory[number * CHUNK as usize..];
        let places = plan.page(rows.len() as u64).columns;
        for (column, (values, validity)) in places.into_iter().enumerate() {
            let width = if plan.columns[column].is_wide { 8 } else { 4 };
            for (at, row) in rows.iter().enumerate() {
                let start = values.start as usize + at * width;
                // A null's value must not matter.
                let bytes = row[column].unwrap_or(7).to_le_bytes();
                page[start..start + width].copy_from_slice(&bytes[..width]);
                if plan.columns[column].nullable {
                    let (byte, bit) = (validity.start as usize + at / 8, 1 << (at % 8));
                    page[byte] = page[byte] & !bit | if row[column].is_some() { bit } else { 0 };
                }
            }
        }
    }
}

fn select(
    device: &Arc<Device>,
    plan: &SelectionPlan,
    rows: &Rows,
    method: TransferMethod,
    branching: bool,
) -> Result<SelectionTotals> {
    let kernels = overspill_kernels::Kernels::load(device)?;
    let selection = Selection::new(&kernels, plan.clone(), branching)?;
    let mut pipeline = TransferPipeline::new(device, method, SHAPE)?;
    let bytes = plan.bytes(rows.len() as u64, CHUNK).max(1);
    let rows_there = rows.len() as u64;
    match method.memory() {
        SourceMemory::Unified => {
            let mut buffer = UnifiedBuffer::new(device, bytes)?;
            write(plan, rows, buffer.as_mut_slice()?);
            selection.run_transferred(&mut pipeline, Source::Unified(&buffer), rows_there)
        }
        memory => {
            let mut buffer = match memory {
                SourceMemory::Pinned => HostBuffer::pinned(device, bytes as usize, PageSize::Small)?,
                _ => HostBuffer::new(bytes as usize, PageSize::Small)?,
            };
            write(plan, rows, buffer.as_mut_slice());
            selection.run_transferred(&mut pipeline, Source::Host(&buffer), rows_there)
        }
    }
}

fn random_rows(random: &mut ChaCha8Rng, plan: &SelectionPlan, rows: u64) -> Rows {
    (0..rows).map(|_| plan.columns.iter().map(|column| value(random, *column)).collect()).collect()
}

#[test]
fn every_kernel_selects_and_sums_what_a_loop_does() {
    let gpu = TestGpu::start();
    let device = gpu.device();
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut selected = 0;
    for seed in seeds() {
        gpu.schedule(seed);
        let few = [0, 1, 31, 257][seed as usize % 4];
        // A kernel takes as many aggregates as the next power of two, and none as one.
        for (aggregates, rows) in [(0, few), (1, 5000), (2, 700), (3, 5000), (4, few), (5, 700), (8, 5000)] {
            let plan = random_plan(&mut random, aggregates);
            let rows = random_rows(&mut random, &plan, scaled(rows));
            let expected = reference(&plan, &rows);
            selected += expected.selected;
            for branching in [true, false] {
                let found = select(&device, &plan, &rows, TransferMethod::ZeroCopy, branching).unwrap();
                let case = format!("{} rows, branching {branching}, schedule {seed}: {plan:?}", rows.len());
                assert_eq!(comparable(found), expected, "{case}");
            }
        }
    }
    assert!(selected > 0, "nothing was ever selected");
}

#[test]
fn every_method_brings_pages_of_columns() {
    let gpu = TestGpu::start();
    gpu.set_coherent(true);
    let device = gpu.driver.device(0, 64 << 20).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(4);
    // As query 6 of TPC-H has it, and a column with nulls.
    let wide = SelectionColumn { is_wide: true, nullable: false };
    let plan = SelectionPlan {
        columns: vec![
            SelectionColumn { is_wide: false, nullable: false },
            wide,
            SelectionColumn { is_wide: true, nullable: true },
        ],
        ranges: vec![
            SelectionRange { column: 0, lowest: -20, highest: 20 },
            SelectionRange { column: 1, lowest: i64::MIN, highest: 24 },
        ],
        aggregates: vec![SelectionAggregate::SumOfProducts(1, 2), SelectionAggregate::Min(2)],
    };
    let page = plan.page_rows(CHUNK);
    assert!(plan.page(page).bytes <= CHUNK, "a page fits its chunk");
    for rows in [page - 1, page, page + 1, 2 * page + 1000] {
        let rows = random_rows(&mut random, &plan, rows);
        let expected = reference(&plan, &rows);
        let methods = TransferMethod::ALL.into_iter().filter(|method| method.check_device(device.properties()).is_ok());
        for (number, method) in methods.enumerate() {
            let found = select(&device, &plan, &rows, method, number % 2 == 0).unwrap();
            assert_eq!(comparable(found), expected, "{} rows by {method}", rows.len());
        }
    }
}

#[test]
fn plans_that_kernels_cannot_do_are_refused() {
    let gpu = TestGpu::start();
    let kernels = gpu.kernels();
    let column = SelectionColumn { is_wide: true, nullable: false };
    let plan = |columns, aggregate, times| SelectionPlan {
        columns: vec![column; columns],
        ranges: vec![],
        aggregates: vec![aggregate; times],
    };
    for (plan, reason) in [
        (plan(17, SelectionAggregate::Sum(0), 1), "17 columns: kernels take 16"),
        (plan(1, SelectionAggregate::Sum(0), 9), "9 aggregates: kernels take 8"),
        (plan(2, SelectionAggregate::SumOfProducts(0, 2), 1), "column 2 of a selection over 2"),
    ] {
        let error = Selection::new(&kernels, plan, true).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    // A source that is shorter than what it should hold.
    let device = gpu.device();
    let source = HostBuffer::pinned(&device, 8 * 99, PageSize::Small).unwrap();
    let mut pipeline = TransferPipeline::new(&device, TransferMethod::ZeroCopy, SHAPE).unwrap();
    let selection = Selection::new(&kernels, plan(1, SelectionAggregate::Sum(0), 1), true).unwrap();
    let rows = source.bytes() as u64 / 8 + 1;
    let error = selection.run_transferred(&mut pipeline, Source::Host(&source), rows).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

/// Selects a few rows and checks the answer.
fn work(gpu: &TestGpu) -> Result<()> {
    let device = gpu.driver.device(0, 64 << 20)?;
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let plan = SelectionPlan {
        columns: vec![SelectionColumn { is_wide: true, nullable: true }],
        ranges: vec![SelectionRange { column: 0, lowest: 0, highest: 30 }],
        aggregates: vec![SelectionAggregate::Sum(0)],
    };
    let rows = random_rows(&mut random, &plan, 1000);
    let found = select(&device, &plan, &rows, TransferMethod::PinnedCopy, true)?;
    assert_eq!(found, reference(&plan, &rows), "a wrong answer instead of an error");
    Ok(())
}

#[test]
fn each_failure_of_a_selection_is_an_error() {
    for (kind, at_least) in [("allocation", 3), ("registration", 1), ("copy", 3), ("launch", 2), ("device_lost", 10)] {
        each_fails_once(kind, at_least, work);
    }
}
