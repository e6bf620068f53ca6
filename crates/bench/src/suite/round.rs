//! A round: one engine runs each query once.

use std::path::Path;

use datafusion::common::Result;

use super::{Contender, Failure, Query, Suite, answer};
use crate::engines::{Engine, OVERSPILL, Session, Terms};

/// What the processes of all engines have in common.
pub(super) struct Place<'a> {
    pub(super) suite: &'a Suite,
    /// The directory of the tables.
    pub(super) folder: &'a Path,
    pub(super) terms: &'a Terms<'a>,
}

/// The answer to a query that other engines must give, too.
pub(super) struct Expected {
    /// The engine that gave it.
    engine: Engine,
    rows: Vec<String>,
    /// The answer to the query in a total order, once it was needed.
    in_total_order: Option<Vec<String>>,
}

impl Place<'_> {
    /// Runs each query once, except those that the engine has failed in. The first answer to a query is the one that is
    /// expected of other engines.
    pub(super) fn run_round(
        &self,
        contender: &mut Contender,
        queries: &[Query],
        expected: &mut [Option<Expected>],
    ) -> Result<()> {
        let Contender { engine, seconds, peak_memory } = contender;
        let mut running: Option<Session> = None;
        for ((query, seconds), expected) in queries.iter().zip(seconds).zip(expected) {
            let Ok(done) = seconds else { continue };
            let session = match running.take() {
                Some(session) => Ok(session),
                None => self.start(engine),
            };
            let result = session.and_then(|mut session| {
                let (time, rows) = session.rows(&query.sql)?;
                *peak_memory = (*peak_memory).max(session.peak_memory());
                let difference = match expected {
                    Some(expected) => self.difference(query, expected, &rows, &mut session)?,
                    None => {
                        *expected = Some(Expected { engine: engine.clone(), rows, in_total_order: None });
                        None
                    }
                };
                Ok((time, difference, session))
            });
            match result {
                Ok((time, difference, session)) => {
                    running = Some(session);
                    match difference {
                        Some(reason) => *seconds = Err(Failure { reason, differs: true }),
                        None => done.push(time),
                    }
                }
                // The engine's process has ended, or will.
                Err(error) => {
                    *seconds = Err(Failure { reason: error.message().trim().to_owned(), differs: false });
                }
            }
        }
        match running.map_or(Ok(()), Session::end) {
            // The engine has answered everything.
            Err(_) if engine.name != OVERSPILL => Ok(()),
            result => result,
        }
    }

    /// How an answer of the engine of `session` differs from the expected one, if it does.
    ///
    /// Which of the rows with equal sort keys are within a limit is not defined. If answers to a query with a limit differ,
    /// both engines run it again in a total order, and these answers decide.
    fn difference(
        &self,
        query: &Query,
        expected: &mut Expected,
        rows: &[String],
        session: &mut Session,
    ) -> Result<Option<String>> {
        if answer::are_same(&expected.rows, rows) {
            return Ok(None);
        }
        let columns = expected.rows.first().map_or(0, |row| answer::cells(row).len());
        let Some(sql) = query.in_total_order(columns) else {
            return Ok(Some(answer::difference(&expected.rows, rows, expected.engine.name)));
        };
        let (_, rows) = session.rows(&sql)?;
        let theirs = match expected.in_total_order.take() {
            Some(rows) => rows,
            None => {
                let mut session = self.start(&expected.engine)?;
                let (_, rows) = session.rows(&sql)?;
                session.end()?;
                rows
            }
        };
        let difference =
            (!answer::are_same(&theirs, &rows)).then(|| answer::difference(&theirs, &rows, expected.engine.name));
        expected.in_total_order = Some(theirs);
        Ok(difference)
    }

    /// Starts an engine and defines the tables.
    fn start(&self, engine: &Engine) -> Result<Session> {
        self.suite.open(engine, self.folder, self.terms)
    }
}
