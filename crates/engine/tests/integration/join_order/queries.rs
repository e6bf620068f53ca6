//! Random queries with joins of 2 to 8 tables, in the SQL that DataFusion and DuckDB share.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Columns of each table: keys with few values and nulls, and a number.
const COLUMNS: [&str; 4] = ["k", "l", "s", "v"];

/// Pairs beyond which a query only costs time.
const MOST_ROWS: f64 = 2_000.0;

/// The tables of a query, and the query.
pub struct Case {
    pub tables: Vec<RecordBatch>,
    pub sql: String,
}

impl Case {
    pub fn new(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let count = rng.random_range(2..=8);
        let most = *[4, 9, 25].choose(rng).unwrap();
        let rows: Vec<usize> = (0..count).map(|_| rng.random_range(0..=most)).collect();
        let mut domain = rng.random_range(1..=most as i64);
        // Each further table multiplies the rows by the number of partners that a key has in it.
        while rows.iter().map(|rows| (*rows as f64 / domain as f64).max(1.0)).product::<f64>() * 4.0 > MOST_ROWS {
            domain += 1;
        }
        let tables = rows.iter().map(|rows| table(rng, *rows, domain)).collect();
        let sql = Generator { rng, next: 0 }.query(count);
        Self { tables, sql }
    }

    /// The name of a table.
    pub fn name(table: usize) -> String {
        format!("t{table}")
    }

    /// The query as DuckDB spells it.
    pub fn duckdb(&self) -> String {
        self.sql.replace("LEFT SEMI JOIN", "SEMI JOIN").replace("LEFT ANTI JOIN", "ANTI JOIN")
    }
}

fn table(rng: &mut StdRng, rows: usize, domain: i64) -> RecordBatch {
    let nulls = *[0.0, 0.1, 0.4].choose(rng).unwrap();
    let mut key = |nulls: f64| -> Vec<Option<i64>> {
        (0..rows).map(|_| (!rng.random_bool(nulls)).then(|| rng.random_range(0..domain))).collect()
    };
    let (k, l, s, v) = (key(nulls), key(nulls), key(nulls), key(0.05));
    let texts = s.into_iter().map(|value| value.map(|value| format!("text {value}")));
    let columns: [ArrayRef; 4] = [
        Arc::new(Int64Array::from(k)),
        Arc::new(Int64Array::from(l)),
        Arc::new(texts.collect::<StringArray>()),
        Arc::new(Int64Array::from(v)),
    ];
    RecordBatch::try_from_iter_with_nullable(
        COLUMNS.into_iter().zip(columns).map(|(name, column)| (name, column, true)),
    )
    .unwrap()
}

/// A FROM item, and the columns that can be named outside of it.
struct Part {
    sql: String,
    columns: Vec<String>,
}

impl Part {
    /// A column of numbers, or of texts.
    fn column(&self, rng: &mut StdRng, text: bool) -> String {
        let fits: Vec<&String> = self.columns.iter().filter(|column| column.ends_with(".s") == text).collect();
        fits.choose(rng).expect("each part has all kinds of columns").to_string()
    }
}

struct Generator<'a> {
    rng: &'a mut StdRng,
    /// The number of the next table.
    next: usize,
}

