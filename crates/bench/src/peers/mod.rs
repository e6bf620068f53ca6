//! The experiment `overspill bench peers`: SQL joins of tables in memory, in Overspill and in other engines.
//!
//! Each run is a separate process that loads the tables, runs the join twice and is timed the second time. The engines take
//! turns, and all must give the same answer. The report also shows a bound on the speed of any engine.

mod report;
mod run;
mod workload;

use std::io::Write;

use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_machine::measure::{CpuEffort, measure_bounds};
use overspill_machine::topology::Topology;

use crate::datagen::{MOST_SCALE, TablePair, check_scale};
use crate::engines::{CompareArgs, Engine, Missing, OVERSPILL, Target, Terms, VERSION};
use crate::process::program;
use crate::report::{machine, tell};
use run::Run;
pub use workload::Workload;

/// The arguments of `overspill bench peers`.
#[derive(Debug, Clone, Args)]
pub struct PeersArgs {
    /// A join of r and s, where K is a thousand rows and M a million; may be given several times [default: all]
    #[arg(long, value_enum, value_name = "NAME")]
    pub workload: Vec<Workload>,

    /// Shrinks or grows the tables
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    pub scale: f64,

    /// How engines are compared.
    #[command(flatten)]
    pub compare: CompareArgs,
}

struct Figures {
    machine: String,
    scale: f64,
    threads: usize,
    runs: usize,
    /// Independent random 8-byte reads per second, over all processors.
    random_reads: f64,
    /// Engines that are left out of all joins.
    missing: Vec<Missing>,
    joins: Vec<Join>,
}

/// A workload, as all engines ran it.
struct Join {
    workload: Workload,
    tables: TablePair,
    overspill: Contender,
    peers: Vec<Contender>,
}

/// Overspill with `overspill.indexes = never`.
const WITHOUT_INDEX: &str = "Overspill, no index";

/// An engine with its runs of a workload, or a sentence why there are none.
struct Contender {
    engine: Engine,
    runs: Result<Vec<Run>, String>,
}

impl Contender {
    fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), runs: Ok(vec![]) }
    }

    fn runs(&self) -> &[Run] {
        self.runs.as_deref().unwrap_or_default()
    }
}

impl PeersArgs {
    /// Overspill without an index, for a workload with one.
    fn without_index(&self, workload: &Workload) -> Result<Option<Engine>> {
        if workload.index.is_none() {
            return Ok(None);
        }
        let settings = [self.compare.engines.settings.as_slice(), &["overspill.indexes=never".to_owned()]].concat();
        Ok(Some(Engine::overspill(
            WITHOUT_INDEX,
            VERSION,
            program(self.compare.engines.program.as_deref())?,
            &settings,
        )))
    }
}

/// Runs the experiment and prints a table for each join.
///
/// # Errors
/// When Overspill fails, the engines disagree on an answer, or `--check` is given and a target is missed.
pub fn run(args: &PeersArgs) -> Result<()> {
    run_to(args, random_reads, &mut std::io::stdout())
}

fn run_to(args: &PeersArgs, random_reads: impl FnOnce(&Topology) -> Result<f64>, out: &mut dyn Write) -> Result<()> {
    check_scale(args.scale, MOST_SCALE)?;
    let chosen = if args.workload.is_empty() { Workload::value_variants() } else { &args.workload };
    if let Some(json) = args.compare.measured(report::EXPERIMENT)? {
        return args.compare.write(&json, |json| report::figure(json, chosen));
    }
    let program = program(args.compare.engines.program.as_deref())?;
    let terms = args.compare.engines.terms()?;
    let (peers, missing) = args.compare.engines.peers(&terms);
    tell("measuring reads at random places");
    let topology = Topology::of_this_machine();
    let random_reads = random_reads(&topology)?;
    let mut figures = Figures {
        machine: machine(&topology),
        scale: args.scale,
        threads: terms.threads,
        runs: args.compare.runs.get(),
        random_reads,
        missing,
        joins: vec![],
    };
    // Ignore write errors, as the reader may have closed the output.
    _ = out.write_all(report::head(&figures, topology.cpu.threads).as_bytes());
    let overspill = Engine::overspill(OVERSPILL, VERSION, program, &args.compare.engines.settings);
    for workload in chosen {
        let join = measure(args, workload, &overspill, &peers, &terms)?;
        _ = out.write_all(report::table(&figures, &join).as_bytes());
        figures.joins.push(join);
        // Write after each join, so that results are kept if a later join fails.
        args.compare.write(&report::json(&figures), |json| report::figure(json, chosen))?;
    }
    if args.compare.check
        && !figures.joins.iter().all(|join| report::targets(&figures, join).iter().all(Target::is_met))
    {
        return exec_err!("A target of the experiment was missed, or could not be judged.");
    }
    Ok(())
}

/// Runs a workload in all engines.
fn measure(args: &PeersArgs, workload: &Workload, overspill: &Engine, peers: &[Engine], terms: &Terms) -> Result<Join> {
    let tables = workload.tables(args.scale);
    let folder = workload.folder(&args.compare.engines.dir.join("peers"), &tables);
    tables.write_in(&folder, args.compare.engines.threads)?;
    let without_index = args.without_index(workload)?;
    let engines = std::iter::once(overspill).chain(&without_index).chain(peers);
    let mut contenders: Vec<Contender> = engines.map(Contender::new).collect();
    for round in 0..args.compare.runs.get() {
        // Rotate the engines, so that each comes first once.
        contenders.rotate_left(usize::from(round > 0));
        for Contender { engine, runs } in &mut contenders {
            let Ok(done) = runs else { continue };
            tell(&format!("{}: round {} of {}, {}", workload.name, round + 1, args.compare.runs, engine.name));
            match run::run(engine, workload, &folder, terms) {
                Ok(run) => done.push(run),
                Err(error) if engine.is_overspill() => return Err(error),
                // An engine's failure is a result, too.
                Err(error) => *runs = Err(format!("{} did not finish: {}", engine.name, error.message().trim())),
            }
        }
    }
    contenders.sort_by_key(|contender| contender.engine.name != OVERSPILL);
    let mut contenders = contenders.into_iter();
    let Some(overspill) = contenders.next() else { return exec_err!("There was no engine to measure.") };
    let join = Join { workload: *workload, tables, overspill, peers: contenders.collect() };
    agree(&join)?;
    Ok(join)
}

/// Refuses differing answers.
fn agree(join: &Join) -> Result<()> {
    let mut runs = std::iter::once(&join.overspill)
        .chain(&join.peers)
        .flat_map(|contender| contender.runs().iter().map(|run| (contender.engine.name, run.answer.as_str())));
    let Some((first, expected)) = runs.next() else { return Ok(()) };
    match runs.find(|(_, answer)| *answer != expected) {
        None => Ok(()),
        Some((other, answer)) => exec_err!(
            "The answers to {} differ: {expected} by {first} and {answer} by {other}. The query is {}",
            join.workload.name,
            join.workload.query()
        ),
    }
}

/// Random 8-byte reads in huge pages per second, over all processors.
fn random_reads(topology: &Topology) -> Result<f64> {
    measure_bounds(topology, CpuEffort::for_machine(topology))
        .map(|bounds| bounds.random_reads)
        .map_err(|error| exec_datafusion_err!("Reads at random places could not be measured: {error}"))
}

#[cfg(test)]
mod tests;
