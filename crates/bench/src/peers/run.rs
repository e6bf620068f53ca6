//! One run of a workload.

use std::path::Path;

use datafusion::common::{Result, exec_err};

use super::workload::Workload;
use crate::datagen::TablePair;
use crate::engines::{Engine, Session, Terms};

/// A run of a workload in a separate process.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The time of the second run of the query.
    pub(super) seconds: f64,
    /// Peak memory in bytes after loading, if the system reports it.
    pub(super) peak_memory: Option<u64>,
    /// Whether the peak includes loading, because the system cannot reset it.
    pub(super) peak_of_loading: bool,
    pub(super) answer: String,
    /// The time to read and sum both tables without a join; only for Overspill.
    pub(super) scan_seconds: Option<f64>,
}

/// Runs a workload with its tables in `folder`, in a new process of an engine.
pub(super) fn run(engine: &Engine, workload: &Workload, folder: &Path, terms: &Terms) -> Result<Run> {
    let (mut session, _) = engine.start(terms)?;
    for table in TablePair::NAMES {
        session.execute(&engine.load(table, &folder.join(format!("{table}.parquet"))))?;
    }
    if workload.index.is_some() && engine.is_overspill() {
        session.execute("CREATE INDEX r_key ON r (key)")?;
    }
    let forgotten = session.forget_peak_memory();
    let query = workload.query();
    // The first run includes the cost of fresh memory; the second represents the engine.
    let (seconds, peak_memory, answer) = if workload.materializes {
        let create = format!("CREATE TABLE t AS {query}");
        session.execute(&create)?;
        session.execute("DROP TABLE t")?;
        let seconds = session.execute(&create)?;
        let peak_memory = session.peak_memory();
        (seconds, peak_memory, session.query(&workload.digest("t"))?.row)
    } else {
        let first = session.query(&query)?;
        let second = session.query(&query)?;
        if first.row != second.row {
            return exec_err!(
                "{} answered {} and then {} to the same query: {query}",
                engine.name,
                first.row,
                second.row
            );
        }
        (second.seconds, session.peak_memory(), second.row)
    };
    let scan_seconds = if engine.is_overspill() { Some(scan(&mut session, workload)?) } else { None };
    session.end()?;
    Ok(Run { seconds, peak_memory, peak_of_loading: !forgotten, answer, scan_seconds })
}

/// The seconds to read both tables without a join, in the second run.
fn scan(session: &mut Session, workload: &Workload) -> Result<f64> {
    let mut seconds = 0.0;
    for table in TablePair::NAMES {
        let query = workload.scan(table);
        session.query(&query)?;
        seconds += session.query(&query)?.seconds;
    }
    Ok(seconds)
}
