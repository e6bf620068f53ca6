//! The two tables of a join (sections 6.2 and 6.4), as they lie on the ranks, and what their join must find.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_advisor::{RankSide, RepartitionedJoin};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::datagen::{Permutation, SPARSE_BITS, scaled, tpch_columns};
use crate::operator::Answer;

/// The share of right rows with a match (section 6.2).
const MATCH_SHARE: f64 = 0.3;

/// The scale factor of TPC-H, and the number of parts into which its tables are divided: one a GPU (section 6.4).
const SCALE_FACTOR: f64 = 100_000.0;
const PARTS: f64 = 1024.0;

/// Rows of both tables a GPU, in millions (section 6.4).
const ORDERS: f64 = 146.48;
const LINEITEM: f64 = 585.94;

/// Bytes of all columns by bytes of the same compressed: what the all-to-all of figure 9 takes plain and compressed (section 6.4).
const COMPRESSION_RATIO: f64 = 648.0 / 167.0;

/// Rows of a batch, as in DataFusion.
const BATCH: usize = 8192;

/// The tables of a figure at the paper's size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Workload {
    /// Random keys and row ids of 8 bytes, this many million rows of each table a rank.
    Random(f64),
    /// The key and the priority of orders, and the key of lineitem.
    Tpch,
}

/// What a figure measures at one x.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) ranks: usize,
    pub(super) workload: Workload,
}

impl Workload {
    /// The build side and the probe side of a rank.
    fn sides(self) -> [RankSide; 2] {
        let rows = |millions: f64| (millions * 1e6) as u64;
        match self {
            Self::Random(millions) => [(); 2].map(|()| RankSide::new(rows(millions), [8, 8])),
            Self::Tpch => [RankSide::new(rows(ORDERS), [8, 4]), RankSide::new(rows(LINEITEM), [8])],
        }
    }

    /// The join as the advisor knows it, of a part of the rows, on ranks that fill nodes.
    pub(super) fn join(self, scale: f64, gpus: u32, nodes: u32) -> RepartitionedJoin {
        let [build, probe] = self.sides().map(|side| RankSide { rows: scaled(side.rows, scale), ..side });
        let join = RepartitionedJoin::new(build, probe, gpus, nodes);
        match self {
            Self::Random(_) => RepartitionedJoin { match_share: MATCH_SHARE, ..join },
            Self::Tpch => RepartitionedJoin { compression_ratio: Some(COMPRESSION_RATIO), ..join },
        }
    }

    /// Rows of both sides on a rank.
    pub(super) fn rows(self) -> u64 {
        self.sides().iter().map(|side| side.rows).sum()
    }

    /// Bytes of both sides on a rank.
    pub(super) fn bytes(self) -> u64 {
        self.sides().iter().map(|side| side.rows * side.row_bytes()).sum()
    }

    /// The number of columns of both sides.
    pub(super) fn columns(self) -> u64 {
        self.sides().iter().map(|side| side.columns.len() as u64).sum()
    }
}

/// The tables at a scale, for at most `most` ranks.
pub(super) enum Tables {
    /// Rows of each table on a rank. They are drawn there.
    Random(usize),
    /// Both tables, in the order of their keys, for `most` ranks.
    Tpch { orders: RecordBatch, lineitem: RecordBatch, most: usize },
}

/// What lies on a rank.
pub(super) struct RankRows {
    /// The batches of each side, at least one.
    pub(super) sides: [Vec<RecordBatch>; 2],
    /// The pairs that this rank's probe rows have with build rows of any rank, and the sum of all payloads in them.
    pub(super) expected: Answer,
}

impl Tables {
    /// # Errors
    /// If TPC-H cannot be generated.
    pub(super) fn new(workload: Workload, scale: f64, most: usize, threads: usize) -> Result<Self> {
        match workload {
            Workload::Random(millions) => {
                Ok(Self::Random(usize::try_from(scaled((millions * 1e6) as u64, scale)).unwrap_or(usize::MAX)))
            }
            Workload::Tpch => tpch(SCALE_FACTOR * scale * most as f64 / PARTS, most, threads),
        }
    }

    /// The rows of a rank, where `ranks` ranks join: the first that many parts of the tables.
    ///
    /// # Errors
    /// If Arrow cannot make a batch.
    pub(super) fn of_rank(&self, rank: usize, ranks: usize) -> Result<RankRows> {
        match self {
            Self::Random(rows) => random(*rows, rank, ranks),
            Self::Tpch { orders, lineitem, most } => {
                let part = |table: &RecordBatch, first: usize, parts: usize| {
                    let rows = table.num_rows() / most;
                    table.slice(first * rows, parts * rows)
                };
                let own = part(lineitem, rank, 1);
                let expected = pairs_of(&own, &part(orders, 0, ranks));
                Ok(RankRows { sides: [in_batches(&part(orders, rank, 1)), in_batches(&own)], expected })
            }
        }
    }
}

/// Keys are images of numbers under a permutation that all ranks share. Build rows have the first numbers, probe rows without a match the
/// next, so that which rows match is known.
fn random(rows: usize, rank: usize, ranks: usize) -> Result<RankRows> {
    let keys = Permutation::new(1 << SPARSE_BITS, &mut ChaCha8Rng::seed_from_u64(0));
    let (all, first) = ((rows * ranks) as u64, (rows * rank) as u64);
    let mut random = ChaCha8Rng::seed_from_u64(1 + rank as u64);
    let mut expected: Answer = (0, 0);
    let table = |number: &mut dyn FnMut(u64) -> u64| {
        let ids = first..first + rows as u64;
        let key = |id| keys.apply(number(id)) as i64;
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.clone().map(key)));
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.map(|id| id as i64)));
        Ok::<_, arrow::error::ArrowError>(in_batches(&RecordBatch::try_from_iter([("key", keys), ("id", ids)])?))
    };
    let build = table(&mut |id| id)?;
    let probe = table(&mut |id| {
        if !random.random_bool(MATCH_SHARE) {
            return all + id;
        }
        let partner = random.random_range(0..all);
        expected = (expected.0 + 1, expected.1.wrapping_add((partner + id) as i64));
        partner
    })?;
    Ok(RankRows { sides: [build, probe], expected })
}

