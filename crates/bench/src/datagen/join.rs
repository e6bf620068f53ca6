//! The join workloads of the papers: table r with unique keys, and table s with keys of r.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::keys::Keys;
use super::table_file::{Compression, Format, TableFile};
use super::{check_scale, create_directory, progress_bar, scaled, thread_count};
use crate::threads::on_each;

/// Rows generated from one seed; also the row group size of a Parquet file.
const PART_ROWS: u64 = 1 << 20;

const BATCH_ROWS: u64 = 1 << 16;

/// A million tuples, as the papers count them.
const M: u64 = 1_000_000;

/// Payloads lie below this bound, so that the sum of 2^31 of them is still a 64-bit integer.
const PAYLOAD_BOUND: u64 = 1 << 31;

/// The maximum number of columns beside the key.
const MAX_PAYLOADS: usize = 1000;

/// A workload of the papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Workload {
    /// 2^27 x 2^31 tuples of 16 bytes
    A,
    /// 2^18 x 2^31 tuples of 16 bytes: r fits a cache
    B,
    /// 1024M x 1024M tuples of 8 bytes, M a million
    C,
    /// 2048M x 2048M tuples of 16 bytes
    T,
}

impl Workload {
    /// The tuples of r and s.
    fn rows(self) -> (u64, u64) {
        match self {
            Self::A => (1 << 27, 1 << 31),
            Self::B => (1 << 18, 1 << 31),
            Self::C => (1024 * M, 1024 * M),
            Self::T => (2048 * M, 2048 * M),
        }
    }

    fn tuple(self) -> u8 {
        if self == Self::C { 8 } else { 16 }
    }
}

/// The arguments of `overspill datagen join`.
#[derive(Debug, Clone, Args)]
pub struct JoinArgs {
    /// Which workload
    #[arg(long, value_enum)]
    pub workload: Workload,

    /// Shrinks both tables by this factor
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    pub scale: f64,

    /// The exponent of the Zipf distribution of the keys of s; 0 draws them uniformly
    #[arg(long, default_value_t = 0.0, value_name = "Z")]
    pub zipf: f64,

    /// The share of the rows of s that have a partner in r, from 0 to 1
    #[arg(long, default_value_t = 1.0, value_name = "M")]
    pub match_rate: f64,

    /// Spread the keys over 63 bits; without it they are 1, 2, 3 …
    #[arg(long)]
    pub sparse: bool,

    /// The seed of the random numbers; the data do not depend on the number of threads
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,

    /// Bytes of a tuple, half of them the key: 8 or 16 [default: those of the workload]
    #[arg(long, value_name = "BYTES")]
    pub tuple: Option<u8>,

    /// The number of columns of r besides the key: payload, payload2 …
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub build_payloads: usize,

    /// The number of columns of s besides the key: payload, payload2 …
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub probe_payloads: usize,

    /// Where the tables go.
    #[command(flatten)]
    pub output: JoinOutput,
}

/// The destination and the format of the two tables.
#[derive(Debug, Clone, Args)]
pub struct JoinOutput {
    /// The directory of the files r.parquet and s.parquet, or r.arrow and s.arrow
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,

    /// The format of the files
    #[arg(long, value_enum, default_value_t = Format::Parquet)]
    pub format: Format,

    /// The compression of Parquet pages; it gains little on random numbers
    #[arg(long, value_enum, default_value_t = Compression::None)]
    pub compression: Compression,

    /// Generate files again that exist
    #[arg(long)]
    pub force: bool,

    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
}

pub(super) fn generate(args: &JoinArgs, out: &mut dyn Write) -> Result<()> {
    check_scale(args.scale, 1.0)?;
    let pair = TablePair {
        zipf: args.zipf,
        match_rate: args.match_rate,
        sparse: args.sparse,
        seed: args.seed,
        tuple: args.tuple.unwrap_or(args.workload.tuple()),
        build_payloads: args.build_payloads,
        probe_payloads: args.probe_payloads,
        ..TablePair::of_workload(args.workload, args.scale)
    };
    pair.generate(&args.output, out)
}

