//! Two tables, and queries that join them without an equality.

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::harness::session::Settings;

/// Rows of the build side and of the probe side that make every join type spill at its floor.
pub const SPILLING: [usize; 2] = [1_000, 1_300];

/// The memory below which a join of the tables need not run, in bytes, for this number of streams.
pub fn floor(streams: usize) -> usize {
    (streams + 1) * (256 << 10)
}

/// Settings that leave the build side on the left.
pub fn settings(target_partitions: usize, batch_size: usize) -> Settings {
    Settings { target_partitions, batch_size, join_reordering: false, ..Settings::default() }
}

/// The tables `a` and `b`, in this number of partitions: keys of several types in which a tenth is null and many are equal,
/// intervals, and a text wide enough that few rows fill a floor.
pub fn register(ctx: &SessionContext, rows: [usize; 2], partitions: usize, rng: &mut StdRng) -> Result<()> {
    for (name, rows) in ["a", "b"].into_iter().zip(rows) {
        ctx.register_table(name, Arc::new(table(name, rows, partitions, rng)?))?;
    }
    Ok(())
}

fn table(name: &str, rows: usize, partitions: usize, rng: &mut StdRng) -> Result<MemTable> {
    let mut numbers = |from: i64, to: i64| -> Vec<Option<i64>> {
        (0..rows).map(|_| (!rng.random_bool(0.1)).then(|| rng.random_range(from..to))).collect()
    };
    let (i, j) = (numbers(0, 1_000), numbers(0, 300));
    let special = [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0];
    let float = |value: i64| special.get(value as usize).copied().unwrap_or(value as f64 / 8.0);
    let f: Float64Array = numbers(0, 100).into_iter().map(|value| value.map(float)).collect();
    let s: StringArray = numbers(0, 500).into_iter().map(|value| value.map(|value| format!("{value:03}"))).collect();
    let d: Decimal128Array = numbers(-500, 500).into_iter().map(|value| value.map(i128::from)).collect();
    let hi: Int64Array = i.iter().zip(numbers(0, 40)).map(|(low, length)| Some((*low)? + length?)).collect();
    let wide: StringArray = (0..rows).map(|row| Some(format!("{name}{row:0600}"))).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
        ("i", Arc::new(Int64Array::from(i))),
        ("j", Arc::new(Int64Array::from(j))),
        ("f", Arc::new(f)),
        ("s", Arc::new(s)),
        ("d", Arc::new(d.with_precision_and_scale(12, 2)?)),
        ("hi", Arc::new(hi)),
        ("w", Arc::new(wide)),
    ];
    let columns = columns.into_iter().map(|(column, array)| (format!("{name}_{column}"), array, true));
    let all = RecordBatch::try_from_iter_with_nullable(columns)?;
    let mut parts = vec![vec![]; partitions];
    let step = [17, 100, 1_000][rng.random_range(0..3)];
    for (number, start) in (0..rows).step_by(step).enumerate() {
        parts[number % partitions].push(all.slice(start, step.min(rows - start)));
    }
    MemTable::try_new(all.schema(), parts)
}

/// What a random query joins, and how.
pub fn random_query(rng: &mut StdRng) -> String {
    let condition = random_condition(rng);
    let columns = *["*", "a_id, b_id, a_w, b_w", "b_id, b_w, a_id", "count(*)", "a_id"].choose(rng).unwrap();
    let one_side = |columns: &str, side: &str| match columns {
        "count(*)" => "count(*)".to_owned(),
        _ => format!("{side}_id, {side}_w"),
    };
    match rng.random_range(0..14) {
        0..=2 => format!("SELECT {columns} FROM a JOIN b ON {condition}"),
        3 => format!("SELECT {columns} FROM a LEFT JOIN b ON {condition}"),
        4 => format!("SELECT {columns} FROM a RIGHT JOIN b ON {condition}"),
        5 => format!("SELECT {columns} FROM a FULL JOIN b ON {condition}"),
        6 => format!("SELECT {} FROM a LEFT SEMI JOIN b ON {condition}", one_side(columns, "a")),
        7 => format!("SELECT {} FROM a RIGHT SEMI JOIN b ON {condition}", one_side(columns, "b")),
        8 => format!("SELECT {} FROM a LEFT ANTI JOIN b ON {condition}", one_side(columns, "a")),
        9 => format!("SELECT {} FROM a RIGHT ANTI JOIN b ON {condition}", one_side(columns, "b")),
        10 => format!("SELECT a_id, a_w FROM a WHERE EXISTS (SELECT 1 FROM b WHERE {condition}) OR a_id % 3 = 0"),
        11 => format!("SELECT b_id, b_w FROM b WHERE NOT EXISTS (SELECT 1 FROM a WHERE {condition}) OR b_id % 5 = 0"),
        12 => "SELECT count(a_w), min(b_w) FROM a CROSS JOIN (SELECT * FROM b WHERE b_id % 20 = 0)".to_owned(),
        _ => {
            let kind = *["LEFT", "RIGHT", "FULL"].choose(rng).unwrap();
            let few = "(SELECT * FROM b WHERE b_id % 40 = 0)";
            format!("SELECT a_id, b_id, a_w, b_w FROM (SELECT * FROM a WHERE a_id % 40 < 2) {kind} JOIN {few} ON true")
        }
    }
}

/// One to three parts, selective enough that answers stay small.
fn random_condition(rng: &mut StdRng) -> String {
    let operator = |rng: &mut StdRng| *["<", "<=", ">", ">="].choose(rng).unwrap();
    let first = match rng.random_range(0..9) {
        0 => format!("a_i {} b_i - 950", if rng.random_bool(0.5) { "<" } else { "<=" }),
        1 => format!("b_i + 960 {} a_i", if rng.random_bool(0.5) { "<" } else { "<=" }),
        2 => "a_i BETWEEN b_i AND b_hi".to_owned(),
        3 => "b_i BETWEEN a_i AND a_hi".to_owned(),
        4 => "a_i < b_hi AND b_i < a_hi".to_owned(),
        5 => format!("a_f {} b_f AND a_i BETWEEN b_i - 3 AND b_i + 3", operator(rng)),
        6 => format!("a_s {} b_s AND a_i > b_i + 970", operator(rng)),
        7 => format!("a_d {} b_d AND a_j BETWEEN b_j AND b_j + 2", operator(rng)),
        _ => "(a_id + b_id) % 97 = 1".to_owned(),
    };
    let second = match rng.random_range(0..6) {
        0 => format!(" AND a_id {} b_id", operator(rng)),
        1 => " AND a_s <> b_s".to_owned(),
        2 => " AND a_f < b_f + 3 AND (a_j < 200 OR b_j > 100)".to_owned(),
        3 => " AND a_j > 30".to_owned(),
        _ => String::new(),
    };
    first + &second
}
