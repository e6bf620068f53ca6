//! The work of the join when nothing spills, compared with DataFusion's join, in instructions if they can be counted.

use std::process::Command;

use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::process::Overspill;
use crate::process::{Finished, finish};
use crate::report::median;

/// The factor that tables shrink by for a simulated processor.
const SIMULATION_SHRINK: u64 = 20;

/// Makes a query use DataFusion's own join.
const STOCK: &str = "overspill.enabled=false";

/// The method of counting work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counter {
    /// Instructions in user mode, counted by the processor through `perf stat`.
    Perf,
    /// Instructions, counted by simulation through `valgrind --tool=cachegrind`.
    Valgrind,
    /// Seconds of user CPU time, if instructions cannot be counted.
    CpuTime,
}

/// The median work of both joins for the same query.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) counter: Counter,
    /// The factor that the tables shrank by.
    pub(super) shrunk: u64,
    pub(super) overspill: f64,
    pub(super) stock: f64,
}

impl Counter {
    /// The best counter available on this machine.
    fn find() -> Self {
        if finish(perf().arg("true")).is_ok_and(|finished| perf_count(&finished).is_ok()) {
            Self::Perf
        } else if finish(Command::new("valgrind").arg("--version")).is_ok() {
            Self::Valgrind
        } else {
            Self::CpuTime
        }
    }

    /// Describes the counter in a sentence.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Perf => "instructions in user mode, counted by perf",
            Self::Valgrind => "instructions, counted by valgrind",
            Self::CpuTime => "seconds of user CPU time, as neither perf nor valgrind counts instructions here",
        }
    }

    fn shrink(self) -> u64 {
        if self == Self::Valgrind { SIMULATION_SHRINK } else { 1 }
    }

    fn count(self, overspill: &Overspill, sql: &str, settings: &[&str]) -> Result<f64> {
        let mut command = match self {
            Self::Perf => perf(),
            Self::Valgrind => {
                let mut command = Command::new("valgrind");
                command.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
                command
            }
            Self::CpuTime => return Ok(overspill.run(sql, None, settings)?.user_seconds),
        };
        command.arg(&overspill.program);
        let finished = overspill.execute(command, sql, None, settings)?;
        if self == Self::Perf { perf_count(&finished) } else { valgrind_count(&finished) }
    }
}

/// Compares both joins. `smaller` returns the query over tables shrunk by a factor.
pub(super) fn compare(
    overspill: &Overspill,
    runs: usize,
    sql: &str,
    smaller: impl Fn(u64) -> Result<String>,
) -> Result<Work> {
    let counter = Counter::find();
    let shrunk = counter.shrink();
    let sql = if shrunk == 1 { sql.to_owned() } else { smaller(shrunk)? };
    // A simulation is slow, and its counts vary little.
    let runs = if counter == Counter::Valgrind { 1 } else { runs };
    let (mut ours, mut stock) = (vec![], vec![]);
    for _ in 0..runs {
        ours.push(counter.count(overspill, &sql, &[])?);
        stock.push(counter.count(overspill, &sql, &[STOCK])?);
    }
    match (median(ours), median(stock)) {
        (Some(overspill), Some(stock)) => Ok(Work { counter, shrunk, overspill, stock }),
        _ => exec_err!("The work of the joins was not measured, as there were no runs."),
    }
}

fn perf() -> Command {
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", "instructions:u"]);
    command
}

/// The count in a line such as `12345,,instructions:u,…`.
fn perf_count(finished: &Finished) -> Result<f64> {
    let line = finished.errors.lines().find(|line| line.contains("instructions"));
    line.and_then(|line| line.split(',').next()?.trim().parse().ok())
        .ok_or_else(|| exec_datafusion_err!("perf counted no instructions. It printed: {}", finished.errors))
}

/// The count in a line such as `==123== I refs:  1,234,567`.
fn valgrind_count(finished: &Finished) -> Result<f64> {
    let count =
        finished.errors.lines().find_map(|line| line.split_once("refs:").filter(|(name, _)| name.contains(" I")));
    count
        .and_then(|(_, count)| count.trim().replace(',', "").parse().ok())
        .ok_or_else(|| exec_datafusion_err!("valgrind counted no instructions. It printed: {}", finished.errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errors: &str) -> Finished {
        let mut finished = finish(&mut Command::new("true")).unwrap();
        finished.errors = errors.to_owned();
        finished
    }

    #[test]
    fn counts_are_read_from_what_the_tools_say() {
        assert_eq!(perf_count(&said("time 1 0.5\n123456,,instructions:u,99,100.00,,\n")).unwrap(), 123_456.0);
        assert!(perf_count(&said("<not supported>,,instructions:u,0,100.00,,\n")).is_err());
        assert_eq!(valgrind_count(&said("==7== Cachegrind\n==7== I refs:        1,234,567\n")).unwrap(), 1_234_567.0);
        assert_eq!(valgrind_count(&said("==7== I   refs:      42\n==7== D   refs: 7\n")).unwrap(), 42.0);
        assert!(valgrind_count(&said("==7== D   refs: 7\n")).is_err());
    }
}