/// The two tables of a join, of any size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TablePair {
    pub(crate) build_rows: u64,
    pub(crate) probe_rows: u64,
    pub(crate) zipf: f64,
    pub(crate) match_rate: f64,
    pub(crate) sparse: bool,
    /// Whether r is in the order of its keys.
    pub(crate) sorted: bool,
    pub(crate) seed: u64,
    /// Bytes of a key and a payload.
    pub(crate) tuple: u8,
    pub(crate) build_payloads: usize,
    pub(crate) probe_payloads: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Build,
    Probe,
}

impl TablePair {
    /// The names of the tables and their files, build side first.
    pub(crate) const NAMES: [&str; 2] = ["r", "s"];

    /// Tables of 16-byte tuples with dense keys. The keys of s are drawn uniformly, and each has a partner in r.
    pub(crate) const fn of_rows(build_rows: u64, probe_rows: u64) -> Self {
        Self {
            build_rows,
            probe_rows,
            zipf: 0.0,
            match_rate: 1.0,
            sparse: false,
            sorted: false,
            seed: 1,
            tuple: 16,
            build_payloads: 1,
            probe_payloads: 1,
        }
    }

    /// The tables of a workload, with keys as in `of_rows`.
    pub(crate) fn of_workload(workload: Workload, scale: f64) -> Self {
        let (build_rows, probe_rows) = workload.rows();
        Self { tuple: workload.tuple(), ..Self::of_rows(scaled(build_rows, scale), scaled(probe_rows, scale)) }
    }

