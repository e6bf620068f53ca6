//! The experiment `overspill bench build`: hash tables of the join operator, by the kind of their keys.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Int64Type, Schema};
use clap::{Args, ValueEnum};
use datafusion::common::Result;
use overspill_experiments::{Axis, Figure, SeriesSource};
use overspill_machine::topology::Topology;

use crate::datagen::TablePair;
use crate::kinds::KindsArgs;
use crate::operator::{How, Tables};
use crate::report::{machine, median, value_name};

/// The build side has this many times as many rows as the probe side, so that the build side takes the time.
const BUILD_PER_PROBE_ROW: u64 = 32;

/// Bits of a key that go to the second of two columns.
const SECOND_BITS: u32 = 12;

/// The kind of the keys of the build side, which are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "kebab-case")]
pub enum BuildKeys {
    /// 1, 2, 3 … in 64 bits
    Dense,
    /// Spread over 63 bits
    Sparse,
    /// 1, 2, 3 … in 32 bits
    Narrow,
    /// Two columns of 32 bits
    Composite,
    /// Two columns of 64 bits
    CompositeWide,
    /// Texts of 16 bytes
    Text,
}

impl BuildKeys {
    fn columns(self) -> usize {
        if matches!(self, Self::Composite | Self::CompositeWide) { 2 } else { 1 }
    }

    /// Replaces the key column of a batch by key columns of this kind. Different keys stay different.
    fn convert(self, batch: &RecordBatch) -> Result<RecordBatch> {
        let keys = batch.column(0).as_primitive::<Int64Type>().values();
        let narrow = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
            Arc::new(Int32Array::from_iter_values(keys.iter().map(|key| of(*key) as i32)))
        };
        let wide = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(keys.iter().map(|key| of(*key))))
        };
        let (upper, lower) = (|key: i64| key >> SECOND_BITS, |key: i64| key & ((1 << SECOND_BITS) - 1));
        let mut columns = match self {
            Self::Dense | Self::Sparse => vec![Arc::clone(batch.column(0))],
            Self::Narrow => vec![narrow(&|key| key)],
            Self::Composite => vec![narrow(&upper), narrow(&lower)],
            Self::CompositeWide => vec![wide(&upper), wide(&lower)],
            Self::Text => {
                let texts = keys.iter().map(|key| format!("customer{key:08x}"));
                vec![Arc::new(StringArray::from_iter_values(texts)) as ArrayRef]
            }
        };
        let keys =
            (0..columns.len()).map(|key| Field::new(format!("key{key}"), columns[key].data_type().clone(), false));
        let payloads = batch.schema_ref().fields().iter().skip(1).map(|field| field.as_ref().clone());
        let schema = Schema::new(keys.chain(payloads).collect::<Vec<_>>());
        columns.extend(batch.columns().iter().skip(1).map(Arc::clone));
        Ok(RecordBatch::try_new(Arc::new(schema), columns)?)
    }
}

/// The arguments of `overspill bench build`.
#[derive(Debug, Clone, Args)]
pub struct BuildArgs {
    /// The kinds of keys [default: each in turn]
    #[arg(long, value_enum, value_name = "KIND")]
    pub keys: Vec<BuildKeys>,

    /// Rows of the build side, at most 2^31; the probe side has a 32nd of them
    #[arg(long, default_value = "32000000", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub rows: u64,

    /// How it is run, and where the figure goes.
    #[command(flatten)]
    pub kinds: KindsArgs,
}

/// Builds hash tables and returns the figure.
///
/// # Errors
/// If memory runs out, or an answer is wrong.
pub(crate) fn run(args: &BuildArgs) -> Result<Figure> {
    let topology = Topology::of_this_machine();
    let threads = args.kinds.threads(&topology);
    let kinds = if args.keys.is_empty() { BuildKeys::value_variants().to_vec() } else { args.keys.clone() };
    let mut points = vec![];
    let mut notes = vec![];
    for (place, kind) in kinds.iter().enumerate() {
        let seconds = measure(*kind, args.rows, threads, args.kinds.runs.get())?;
        points.push((place as f64, args.rows as f64 / seconds / 1e6));
        notes.push(format!(
            "{}: {seconds:.3} s, {:.1} ns a row and thread",
            value_name(kind),
            seconds * threads as f64 * 1e9 / args.rows as f64
        ));
    }
    let mut figure = Figure {
        name: "build",
        title: "Hash tables of the join operator",
        paper: "none",
        machine: format!("{}, {threads} threads; {} rows and payloads of 8 bytes", machine(&topology), args.rows),
        x: Axis::named("keys", kinds.iter().map(value_name)),
        y: Axis::linear("million rows of the build side a second"),
        notes,
        ..Figure::default()
    };
    figure.add(SeriesSource::Measured, "read and build", points);
    args.kinds.write(&figure)?;
    Ok(figure)
}

/// The median seconds of building the table for a join.
fn measure(kind: BuildKeys, rows: u64, threads: usize, runs: usize) -> Result<f64> {
    let pair = TablePair::of_rows(rows, rows.div_ceil(BUILD_PER_PROBE_ROW));
    let pair = TablePair { sparse: kind == BuildKeys::Sparse, ..pair };
    let tables = Tables::generate(&pair, threads)?;
    let expected = tables.expected(threads)?;
    let tables = tables.with_keys(kind.columns(), |batch| kind.convert(batch))?;
    let mut seconds = vec![];
    // One extra run: the first run faults in memory for the others.
    for run in 0..=runs {
        let joined = tables.join(threads, How::default())?;
        joined.check(expected)?;
        if run > 0 {
            seconds.push(joined.seconds.build);
        }
    }
    Ok(median(seconds).unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_keys_is_measured_and_joins_rightly() {
        let args = BuildArgs { keys: vec![], rows: 100_000, kinds: KindsArgs::of_test() };
        let figure = run(&args).unwrap();
        assert_eq!(figure.x.names, ["dense", "sparse", "narrow", "composite", "composite-wide", "text"]);
        assert!(figure.series[0].points.iter().all(|(_, speed)| *speed > 0.0));
        assert!(figure.notes[5].starts_with("text: "), "{:?}", figure.notes);
    }
}