/// Generates the columns that are joined.
fn tpch(scale_factor: f64, most: usize, threads: usize) -> Result<Tables> {
    let columns = |name: &str, columns: &[&str]| -> Result<RecordBatch> {
        let batches = tpch_columns(name, scale_factor, columns, threads)?.concat();
        let Some(first) = batches.first() else { return exec_err!("TPC-H has no rows at scale factor {scale_factor}") };
        Ok(concat_batches(&first.schema(), &batches)?)
    };
    let orders = columns("orders", &["o_orderkey", "o_orderpriority"])?;
    let priorities: ArrayRef = Arc::new(numbers_of(orders.column(1))?);
    let orders =
        RecordBatch::try_from_iter([("o_orderkey", orders.column(0).clone()), ("o_orderpriority", priorities)])?;
    let lineitem = columns("lineitem", &["l_orderkey"])?;
    if orders.num_rows() < most || lineitem.num_rows() < most {
        return exec_err!("There are fewer orders than ranks: choose a larger --scale.");
    }
    Ok(Tables::Tpch { orders, lineitem, most })
}

/// Priorities as numbers of 4 bytes, which the paper joins: a text such as "3-MEDIUM" begins with its number.
fn numbers_of(priorities: &ArrayRef) -> Result<Int32Array> {
    let texts = cast(priorities, &DataType::Utf8)?;
    let number = |text: Option<&str>| {
        let number = text.and_then(|text| text.split('-').next()?.parse::<i32>().ok());
        number.ok_or_else(|| exec_datafusion_err!("The priority {text:?} of TPC-H's orders has no number."))
    };
    texts.as_string::<i32>().iter().map(number).collect::<Result<Vec<_>>>().map(Int32Array::from)
}

/// The pairs of lines with these orders, both in the order of their keys.
fn pairs_of(lineitem: &RecordBatch, orders: &RecordBatch) -> Answer {
    let keys = |table: &RecordBatch| table.column(0).as_primitive::<Int64Type>().clone();
    let (lines, orders_keys) = (keys(lineitem), keys(orders));
    let priorities = orders.column(1).as_primitive::<Int32Type>();
    let mut place = 0;
    let mut pairs: Answer = (0, 0);
    for line in lines.values() {
        while orders_keys.values().get(place).is_some_and(|key| key < line) {
            place += 1;
        }
        if orders_keys.values().get(place) == Some(line) {
            pairs = (pairs.0 + 1, pairs.1 + i64::from(priorities.value(place)));
        }
    }
    pairs
}

/// Batches of a table, at least one.
fn in_batches(table: &RecordBatch) -> Vec<RecordBatch> {
    let rows = table.num_rows();
    (0..rows.max(1)).step_by(BATCH).map(|begin| table.slice(begin, BATCH.min(rows - begin))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The keys and the values of all ranks' rows of a side; 0 for a value where there is none.
    fn rows(parts: &[RankRows], side: usize) -> Vec<(i64, i64)> {
        let batches = parts.iter().flat_map(|part| &part.sides[side]);
        let rows = batches.flat_map(|batch| {
            let numbers = |column: usize| {
                let column = cast(batch.column(column), &DataType::Int64).unwrap();
                column.as_primitive::<Int64Type>().values().to_vec()
            };
            let values = if batch.num_columns() > 1 { numbers(1) } else { vec![0; batch.num_rows()] };
            numbers(0).into_iter().zip(values).collect::<Vec<_>>()
        });
        rows.collect()
    }

    #[test]
    fn matches_are_known_on_any_number_of_ranks() {
        for workload in [Workload::Random(500.0), Workload::Tpch] {
            let tables = Tables::new(workload, 1e-5, 4, 2).unwrap();
            for ranks in [1, 2, 4] {
                let parts: Vec<_> = (0..ranks).map(|rank| tables.of_rank(rank, ranks).unwrap()).collect();
                let build = rows(&parts, 0);
                let values: HashMap<i64, i64> = build.iter().copied().collect();
                assert_eq!(values.len(), build.len(), "{workload:?}: build keys are unique");
                let probe = rows(&parts, 1);
                let mut found: Answer = (0, 0);
                for (key, value) in &probe {
                    if let Some(other) = values.get(key) {
                        found = (found.0 + 1, found.1 + value + other);
                    }
                }
                let expected =
                    parts.iter().fold((0, 0), |all, part| (all.0 + part.expected.0, all.1 + part.expected.1));
                assert_eq!(found, expected, "{workload:?} on {ranks} ranks");
                let share = found.0 as f64 / probe.len() as f64;
                let is_right = match workload {
                    Workload::Random(_) => (0.25..0.35).contains(&share),
                    // Equal parts of both tables are nearly of the same orders.
                    Workload::Tpch => share > 0.95,
                };
                assert!(is_right, "{workload:?} on {ranks} ranks: {share}");
                let per_rank = (build.len() + probe.len()) as f64 / ranks as f64;
                assert!((per_rank / (workload.rows() as f64 * 1e-5) - 1.0).abs() < 0.05, "{workload:?}: {per_rank}");
            }
        }
    }
}
