//! One table in one file, generated and encoded by several threads. The file gets its name when it is complete.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use clap::ValueEnum;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use indicatif::ProgressBar;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::FileReader as _;
use parquet::file::serialized_reader::SerializedFileReader;

use crate::report::size;

/// The metadata key of a file's generation arguments.
const ARGUMENTS_KEY: &str = "overspill.datagen";

/// The metadata key of an Arrow file's row count; a Parquet file records it by itself.
const ROWS_KEY: &str = "overspill.rows";

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Parquet
    Parquet,
    /// The Arrow IPC file format
    Arrow,
}

impl Format {
    /// The file name extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }
}

/// How Parquet pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// Not at all
    None,
    /// Snappy: fast to read
    Snappy,
    /// Zstandard at level 1: smaller
    Zstd,
}

/// A file generated from parts. Parts are generated concurrently and stored in order.
pub(super) struct TableFile {
    pub(super) path: PathBuf,
    pub(super) schema: SchemaRef,
    pub(super) format: Format,
    pub(super) compression: Compression,
    /// Whether Parquet columns may be dictionary encoded, which is wasted time for keys and random numbers.
    pub(super) dictionaries: bool,
    /// The number of parts. Each becomes a row group of a Parquet file.
    pub(super) parts: usize,
    /// Everything that determines the content, to decide whether an existing file is the wanted one.
    pub(super) arguments: String,
}

impl TableFile {
    /// Generates the file unless it exists, and reports it on `out`. `part` returns the batches of a part; `threads` threads
    /// call it once per part. `bar` advances by rows.
    pub(super) fn produce<I>(
        &self,
        force: bool,
        threads: usize,
        bar: &ProgressBar,
        out: &mut dyn Write,
        part: impl Fn(usize) -> I + Sync,
    ) -> Result<()>
    where
        I: Iterator<Item = Result<RecordBatch, ArrowError>>,
    {
        let (verb, rows) = if !force && self.path.exists() {
            let rows = self.check_existing()?;
            bar.inc(rows);
            ("kept", rows)
        } else {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy();
            let partial = Partial::create(self.path.with_file_name(format!(".{name}.partial")))?;
            let rows = self.write(&partial, threads, bar, part).map_err(|error| {
                // The message of a failed write does not name the file.
                error.context(format!("The file '{}' could not be generated", self.path.display()))
            })?;
            partial.rename(&self.path)?;
            ("wrote", rows)
        };
        let bytes = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        // Ignore write errors, as the reader may have closed `out`.
        bar.suspend(|| _ = writeln!(out, "{verb} {}: {rows} rows, {}", self.path.display(), size(bytes)));
        Ok(())
    }

