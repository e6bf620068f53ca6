//! The experiments that run the numbered queries of a benchmark over Parquet files: `overspill bench tpch`,
//! `overspill bench tpcds`, `overspill bench ssb`, `overspill bench aggregate` and `overspill bench correlated`. They run with Overspill's operators, with DataFusion's in the same program, and in other engines.
//!
//! In a round, each engine runs all queries once in a separate process. Engines take turns, and each round starts with
//! another engine. All must give the same answers. A query that an engine cannot run leaves the others.

pub(crate) mod answer;
mod query;
mod report;
mod round;

use std::io::Write;
use std::path::Path;

use clap::Args;
use datafusion::DATAFUSION_VERSION;
use datafusion::common::{Result, exec_err};
use overspill_machine::topology::Topology;

use crate::datagen::{Compression, TablesArgs};
use crate::engines::{CompareArgs, Engine, Missing, OVERSPILL, Session, Target, Terms, VERSION};
use crate::process::program;
use crate::report::{machine, tell};
pub use query::Numbers;
pub(crate) use query::Query;
use round::{Expected, Place};

/// Overspill's program with DataFusion's operators.
const STOCK_JOINS: &str = "DataFusion's joins";

/// A benchmark: tables, and queries with numbers from 1.
pub(crate) struct Suite {
    /// The name on the command line and in JSON.
    pub(crate) name: &'static str,
    /// The name for people.
    pub(crate) title: &'static str,
    /// The texts of the queries.
    pub(crate) texts: fn() -> Vec<String>,
    /// The names of the tables.
    pub(crate) tables: fn() -> Vec<String>,
    /// The benchmark whose tables they are: others of it may be in the same folder.
    pub(crate) of: &'static str,
    /// Generates the tables of that benchmark.
    pub(crate) generate: fn(&TablesArgs, &mut dyn Write) -> Result<()>,
}

/// The arguments of `overspill bench tpch`, `overspill bench tpcds`, `overspill bench ssb`, `overspill bench aggregate` and `overspill bench correlated`.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// The scale factor: 1 is about 1 GB of raw data, fractions are possible
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// Numbers of queries, such as 3 or 1-10,14; may be given several times [default: all]
    #[arg(long, visible_alias = "queries", value_name = "N", value_delimiter = ',')]
    pub query: Vec<Numbers>,

    /// How engines are compared.
    #[command(flatten)]
    pub compare: CompareArgs,
}

struct Figures<'a> {
    suite: &'a Suite,
    machine: String,
    scale: f64,
    threads: usize,
    runs: usize,
    missing: Vec<Missing>,
    queries: Vec<Query>,
    /// Overspill, the same program with [`STOCK_JOINS`], and the others.
    contenders: Vec<Contender>,
}

impl Figures<'_> {
    fn overspill(&self) -> &Contender {
        &self.contenders[0]
    }

    fn stock(&self) -> &Contender {
        &self.contenders[1]
    }

    /// The queries without a valid answer of Overspill, and those to which an engine has another answer, as sentences.
    fn wrong(&self) -> Vec<String> {
        let failures = self.contenders.iter().flat_map(|contender| contender.failures(&self.queries));
        failures
            .filter(|(engine, failure, _)| failure.differs || engine.name == OVERSPILL)
            .map(|(.., text)| text)
            .collect()
    }
}

/// An engine and its runs.
struct Contender {
    engine: Engine,
    /// The seconds of each query's runs, or why there are none.
    seconds: Vec<Result<Vec<f64>, Failure>>,
    /// The largest peak resident memory of its processes in bytes, if the system reports it.
    peak_memory: Option<u64>,
}

/// Why an engine has no seconds for a query.
#[derive(Debug, Clone)]
struct Failure {
    reason: String,
    /// Whether there was an answer, and it was another than the expected one.
    differs: bool,
}

impl Contender {
    fn new(engine: Engine, queries: usize) -> Self {
        Self { engine, seconds: vec![Ok(vec![]); queries], peak_memory: None }
    }

    /// The queries that it did not answer as expected, each with a sentence for people.
    fn failures<'a>(&'a self, queries: &'a [Query]) -> impl Iterator<Item = (&'a Engine, &'a Failure, String)> {
        queries.iter().zip(&self.seconds).filter_map(|(query, seconds)| {
            let failure = seconds.as_ref().err()?;
            let what = if failure.differs { "has another answer to" } else { "did not finish" };
            Some((
                &self.engine,
                failure,
                format!("{} {what} query {}: {}", self.engine.name, query.number, failure.reason),
            ))
        })
    }
}

