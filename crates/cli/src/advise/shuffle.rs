//! `overspill advise --gpus N`: predicts a join whose sides are spread over the GPUs of a cluster.

use std::fmt::{Display, Formatter};

use clap::Args;
use overspill_advisor::{
    Machine, Network, RankSide, RepartitionedJoin, ShuffleAdvice, ShufflePhase, ShufflePrediction,
};
use serde::Serialize;

use super::{AdviseArgs, gibibytes, where_time_goes};
use crate::failure::{Failure, Outcome};
use crate::output::print_report;

/// A list of widths.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Columns(Vec<u64>);

#[derive(Debug, Args)]
pub struct ShuffleArgs {
    /// Predict the join on so many GPUs of a cluster, each with as many tuples as the others, by the machine's network. On
    /// a machine without a GPU they are processes
    #[arg(
        long,
        value_name = "N",
        visible_alias = "ranks",
        value_parser = parse_gpus,
        conflicts_with_all = ["hash_table", "gpu_memory_limit", "result", "index"]
    )]
    gpus: Option<u32>,

    /// --build and --probe count the tuples of each GPU, not those of all
    #[arg(long, requires = "gpus")]
    per_gpu: bool,

    /// Bytes of the build side's columns, the key first, as in 8,4 [default: two of half of --tuple]
    #[arg(long, value_name = "BYTES", requires = "gpus", value_parser = parse_columns)]
    build_columns: Option<Columns>,

    /// Bytes of the probe side's columns, in the same way
    #[arg(long, value_name = "BYTES", requires = "gpus", value_parser = parse_columns)]
    probe_columns: Option<Columns>,

    /// How many times smaller the columns become compressed [default: compression is not predicted]
    #[arg(long, value_name = "RATIO", requires = "gpus", value_parser = parse_ratio)]
    compression_ratio: Option<f64>,
}

impl ShuffleArgs {
    /// The number of ranks of the cluster; `None` if the advice is for one machine.
    pub(super) fn ranks(&self) -> Option<u32> {
        self.gpus
    }
}

/// Prints the advice if it is asked for a cluster, and says whether it is.
pub(super) fn run(arguments: &AdviseArgs, machine: &Machine) -> Outcome<bool> {
    let Some(gpus) = arguments.shuffle.gpus else { return Ok(false) };
    let network = machine.network.as_ref().ok_or_else(|| no_network(machine))?;
    let nodes = network.nodes(gpus).map_err(|refusal| Failure::message(refusal.to_string()))?;
    let ShuffleArgs { per_gpu, build_columns, probe_columns, compression_ratio, .. } = &arguments.shuffle;
    let side = |rows: u64, columns: &Option<Columns>| {
        let rows = if *per_gpu { rows } else { rows.div_ceil(u64::from(gpus)) };
        let key = (arguments.tuple / 2).clamp(1, 8);
        RankSide::new(rows, columns.clone().map_or(vec![key, arguments.tuple - key], |columns| columns.0))
    };
    let (build, probe) = (side(arguments.build, build_columns), side(arguments.probe, probe_columns));
    let join = RepartitionedJoin {
        match_share: arguments.match_rate,
        compression_ratio: *compression_ratio,
        ..RepartitionedJoin::new(build, probe, gpus, nodes)
    };
    let advice = machine.advise_shuffle(&join).map_err(|refusal| Failure::message(refusal.to_string()))?;
    let rank = if machine.gpu.is_some() { "GPU" } else { "process" };
    let report = Report { advice, machine: &machine.name, join: &join, about: &machine.description, network, rank };
    print_report("the advice", &report, arguments.json)?;
    Ok(true)
}

fn no_network(machine: &Machine) -> Failure {
    let has_one = |name: &&str| Machine::named(name).is_ok_and(|machine| machine.network.is_some());
    let names: Vec<_> = Machine::names().filter(has_one).collect();
    Failure::message(format!(
        "the figures of {} are those of one machine, without a network to other ranks; name one that has it with --machine ({}), or measure \
         the network of this one: mpirun -n RANKS overspill machine --measure",
        machine.name,
        names.join(", ")
    ))
}

