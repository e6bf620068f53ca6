//! Where the rows of a file are.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, ParquetRowSelection, RowGroupAccess};
use datafusion::execution::TaskContext;
use datafusion::parquet::arrow::arrow_reader::RowSelection;
use datafusion::parquet::file::metadata::ParquetMetaData;

use super::cost;
use super::scan::{FileScan, Format, path_of};
use crate::files::arrow::{BatchPlace, batch_places};

/// Rows up to this far apart are read as one range: reading the few between them takes less than skipping them. The join or the
/// filter leaves them out.
const GAP: u64 = 8;

/// Rows of a piece of a Parquet file, about: pieces are dealt out to threads.
const PIECE_ROWS: u64 = 4 << 20;

/// Bytes of batches that are read together, unless one has more. The reader of Arrow files has them all in memory.
const TOGETHER_BYTES: u64 = 8 << 20;

/// Rows between two batches up to which these are read together: opening the file once more takes longer than reading the rows.
const BETWEEN_ROWS: u64 = 1 << 15;

/// Where the rows of a file are.
#[derive(Debug, Clone)]
pub(super) enum Layout {
    Parquet(Arc<ParquetMetaData>),
    Arrow(Arc<[BatchPlace]>),
}

/// A part of a file, as a scan reads it.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub file: PartitionedFile,
    pub rows: u64,
}

/// What reading certain rows reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    /// Bytes, and how many pages or batches have the rows.
    pub bytes: u64,
    pub pages: usize,
    /// The time to open the file for each of its parts, as [`cost::opening`] counts it.
    pub opening: u64,
    /// Bytes that reading all rows reads.
    pub all: u64,
}

impl Layout {
    /// Reads where the rows of a file of a scan are.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub async fn read(scan: &FileScan<'_>, part: &PartitionedFile, task: &TaskContext) -> Result<Self> {
        match scan.format {
            Format::Parquet => {
                let store = task.runtime_env().object_store(&scan.config.object_store_url)?;
                let cache = task.runtime_env().cache_manager.get_file_metadata_cache();
                // Leaves the places of pages in the cache, where the scan finds them: for a selection alone it does not read them.
                let metadata = DFParquetMetadata::new(store.as_ref(), &part.object_meta)
                    .with_file_metadata_cache(Some(cache))
                    .fetch_metadata()
                    .await?;
                Ok(Self::Parquet(metadata))
            }
            Format::Arrow => {
                let path = path_of(part);
                let read = tokio::task::spawn_blocking(move || {
                    let places = File::open(&path).and_then(|mut file| batch_places(&mut file));
                    places.map_err(|error| exec_datafusion_err!("{} cannot be read: {error}", path.display()))
                });
                let places = read.await.map_err(|error| exec_datafusion_err!("A file was not read: {error}"))??;
                Ok(Self::Arrow(places.into()))
            }
        }
    }

    pub fn rows(&self) -> u64 {
        match self {
            Self::Parquet(metadata) => metadata.row_groups().iter().map(|group| group.num_rows().unsigned_abs()).sum(),
            Self::Arrow(batches) => batches.iter().map(|batch| batch.rows).sum(),
        }
    }

    /// Pieces that have all rows of the file, in their order.
    pub fn pieces(&self, file: &PartitionedFile) -> Vec<Piece> {
        let file = PartitionedFile { range: None, ..file.clone() };
        match self {
            Self::Parquet(metadata) => {
                let mut groups: Vec<(Range<usize>, u64)> = Vec::new();
                for (number, group) in metadata.row_groups().iter().enumerate() {
                    let rows = group.num_rows().unsigned_abs();
                    match groups.last_mut().filter(|(_, before)| before + rows <= PIECE_ROWS) {
                        Some((groups, before)) => (groups.end, *before) = (number + 1, *before + rows),
                        None => groups.push((number..number + 1, rows)),
                    }
                }
                let piece = |(groups, rows): (Range<usize>, u64)| {
                    let mut access = ParquetAccessPlan::new_none(metadata.num_row_groups());
                    groups.for_each(|group| access.set(group, RowGroupAccess::Scan));
                    Piece { file: file.clone().with_extension(access), rows }
                };
                groups.into_iter().map(piece).collect()
            }
            Self::Arrow(batches) => runs(batches, 0..batches.len())
                .into_iter()
                .map(|run| Piece {
                    rows: batches[run.clone()].iter().map(|batch| batch.rows).sum(),
                    file: range(&file, &batches[run]),
                })
                .collect(),
        }
    }

    /// What reading the rows in these ranges reads, which are in ascending order, of columns with these names.
    pub fn touched(&self, rows: &[Range<u64>], columns: &HashSet<String>) -> Touched {
        match self {
            Self::Parquet(metadata) => pages(metadata, rows, columns),
            Self::Arrow(batches) => {
                let own = with_rows(batches, rows);
                let (pages, runs) = (own.len(), runs(batches, own));
                let opening = cost::opening(runs.len(), batches.len());
                let bytes = runs.into_iter().flat_map(|run| &batches[run]).map(|batch| batch.bytes).sum();
                Touched { bytes, pages, opening, all: batches.iter().map(|batch| batch.bytes).sum() }
            }
        }
    }

    /// The parts of a part of the file that have the rows in these ranges, which are in ascending order. Of an Arrow file they have
    /// others as well.
    pub fn selected(&self, part: &PartitionedFile, rows: &[Range<u64>]) -> Vec<PartitionedFile> {
        match self {
            Self::Parquet(_) => {
                let count = usize::try_from(self.rows()).unwrap_or(usize::MAX);
                let rows = rows.iter().map(|rows| rows.start as usize..rows.end as usize);
                let selection = RowSelection::from_consecutive_ranges(rows, count);
                vec![part.clone().with_extension(ParquetRowSelection::new(selection))]
            }
            Self::Arrow(batches) => {
                let is_in_part = |number: &usize| match &part.range {
                    Some(range) => (range.start..range.end).contains(&batches[*number].offset.cast_signed()),
                    None => true,
                };
                let runs = runs(batches, with_rows(batches, rows).into_iter().filter(is_in_part));
                runs.into_iter().map(|run| range(part, &batches[run])).collect()
            }
        }
    }
}

