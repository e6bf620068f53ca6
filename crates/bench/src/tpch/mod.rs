//! The experiment `overspill bench tpch`: the 22 queries of TPC-H over Parquet files, with Overspill's joins and with
//! DataFusion's in the same program, and in other engines.
//!
//! In a round, each engine runs all queries once in a separate process. Engines take turns, and each round starts with
//! another engine. All must give the same answers.

pub(crate) mod answer;
pub(crate) mod query;
mod report;

use std::io::Write;
use std::path::Path;

use clap::Args;
use datafusion::DATAFUSION_VERSION;
use datafusion::common::{Result, exec_err};
use overspill_machine::topology::Topology;

use crate::datagen::{self, Compression, tpch_tables};
use crate::engines::{CompareArgs, Engine, Missing, OVERSPILL, Session, Target, Terms, VERSION};
use crate::process::program;
use crate::report::{failed, machine, tell};
use query::Query;

/// Overspill's program with DataFusion's joins.
const STOCK_JOINS: &str = "DataFusion's joins";

/// The arguments of `overspill bench tpch`.
#[derive(Debug, Clone, Args)]
pub struct TpchArgs {
    /// The scale factor: 1 is about 1 GB of raw data, fractions are possible
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// The number of a query; may be given several times [default: all]
    #[arg(long, value_name = "N", value_parser = query::by_number)]
    pub query: Vec<Query>,

    /// How engines are compared.
    #[command(flatten)]
    pub compare: CompareArgs,
}

struct Figures {
    machine: String,
    scale: f64,
    threads: usize,
    runs: usize,
    missing: Vec<Missing>,
    queries: Vec<Query>,
    /// Overspill, the same program with [`STOCK_JOINS`], and the others.
    contenders: Vec<Contender>,
}

impl Figures {
    fn overspill(&self) -> &Contender {
        &self.contenders[0]
    }

    fn stock(&self) -> &Contender {
        &self.contenders[1]
    }
}

/// An engine and its runs.
struct Contender {
    engine: Engine,
    /// The seconds of each query's runs, or a sentence why there are none.
    seconds: Vec<Result<Vec<f64>, String>>,
    /// The largest peak resident memory of its processes in bytes, if the system reports it.
    peak_memory: Option<u64>,
}

impl Contender {
    fn new(engine: Engine, queries: usize) -> Self {
        Self { engine, seconds: vec![Ok(vec![]); queries], peak_memory: None }
    }
}

/// The text of a query.
///
/// # Errors
/// If there is no query with this number.
pub(crate) fn query_text(number: usize) -> Result<String> {
    let query = query::by_number(&number.to_string()).map_err(failed)?;
    Ok(query.sql)
}

/// Runs the experiment and prints its table.
///
/// # Errors
/// When Overspill fails, the engines disagree on an answer, or `--check` is given and a target is missed.
pub fn run(args: &TpchArgs) -> Result<()> {
    run_to(args, &mut std::io::stdout())
}

fn run_to(args: &TpchArgs, out: &mut dyn Write) -> Result<()> {
    let queries = if args.query.is_empty() { query::all() } else { args.query.clone() };
    if let Some(json) = args.compare.measured(report::EXPERIMENT)? {
        return args.compare.write(&json, |json| report::figure(json, &queries));
    }
    let program = program(args.compare.program.as_deref())?;
    let terms = args.compare.terms()?;
    let tables = datagen::TpchArgs {
        scale: args.scale,
        dir: args.compare.dir.join(format!("tpch-sf{}", args.scale)),
        compression: Compression::Snappy,
        force: false,
        threads: args.compare.threads,
    };
    datagen::generate_tpch(&tables, &mut std::io::sink())?;
    let (peers, missing) = args.compare.peers(&terms);
    let with_stock_joins = [args.compare.settings.as_slice(), &["overspill.enabled=false".to_owned()]].concat();
    let engines = [
        Engine::overspill(OVERSPILL, VERSION, program.clone(), &args.compare.settings),
        Engine::overspill(STOCK_JOINS, DATAFUSION_VERSION, program, &with_stock_joins),
    ];
    let contenders = engines.into_iter().chain(peers).map(|engine| Contender::new(engine, queries.len())).collect();
    let mut figures = Figures {
        machine: machine(&Topology::of_this_machine()),
        scale: args.scale,
        threads: terms.threads,
        runs: args.compare.runs.get(),
        missing,
        queries,
        contenders,
    };
    let mut answers: Vec<Option<Vec<String>>> = vec![None; figures.queries.len()];
    let mut order: Vec<usize> = (0..figures.contenders.len()).collect();
    for round in 0..figures.runs {
        order.rotate_left(usize::from(round > 0));
        for number in &order {
            let contender = &mut figures.contenders[*number];
            tell(&format!("round {} of {}, {}", round + 1, args.compare.runs, contender.engine.name));
            run_round(contender, &figures.queries, &mut answers, &tables.dir, &terms)?;
        }
        // Write after each round, so that results are kept if a later round fails.
        args.compare.write(&report::json(&figures), |json| report::figure(json, &figures.queries))?;
    }
    // Ignore write errors, as the reader may have closed the output.
    _ = out.write_all(report::table(&figures).as_bytes());
    if args.compare.check && !report::targets(&figures).iter().all(Target::is_met) {
        return exec_err!("A target of the experiment was missed, or could not be judged.");
    }
    Ok(())
}

/// Runs each query once, except those that the engine has failed in. The first answers are the expected ones for other
/// engines.
fn run_round(
    contender: &mut Contender,
    queries: &[Query],
    answers: &mut [Option<Vec<String>>],
    folder: &Path,
    terms: &Terms,
) -> Result<()> {
    let Contender { engine, seconds, peak_memory } = contender;
    let mut running: Option<Session> = None;
    for ((query, seconds), answer) in queries.iter().zip(seconds).zip(answers) {
        let Ok(done) = seconds else { continue };
        let session = match running.take() {
            Some(session) => Ok(session),
            None => start(engine, folder, terms),
        };
        let result = session.and_then(|mut session| Ok((session.rows(&query.sql)?, session)));
        match result {
            Ok(((time, rows), session)) => {
                done.push(time);
                *peak_memory = (*peak_memory).max(session.peak_memory());
                running = Some(session);
                match answer {
                    Some(expected) if !answer::are_same(expected, &rows) => {
                        return exec_err!(
                            "The answers to query {} differ: {} of {OVERSPILL} and {} of {}. {}",
                            query.number,
                            answer::count(expected),
                            answer::count(&rows),
                            engine.name,
                            answer::first_difference(expected, &rows)
                        );
                    }
                    Some(_) => {}
                    None => *answer = Some(rows),
                }
            }
            Err(error) if engine.name == OVERSPILL => return Err(error),
            // A failure is a result, too. The engine's process has ended, or will.
            Err(error) => *seconds = Err(error.message().trim().to_owned()),
        }
    }
    match running.map_or(Ok(()), Session::end) {
        // The engine has answered everything.
        Err(_) if engine.name != OVERSPILL => Ok(()),
        result => result,
    }
}

/// Starts an engine and defines the tables.
fn start(engine: &Engine, folder: &Path, terms: &Terms) -> Result<Session> {
    let (mut session, _) = engine.start(terms)?;
    for table in tpch_tables() {
        session.execute(&engine.scan(&table, &folder.join(format!("{table}.parquet"))))?;
    }
    Ok(session)
}

#[cfg(test)]
mod tests;
