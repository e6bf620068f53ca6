//! A pair of tables whose join, at the floor of its memory, spills, partitions again and takes passes over a hot key;
//! and a query for every join type.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use overspill::{Choice, Strategy};

use super::session::Settings;

/// A query per join type; the build side is always `a`, with its wide column: a filter that is always true asks for it
/// where the answer does not. The last part says whether it can be partitioned.
pub const JOINS: [(&str, &str, bool); 11] = [
    ("inner", "SELECT * FROM a JOIN b ON a_k = b_k", true),
    ("left", "SELECT * FROM a LEFT JOIN b ON a_k = b_k", true),
    ("right", "SELECT * FROM a RIGHT JOIN b ON a_k = b_k", true),
    ("full", "SELECT * FROM a FULL JOIN b ON a_k = b_k AND a_id + b_id > 50", true),
    ("left semi", "SELECT * FROM a LEFT SEMI JOIN b ON a_k = b_k", true),
    ("right semi", "SELECT * FROM a RIGHT SEMI JOIN b ON a_k = b_k AND a_id > b_id AND a_s < b_s", true),
    ("left anti", "SELECT * FROM a LEFT ANTI JOIN b ON a_k = b_k AND a_id > b_id", true),
    ("right anti", "SELECT * FROM a RIGHT ANTI JOIN b ON a_k = b_k AND a_s < b_s", true),
    ("left mark", "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a_k = b_k) OR a_id % 3 = 0", true),
    ("null-aware anti", "SELECT * FROM a WHERE a_k NOT IN (SELECT b_k FROM b WHERE b_k IS NOT NULL)", false),
    ("null equals null", "SELECT * FROM a JOIN b ON a_k IS NOT DISTINCT FROM b_k", true),
];

/// Rows of the two tables.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub build: usize,
    pub probe: usize,
}

impl Size {
    /// Enough to spill, partition again and take passes under `Settings` of [`settings`] at the floor.
    pub const SPILLING: Size = Size { build: 9_000, probe: 2_000 };
}

/// Small fanouts partition often.
pub fn settings(target_partitions: usize, partitioned: bool) -> Settings {
    Settings {
        target_partitions,
        partitioned,
        strategy: if partitioned { Strategy::Hybrid.into() } else { Choice::AUTO },
        batch_size: 500,
        join_reordering: false,
        max_fanout: 2,
        ..Settings::default()
    }
}

/// Every tenth key is NULL, every third row of the build side has one hot key, and half of the keys of each side have no
/// partner on the other.
pub fn register(ctx: &SessionContext, size: Size, partitions: usize) -> Result<()> {
    register_with(ctx, size, partitions, true)
}

/// Like [`register`]; the hot key is there only if `is_skewed`.
pub fn register_with(ctx: &SessionContext, size: Size, partitions: usize, is_skewed: bool) -> Result<()> {
    const HOT: i64 = 77_777;
    let build = (0..size.build as i64).map(|row| match row % 10 {
        0 => None,
        1 | 4 | 7 if is_skewed => Some(HOT),
        _ => Some(row),
    });
    let probe = (0..size.probe as i64).map(|row| match row % 400 {
        7 => Some(HOT),
        _ if row % 10 == 0 => None,
        _ => Some(row * size.build as i64 * 2 / size.probe as i64),
    });
    ctx.register_table("a", Arc::new(table('a', build.collect(), 100, partitions)?))?;
    ctx.register_table("b", Arc::new(table('b', probe.collect(), 40, partitions)?))?;
    Ok(())
}

fn table(name: char, keys: Vec<Option<i64>>, width: usize, partitions: usize) -> Result<MemTable> {
    let rows = keys.len();
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let text: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{name}{row:0width$}", width = width))));
    let keys: ArrayRef = Arc::new(Int64Array::from(keys));
    let columns = [(format!("{name}_id"), ids), (format!("{name}_k"), keys), (format!("{name}_s"), text)];
    let all = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))?;
    let mut parts = vec![vec![]; partitions];
    for (number, start) in (0..rows).step_by(250).enumerate() {
        parts[number % partitions].push(all.slice(start, 250.min(rows - start)));
    }
    MemTable::try_new(all.schema(), parts)
}