    /// The two tables, in batches of `batch_rows` rows.
    pub(crate) fn in_memory(&self, threads: usize, batch_rows: usize) -> Result<(Vec<RecordBatch>, Vec<RecordBatch>)> {
        let keys = self.check()?;
        let side = |side| -> Result<Vec<RecordBatch>> {
            let next = AtomicU64::new(0);
            let parts = self.rows(side).div_ceil(PART_ROWS);
            let generated = on_each(vec![(); threads], |()| {
                let mut taken = Vec::new();
                while let Some(part) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|part| *part < parts) {
                    let batches = self.part(&keys, side, part).collect::<Result<Vec<_>, _>>()?;
                    taken.push((part, batches));
                }
                Ok(taken)
            })?;
            let mut parts: Vec<_> = generated.into_iter().flatten().collect();
            parts.sort_by_key(|(part, _)| *part);
            let batches = parts.into_iter().flat_map(|(_, batches)| batches);
            let slice = |batch: RecordBatch| -> Vec<RecordBatch> {
                let starts = (0..batch.num_rows()).step_by(batch_rows);
                starts.map(|start| batch.slice(start, batch_rows.min(batch.num_rows() - start))).collect()
            };
            Ok(batches.flat_map(slice).collect())
        };
        Ok((side(Side::Build)?, side(Side::Probe)?))
    }

    /// Writes the two tables to uncompressed Parquet files in a directory, unless they exist.
    pub(crate) fn write_in(&self, dir: &Path, threads: Option<NonZeroUsize>) -> Result<()> {
        let (format, compression) = (Format::Parquet, Compression::None);
        let output = JoinOutput { dir: dir.to_owned(), format, compression, force: false, threads };
        self.generate(&output, &mut std::io::sink())
    }

    /// Writes the two files unless they exist, and a line on `out` for each.
    fn generate(&self, output: &JoinOutput, out: &mut dyn Write) -> Result<()> {
        let keys = self.check()?;
        create_directory(&output.dir)?;
        let threads = thread_count(output.threads);
        let bar = progress_bar(self.build_rows + self.probe_rows);
        for (side, name) in [Side::Build, Side::Probe].into_iter().zip(Self::NAMES) {
            bar.set_message(name);
            let rows = self.rows(side);
            let file = TableFile {
                path: output.dir.join(format!("{name}.{}", output.format.extension())),
                schema: self.schema(side),
                format: output.format,
                compression: output.compression,
                dictionaries: false,
                parts: usize::try_from(rows.div_ceil(PART_ROWS)).unwrap_or(usize::MAX),
                arguments: self.describe(side),
            };
            file.produce(output.force, threads, &bar, out, |part| self.part(&keys, side, part as u64))?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Returns the keys if the arguments are valid.
    fn check(&self) -> Result<Keys> {
        if !(0.0..=1.0).contains(&self.match_rate) {
            return exec_err!("The match rate must be from 0 to 1, not {}.", self.match_rate);
        }
        if ![8, 16].contains(&self.tuple) {
            return exec_err!("A tuple has 8 or 16 bytes, not {}.", self.tuple);
        }
        if self.build_payloads.max(self.probe_payloads) > MAX_PAYLOADS {
            return exec_err!("A table has at most {MAX_PAYLOADS} payload columns.");
        }
        if self.tuple == 8 && self.sparse {
            return exec_err!("Keys of 4 bytes cannot be spread over 63 bits: add --tuple 16 or leave out --sparse.");
        }
        // Keys without a match follow those of r.
        let largest = if self.match_rate < 1.0 { 2 * self.build_rows } else { self.build_rows };
        if self.tuple == 8 && i32::try_from(largest).is_err() {
            return exec_err!(
                "Keys up to {largest} do not fit into 4 bytes: add --tuple 16 or choose a smaller scale."
            );
        }
        Keys::new(self.build_rows, self.zipf, self.match_rate, self.sparse, self.sorted, self.seed)
            .ok_or_else(|| exec_datafusion_err!("The Zipf exponent must be 0 or above, not {}.", self.zipf))
    }

    fn rows(&self, side: Side) -> u64 {
        match side {
            Side::Build => self.build_rows,
            Side::Probe => self.probe_rows,
        }
    }

    fn payloads(&self, side: Side) -> usize {
        match side {
            Side::Build => self.build_payloads,
            Side::Probe => self.probe_payloads,
        }
    }

    /// `key`, `payload`, `payload2` …
    fn schema(&self, side: Side) -> SchemaRef {
        let data_type = if self.tuple == 8 { DataType::Int32 } else { DataType::Int64 };
        let payload = |number| if number == 0 { "payload".to_owned() } else { format!("payload{}", number + 1) };
        let names = std::iter::once("key".to_owned()).chain((0..self.payloads(side)).map(payload));
        Arc::new(Schema::new(names.map(|name| Field::new(name, data_type.clone(), false)).collect::<Vec<_>>()))
    }

    /// Everything that determines the content of a side.
    fn describe(&self, side: Side) -> String {
        let Self { build_rows, tuple, seed, .. } = self;
        let sparse = if self.sparse { " --sparse" } else { "" };
        let sorted = if self.sorted { " sorted" } else { "" };
        let drawn = match side {
            Side::Build => String::new(),
            Side::Probe => format!(" --zipf {} --match-rate {}", self.zipf, self.match_rate),
        };
        format!(
            "join {side:?} of {build_rows} keys, {} rows, {} payloads, --tuple {tuple} --seed {seed}{sparse}{sorted}{drawn}",
            self.rows(side),
            self.payloads(side)
        )
    }

    /// The batches of a part, which has its own seed.
    fn part<'a>(
        &'a self,
        keys: &'a Keys,
        side: Side,
        part: u64,
    ) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + 'a {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(1 + 2 * part + u64::from(side == Side::Probe));
        let schema = self.schema(side);
        let end = self.rows(side).min((part + 1) * PART_ROWS);
        (part * PART_ROWS..end).step_by(BATCH_ROWS as usize).map(move |start| {
            let rows = start..end.min(start + BATCH_ROWS);
            let mut columns = vec![match side {
                Side::Build => self.column(rows.clone().map(|row| keys.build(row))),
                Side::Probe => self.column(rows.clone().map(|_| keys.probe(&mut random))),
            }];
            for _ in 0..self.payloads(side) {
                columns.push(self.column(rows.clone().map(|_| random.random_range(0..PAYLOAD_BOUND))));
            }
            RecordBatch::try_new(Arc::clone(&schema), columns)
        })
    }

    /// A column of numbers that are known to fit its type.
    fn column(&self, numbers: impl Iterator<Item = u64>) -> ArrayRef {
        if self.tuple == 8 {
            Arc::new(Int32Array::from_iter_values(numbers.map(|number| number as i32)))
        } else {
            Arc::new(Int64Array::from_iter_values(numbers.map(|number| number as i64)))
        }
    }
}

#[cfg(test)]
mod tests;