/// The numbers of the batches that have any of the rows in these ranges, which are in ascending order.
fn with_rows(batches: &[BatchPlace], rows: &[Range<u64>]) -> Vec<usize> {
    let (mut numbers, mut first) = (Vec::new(), 0);
    for (number, batch) in batches.iter().enumerate() {
        let own = first..first + batch.rows;
        first = own.end;
        if has_any(rows, own) {
            numbers.push(number);
        }
    }
    numbers
}

/// Whether any of the rows in ranges, which are in ascending order, are among those of `own`.
fn has_any(rows: &[Range<u64>], own: Range<u64>) -> bool {
    rows.get(rows.partition_point(|rows| rows.end <= own.start)).is_some_and(|rows| rows.start < own.end)
}

/// Runs of batches that are read together: those with these numbers, which are in ascending order, and few between them.
fn runs(batches: &[BatchPlace], numbers: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<(Range<usize>, u64)> = Vec::new();
    for number in numbers {
        let before = runs.last_mut().map(|(run, bytes)| {
            let between: u64 = batches[run.end..number].iter().map(|batch| batch.rows).sum();
            let more: u64 = batches[run.end..=number].iter().map(|batch| batch.bytes).sum();
            (run, bytes, between, more)
        });
        match before.filter(|(_, bytes, between, more)| *between <= BETWEEN_ROWS && **bytes + more <= TOGETHER_BYTES) {
            Some((run, bytes, _, more)) => (run.end, *bytes) = (number + 1, *bytes + more),
            None => runs.push((number..number + 1, batches[number].bytes)),
        }
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

/// The part of a file that has these consecutive batches: a scan reads those that begin in it.
fn range(file: &PartitionedFile, batches: &[BatchPlace]) -> PartitionedFile {
    let start = batches.first().map_or(0, |batch| batch.offset);
    let end = batches.last().map_or(0, |batch| batch.offset + 1);
    file.clone().with_range(start.cast_signed(), end.cast_signed())
}

/// The ranges of rows with these numbers, which are in ascending order, and of the rows of small gaps between them.
pub(super) fn ranges(numbers: &[u64]) -> Vec<Range<u64>> {
    numbers.chunk_by(|one, next| next - one <= GAP).map(|run| run[0]..run[run.len() - 1] + 1).collect()
}

/// Ranges of rows in ascending order, with the rows of small gaps between them.
pub(super) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.dedup_by(|next, before| {
        let is_near = next.start - before.end < GAP;
        if is_near {
            before.end = next.end;
        }
        is_near
    });
    ranges
}

/// What reading the rows in ranges reads of the leaf columns of these columns.
pub(super) fn pages(metadata: &ParquetMetaData, rows: &[Range<u64>], columns: &HashSet<String>) -> Touched {
    let (mut touched, mut first) = (Touched::default(), 0);
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let end = first + group.num_rows().unsigned_abs();
        let has_rows = has_any(rows, first..end);
        for (leaf, chunk) in group.columns().iter().enumerate() {
            let column = group.schema_descr().get_column_root(leaf).name();
            if !columns.contains(column) {
                continue;
            }
            let of_chunk = chunk.compressed_size().unsigned_abs();
            touched.all += of_chunk;
            if !has_rows {
                continue;
            }
            let pages = metadata.offset_index().and_then(|index| index.get(number)?.get(leaf));
            let Some(pages) = pages.map(|index| index.page_locations()).filter(|pages| !pages.is_empty()) else {
                // Without places of pages the whole chunk is read.
                (touched.bytes, touched.pages) = (touched.bytes + of_chunk, touched.pages + 1);
                continue;
            };
            // What is no page of rows is the dictionary, without which none of them is decoded.
            let of_rows: u64 = pages.iter().map(|page| u64::from(page.compressed_page_size.unsigned_abs())).sum();
            touched.bytes += of_chunk.saturating_sub(of_rows);
            for (number, page) in pages.iter().enumerate() {
                let start = first + page.first_row_index.unsigned_abs();
                let next = pages.get(number + 1).map_or(end, |next| first + next.first_row_index.unsigned_abs());
                if has_any(rows, start..next) {
                    touched.bytes += u64::from(page.compressed_page_size.unsigned_abs());
                    touched.pages += 1;
                }
            }
        }
        first = end;
    }
    touched
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(sizes: &[(u64, u64)]) -> Vec<BatchPlace> {
        let mut offset = 8;
        let place = |(rows, bytes): &(u64, u64)| {
            offset += bytes;
            BatchPlace { offset: offset - bytes, bytes: *bytes, rows: *rows }
        };
        sizes.iter().map(place).collect()
    }

    #[test]
    fn batches_that_are_near_each_other_are_read_together() {
        let all = batches(&[(20_000, 100); 8]);
        assert_eq!(with_rows(&all, &[0..1, 19_999..20_000, 40_000..40_001, 159_999..160_000]), [0, 2, 7]);
        // One batch lies between the first two, and four between the others.
        assert_eq!(runs(&all, [0, 2, 7]), [0..3, 7..8]);
        assert_eq!(runs(&all, [0, 1, 2, 7]), [0..3, 7..8]);
        assert!(runs(&all, []).is_empty());
        let large =
            batches(&[(100, TOGETHER_BYTES / 2), (100, TOGETHER_BYTES / 2), (100, 1), (100, 2 * TOGETHER_BYTES)]);
        assert_eq!(runs(&large, 0..4), [0..2, 2..3, 3..4]);
    }

    #[test]
    fn rows_of_small_gaps_are_read() {
        assert_eq!(ranges(&[1, 2, 3, 11, 20]), [1..12, 20..21]);
        assert_eq!(merged(vec![1..4, 11..12, 20..21]), [1..12, 20..21]);
        assert!(ranges(&[]).is_empty() && merged(vec![]).is_empty());
    }

    #[test]
    fn a_selection_has_the_batches_of_its_part_of_the_file() {
        let all = Layout::Arrow(batches(&[(50_000, 1000); 6]).into());
        let file = PartitionedFile::new("a.arrow", 8 + 6000);
        let ranges = |part: &PartitionedFile, rows: &[Range<u64>]| {
            let parts = all.selected(part, rows);
            parts.iter().map(|part| part.range.as_ref().map(|range| (range.start, range.end))).collect::<Vec<_>>()
        };
        let rows = [10..11, 60_000..60_001, 299_999..300_000];
        assert_eq!(ranges(&file, &rows), [Some((8, 1009)), Some((5008, 5009))]);
        let [first, second] = [(0, 1008), (1008, 6008)].map(|(start, end)| file.clone().with_range(start, end));
        assert_eq!(ranges(&first, &rows), [Some((8, 9))]);
        assert_eq!(ranges(&second, &rows), [Some((1008, 1009)), Some((5008, 5009))]);
        let touched = all.touched(&rows, &HashSet::new());
        assert_eq!((touched.bytes, touched.pages, touched.all), (3000, 3, 6000));
    }
}