impl Generator<'_> {
    fn query(&mut self, tables: usize) -> String {
        // Some tables are left for subqueries.
        let joined = if tables > 2 && self.rng.random_bool(0.5) { tables - 1 } else { tables };
        let from = self.from(joined);
        let mut filters = vec![];
        for _ in 0..self.rng.random_range(0..3) {
            filters.push(self.filter(&from));
        }
        if joined < tables {
            filters.push(self.subquery(&from));
        }
        let filter = if filters.is_empty() { String::new() } else { format!(" WHERE {}", filters.join(" AND ")) };
        self.select(&from, &filter)
    }

    fn select(&mut self, from: &Part, filter: &str) -> String {
        let tables = format!("FROM {}{filter}", from.sql);
        let number = from.column(self.rng, false);
        match self.rng.random_range(0..6) {
            0 => format!("SELECT count(*) AS n, sum({number}) AS total {tables}"),
            1 => {
                let by = from.column(self.rng, false);
                format!("SELECT {by} AS g, count(*) AS n, sum({number}) AS total {tables} GROUP BY {by}")
            }
            2 => {
                let by = from.column(self.rng, false);
                format!("SELECT DISTINCT {by} AS g {tables}")
            }
            // All columns, some of them, or one twice.
            3 => {
                let columns = from.columns.iter().enumerate().map(|(place, column)| format!("{column} AS c{place}"));
                format!("SELECT {} {tables}", columns.collect::<Vec<_>>().join(", "))
            }
            _ => {
                let count = self.rng.random_range(1..=4);
                let columns = (0..count).map(|place| {
                    let column = from.columns.choose(self.rng).unwrap();
                    format!("{column} AS c{place}")
                });
                format!("SELECT {} {tables}", columns.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Joins of the next tables.
    fn from(&mut self, tables: usize) -> Part {
        if tables == 1 {
            return self.table();
        }
        // Mostly one table more, now and then a bushy tree.
        let of_right = if self.rng.random_bool(0.7) { 1 } else { self.rng.random_range(1..tables) };
        let (left, right) = (self.from(tables - of_right), self.from(of_right));
        let right_sql = if of_right > 1 { format!("({})", right.sql) } else { right.sql.clone() };
        let kind = *[
            "JOIN",
            "JOIN",
            "JOIN",
            "JOIN",
            "LEFT JOIN",
            "RIGHT JOIN",
            "FULL JOIN",
            "LEFT SEMI JOIN",
            "LEFT ANTI JOIN",
        ]
        .choose(self.rng)
        .unwrap();
        let on = self.condition(&left, &right, kind);
        let sql = format!("{} {kind} {right_sql} ON {on}", left.sql);
        let columns = if kind.contains("SEMI") || kind.contains("ANTI") {
            left.columns
        } else {
            [left.columns, right.columns].concat()
        };
        Part { sql, columns }
    }

    /// A table, some of its rows, or groups of them.
    fn table(&mut self) -> Part {
        let (name, alias) = (Case::name(self.next), format!("a{}", self.next));
        self.next += 1;
        let sql = match self.rng.random_range(0..8) {
            0 => format!("(SELECT k, l, s, v FROM {name} WHERE v > 1) AS {alias}"),
            1 => format!("(SELECT k, l, min(s) AS s, count(v) AS v FROM {name} GROUP BY k, l) AS {alias}"),
            2 => format!("(SELECT l AS k, k AS l, s, v + 1 AS v FROM {name}) AS {alias}"),
            _ => format!("{name} AS {alias}"),
        };
        Part { sql, columns: COLUMNS.iter().map(|column| format!("{alias}.{column}")).collect() }
    }

    fn equality(&mut self, left: &Part, right: &Part) -> String {
        let text = self.rng.random_bool(0.2);
        format!("{} = {}", left.column(self.rng, text), right.column(self.rng, text))
    }

    fn condition(&mut self, left: &Part, right: &Part, kind: &str) -> String {
        let mut on = self.equality(left, right);
        if kind == "FULL JOIN" {
            return on;
        }
        while self.rng.random_bool(0.3) {
            let (one, other) = (left.column(self.rng, false), right.column(self.rng, false));
            let further = match self.rng.random_range(0..6) {
                0 | 1 => self.equality(left, right),
                2 => format!("{one} <= {other}"),
                3 => format!("({one} <> {other} OR {one} IS NULL)"),
                4 => format!("{one} > 0"),
                _ => format!("coalesce({other}, 1) < coalesce({one}, 3)"),
            };
            write!(on, " AND {further}").unwrap();
        }
        on
    }

    fn filter(&mut self, from: &Part) -> String {
        let (one, other) = (from.column(self.rng, false), from.column(self.rng, false));
        match self.rng.random_range(0..6) {
            0 => format!("{one} = {other}"),
            1 => format!("{one} IS NULL"),
            2 => format!("({one} > 1 OR {other} IS NULL)"),
            3 => format!("{one} <= {other}"),
            4 => format!("{} <> 'text 1'", from.column(self.rng, true)),
            _ => format!("{one} < 3"),
        }
    }

    fn subquery(&mut self, from: &Part) -> String {
        let (name, alias) = (Case::name(self.next), format!("a{}", self.next));
        self.next += 1;
        let (outer, second) = (from.column(self.rng, false), from.column(self.rng, false));
        let not = if self.rng.random_bool(0.4) { "NOT " } else { "" };
        match self.rng.random_range(0..5) {
            0 => format!("{outer} {not}IN (SELECT {alias}.k FROM {name} AS {alias})"),
            1 => format!("{outer} {not}IN (SELECT {alias}.k FROM {name} AS {alias} WHERE {alias}.l = {second})"),
            2 => format!("{not}EXISTS (SELECT 1 FROM {name} AS {alias} WHERE {alias}.k = {outer})"),
            3 => format!(
                "{not}EXISTS (SELECT 1 FROM {name} AS {alias} WHERE {alias}.k = {outer} AND {alias}.v <= {second})"
            ),
            _ => format!("{outer} >= (SELECT min({alias}.v) FROM {name} AS {alias} WHERE {alias}.k = {second})"),
        }
    }
}
