//! Random tables and filters.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array,
    RecordBatch, StringArray, StringViewArray,
};
use arrow::datatypes::{Int32Type, SchemaRef};
use datafusion::datasource::MemTable;
use rand::Rng;
use rand::seq::IndexedRandom;

/// A table, and a query that filters it.
pub struct Case {
    pub sql: String,
    pub partitions: usize,
    pub batch_size: usize,
    schema: SchemaRef,
    batches: Vec<Vec<RecordBatch>>,
}

const WORDS: [&str; 8] =
    ["", "AIR", "AIR REG", "RAIL", "SHIP", "DELIVER IN PERSON", "a longer text than a view holds", "%_"];

/// Values, some of them null.
fn values<T>(
    rng: &mut impl Rng,
    rows: usize,
    nulls: f64,
    mut draw: impl FnMut(usize, &mut dyn FnMut(i64) -> i64) -> T,
) -> Vec<Option<T>> {
    (0..rows)
        .map(|row| {
            let value = draw(row, &mut |below| rng.random_range(0..below));
            (!rng.random_bool(nulls)).then_some(value)
        })
        .collect()
}

fn columns(rng: &mut impl Rng, rows: usize) -> RecordBatch {
    let nulls = *[0.0, 0.05, 0.6].choose(rng).unwrap();
    // What the first half of the rows passes, the second half does not.
    let turned = rng.random_bool(0.3);
    let half =
        move |row: usize, value: i64, below: i64| if turned && row > rows / 2 { below - 1 - value } else { value };
    let small = values(rng, rows, nulls, |row, draw| half(row, draw(100), 100) as i32);
    let large = values(rng, rows, nulls, |row, draw| half(row, draw(1000), 1000) - 500);
    let days = values(rng, rows, nulls, |row, draw| 8000 + half(row, draw(2500), 2500) as i32);
    let prices = values(rng, rows, nulls, |_, draw| i128::from(draw(100_000)));
    let floats = values(rng, rows, nulls, |_, draw| match draw(20) {
        0 => f64::NAN,
        1 => -0.0,
        2 => f64::NEG_INFINITY,
        _ => draw(100) as f64 / 7.0,
    });
    let flags = values(rng, rows, nulls, |_, draw| draw(3) > 0);
    let mut words = || values(rng, rows, nulls, |_, draw| WORDS[draw(8) as usize]);
    let (texts, views, codes) = (words(), words(), words());
    let columns: [(&str, ArrayRef); 9] = [
        ("i", Arc::new(Int32Array::from(small))),
        ("l", Arc::new(Int64Array::from(large))),
        ("d", Arc::new(Date32Array::from(days))),
        ("p", Arc::new(Decimal128Array::from(prices).with_precision_and_scale(15, 2).unwrap())),
        ("f", Arc::new(Float64Array::from(floats))),
        ("b", Arc::new(BooleanArray::from(flags))),
        ("s", Arc::new(StringArray::from(texts))),
        ("v", Arc::new(StringViewArray::from(views))),
        ("k", Arc::new(codes.into_iter().collect::<DictionaryArray<Int32Type>>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

/// A condition. Some may fail, and are guarded by another one most of the time.
fn condition(rng: &mut impl Rng) -> String {
    let comparison = *["<", "<=", ">", ">=", "=", "<>"].choose(rng).unwrap();
    let word = WORDS.choose(rng).unwrap();
    let text = *["s", "v", "k"].choose(rng).unwrap();
    let number = rng.random_range(0..100);
    match rng.random_range(0..18) {
        0 | 1 => format!("i {comparison} {number}"),
        2 => format!("l {comparison} {}", 10 * number - 500),
        3 => format!("d {comparison} DATE '1995-06-17'"),
        4 => "d BETWEEN DATE '1993-01-01' AND DATE '1995-12-31'".to_owned(),
        5 => format!("p {comparison} {number}7.5"),
        6 => format!("f {comparison} {number} / 7.0"),
        7 => format!("f {comparison} CAST('NaN' AS DOUBLE)"),
        8 => (*["b", "NOT b", "b IS NULL", "b IS NOT TRUE"].choose(rng).unwrap()).to_owned(),
        9 | 10 => format!("{text} {comparison} '{word}'"),
        11 => format!("{text} IN ('{word}', 'AIR', 'nothing')"),
        12 => format!("{text} NOT IN ('{word}', 'RAIL')"),
        13 => format!("{text} LIKE '{}'", *["%R%", "AIR%", "%REG", "_AIL", "%a%t%"].choose(rng).unwrap()),
        14 => format!("(i < {number} OR {text} = '{word}' OR l IS NULL)"),
        15 => format!("CASE WHEN b THEN i < {number} ELSE l > {number} END"),
        16 => format!("i {comparison} l"),
        _ if rng.random_bool(0.1) => format!("{number} / i {comparison} 2"),
        _ => format!("i <> 0 AND {number} / i {comparison} 2"),
    }
}

impl Case {
    pub fn random(rng: &mut impl Rng) -> Self {
        let rows = *[0, 1, 70, 3000, 20_000].choose(rng).unwrap();
        let all = columns(rng, rows);
        let conditions: Vec<_> = (0..rng.random_range(2..=6)).map(|_| condition(rng)).collect();
        let outputs = *["*", "i, s", "v, k, p", "f, d", "l + 1 AS m, k", "count(*) AS n"].choose(rng).unwrap();
        let sql = format!("SELECT {outputs} FROM t WHERE {}", conditions.join(" AND "));
        let partitions = rng.random_range(1..=3);
        let mut batches = vec![Vec::new(); partitions];
        let mut start = 0;
        while start < rows {
            // Slices of one batch: their columns do not start where their memory does. Some are empty.
            let length = rng.random_range(0..=3000).min(rows - start);
            batches[rng.random_range(0..partitions)].push(all.slice(start, length));
            start += length;
        }
        let batch_size = *[50, 1000, 8192].choose(rng).unwrap();
        Self { sql, partitions, batch_size, schema: all.schema(), batches }
    }

    pub fn table(&self) -> Arc<MemTable> {
        Arc::new(MemTable::try_new(Arc::clone(&self.schema), self.batches.clone()).unwrap())
    }
}
