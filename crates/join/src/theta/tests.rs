//! Compares blocks and joins of small batches with a comparison of every pair.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryViewArray, BooleanArray, Decimal128Array, Float64Array, Int8Array, Int64Array, RecordBatch,
    StringArray, UInt64Array,
};
use arrow::compute::kernels::cmp;
use arrow::datatypes::{Field, Schema};

use super::ranks::Ranks;
use super::*;
use crate::error::Result;
use crate::hybrid::Step;
use crate::join_type::JoinType;
use crate::memory::{UnitMemory, Unlimited};
use crate::spec::{ColumnSource, KeyExpressions, Side};

/// Pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }
}

/// The columns with these numbers, in this order.
#[derive(Debug)]
struct Columns(Vec<usize>);

impl KeyExpressions for Columns {
    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        Ok(self.0.iter().map(|column| Arc::clone(batch.column(*column))).collect())
    }
}

/// A batch of a row number column and these keys.
fn batch(keys: &[ArrayRef]) -> RecordBatch {
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys[0].len() as i64));
    let columns: Vec<ArrayRef> = std::iter::once(rows).chain(keys.iter().cloned()).collect();
    let fields = columns.iter().enumerate();
    let fields: Vec<_> =
        fields.map(|(number, column)| Field::new(format!("c{number}"), column.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn spec(build: &RecordBatch, probe: &RecordBatch, bounds: Vec<Bound>) -> ThetaSpec {
    let keys = bounds.iter().map(|bound| bound.key).max().unwrap() + 1;
    let search = BlockSearch {
        block_keys: Arc::new(Columns((1..=keys).collect())),
        stream_keys: Arc::new(Columns((1..=bounds.len()).collect())),
        bounds,
        residual: None,
    };
    let field = |name: &str, batch: &RecordBatch| batch.schema().field(0).clone().with_name(name);
    ThetaSpec {
        join_type: JoinType::Inner,
        condition: None,
        build_search: Some(search),
        probe_search: None,
        build_schema: build.schema(),
        probe_schema: probe.schema(),
        output_schema: Arc::new(Schema::new(vec![field("b", build), field("p", probe)])),
        output_columns: vec![ColumnSource::Build(0), ColumnSource::Probe(0)],
        batch_size: 7,
    }
}

/// The pairs of row numbers from a join of two batches, sorted.
fn pairs(build: &RecordBatch, probe: &RecordBatch, bounds: Vec<Bound>) -> Vec<(i64, i64)> {
    let spec = Arc::new(spec(build, probe, bounds));
    let mut builder = BlockBuilder::new(Arc::clone(&spec), Side::Build, &UnitMemory::new(Box::new(Unlimited)));
    for start in (0..build.num_rows()).step_by(9) {
        assert!(matches!(builder.push(build.slice(start, 9.min(build.num_rows() - start))), Pushed::Taken));
    }
    let mut join = BlockJoin::new(spec, Side::Build);
    join.start(Arc::new(builder.finish().unwrap()), probe.clone(), Arc::default()).unwrap();
    let mut pairs = vec![];
    loop {
        match join.step().unwrap() {
            Step::Output(rows) => {
                assert!(rows.num_rows() <= 7, "{} rows in a batch", rows.num_rows());
                let column = |index: usize| rows.column(index).as_any().downcast_ref::<Int64Array>().unwrap().values();
                pairs.extend(column(0).iter().copied().zip(column(1).iter().copied()));
            }
            Step::Working => {}
            Step::Waiting(_) => unreachable!("the CPU waits for nothing"),
            Step::Finished => break,
        }
    }
    pairs.sort_unstable();
    pairs
}

/// The pairs that satisfy all bounds, according to Arrow's comparisons.
fn expected(build: &RecordBatch, probe: &RecordBatch, bounds: &[Bound]) -> Vec<(i64, i64)> {
    let holds = |block: usize, row: usize| {
        bounds.iter().enumerate().all(|(number, bound)| {
            let left = build.column(1 + bound.key).slice(block, 1);
            let right = probe.column(1 + number).slice(row, 1);
            let compared: BooleanArray = match bound.comparison {
                Comparison::Less => cmp::lt(&left, &right),
                Comparison::LessOrEqual => cmp::lt_eq(&left, &right),
                Comparison::Greater => cmp::gt(&left, &right),
                Comparison::GreaterOrEqual => cmp::gt_eq(&left, &right),
            }
            .unwrap();
            compared.iter().next().flatten() == Some(true)
        })
    };
    let all = (0..build.num_rows()).flat_map(|block| (0..probe.num_rows()).map(move |row| (block, row)));
    all.filter(|(block, row)| holds(*block, *row)).map(|(block, row)| (block as i64, row as i64)).collect()
}

const COMPARISONS: [Comparison; 4] =
    [Comparison::Less, Comparison::LessOrEqual, Comparison::Greater, Comparison::GreaterOrEqual];

/// A column of one of the kinds of words; a tenth is null, and values repeat.
fn column(kind: usize, rows: usize, rng: &mut Random) -> ArrayRef {
    let mut value = || (rng.below(10) > 0).then(|| rng.below(80) as i64 - 40);
    let values: Vec<Option<i64>> = (0..rows).map(|_| value()).collect();
    let numbers = values.iter().copied();
    match kind {
        0 => Arc::new(numbers.collect::<Int64Array>()),
        1 => Arc::new(numbers.map(|value| value.map(|value| value as i8)).collect::<Int8Array>()),
        2 => Arc::new(numbers.map(|value| value.map(|value| value as u64)).collect::<UInt64Array>()),
        3 => {
            let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
            let float = |value: i64| special.get(value as usize).copied().unwrap_or(value as f64 / 4.0);
            Arc::new(numbers.map(|value| value.map(float)).collect::<Float64Array>())
        }
        4 => Arc::new(numbers.map(|value| value.map(|value| i128::from(value) << 70)).collect::<Decimal128Array>()),
        5 => Arc::new(numbers.map(|value| value.map(|value| "x".repeat(value as usize % 7))).collect::<StringArray>()),
        _ => Arc::new(numbers.map(|value| value.map(|value| value.to_be_bytes())).collect::<BinaryViewArray>()),
    }
}

const KINDS: usize = 7;

#[test]
fn one_inequality_of_each_type_finds_the_pairs_that_arrow_finds() {
    let mut rng = Random(1);
    for kind in 0..KINDS {
        for comparison in COMPARISONS {
            let (build, probe) = (batch(&[column(kind, 50, &mut rng)]), batch(&[column(kind, 30, &mut rng)]));
            let bounds = vec![Bound { key: 0, comparison }];
            let expected = expected(&build, &probe, &bounds);
            assert!(!expected.is_empty());
            assert_eq!(pairs(&build, &probe, bounds), expected, "kind {kind}, {comparison:?}");
        }
    }
}

#[test]
fn several_inequalities_find_the_pairs_that_arrow_finds() {
    let mut rng = Random(2);
    for case in 0..200 {
        let kinds = [rng.below(KINDS), rng.below(KINDS)];
        let bounds: Vec<Bound> = (0..1 + rng.below(4))
            .map(|number| Bound {
                key: if number == 0 { 0 } else { rng.below(2) },
                comparison: COMPARISONS[rng.below(4)],
            })
            .collect();
        let rows = rng.below(400);
        let build = batch(&kinds.map(|kind| column(kind, rows, &mut rng)));
        let keys: Vec<ArrayRef> = bounds.iter().map(|bound| column(kinds[bound.key], 20, &mut rng)).collect();
        let probe = batch(&keys);
        assert_eq!(pairs(&build, &probe, bounds.clone()), expected(&build, &probe, &bounds), "case {case}: {bounds:?}");
    }
}

#[test]
fn zeros_are_equal() {
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0]));
    let (build, probe) = (batch(&[Arc::clone(&zeros)]), batch(&[zeros]));
    let found = |comparison| pairs(&build, &probe, vec![Bound { key: 0, comparison }]).len();
    assert_eq!(COMPARISONS.map(found), [0, 4, 0, 4]);
}

#[test]
fn ranks_are_found_from_any_position() {
    let mut rng = Random(3);
    for rows in [0, 1, 15, 16, 17, 255, 256, 257, 5_000] {
        let ranks: Vec<u32> = (0..rows).map(|position| (position * 7 + rng.below(50) as u32) % 5_000).collect();
        let index = Ranks::new(ranks.clone());
        for _ in 0..300 {
            let start = rng.below(rows as usize + 1) as u32;
            let end = start + rng.below((rows - start) as usize + 1) as u32;
            let low = rng.below(5_000) as u32;
            let range = low..low + rng.below(60) as u32;
            let expected = (start..end).find(|position| range.contains(&ranks[*position as usize]));
            assert_eq!(index.next(start..end, &range), expected, "{rows} ranks, {start}..{end}, {range:?}");
        }
    }
}

#[test]
fn ranges_of_rows_are_marked() {
    let matched = MatchedRows::new(300);
    matched.set_ranges([3..5, 4..70, 10..20, 128..192, 299..300].into_iter());
    let marked: Vec<u32> = (0..300).filter(|row| matched.get(*row)).collect();
    assert_eq!(marked, (3..70).chain(128..192).chain(299..300).collect::<Vec<_>>());
}
