//! The experiment `overspill bench codec`: cascaded compression of the integers of TPC-H, beside other codecs.

mod codecs;
mod columns;
mod gpu;

use std::fmt::{self, Display, Formatter};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_codec::{Cascade, Selector, Stack};
use overspill_experiments::DeviceArgs;
use overspill_machine::memory::Plain;
use serde_json::{Value as Json, json};

use self::codecs::{Codec, Decompressed, Value};
use self::columns::{Column, Values, of_table, partitioned};
use self::gpu::CodecGpu;
use crate::datagen;
use crate::report::{failed, median, slow_build, tell, write_file};

/// The arguments of `overspill bench codec`.
#[derive(Debug, Clone, Args)]
pub struct CodecArgs {
    /// The scale factor of TPC-H
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// Columns, as in `lineitem.l_orderkey` [default: all that are integers, decimals, dates, or texts with few values]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub columns: Vec<String>,

    /// Numbers of hash partitions into which rows go before they are compressed; 1 is the order of the file
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,1024", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub partitions: Vec<u32>,

    /// The GPU that compresses as well.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Number of runs of each codec; the median is shown
    #[arg(long, default_value = "3", value_name = "N")]
    pub runs: NonZeroUsize,

    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What a codec makes of a column.
#[derive(Debug, Clone, Copy)]
struct Measured {
    codec: Codec,
    /// How many times smaller the column becomes, with all headers.
    ratio: f64,
    /// Bytes of integers that a thread compresses and decompresses in a second.
    compress: f64,
    decompress: f64,
}

/// What was measured of one column in one number of partitions.
#[derive(Debug)]
struct Row {
    column: String,
    partitions: usize,
    bytes: usize,
    /// The first is ours, by the stack that the selector chose.
    codecs: Vec<Measured>,
    /// The ratio of the selector's sample.
    sampled: f64,
    /// The stack with the fewest bytes of all, and its ratio.
    best: (Stack, f64),
}

impl Row {
    fn ours(&self) -> &Measured {
        &self.codecs[0]
    }

    /// How many times as many bytes the chosen stack has as the best one.
    fn regret(&self) -> f64 {
        self.best.1 / self.ours().ratio
    }
}

/// Compresses the columns and writes the table.
///
/// # Errors
/// If there is no such column, or a codec does not give back what it took.
pub(crate) fn run(args: &CodecArgs, out: &mut dyn std::io::Write) -> Result<()> {
    let machine = args.device.open().map_err(failed)?;
    let described = machine.describe();
    let gpu = machine.gpu.ok().map(CodecGpu::new).transpose()?;
    let mut rows = vec![];
    let mut unknown = args.columns.clone();
    for table in datagen::tpch_tables() {
        let is_wanted = |name: &str| args.columns.is_empty() || args.columns.iter().any(|wanted| wanted == name);
        if !args.columns.is_empty() && !args.columns.iter().any(|name| name.starts_with(&format!("{table}."))) {
            continue;
        }
        tell(&format!("generating {table}"));
        for column in of_table(&table, &datagen::tpch_table(&table, args.scale)?) {
            if is_wanted(&column.name) {
                unknown.retain(|name| *name != column.name);
                for partitions in &args.partitions {
                    tell(&format!("{} in {partitions} partitions", column.name));
                    rows.push(measure(&column, *partitions as usize, args.runs.get(), gpu.as_ref())?);
                }
            }
        }
    }
    if let Some(name) = unknown.first() {
        return exec_err!("TPC-H has no column {name:?} of integers: columns are named as in lineitem.l_orderkey");
    }
    let copy = gpu.as_ref().map(|gpu| gpu.copy);
    let report = Report { machine: &described, copy, scale: args.scale, rows: &rows };
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", report.json()))?;
    }
    let note = slow_build().map(|note| format!("{note}\n")).unwrap_or_default();
    write!(out, "{report}{note}").map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))
}

fn measure(column: &Column, partitions: usize, runs: usize, gpu: Option<&CodecGpu>) -> Result<Row> {
    match &column.values {
        Values::Wide(values) => measure_values(column, values, partitions, runs, gpu),
        Values::Narrow(values) => measure_values(column, values, partitions, runs, gpu),
    }
}

fn measure_values<T: Value + Plain>(
    column: &Column,
    values: &[T],
    partitions: usize,
    runs: usize,
    gpu: Option<&CodecGpu>,
) -> Result<Row> {
    let parts = partitioned(values, &column.keys, partitions);
    let bytes = size_of_val(values);
    let buffers: Vec<&[T]> = parts.iter().map(Vec::as_slice).collect();
    let chosen = Selector::default().choose(&buffers);
    let mut codecs = vec![];
    for codec in [Codec::Cascaded(chosen.stack)].into_iter().chain(Codec::OTHERS) {
        codecs.push(measure_codec(codec, &parts, bytes, runs)?);
    }
    if let Some(gpu) = gpu {
        codecs.push(gpu.measure(chosen.stack, &parts, bytes, runs)?);
    }
    let mut best = (chosen.stack, codecs[0].ratio);
    for stack in Stack::ALL {
        let (mut cascade, mut out, mut compressed) = (Cascade::new(), vec![], 0);
        for part in &parts {
            Codec::Cascaded(stack).compress(&mut cascade, part, &mut out)?;
            compressed += out.len();
        }
        let ratio = bytes as f64 / compressed as f64;
        if ratio > best.1 {
            best = (stack, ratio);
        }
    }
    Ok(Row { column: column.name.clone(), partitions, bytes, codecs, sampled: chosen.ratio, best })
}

