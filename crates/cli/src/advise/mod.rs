//! `overspill advise`: predicts the time of each join strategy on a machine, and which to choose.

mod shuffle;

use std::fmt::{Display, Formatter};
use std::path::Path;

use clap::Args;
use overspill_advisor::{
    Advice, Bound, HashTable, IndexJoin, IndexKind, IndexPrediction, Join, LookupWay, Machine, Phase, Prediction,
};
use overspill_machine::measure::Measurements;
use overspill_machine::topology::Topology;
use serde::Serialize;

use self::shuffle::ShuffleArgs;
use crate::args::parse_size;
use crate::failure::{Failure, Outcome};
use crate::output::print_report;

/// Counts of tuples may end in K, M or G: thousands, millions (10^6) and billions (10^9), as the papers count them.
#[derive(Debug, Args)]
pub struct AdviseArgs {
    /// The machine: ac922, xeon-v100-pcie3, a100-pcie4, h200-pcie5, gh200, dgx-superpod, which has a network, or a JSON
    /// file [default: what was measured of this machine]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,

    /// Tuples of the build side, as in 128M (M is 10^6), 1.5G or 1000
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    build: u64,

    /// Tuples of the probe side, counted in the same way
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    probe: u64,

    /// Bytes of a tuple of either side, half of it the key, which has at most 8
    #[arg(long, value_name = "BYTES", default_value_t = 16, value_parser = parse_tuple)]
    tuple: u64,

    /// The table of strategies that do not partition: perfect or linear_probing
    #[arg(long, value_name = "LAYOUT", default_value = "perfect")]
    hash_table: HashTable,

    /// The limit on the join's GPU memory, as in 4GiB [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    gpu_memory_limit: Option<usize>,

    /// The share of probe tuples that find a partner, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = parse_share)]
    match_rate: f64,

    /// Bytes of a result tuple that are written to CPU memory; 0 if results are aggregated
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    result: u64,

    /// Predict a join by lookups as well: of the build side's keys in an index over the probe side's, of this kind:
    /// binary_search, btree, line_btree, harmonia or radix_spline
    #[arg(long, value_name = "KIND")]
    index: Option<IndexKind>,

    /// As JSON: the choice, and of each strategy seconds, tuples a second, phases, bytes over the link or why it is
    /// refused; of lookups in an index, seconds, reads and translations a lookup; with --gpus, of each way to shuffle
    /// seconds, tuples and bytes a second, messages and phases
    #[arg(long)]
    json: bool,

    #[command(flatten, next_help_heading = "Cluster")]
    shuffle: ShuffleArgs,
}

pub fn run(arguments: &AdviseArgs) -> Outcome<()> {
    let machine = match &arguments.machine {
        Some(name) => named(name)?,
        None => measured(arguments.shuffle.ranks())?,
    };
    if shuffle::run(arguments, &machine)? {
        return Ok(());
    }
    let join = Join {
        hash_table: arguments.hash_table,
        match_rate: arguments.match_rate,
        result_bytes: arguments.result,
        gpu_memory_limit: arguments.gpu_memory_limit.map(|bytes| bytes as u64),
        ..Join::new(arguments.build, arguments.probe, arguments.tuple)
    };
    let by_index = |kind| {
        let join = IndexJoin::new(arguments.probe, arguments.build);
        LookupWay::ALL.map(|way| machine.index_join(kind, way, &join)).into()
    };
    let report = Report {
        advice: machine.advise(&join),
        index_joins: arguments.index.map(by_index).unwrap_or_default(),
        machine: &machine.name,
        join: &join,
        about: &machine.description,
    };
    print_report("the advice", &report, arguments.json)
}