impl Suite {
    /// All queries.
    pub(crate) fn queries(&self) -> Vec<Query> {
        (1..).zip((self.texts)()).map(|(number, text)| Query::new(number, &text)).collect()
    }

    /// The text of a query.
    ///
    /// # Errors
    /// If there is no query with this number.
    pub(crate) fn query_text(&self, number: usize) -> Result<String> {
        let queries = self.queries();
        let last = queries.len();
        let query = queries.into_iter().find(|query| query.number == number);
        query.map_or_else(|| self.no_query(number, last), |query| Ok(query.sql))
    }

    /// The queries with some of the numbers, or all if none are given.
    pub(crate) fn select(&self, numbers: &[Numbers]) -> Result<Vec<Query>> {
        let queries = self.queries();
        if let Some(missing) = numbers.iter().find_map(|numbers| numbers.outside(queries.len())) {
            return self.no_query(missing, queries.len());
        }
        let is_asked =
            |query: &Query| numbers.is_empty() || numbers.iter().any(|numbers| numbers.contain(query.number));
        Ok(queries.into_iter().filter(is_asked).collect())
    }

    /// Starts an engine and defines the tables, whose files are in `folder`.
    pub(crate) fn open(&self, engine: &Engine, folder: &Path, terms: &Terms) -> Result<Session> {
        let (mut session, _) = engine.start(terms)?;
        for table in (self.tables)() {
            session.execute(&engine.scan(&table, &folder.join(format!("{table}.parquet"))))?;
        }
        Ok(session)
    }

    fn no_query<T>(&self, number: usize, last: usize) -> Result<T> {
        exec_err!("{} has no query {number}: its queries have the numbers 1 to {last}.", self.title)
    }

    /// Runs the experiment and prints its table.
    ///
    /// # Errors
    /// When Overspill fails in a query, engines disagree on an answer, or `--check` is given and a target is missed.
    pub(crate) fn run(&self, args: &SuiteArgs, out: &mut dyn Write) -> Result<()> {
        let queries = self.select(&args.query)?;
        if let Some(json) = args.compare.measured(self.name)? {
            return args.compare.write(&json, |json| report::figure(json, self, &queries));
        }
        let program = program(args.compare.engines.program.as_deref())?;
        let terms = args.compare.engines.terms()?;
        let tables = TablesArgs {
            scale: args.scale,
            dir: args.compare.engines.dir.join(format!("{}-sf{}", self.of, args.scale)),
            compression: Compression::Snappy,
            force: false,
            threads: args.compare.engines.threads,
        };
        (self.generate)(&tables, &mut std::io::sink())?;
        let (peers, missing) = args.compare.engines.peers(&terms);
        let with_stock_joins =
            [args.compare.engines.settings.as_slice(), &["overspill.enabled=false".to_owned()]].concat();
        let engines = [
            Engine::overspill(OVERSPILL, VERSION, program.clone(), &args.compare.engines.settings),
            Engine::overspill(STOCK_JOINS, DATAFUSION_VERSION, program, &with_stock_joins),
        ];
        let contenders = engines.into_iter().chain(peers).map(|engine| Contender::new(engine, queries.len())).collect();
        let mut figures = Figures {
            suite: self,
            machine: machine(&Topology::of_this_machine()),
            scale: args.scale,
            threads: terms.threads,
            runs: args.compare.runs.get(),
            missing,
            queries,
            contenders,
        };
        let place = Place { suite: self, folder: &tables.dir, terms: &terms };
        let mut expected: Vec<Option<Expected>> = figures.queries.iter().map(|_| None).collect();
        let mut order: Vec<usize> = (0..figures.contenders.len()).collect();
        for round in 0..figures.runs {
            order.rotate_left(usize::from(round > 0));
            for number in &order {
                let contender = &mut figures.contenders[*number];
                tell(&format!("round {} of {}, {}", round + 1, args.compare.runs, contender.engine.name));
                place.run_round(contender, &figures.queries, &mut expected)?;
            }
            // Write after each round, so that results are kept if a later round fails.
            args.compare.write(&report::json(&figures), |json| report::figure(json, self, &figures.queries))?;
        }
        // Ignore write errors, as the reader may have closed the output.
        _ = out.write_all(report::table(&figures).as_bytes());
        match figures.wrong().as_slice() {
            [] => {}
            [first] => return exec_err!("{first}"),
            [first, others @ ..] => {
                return exec_err!("{} answers are missing or differ. The first: {first}", others.len() + 1);
            }
        }
        if args.compare.check && !report::targets(&figures).iter().all(Target::is_met) {
            return exec_err!("A target of the experiment was missed, or could not be judged.");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
