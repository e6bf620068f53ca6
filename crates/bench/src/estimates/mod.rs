//! The experiment `overspill bench estimates`: how far estimated rows are from the true ones.
//!
//! Each query of a benchmark runs once under EXPLAIN ANALYZE, in Overspill and in DuckDB, without the filters that drop rows by the keys of
//! joins above: with them a join's true rows would be others than those that were estimated.

mod duckdb;
mod guess;
mod overspill;
mod report;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_err};

use crate::datagen::{Compression, TablesArgs};
use crate::engines::{Engine, EngineArgs, Missing, OVERSPILL, Session, Target, Terms, VERSION};
use crate::process::program;
use crate::report::{tell, write_file};
use crate::suite::{Numbers, Suite};
use guess::Guess;

/// The setting under which joins return all rows that were estimated.
const ALL_ROWS: &str = "overspill.membership_filters=false";

/// The benchmarks whose queries can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EstimatedSuite {
    /// The 22 queries of TPC-H
    Tpch,
    /// The 99 queries of TPC-DS
    Tpcds,
    /// The 13 queries of the Star Schema Benchmark
    Ssb,
    /// 100 queries over tables whose columns depend on each other
    Correlated,
}

impl EstimatedSuite {
    fn suite(self) -> &'static Suite {
        match self {
            Self::Tpch => &crate::tpch::SUITE,
            Self::Tpcds => &crate::tpcds::SUITE,
            Self::Ssb => &crate::ssb::SUITE,
            Self::Correlated => &crate::correlated::SUITE,
        }
    }
}

/// The arguments of `overspill bench estimates`.
#[derive(Debug, Clone, Args)]
pub struct EstimatesArgs {
    /// The benchmark whose queries are looked at
    #[arg(long, value_enum, default_value_t = EstimatedSuite::Correlated, value_name = "NAME")]
    pub suite: EstimatedSuite,

    /// The scale factor: 1 is about 1 GB of raw data, fractions are possible
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// Numbers of queries, such as 3 or 1-10,14; may be given several times [default: all]
    #[arg(long, visible_alias = "queries", value_name = "N", value_delimiter = ',')]
    pub query: Vec<Numbers>,

    /// The engines' processes.
    #[command(flatten)]
    pub engines: EngineArgs,

    /// Write all numbers to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Fail when a target is missed
    #[arg(long)]
    pub check: bool,
}

/// An engine, and what it estimated.
struct Estimator {
    engine: Engine,
    guesses: Vec<Guess>,
    /// The queries that it did not run, as sentences.
    failures: Vec<String>,
}

/// Runs the experiment and prints its table.
///
/// # Errors
/// When Overspill fails in a query, or `--check` is given and a target is missed.
pub(crate) fn run(args: &EstimatesArgs, out: &mut dyn Write) -> Result<()> {
    let suite = args.suite.suite();
    let queries = suite.select(&args.query)?;
    let program = program(args.engines.program.as_deref())?;
    let terms = args.engines.terms()?;
    let tables = TablesArgs {
        scale: args.scale,
        dir: args.engines.dir.join(format!("{}-sf{}", suite.of, args.scale)),
        compression: Compression::Snappy,
        force: false,
        threads: args.engines.threads,
    };
    (suite.generate)(&tables, &mut std::io::sink())?;
    let settings = [args.engines.settings.as_slice(), &[ALL_ROWS.to_owned()]].concat();
    let ours = Engine::overspill(OVERSPILL, VERSION, program, &settings);
    let (peers, missing) = args.engines.peers(&terms);
    let duckdb = peers.into_iter().filter(|engine| engine.name == duckdb::NAME);
    let missing: Vec<Missing> = missing.into_iter().filter(|missing| missing.name == duckdb::NAME).collect();
    let mut estimators: Vec<Estimator> = vec![];
    for engine in std::iter::once(ours).chain(duckdb) {
        let mut estimator = Estimator { engine, guesses: vec![], failures: vec![] };
        let mut running: Option<Session> = None;
        for query in &queries {
            tell(&format!("query {}, {}", query.number, estimator.engine.name));
            let session = running.take().map_or_else(|| open(suite, &estimator.engine, &tables, &terms), Ok);
            let explained = session.and_then(|mut session| {
                let guesses = if estimator.engine.is_overspill() {
                    overspill::guesses(&mut session, &query.sql)
                } else {
                    duckdb::guesses(&mut session, &query.sql)
                };
                Ok((guesses?, session))
            });
            match explained {
                Ok((guesses, session)) => {
                    estimator.guesses.extend(guesses);
                    running = Some(session);
                }
                Err(error) => {
                    let reason = error.message().trim().to_owned();
                    estimator
                        .failures
                        .push(format!("{} did not finish query {}: {reason}", estimator.engine.name, query.number));
                }
            }
        }
        estimators.push(estimator);
    }
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", report::json(suite, args.scale, &estimators, &missing)))?;
    }
    // Ignore write errors, as the reader may have closed the output.
    _ = out.write_all(report::table(suite, args.scale, &estimators, &missing).as_bytes());
    if let Some(failure) = estimators[0].failures.first() {
        return exec_err!("{failure}");
    }
    if args.check && !report::targets(&estimators).iter().all(Target::is_met) {
        return exec_err!("A target of the experiment was missed, or could not be judged.");
    }
    Ok(())
}

/// A process of the engine, with the tables.
fn open(suite: &Suite, engine: &Engine, tables: &TablesArgs, terms: &Terms) -> Result<Session> {
    let mut session = suite.open(engine, &tables.dir, terms)?;
    if !engine.is_overspill() {
        duckdb::prepare(&mut session)?;
    }
    Ok(session)
}
