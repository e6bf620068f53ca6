//! The state of a run of SQL, and how its statements run.

use std::sync::Arc;
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use futures::TryStreamExt;
use overspill_cluster::Cluster;
use overspill_ranks::Leader;
use overspill_session::{Left, Limits, Location, Piece, Place, STATEMENTS, Session};
use tracing::field::{Empty, display};
use tracing::{Instrument, debug_span};

use crate::args::{OnError, SqlArguments};
use crate::failure::{Failure, Outcome, complain, tell};
use crate::interrupt::{Insistence, Interrupts};
use crate::machine;
use crate::output::Output;
use crate::progress::Progress;
use crate::statement::answer;

/// The maximum number of bytes that a writer buffers, which no budget counts.
const OUTPUT_BUFFER: usize = 64 << 20;

/// The state of the command line: the session, the output, and the options that control how statements run.
pub struct Shell {
    pub session: Session,
    pub output: Output,
    progress: Progress,
    pub interrupts: Interrupts,
    on_error: OnError,
    timing: bool,
    /// Whether `.timer` is on.
    pub timer: bool,
    pub interactive: bool,
    pub quiet: bool,
    /// The number of statements run, for `--timing`.
    statements: usize,
    /// Whether a statement or command has failed.
    pub failed: bool,
}

impl Shell {
    /// Opens a session, whose queries run on all ranks if this is the first of several.
    pub fn open(
        arguments: SqlArguments,
        limits: &Limits,
        leader: Option<Arc<Leader>>,
        interactive: bool,
    ) -> Outcome<Self> {
        let buffer = OUTPUT_BUFFER.min(limits.memory / 4);
        let settings = &arguments.resources.settings;
        let session = match (&arguments.cluster, leader) {
            (Some(_), Some(_)) => {
                return Err(Failure::message(
                    "--cluster is for one process, and mpirun has started several: leave one out",
                ));
            }
            (Some(scheduler), None) => {
                let cluster = Cluster::at(scheduler, arguments.tls.network()?);
                Session::open_extended(limits, settings, machine::runtime(), |builder| cluster.extend(builder))?
            }
            (None, _) if arguments.tls.is_given() => {
                return Err(Failure::message("--tls-cert is for a cluster: add --cluster HOST:PORT"));
            }
            (None, Some(leader)) => {
                Session::open_extended(limits, settings, machine::runtime(), |builder| Ok(leader.extend(builder)))?
            }
            (None, None) => Session::open(limits, settings, machine::runtime())?,
        };
        session.warnings().iter().for_each(|warning| tell(&format!("warning: {warning}")));
        let output = Output::open(arguments.format, arguments.output, !arguments.quiet, buffer)?;
        let shell = Self {
            session,
            output,
            progress: Progress::new(arguments.quiet),
            interrupts: Interrupts::new(),
            on_error: arguments.on_error.unwrap_or(if interactive { OnError::Continue } else { OnError::Stop }),
            timing: arguments.timing,
            timer: false,
            interactive,
            quiet: arguments.quiet,
            statements: 0,
            failed: false,
        };
        if !interactive {
            shell.listen()?;
        }
        Ok(shell)
    }

    /// Handles Ctrl-C from now on. The interactive shell calls it after its line editor has installed its handlers.
    pub fn listen(&self) -> Outcome<()> {
        let insistence = if self.interactive { Insistence::Waits } else { Insistence::Ends };
        self.interrupts.listen(insistence)
    }

    /// Moves the output to its final path, unless a failure stopped the run.
    pub fn close(self, outcome: Outcome<bool>) -> (Option<Session>, Outcome<bool>) {
        let keep = outcome.as_ref().is_ok_and(|succeeded| *succeeded || self.on_error == OnError::Continue);
        let finished = if keep { self.output.finish() } else { Ok(()) };
        self.session.close();
        (Some(self.session), finished.and(outcome))
    }

