//! A progress line on the terminal about the running statement.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use overspill_session::Monitor;

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

    /// Follows a statement until the returned value is dropped.
    pub fn watch(self, monitor: Monitor) -> Watched {
        if !self.shown {
            return Watched { drawing: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let (end, ended) = channel();
        let line = bar.clone();
        // A thread, because the query may keep every task of the runtime waiting.
        let drawing = std::thread::Builder::new().name("progress".to_string());
        let spawned = drawing.spawn(move || draw(&line, &monitor, &ended));
        // Without a thread the query runs without a progress line.
        Watched { drawing: spawned.ok().map(|_| (bar, end)) }
    }
}

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
fn draw(bar: &ProgressBar, monitor: &Monitor, ended: &Receiver<()>) {
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
        bar.set_message(describe(monitor, start.elapsed()));
        bar.tick();
    }
}

/// One line: the time, the rows read, the memory held, and the work of each join.
fn describe(monitor: &Monitor, elapsed: Duration) -> String {
    let done = monitor.progress();
    let mut parts = vec![
        format!("{:.0} s", elapsed.as_secs_f64()),
        format!("{} rows read", HumanCount(done.rows_read as u64)),
        format!("{} held", bytes(done.held_bytes)),
    ];
    if done.spilled_bytes > 0 {
        parts.push(format!("{} spilled", bytes(done.spilled_bytes)));
    }
    for (number, join) in done.joins.iter().take(JOINS_SHOWN).enumerate() {
        let mut part = format!(
            "join {}: {} build, {} probe, {} out",
            number + 1,
            HumanCount(join.build_rows as u64),
            HumanCount(join.probe_rows as u64),
            HumanCount(join.output_rows as u64)
        );
        if join.spilled_bytes > 0 {
            part.push_str(&format!(", {} spilled", bytes(join.spilled_bytes)));
        }
        parts.push(part);
    }
    if done.joins.len() > JOINS_SHOWN {
        parts.push(format!("and {} joins", done.joins.len() - JOINS_SHOWN));
    }
    parts.join(" · ")
}

fn bytes(count: usize) -> String {
    ByteSize(count as u64).display().si().to_string()
}