    /// The number of rows of the existing file, if it was made with the same arguments.
    fn check_existing(&self) -> Result<u64> {
        let read = || match self.format {
            Format::Parquet => {
                let reader = SerializedFileReader::new(File::open(&self.path)?)?;
                let metadata = reader.metadata().file_metadata();
                let pairs = metadata.key_value_metadata();
                let arguments = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == ARGUMENTS_KEY));
                let arguments = arguments.and_then(|pair| pair.value.clone());
                Ok::<_, DataFusionError>((arguments, u64::try_from(metadata.num_rows()).unwrap_or(0)))
            }
            Format::Arrow => {
                let reader = FileReader::try_new(File::open(&self.path)?, None)?;
                let metadata: &HashMap<String, String> = reader.custom_metadata();
                let rows = metadata.get(ROWS_KEY).and_then(|rows| rows.parse().ok()).unwrap_or(0);
                Ok((metadata.get(ARGUMENTS_KEY).cloned(), rows))
            }
        };
        match read() {
            Ok((Some(arguments), rows)) if arguments == self.arguments => Ok(rows),
            Ok((Some(arguments), _)) => exec_err!(
                "The file '{}' is there already, but it was generated with other arguments ({arguments}, not {}). \
                 Choose another directory, or replace it with --force.",
                self.path.display(),
                self.arguments
            ),
            Ok((None, _)) | Err(_) => exec_err!(
                "The file '{}' is there already, but it was not generated by Overspill. Choose another directory, or \
                 replace it with --force.",
                self.path.display()
            ),
        }
    }

    fn write<I>(
        &self,
        partial: &Partial,
        threads: usize,
        bar: &ProgressBar,
        part: impl Fn(usize) -> I + Sync,
    ) -> Result<u64>
    where
        I: Iterator<Item = Result<RecordBatch, ArrowError>>,
    {
        let output = BufWriter::with_capacity(1 << 20, &partial.file);
        match self.format {
            Format::Parquet => {
                let writer = ArrowWriter::try_new(output, Arc::clone(&self.schema), Some(self.properties()?))?;
                let (mut writer, row_groups) = writer.into_serialized_writer()?;
                let encode = |number| self.encode_row_group(&row_groups, number, part(number));
                let rows = in_order(self.parts, threads, encode, |(rows, columns)| {
                    let mut row_group = writer.next_row_group()?;
                    for column in columns {
                        column.append_to_row_group(&mut row_group)?;
                    }
                    row_group.close()?;
                    bar.inc(rows);
                    Ok(rows)
                })?;
                writer.finish()?;
                writer.inner_mut().flush()?;
                Ok(rows)
            }
            Format::Arrow => {
                let mut writer = FileWriter::try_new(output, &self.schema)?;
                let collect = |number| Ok(part(number).collect::<Result<Vec<_>, _>>()?);
                let rows = in_order(self.parts, threads, collect, |batches| {
                    let mut rows = 0;
                    for batch in batches {
                        writer.write(&batch)?;
                        rows += batch.num_rows() as u64;
                    }
                    bar.inc(rows);
                    Ok(rows)
                })?;
                writer.write_metadata(ARGUMENTS_KEY, &self.arguments);
                writer.write_metadata(ROWS_KEY, rows.to_string());
                writer.finish()?;
                writer.get_mut().flush()?;
                Ok(rows)
            }
        }
    }

    fn properties(&self) -> Result<WriterProperties> {
        let compression = match self.compression {
            Compression::None => ParquetCompression::UNCOMPRESSED,
            Compression::Snappy => ParquetCompression::SNAPPY,
            Compression::Zstd => ParquetCompression::ZSTD(ZstdLevel::try_new(1)?),
        };
        Ok(WriterProperties::builder()
            .set_compression(compression)
            .set_dictionary_enabled(self.dictionaries)
            // A part is a row group, regardless of its size.
            .set_max_row_group_row_count(None)
            .set_key_value_metadata(Some(vec![KeyValue::new(ARGUMENTS_KEY.to_owned(), self.arguments.clone())]))
            .build())
    }

    /// The number of rows of a row group, and its encoded columns.
    fn encode_row_group(
        &self,
        row_groups: &ArrowRowGroupWriterFactory,
        number: usize,
        batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    ) -> Result<(u64, Vec<ArrowColumnChunk>)> {
        let mut writers = row_groups.create_column_writers(number)?;
        let mut rows = 0;
        for batch in batches {
            let batch = batch?;
            rows += batch.num_rows() as u64;
            let mut writers = writers.iter_mut();
            for (field, column) in self.schema.fields().iter().zip(batch.columns()) {
                for (leaf, writer) in compute_leaves(field, column)?.iter().zip(writers.by_ref()) {
                    writer.write(leaf)?;
                }
            }
        }
        let columns = writers.into_iter().map(|writer| writer.close()).collect::<Result<_, _>>()?;
        Ok((rows, columns))
    }
}

/// Makes `count` parts on several threads and takes them in order. Returns the sum of the results of `take`.
///
/// Thread t makes the parts t, t + threads, and so on, and no thread is more than two parts ahead of the taker, so that
/// memory is bounded.
fn in_order<P: Send>(
    count: usize,
    threads: usize,
    make: impl Fn(usize) -> Result<P> + Sync,
    mut take: impl FnMut(P) -> Result<u64>,
) -> Result<u64> {
    let threads = threads.clamp(1, count.max(1));
    std::thread::scope(|scope| {
        let makers: Vec<Receiver<Result<P>>> = (0..threads)
            .map(|first| {
                let (sender, receiver): (SyncSender<Result<P>>, _) = sync_channel(0);
                let make = &make;
                scope.spawn(move || {
                    for number in (first..count).step_by(threads) {
                        // The taker has ended because a part failed.
                        if sender.send(make(number)).is_err() {
                            return;
                        }
                    }
                });
                receiver
            })
            .collect();
        let mut sum = 0;
        for number in 0..count {
            let part = makers[number % threads].recv();
            let part = part.map_err(|_| exec_datafusion_err!("A thread that generates data has stopped"))?;
            sum += take(part?)?;
        }
        Ok(sum)
    })
}

/// A file without its final name. It is removed unless it gets that name.
struct Partial {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Partial {
    /// Opens the file with a lock, which keeps a second process from generating the same file. Overwrites what an interrupted
    /// process left under this name.
    fn create(path: PathBuf) -> Result<Self> {
        let failed =
            |error: std::io::Error| exec_datafusion_err!("The file '{}' cannot be written to: {error}", path.display());
        let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return exec_err!("Another process is writing the file '{}'.", path.display());
        }
        file.set_len(0).map_err(failed)?;
        Ok(Self { path, file, renamed: false })
    }

    fn rename(mut self, to: &Path) -> Result<()> {
        fs::rename(&self.path, to)
            .map_err(|error| exec_datafusion_err!("The file '{}' cannot be created: {error}", to.display()))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.renamed {
            _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
