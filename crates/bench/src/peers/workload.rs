//! The workloads: their tables, their SQL, and Overspill's targets.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::datagen::{TablePair, scaled};

/// A thousand and a million of rows.
const K: u64 = 1_000;
const M: u64 = 1_000_000;

/// A join of two tables, r and s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// The name on the command line.
    pub(super) name: &'static str,
    help: &'static str,
    /// Rows of r and of s at scale 1.
    rows: (u64, u64),
    /// Bytes of a key and a payload.
    tuple: u8,
    sparse: bool,
    zipf: f64,
    match_rate: f64,
    /// The order of r, if Overspill has an index on its key.
    pub(super) index: Option<Order>,
    /// Whether the result of the join is stored in a table, and not only summed.
    pub(super) materializes: bool,
    pub(super) target: Target,
}

/// The order of an indexed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Shuffled,
    Sorted,
}

/// Overspill's required speed as a multiple of the best other engine's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Target {
    pub(super) ratio: f64,
    /// Alternatively, this share of the speed of the bound.
    pub(super) or_bound: Option<f64>,
}

/// If the other engines may be limited by the machine as well, coming near the bound is enough.
const TRIPLE: Target = Target { ratio: 3.0, or_bound: Some(0.7) };
const QUINTUPLE: Target = Target { ratio: 5.0, or_bound: None };
const TWENTYFOLD: Target = Target { ratio: 20.0, or_bound: None };
const DOUBLE: Target = Target { ratio: 2.0, or_bound: None };
const HALF_MORE: Target = Target { ratio: 1.5, or_bound: None };

const A: Workload = Workload {
    name: "a",
    help: "8M x 128M rows, keys 1, 2, 3 …",
    rows: (8 * M, 128 * M),
    tuple: 16,
    sparse: false,
    zipf: 0.0,
    match_rate: 1.0,
    index: None,
    materializes: false,
    target: TRIPLE,
};
const B: Workload = Workload { name: "b", help: "256K x 128M rows", rows: (256 * K, 128 * M), target: HALF_MORE, ..A };
const C: Workload =
    Workload { name: "c", help: "32M x 32M rows of 4 + 4 bytes", rows: (32 * M, 32 * M), tuple: 8, ..A };
const T: Workload = Workload { name: "t", help: "64M x 64M rows", rows: (64 * M, 64 * M), ..A };
/// A large r, and a few keys of it.
const INDEXED: Workload = Workload {
    name: "index",
    help: "256M (2^28) x 1M (2^20) rows, with an index on r, beside a join without it",
    rows: (1 << 28, 1 << 20),
    index: Some(Order::Shuffled),
    target: QUINTUPLE,
    ..A
};
const SKEWED: Workload = Workload { rows: (32 * M, 64 * M), target: HALF_MORE, ..A };

const ALL: [Workload; 16] = [
    A,
    Workload {
        name: "a-sparse",
        help: "8M x 64M rows, keys spread over 63 bits",
        rows: (8 * M, 64 * M),
        sparse: true,
        target: DOUBLE,
        ..A
    },
    B,
    Workload {
        name: "b-sparse",
        help: "256K x 64M rows, keys spread over 63 bits",
        rows: (256 * K, 64 * M),
        sparse: true,
        target: DOUBLE,
        ..B
    },
    C,
    Workload {
        name: "c-materialized",
        help: "c, with its result stored in a table",
        materializes: true,
        target: HALF_MORE,
        ..C
    },
    T,
    Workload { name: "t-sparse", help: "t, keys spread over 63 bits", sparse: true, target: DOUBLE, ..T },
    Workload {
        name: "matches-10",
        help: "a, where a tenth of the rows of s has a match",
        match_rate: 0.1,
        target: HALF_MORE,
        ..A
    },
    Workload {
        name: "zipf-1.0",
        help: "32M x 64M rows, keys of s by a Zipf distribution of exponent 1",
        zipf: 1.0,
        ..SKEWED
    },
    Workload {
        name: "zipf-1.5",
        help: "32M x 64M rows, keys of s by a Zipf distribution of exponent 1.5",
        zipf: 1.5,
        ..SKEWED
    },
    INDEXED,
    Workload { name: "index-sorted", help: "index, r sorted by its key", index: Some(Order::Sorted), ..INDEXED },
    Workload { name: "index-sparse", help: "index, keys spread over 63 bits", sparse: true, ..INDEXED },
    Workload {
        name: "index-sparse-sorted",
        help: "index-sparse, r sorted by its key",
        sparse: true,
        index: Some(Order::Sorted),
        ..INDEXED
    },
    Workload {
        name: "index-few",
        help: "index, with 64K (2^16) rows of s",
        rows: (1 << 28, 1 << 16),
        target: TWENTYFOLD,
        ..INDEXED
    },
];