    /// Runs a statement of a source and reports its error. Returns the error only if it ends the process or the script.
    pub async fn statement(&mut self, Piece { text: sql, begin }: &Piece, source: Option<&str>) -> Outcome<()> {
        self.statements += 1;
        let start = Instant::now();
        let timeline =
            debug_span!("statement", group = STATEMENTS, lane = STATEMENTS, title = title(sql), sql, error = Empty);
        let outcome = self.answer(sql, true).instrument(timeline.clone()).await;
        if let Err(failure) = &outcome {
            timeline.record("error", display(failure));
        }
        drop(timeline);
        let elapsed = start.elapsed().as_secs_f64();
        if let (Ok(Some(rows)), true, false) = (&outcome, self.interactive, self.quiet) {
            tell(&format!("{rows} {} written", if *rows == 1 { "row" } else { "rows" }));
        }
        let outcome = outcome.map(|_| ()).map_err(|failure| self.located(failure, sql, *begin, source));
        let outcome = self.judge(outcome);
        if self.timer {
            tell(&format!("ran in {elapsed:.2} s"));
        }
        if self.timing {
            tell(&format!("time {} {elapsed:.6}", self.statements));
        }
        outcome
    }

    /// Runs a statement, unless a signal arrives. Stops all of its work that could disturb later statements.
    async fn answer(&mut self, sql: &str, whole_statement: bool) -> Outcome<Option<u64>> {
        let answering = answer(&self.session, &mut self.output, self.progress, sql);
        let outcome = self.interrupts.unless_raised(answering).await.and_then(|answered| answered);
        let left = self.session.cancel().await?;
        if left == Left::Work && whole_statement && self.interactive && matches!(outcome, Err(Failure::Interrupted(_)))
        {
            tell("part of the statement cannot be stopped at once; it continues in the background until it ends");
        }
        outcome
    }

    /// Adds the place of an error: the statement among several, and the place in its text.
    fn located(&self, failure: Failure, sql: &str, begin: Location, source: Option<&str>) -> Failure {
        let at = match &failure {
            Failure::Message(_) => None,
            Failure::Statement(error) => error.place(),
            _ => return failure,
        };
        let (text, at) = (failure.to_string(), at.unwrap_or(Location::new(1, 1)));
        let place = Place { source, text: sql, begin, at };
        match self.interactive {
            false if self.statements > 1 => Failure::Message(format!("statement {}: {text}{place}", self.statements)),
            _ => Failure::Message(format!("{text}{place}")),
        }
    }

    /// Reports an error, and decides whether it ends the script or the process.
    pub fn judge(&mut self, outcome: Outcome<()>) -> Outcome<()> {
        let Err(failure) = outcome else { return Ok(()) };
        self.failed = true;
        match failure {
            failure @ (Failure::Message(_) | Failure::Statement(_)) => {
                complain(&failure);
                match self.on_error {
                    OnError::Continue => Ok(()),
                    OnError::Stop => Err(Failure::Stopped),
                }
            }
            Failure::Interrupted(_) if self.interactive => {
                tell("interrupted");
                Err(Failure::Stopped)
            }
            other => Err(other),
        }
    }

    /// Writes the columns of a table or file, and its indexes if it has any.
    pub async fn describe(&mut self, name: &str) -> Outcome<()> {
        self.query(&format!("DESCRIBE {name}")).await?;
        // SHOW takes the path of a file in double quotes only.
        let indexes = format!("SHOW INDEXES FROM {}", name.replace('\'', "\""));
        if self.has_rows(&indexes).await { self.query(&indexes).await } else { Ok(()) }
    }

    /// Whether a statement returns rows. One that fails returns none.
    async fn has_rows(&self, sql: &str) -> bool {
        let Ok(results) = self.session.run(sql).await else { return false };
        let batches: Vec<RecordBatch> = results.try_collect().await.unwrap_or_default();
        batches.iter().any(|batch| batch.num_rows() > 0)
    }

    /// The names of the columns of a table or file.
    pub async fn columns(&mut self, table: &str) -> Outcome<Vec<String>> {
        let sql = format!("SELECT * FROM {table} LIMIT 0");
        let columns = async {
            let results = self.session.run(&sql).await?;
            let names = results.schema().fields().iter().map(|field| field.name().clone()).collect();
            results.try_collect::<Vec<_>>().await?;
            Ok::<_, Failure>(names)
        };
        let columns = self.interrupts.unless_raised(columns).await.and_then(|columns| columns);
        self.session.cancel().await?;
        columns
    }

    /// Runs a statement that writes files. Returns the number of rows in them.
    pub async fn copy(&mut self, sql: &str) -> Outcome<u64> {
        self.answer(sql, false).await.map(Option::unwrap_or_default)
    }

    /// Writes the rows of a query that a shell command issues.
    pub async fn query(&mut self, sql: &str) -> Outcome<()> {
        self.answer(sql, false).await.map(|_| ())
    }
}

/// The beginning of a statement on one line.
fn title(sql: &str) -> String {
    const CHARACTERS: usize = 120;
    let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