/// The advice, for people and as JSON.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    advice: ShuffleAdvice,
    machine: &'a str,
    join: &'a RepartitionedJoin,
    #[serde(skip)]
    about: &'a str,
    #[serde(skip)]
    network: &'a Network,
    /// What a rank is.
    #[serde(skip)]
    rank: &'static str,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { advice, machine, join, about, network, rank } = self;
        let RepartitionedJoin { build, probe, ranks, nodes, .. } = join;
        let plural = if *rank == "GPU" { "GPUs" } else { "processes" };
        writeln!(f, "Machine     {machine}: {about}")?;
        write!(f, "Network     {nodes} x {} {plural} on {}", ranks / nodes, network.within.kind)?;
        match &network.across {
            Some(across) if *nodes > 1 => writeln!(f, ", {} across nodes", across.kind)?,
            _ => writeln!(f)?,
        }
        let widths = format!("{} and {} bytes", build.row_bytes(), probe.row_bytes());
        writeln!(f, "Join        {} x {} tuples of {widths} on each {rank}", build.rows, probe.rows)?;
        writeln!(f)?;
        writeln!(
            f,
            "shuffle                    seconds  G tuples/s        GB/s  messages across      within  where the time goes"
        )?;
        for ShufflePrediction { shuffle, seconds, tuples_per_second, bytes_per_second, messages, phases, refusal } in
            &advice.shuffles
        {
            match refusal {
                Some(reason) => writeln!(f, "{shuffle:<22}  refused: {reason}")?,
                None => {
                    let (tuples, bytes) = (tuples_per_second / 1e9, bytes_per_second / 1e9);
                    let parts = phases.iter().map(|phase| (phase.name, phase.seconds, phase.bound));
                    let parts = where_time_goes(parts, *seconds);
                    let (across, within) = (messages.across, messages.within);
                    write!(f, "{shuffle:<22}  {seconds:>10.4}  {tuples:>10.2}  {bytes:>10.1}  ")?;
                    writeln!(f, "{across:>15}  {within:>10}  {parts}")?;
                }
            }
        }
        writeln!(f)?;
        writeln!(f, "phase                   milliseconds  {:>15}  bound", format!("bytes a {rank}"))?;
        for ShufflePhase { name, seconds, bytes, bound } in &advice.chosen().phases {
            writeln!(f, "{name:<22}  {:>12.2}  {:>15}  {bound}", seconds * 1e3, gibibytes(*bytes))?;
        }
        writeln!(f)?;
        writeln!(f, "Choice       {}", advice.choice)?;
        writeln!(f, "Levels       {}: {}", advice.choice.levels, advice.levels_because)?;
        let is_compressed = if advice.choice.compressed { "yes" } else { "no" };
        writeln!(f, "Compression  {is_compressed}: {}", advice.compression_because)
    }
}

fn parse_gpus(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(gpus @ 1..=1_000_000) => Ok(gpus),
        _ => Err("the number of GPUs is a whole number from 1 to 1000000".to_owned()),
    }
}

fn parse_columns(text: &str) -> Result<Columns, String> {
    let widths: Result<Vec<u64>, _> = text.split(',').map(|width| width.trim().parse()).collect();
    match widths {
        Ok(widths) if widths.iter().all(|width| (1..=65536).contains(width)) => Ok(Columns(widths)),
        _ => Err("columns are widths of 1 to 65536 bytes, the key's first, as in 8,4".to_owned()),
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.1..=10_000.0).contains(&ratio) => Ok(ratio),
        _ => Err("a compression ratio is a number from 0.1 to 10000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_widths() {
        assert_eq!(parse_columns("8"), Ok(Columns(vec![8])));
        assert_eq!(parse_columns("8, 4,16"), Ok(Columns(vec![8, 4, 16])));
        assert!(["", "8,", "0", "8,-4", "wide", "65537"].iter().all(|text| parse_columns(text).is_err()));
    }

    #[test]
    fn gpus_and_ratios_have_bounds() {
        assert_eq!((parse_gpus("1"), parse_gpus("1024")), (Ok(1), Ok(1024)));
        assert!(["0", "-8", "1.5", "1000001", "many"].iter().all(|text| parse_gpus(text).is_err()));
        assert_eq!((parse_ratio("1"), parse_ratio("3.9")), (Ok(1.0), Ok(3.9)));
        assert!(["0", "-1", "inf", "NaN", "good"].iter().all(|text| parse_ratio(text).is_err()));
    }
}
