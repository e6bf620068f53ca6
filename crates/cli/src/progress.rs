//! A progress line on the terminal about the running query, from the metrics of its plan.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Queries that finish sooner show nothing.
const PATIENCE: Duration = Duration::from_secs(1);

const REFRESH: Duration = Duration::from_millis(200);

/// The maximum number of joins to show. Further joins are only counted.
const JOINS_SHOWN: usize = 4;

/// Whether queries show their progress.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shows progress if standard error is a terminal, unless `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self { shown: !quiet && stderr().is_terminal() }
    }

    /// Follows the plan until the returned value is dropped.
    pub fn watch(self, plan: &Arc<dyn ExecutionPlan>, pool: &Arc<dyn MemoryPool>) -> Watched {
        if !self.shown {
            return Watched { drawing: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let (end, ended) = channel();
        let (line, plan, pool) = (bar.clone(), Arc::clone(plan), Arc::clone(pool));
        // A thread, because the query may keep every task of the runtime waiting.
        let drawing = std::thread::Builder::new().name("progress".to_string());
        match drawing.spawn(move || draw(&line, &plan, pool.as_ref(), &ended)) {
            Ok(_) => Watched { drawing: Some((bar, end)) },
            // Without a thread the query runs without a progress line.
            Err(_) => Watched { drawing: None },
        }
    }
}

/// A followed plan.
pub struct Watched {
    drawing: Option<(ProgressBar, Sender<()>)>,
}

impl Watched {
    /// Removes the line for good, before rows are printed over it.
    pub fn hide(&self) {
        if let Some((bar, end)) = &self.drawing {
            bar.finish_and_clear();
            // The thread may have ended already.
            let _ = end.send(());
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.hide();
    }
}

/// Draws until it receives the end, or the sender is dropped.
fn draw(bar: &ProgressBar, plan: &Arc<dyn ExecutionPlan>, pool: &dyn MemoryPool, ended: &Receiver<()>) {
    let start = Instant::now();
    let mut wait = PATIENCE;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
        if wait == PATIENCE {
            wait = REFRESH;
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        // A finished bar stays hidden.
        if bar.is_finished() {
            return;
        }
        bar.set_message(describe(plan, pool.reserved(), start.elapsed()));
        bar.tick();
    }
}

/// One line: the time, the rows read, the memory held, and the work of each join.
fn describe(plan: &Arc<dyn ExecutionPlan>, reserved: usize, elapsed: Duration) -> String {
    let mut sums = Sums::default();
    visit(plan, &mut sums);
    let mut parts = vec![
        format!("{:.0} s", elapsed.as_secs_f64()),
        format!("{} rows read", HumanCount(sums.rows_read as u64)),
        format!("{} held", bytes(reserved)),
    ];
    if sums.spilled > 0 {
        parts.push(format!("{} spilled", bytes(sums.spilled)));
    }
    for (number, join) in sums.joins.iter().take(JOINS_SHOWN).enumerate() {
        let mut part = format!(
            "join {}: {} build, {} probe, {} out",
            number + 1,
            HumanCount(join.build as u64),
            HumanCount(join.probe as u64),
            HumanCount(join.output as u64)
        );
        if join.spilled > 0 {
            part.push_str(&format!(", {} spilled", bytes(join.spilled)));
        }
        parts.push(part);
    }
    if sums.joins.len() > JOINS_SHOWN {
        parts.push(format!("and {} joins", sums.joins.len() - JOINS_SHOWN));
    }
    parts.join(" · ")
}

#[derive(Debug, Default)]
struct Sums {
    rows_read: usize,
    spilled: usize,
    joins: Vec<Join>,
}

#[derive(Debug)]
struct Join {
    build: usize,
    probe: usize,
    output: usize,
    spilled: usize,
}

fn visit(plan: &Arc<dyn ExecutionPlan>, sums: &mut Sums) {
    if let Some(metrics) = plan.metrics() {
        let spilled = metrics.spilled_bytes().unwrap_or(0);
        sums.spilled += spilled;
        if plan.children().is_empty() {
            sums.rows_read += metrics.output_rows().unwrap_or(0);
        }
        if plan.name().ends_with("JoinExec") {
            sums.joins.push(Join {
                build: count(&metrics, "build_input_rows"),
                probe: count(&metrics, "input_rows") + count(&metrics, "probe_input_rows"),
                output: metrics.output_rows().unwrap_or(0),
                spilled,
            });
        }
    }
    for child in plan.children() {
        visit(child, sums);
    }
}

fn count(metrics: &MetricsSet, name: &str) -> usize {
    metrics.sum_by_name(name).map_or(0, |value| value.as_usize())
}

fn bytes(count: usize) -> String {
    ByteSize(count as u64).display().si().to_string()
}