/// Compresses and decompresses all partitions of a column, one by one, as they would be sent.
fn measure_codec<T: Value>(codec: Codec, parts: &[Vec<T>], bytes: usize, runs: usize) -> Result<Measured> {
    let (mut cascade, mut compress, mut decompress) = (Cascade::new(), vec![], vec![]);
    let mut compressed = vec![vec![]; parts.len()];
    let mut out = Decompressed::new();
    for _ in 0..runs {
        let start = Instant::now();
        for (part, out) in parts.iter().zip(&mut compressed) {
            codec.compress(&mut cascade, part, out)?;
        }
        compress.push(start.elapsed().as_secs_f64());
        let mut elapsed = 0.0;
        for (part, bytes) in parts.iter().zip(&compressed) {
            let start = Instant::now();
            codec.decompress(&mut cascade, bytes, part.len(), &mut out)?;
            elapsed += start.elapsed().as_secs_f64();
            if !out.are(codec, part) {
                return Err(failed(format!("{} does not give back what it took", codec.name())));
            }
        }
        decompress.push(elapsed);
    }
    let sent: usize = compressed.iter().map(Vec::len).sum();
    let rate = |seconds| bytes as f64 / median(seconds).unwrap_or(f64::NAN);
    Ok(Measured {
        codec,
        ratio: bytes as f64 / sent.max(1) as f64,
        compress: rate(compress),
        decompress: rate(decompress),
    })
}

/// The table.
struct Report<'a> {
    machine: &'a str,
    /// Bytes a second that the GPU's memory copies.
    copy: Option<f64>,
    scale: f64,
    rows: &'a [Row],
}

impl Report<'_> {
    fn json(&self) -> Json {
        let codec = |measured: &Measured| {
            json!({
                "codec": measured.codec.name(),
                "ratio": measured.ratio,
                "compress_bytes_per_second": measured.compress,
                "decompress_bytes_per_second": measured.decompress,
            })
        };
        let rows = self.rows.iter().map(|row| {
            let Codec::Cascaded(stack) = row.ours().codec else { return Json::Null };
            json!({
                "column": row.column,
                "partitions": row.partitions,
                "bytes": row.bytes,
                "stack": stack.to_string(),
                "sampled_ratio": row.sampled,
                "best_stack": row.best.0.to_string(),
                "best_ratio": row.best.1,
                "codecs": row.codecs.iter().map(codec).collect::<Vec<_>>(),
            })
        });
        json!({
            "machine": self.machine,
            "gpu_copy_bytes_per_second": self.copy,
            "scale": self.scale,
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "Integers of TPC-H, scale factor {}, on {}.", self.scale, self.machine)?;
        writeln!(f, "Times smaller / GB of integers compressed a second / decompressed, by one thread of the CPU.")?;
        if let Some(copy) = self.copy {
            writeln!(
                f,
                "The GPU compresses all partitions at once, in its memory, which copies {:.0} GB/s, and several times to fill it; its kernels are timed.",
                copy / 1e9
            )?;
        }
        write!(f, "\n{:<28} {:>6} {:>6}", "column", "parts", "stack")?;
        for measured in self.rows.first().map_or(&[][..], |row| &row.codecs) {
            write!(f, " {:>20}", measured.codec.name())?;
        }
        writeln!(f, " {:>14}", "best of nine")?;
        for row in self.rows {
            let Codec::Cascaded(stack) = row.ours().codec else { continue };
            write!(f, "{:<28} {:>6} {:>6}", row.column, row.partitions, stack.to_string())?;
            for Measured { ratio, compress, decompress, .. } in &row.codecs {
                let cell = format!("{ratio:.2} / {:.2} / {:.2}", compress / 1e9, decompress / 1e9);
                write!(f, " {cell:>20}")?;
            }
            writeln!(f, " {:>6} {:>7.2}", row.best.0.to_string(), row.best.1)?;
        }
        let worst = self.rows.iter().max_by(|one, other| one.regret().total_cmp(&other.regret()));
        match worst {
            Some(row) => writeln!(
                f,
                "\nThe selector's stack has at most {:.1} % more bytes than the best of nine ({} in {} partitions).",
                (row.regret() - 1.0) * 100.0,
                row.column,
                row.partitions
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use overspill_machine::DeviceKind;

    use super::*;

    #[test]
    fn all_integers_of_tpch_are_compressed_and_come_back() {
        let args = CodecArgs {
            scale: 0.01,
            columns: vec![],
            partitions: vec![1, 8],
            device: DeviceArgs { device: DeviceKind::Cpu, gpu: 0, gpu_memory_limit: None, emulated_driver: None },
            runs: NonZeroUsize::MIN,
            json: None,
        };
        let mut table = vec![];
        run(&args, &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let lines: Vec<_> = table.lines().filter(|line| line.contains("orders.o_orderkey ")).collect();
        assert_eq!(lines.len(), 2, "{table}");
        assert!(lines[0].contains("(2,1)") && table.contains("lineitem.l_shipmode"), "{table}");
        let args = CodecArgs { columns: vec!["orders.o_comment".to_owned()], ..args };
        assert!(run(&args, &mut vec![]).unwrap_err().to_string().contains("no column \"orders.o_comment\""));
    }
}