impl ValueEnum for Workload {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}

impl Workload {
    pub(super) fn tables(&self, scale: f64) -> TablePair {
        TablePair {
            zipf: self.zipf,
            match_rate: self.match_rate,
            sparse: self.sparse,
            sorted: self.index == Some(Order::Sorted),
            tuple: self.tuple,
            ..TablePair::of_rows(scaled(self.rows.0, scale), scaled(self.rows.1, scale))
        }
    }

    /// The folder of the tables below a directory. Workloads with the same tables share it.
    pub(super) fn folder(&self, below: &Path, tables: &TablePair) -> PathBuf {
        let keys = if self.sparse { "sparse" } else { "dense" };
        let sorted = if tables.sorted { "-sorted" } else { "" };
        below.join(format!(
            "{}x{}-{}-{keys}{sorted}-zipf-{}-match-{}",
            tables.build_rows, tables.probe_rows, self.tuple, self.zipf, self.match_rate
        ))
    }

    /// Describes the tables in words.
    pub(super) fn describe(&self, tables: &TablePair) -> String {
        let half = self.tuple / 2;
        let keys = if self.sparse { "sparse" } else { "dense" };
        let zipf = if self.zipf > 0.0 { format!(", Zipf exponent {:?}", self.zipf) } else { String::new() };
        let matches = if self.match_rate < 1.0 { format!(", match rate {}", self.match_rate) } else { String::new() };
        let sorted = if tables.sorted { ", r sorted" } else { "" };
        let index = if self.index.is_some() { ", an index on r" } else { "" };
        let result = if self.materializes { ", result into a table" } else { "" };
        format!(
            "{}: {} x {} rows of {half} + {half} bytes, {keys} keys{sorted}{zipf}{matches}{index}{result}",
            self.name, tables.build_rows, tables.probe_rows
        )
    }

    /// The join. Its answer is one row, unless its result is stored in a table.
    pub(super) fn query(&self) -> String {
        let join = "FROM r JOIN s ON r.key = s.key";
        if self.materializes {
            return format!("SELECT r.key, r.payload AS p, s.payload AS q {join}");
        }
        format!("SELECT count(*), sum({} + {}) {join}", self.wide("r.payload"), self.wide("s.payload"))
    }

    /// A query with one row that distinguishes the join's table `table` from others.
    pub(super) fn digest(&self, table: &str) -> String {
        format!(
            "SELECT count(*), sum({}), sum({}), sum({}) FROM {table}",
            self.wide("key"),
            self.wide("p"),
            self.wide("q")
        )
    }

    /// Reads and aggregates all columns of a table, as any join must. Sparse keys are not summed, as the sums would overflow.
    pub(super) fn scan(&self, table: &str) -> String {
        format!("SELECT count(*), sum({}), max({}) FROM {table}", self.wide("payload"), self.wide("key"))
    }

    /// A column as a 64-bit integer, as sums of two 32-bit payloads would overflow.
    fn wide(&self, column: &str) -> String {
        if self.tuple == 8 { format!("CAST({column} AS BIGINT)") } else { column.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn workloads_share_their_tables_only_if_these_are_alike() {
        let folders: HashSet<_> =
            ALL.iter().map(|workload| workload.folder(Path::new("data"), &workload.tables(1.0))).collect();
        // c and c-materialized.
        assert_eq!(folders.len(), ALL.len() - 1, "{folders:?}");
        let names: HashSet<_> = ALL.iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn narrow_columns_are_widened_before_they_are_added() {
        assert_eq!(A.query(), "SELECT count(*), sum(r.payload + s.payload) FROM r JOIN s ON r.key = s.key");
        assert!(C.query().contains("sum(CAST(r.payload AS BIGINT) + CAST(s.payload AS BIGINT))"), "{}", C.query());
        assert_eq!(C.scan("s"), "SELECT count(*), sum(CAST(payload AS BIGINT)), max(CAST(key AS BIGINT)) FROM s");
    }

    #[test]
    fn workloads_shrink() {
        let tables = ALL[3].tables(0.001);
        assert_eq!((tables.build_rows, tables.probe_rows, tables.sparse), (256, 64_000, true));
        assert_eq!(
            ALL[9].describe(&ALL[9].tables(1.0)),
            "zipf-1.0: 32000000 x 64000000 rows of 8 + 8 bytes, dense keys, Zipf exponent 1.0"
        );
    }
}
