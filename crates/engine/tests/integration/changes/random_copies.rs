//! Random `COPY`s and `INSERT`s that succeed, fail in the middle, or are dropped: afterwards there is all or nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use datafusion::prelude::SessionContext;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::copy::{files_below, try_files_below};
use super::{refusal, run, session, stock, try_run};

const CASES: u64 = 100;

/// How a statement ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Succeeds,
    /// Its query fails at this row.
    FailsAt(usize),
    /// Its stream is dropped after this number of microseconds.
    DroppedAfter(u64),
}

#[derive(Debug)]
struct Case {
    format: &'static str,
    /// A file, else a folder.
    is_file: bool,
    partitioned: bool,
    /// Rows that the target has before, if it is there at all.
    before: Option<usize>,
    overwrites: bool,
    rows: usize,
    end: End,
}

impl Case {
    fn random(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let rows = rng.random_range(1..2000);
        let is_file = rng.random_bool(0.4);
        Self {
            format: ["CSV", "JSON", "PARQUET", "ARROW"].choose(rng).unwrap(),
            is_file,
            partitioned: !is_file && rng.random_bool(0.5),
            before: rng.random_bool(0.6).then(|| rng.random_range(1..100)),
            overwrites: rng.random_bool(0.7),
            rows,
            end: match rng.random_range(0..10) {
                0..3 => End::Succeeds,
                3..7 => End::FailsAt(rng.random_range(0..rows)),
                _ => End::DroppedAfter(rng.random_range(0..8000)),
            },
        }
    }

    fn copy(&self, path: &str, rows: usize, fails_at: Option<usize>, overwrites: bool) -> String {
        // Where it does not fail, no row has this number.
        let fatal = fails_at.unwrap_or(rows + 7);
        let partitions = if self.partitioned { "PARTITIONED BY (p)" } else { "" };
        format!(
            "COPY (SELECT value AS k, value % 5 AS p, 1 / ({fatal} - value) AS q FROM range({rows})) TO '{path}' \
             STORED AS {} {partitions} {}",
            self.format,
            if overwrites { "OPTIONS (overwrite true)" } else { "" }
        )
    }

    /// What is wrong after the statement has ended.
    async fn fault(&self, session: &SessionContext) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let name = if self.is_file { format!("x.{}", self.format.to_lowercase()) } else { "out/".to_owned() };
        let path = format!("{}/{name}", folder.path().display());
        if let Some(rows) = self.before {
            run(session, &self.copy(&path, rows, None, false)).await;
        }
        let before = files_below(folder.path());
        let overwrites = self.overwrites && !self.is_file;
        let refused = !self.is_file && self.before.is_some() && !overwrites;
        let fails_at = if let End::FailsAt(row) = self.end { Some(row) } else { None };
        let sql = self.copy(&path, self.rows, fails_at, overwrites);
        let succeeded = match self.end {
            End::Succeeds => try_run(session, &sql).await.is_ok(),
            End::FailsAt(_) => {
                refusal(session, &sql).await;
                false
            }
            End::DroppedAfter(time) => {
                let done = tokio::time::timeout(Duration::from_micros(time), try_run(session, &sql)).await;
                done.is_ok_and(|result| result.is_ok())
            }
        };
        let after = settled(folder.path());
        if self.end == End::Succeeds && succeeded == refused {
            return Some(format!("the statement {}", if succeeded { "must be refused" } else { "fails" }));
        }
        if after == before {
            return succeeded.then(|| "nothing was written".to_owned());
        }
        if matches!(self.end, End::FailsAt(_)) {
            return Some(format!("{:?} became {:?}", before.keys(), after.keys()));
        }
        // A statement whose stream was dropped may still be complete.
        if let Some(name) = after.keys().find(|name| name.split('/').any(|part| part.starts_with('.'))) {
            return Some(format!("{name} is left"));
        }
        let sql = format!("CREATE EXTERNAL TABLE r STORED AS {} LOCATION '{path}'", self.format);
        run(session, &sql).await;
        let found = run(session, "SELECT count(*), sum(k) FROM r").await;
        run(session, "DROP TABLE r").await;
        let rows = self.rows as i64;
        let expected = [[Some(rows), Some(rows * (rows - 1) / 2)]];
        (found != expected).then(|| format!("{found:?} is there for {expected:?}"))
    }
}

/// The files once a statement that was dropped has ended what it was doing on other threads.
fn settled(folder: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let start = Instant::now();
    loop {
        match try_files_below(folder) {
            Ok(files)
                if start.elapsed() > Duration::from_secs(5) || !files.keys().any(|name| name.starts_with('.')) =>
            {
                return files;
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_all_or_nothing() {
    let session = session();
    for seed in 0..CASES {
        let case = Case::random(seed);
        if let Some(fault) = case.fault(&session).await {
            panic!("seed {seed}: {fault}: {case:?}");
        }
    }
}

#[tokio::test]
async fn the_cases_find_parts_that_stock_copies_leave() {
    let session = stock();
    let mut found = 0;
    for seed in 0..CASES {
        let mut case = Case::random(seed);
        // These it is known to do, and they are no parts.
        case.overwrites = false;
        if matches!(case.end, End::FailsAt(_)) && (case.is_file || case.before.is_none()) {
            found += usize::from(case.fault(&session).await.is_some());
        }
    }
    assert!(found > 0, "DataFusion no longer leaves parts of what COPY writes");
}