/// A machine by its name, or by its JSON file.
fn named(name: &str) -> Outcome<Machine> {
    let path = Path::new(name);
    let is_file = !Machine::names().any(|known| known == name) && (path.components().count() > 1 || path.exists());
    if !is_file {
        return Machine::named(name).map_err(|error| Failure::message(error.to_string()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    Machine::from_json(&text).map_err(|error| Failure::message(format!("{name}: {error}")))
}

/// This machine, by what was measured, with the network of a number of ranks.
fn measured(ranks: Option<u32>) -> Outcome<Machine> {
    let topology = Topology::of_this_machine();
    let measured = Measurements::path().and_then(|path| Measurements::load(&path, &topology));
    let machine = measured.and_then(|measured| {
        let machine = Machine::measured(&topology, &measured)?;
        Some(match ranks {
            Some(ranks) => machine.with_measured_network(&measured, ranks),
            None => machine,
        })
    });
    machine.ok_or_else(|| {
        let names: Vec<_> = Machine::names().collect();
        let names = names.join(", ");
        Failure::message(format!(
            "this machine was not measured: run overspill machine --measure, or name one with --machine ({names})"
        ))
    })
}

/// The advice, for people and as JSON.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    advice: Advice,
    /// Of the index that was asked for, each way to look keys up.
    index_joins: Vec<IndexPrediction>,
    machine: &'a str,
    join: &'a Join,
    #[serde(skip)]
    about: &'a str,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { advice, index_joins, machine, join, about } = self;
        writeln!(f, "Machine     {machine}: {about}")?;
        let (build, probe) = (join.build.rows, join.probe.rows);
        let (tuple, table) = (join.build.tuple_bytes, gibibytes(join.table_bytes()));
        writeln!(f, "Join        {build} x {probe} tuples of {tuple} bytes, a {} table of {table}", join.hash_table)?;
        writeln!(f)?;
        writeln!(f, "strategy             seconds  G tuples/s   over the link  where the time goes")?;
        for prediction in &advice.strategies {
            let Prediction { strategy, seconds, tuples_per_second, phases, link_bytes, refusal } = prediction;
            match refusal {
                Some(reason) => writeln!(f, "{strategy:<16}  refused: {reason}")?,
                None => {
                    let rate = tuples_per_second / 1e9;
                    let link = gibibytes(link_bytes.total());
                    let parts = where_time_goes(of_join(phases), *seconds);
                    writeln!(f, "{strategy:<16}  {seconds:>10.4}  {rate:>10.4}  {link:>14}  {parts}")?;
                }
            }
        }
        if !index_joins.is_empty() {
            writeln!(f)?;
            writeln!(
                f,
                "lookups in an index                seconds   over the link  reads  translations  where the time goes"
            )?;
        }
        for prediction in index_joins {
            let IndexPrediction { kind, way, seconds, reads, translations, phases, link_bytes, refusal } = prediction;
            let name = format!("{kind}, {}", way.describe());
            match refusal {
                Some(reason) => writeln!(f, "{name:<31}  refused: {reason}")?,
                None => {
                    let link = gibibytes(link_bytes.total());
                    let parts = where_time_goes(of_join(phases), *seconds);
                    writeln!(f, "{name:<31}  {seconds:>9.4}  {link:>14}  {reads:>5.1}  {translations:>12.1}  {parts}")?;
                }
            }
        }
        writeln!(f)?;
        writeln!(f, "Choice      {}", advice.choice)?;
        // An index takes time to make, which the prediction leaves out.
        let chosen = advice.of(advice.choice).seconds;
        let fastest = index_joins.iter().min_by(|one, other| one.seconds.total_cmp(&other.seconds));
        match fastest.filter(|fastest| fastest.seconds < chosen) {
            Some(IndexPrediction { kind, way, seconds, .. }) => {
                writeln!(f, "With index  {kind}, {}: {:.1} times as fast", way.describe(), chosen / seconds)
            }
            None => Ok(()),
        }
    }
}

/// The phases with their share of the time and their bounds. Phases too short to show are left out.
fn where_time_goes<'a>(phases: impl IntoIterator<Item = (&'a str, f64, Bound)>, seconds: f64) -> String {
    let parts = phases.into_iter().filter_map(|(name, part, bound)| {
        let percent = (100.0 * part / seconds).round();
        (percent >= 1.0).then(|| match bound.to_string() {
            bound if bound == name => format!("{name} {percent} %"),
            bound => format!("{name} {percent} % ({bound})"),
        })
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn of_join(phases: &[Phase]) -> impl Iterator<Item = (&str, f64, Bound)> {
    phases.iter().map(|phase| (phase.name, phase.seconds, phase.bound))
}

fn gibibytes(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / f64::from(1 << 30))
}

/// Reads a count of tuples: `128M` are 128,000,000.
fn parse_count(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, unit) = match text.char_indices().last() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => (&text[..at], letter.to_ascii_uppercase()),
        _ => (text, ' '),
    };
    let factor = match unit {
        ' ' => 1.0,
        'K' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        _ => return Err(COUNT.to_owned()),
    };
    let is_plain = number.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    let count = number.parse::<f64>().ok().filter(|_| is_plain).map(|number| number * factor).ok_or(COUNT)?;
    match count {
        count if count.fract() != 0.0 => Err(format!("{text} is not a whole number of tuples")),
        count if count > 1e15 => Err("the model counts up to 10^15 tuples".to_owned()),
        count => Ok(count as u64),
    }
}

const COUNT: &str = "a count is a number with or without K, M or G (thousands, millions, billions), as in 128M or 1000";

fn parse_tuple(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes @ 2..=65536) => Ok(bytes),
        _ => Err("a tuple has 2 to 65536 bytes".to_owned()),
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_decimal() {
        assert_eq!(parse_count("128M"), Ok(128_000_000));
        assert_eq!(parse_count("1G"), Ok(1_000_000_000));
        assert_eq!(parse_count("1.5g"), Ok(1_500_000_000));
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("2048"), Ok(2048));
        assert_eq!(parse_count("0"), Ok(0));
        for nonsense in ["", "M", "-1", "1T", "1e3", "inf", "1.5", "0.0001K", "2000000G", "128 MB", "nan"] {
            assert!(parse_count(nonsense).is_err(), "{nonsense:?} is no count");
        }
    }

    #[test]
    fn shares_and_tuples_have_bounds() {
        assert_eq!((parse_share("0.5"), parse_share("1")), (Ok(0.5), Ok(1.0)));
        assert!(["-0.1", "1.1", "NaN", "half"].iter().all(|text| parse_share(text).is_err()));
        assert_eq!(parse_tuple("8"), Ok(8));
        assert!(["0", "1", "65537", "-8", "wide"].iter().all(|text| parse_tuple(text).is_err()));
    }
}
