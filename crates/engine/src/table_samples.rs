//! Shares of rows that pass filters, from samples of Parquet files.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, filter, max, min};
use arrow::datatypes::{DataType, FieldRef, Int64Type, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use parking_lot::Mutex;

/// Places of a table from which rows are read. Rows beside each other are often alike, so that one place would say little.
const PLACES: usize = 8;

/// With fewer passing rows than this, or places that differ more than by [`LARGEST_ERROR`], a sample is only a hint.
const ENOUGH: usize = 20;
/// The largest standard error of a share that is trusted, relative to it.
const LARGEST_ERROR: f64 = 0.25;
/// The standard errors by which a trusted share may be wrong.
const ERRORS: f64 = 4.0;

/// The most places of a small table that is read as a whole, and its most files.
const MOST_PLACES: usize = 64;

/// A table is sampled as a whole if it has at most this many times the rows of a sample. Eight places of a table of dates would miss most years.
const WHOLE: usize = 4;

/// Bytes of the samples that are kept for later queries.
const KEPT_BYTES: usize = 32 << 20;

/// The share of a table's rows that pass a filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    /// Of all rows of the sample.
    pub share: f64,
    /// What the share of the table is between, if the sample is large enough to tell.
    pub bounds: Option<[f64; 2]>,
}

impl Share {
    /// Counts a sample. `places` has a pair for each place: its rows, and how many of them pass. `is_whole` says that the sample is the whole table.
    fn of(places: &[(usize, usize)], is_whole: bool) -> Option<Self> {
        let (rows, passed) = places.iter().fold((0, 0), |(rows, passed), place| (rows + place.0, passed + place.1));
        if rows == 0 {
            return None;
        }
        let share = passed as f64 / rows as f64;
        if is_whole {
            return Some(Self { share, bounds: Some([share, share]) });
        }
        let count = places.len() as f64;
        let distance = |&(rows, passed): &(usize, usize)| (passed as f64 / rows.max(1) as f64 - share).powi(2);
        let between = places.iter().map(distance).sum::<f64>() / (count - 1.0).max(1.0);
        let error = (between / count).max(share * (1.0 - share) / rows as f64).sqrt();
        let is_trusted = places.len() == PLACES && passed >= ENOUGH && error <= share * LARGEST_ERROR;
        let bounds =
            is_trusted.then(|| [share - ERRORS * error, share + ERRORS * error].map(|end| end.clamp(0.0, 1.0)));
        // Half a row passes where none does: the next one might.
        Some(Self { share: share.max(0.5 / rows as f64), bounds })
    }
}

/// What samples say of the filters of one plan. Rules that look at a filter again need not evaluate it again.
#[derive(Debug, Default)]
pub(crate) struct FilterShares(Mutex<Known>);

/// By the address of a filter's node.
#[derive(Debug, Default)]
struct Known {
    /// The nodes, so that no others have their addresses.
    nodes: HashMap<usize, Arc<dyn ExecutionPlan>>,
    shares: HashMap<usize, Option<Share>>,
    /// Also by the number of the column.
    ranges: HashMap<(usize, usize), Option<[f64; 2]>>,
}

impl FilterShares {
    /// The share of rows that pass a filter's node, as it is known or `count` says.
    pub fn of(&self, node: &Arc<dyn ExecutionPlan>, count: impl FnOnce() -> Option<Share>) -> Option<Share> {
        let address = self.address(node);
        if let Some(share) = self.0.lock().shares.get(&address) {
            return *share;
        }
        let share = count();
        self.0.lock().shares.insert(address, share);
        share
    }

    /// The range of a column in the rows that pass, as it is known or `count` says.
    pub fn range(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        column: usize,
        count: impl FnOnce() -> Option<[f64; 2]>,
    ) -> Option<[f64; 2]> {
        let key = (self.address(node), column);
        if let Some(range) = self.0.lock().ranges.get(&key) {
            return *range;
        }
        let range = count();
        self.0.lock().ranges.insert(key, range);
        range
    }

    fn address(&self, node: &Arc<dyn ExecutionPlan>) -> usize {
        let address = Arc::as_ptr(node).cast::<()>() as usize;
        self.0.lock().nodes.entry(address).or_insert_with(|| Arc::clone(node));
        address
    }
}

/// A file as it was when the query was planned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SampledFile {
    path: PathBuf,
    bytes: u64,
    modified: i64,
    rows: usize,
}

/// Values of a column of a table.
#[derive(Debug)]
struct ColumnSample {
    files: Vec<SampledFile>,
    /// Of the type of the table: another table may read the same files as others.
    field: FieldRef,
    /// The most rows, but of a small table.
    limit: usize,
    places: Vec<ArrayRef>,
}

/// Samples of columns of tables, kept until their files change or others need the room. Those of a table have the same rows.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<VecDeque<Arc<ColumnSample>>>);

impl Samples {
    /// The share of a filter's input that passes, by at most about `limit` rows of it, or by all rows of a table that has at most
    /// [`WHOLE`] times as many. `None` if the input is no scan of Parquet files on this machine, or they cannot be read.
    pub(crate) fn passing(&self, filter: &FilterExec, limit: usize) -> Option<Share> {
        self.count(filter, limit, |sample, predicate, _| sample.passing(predicate))
    }

    /// The least and the greatest value, as numbers, that a column of a filter's output has in the rows that pass. `None` if
    /// the sample is too small to tell, or the column has no integers, dates or times.
    pub(crate) fn passing_range(&self, filter: &FilterExec, column: usize, limit: usize) -> Option<[f64; 2]> {
        let column = filter.projection().as_ref().map_or(Some(&column), |projection| projection.get(column))?;
        self.count(filter, limit, |sample, predicate, config| {
            let Some(name) = name_in_file(config, *column) else { return Ok(None) };
            let field = config.file_schema().field_with_name(&name)?;
            if !field.data_type().is_integer() && !field.data_type().is_temporal() {
                return Ok(None);
            }
            let keys = self.of_table(config, vec![name], limit)?;
            sample.passing_range(predicate, &keys)
        })
    }

    /// What a sample of a filter's columns says of it.
    fn count<T>(
        &self,
        filter: &FilterExec,
        limit: usize,
        count: impl FnOnce(&Sample, &PhysicalExprRef, &FileScanConfig) -> Result<Option<T>>,
    ) -> Option<T> {
        let scan = scan_below(filter.input()).filter(|_| limit > 0)?;
        let (config, _) = scan.downcast_to_file_source::<ParquetSource>()?;
        let (columns, predicate) = over_file(filter.predicate(), config)?;
        let sample = self.of_table(config, columns, limit);
        sample.and_then(|sample| count(&sample, &predicate, config)).unwrap_or_else(|error| {
            tracing::debug!("a table is not sampled: {error}");
            None
        })
    }

    /// A sample of some columns of a table. Those that are not kept are read.
    fn of_table(&self, config: &FileScanConfig, columns: Vec<String>, limit: usize) -> Result<Sample> {
        let files = files_of(config).ok_or_else(|| internal_datafusion_err!("its files have no known rows"))?;
        let fields = columns.iter().map(|name| Ok(Arc::new(config.file_schema().field_with_name(name)?.clone())));
        let fields = fields.collect::<Result<Vec<FieldRef>>>()?;
        let mut known: Vec<Option<Arc<ColumnSample>>> = {
            let kept = self.0.lock();
            let is = |field: &FieldRef, sample: &Arc<ColumnSample>| {
                sample.limit == limit && sample.field == *field && sample.files == files
            };
            fields.iter().map(|field| kept.iter().find(|sample| is(field, sample)).cloned()).collect()
        };
        let missing: Vec<FieldRef> = fields
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none())
            .map(|(field, _)| Arc::clone(field))
            .collect();
        if !missing.is_empty() {
            let places = read_places(&files, Arc::new(Schema::new(missing.clone())), limit)?;
            let mut read = missing.iter().enumerate().map(|(column, field)| {
                let places = places.iter().map(|place| Arc::clone(place.column(column))).collect();
                Arc::new(ColumnSample { files: files.clone(), field: Arc::clone(field), limit, places })
            });
            for sample in known.iter_mut().filter(|sample| sample.is_none()) {
                *sample = read.next();
            }
            self.keep(known.iter().flatten());
        }
        let columns: Vec<Arc<ColumnSample>> = known.into_iter().flatten().collect();
        Sample::new(Arc::new(Schema::new(fields)), &columns, files.iter().map(|file| file.rows).sum())
    }

    /// Keeps samples, the most recent ones last, and drops the oldest ones beyond [`KEPT_BYTES`].
    fn keep<'a>(&self, samples: impl Iterator<Item = &'a Arc<ColumnSample>>) {
        let mut kept = self.0.lock();
        for sample in samples {
            if !kept.iter().any(|known| Arc::ptr_eq(known, sample)) {
                kept.push_back(Arc::clone(sample));
            }
        }
        while kept.iter().map(|sample| sample.bytes()).sum::<usize>() > KEPT_BYTES {
            kept.pop_front();
        }
    }
}

impl ColumnSample {
    fn bytes(&self) -> usize {
        self.places.iter().map(|place| place.get_array_memory_size()).sum()
    }
}

/// Rows of the places of a table.
fn read_places(files: &[SampledFile], schema: SchemaRef, limit: usize) -> Result<Vec<RecordBatch>> {
    let of_place = limit.div_ceil(PLACES);
    let rows: usize = files.iter().map(|file| file.rows).sum();
    let mut reader = Reader { schema, opened: None };
    let mut places = vec![];
    if rows <= limit.saturating_mul(WHOLE) && files.len() <= PLACES {
        let mut read = 0;
        while read < rows && places.len() < MOST_PLACES {
            let place = reader.rows(files, read, of_place)?;
            read += place.num_rows();
            places.push(place);
        }
    } else {
        for place in 0..PLACES {
            // In the middle of an eighth of the table.
            places.push(reader.rows(files, (2 * place + 1) * rows / (2 * PLACES), of_place)?);
        }
    }
    Ok(places)
}

/// Rows of a table: some columns of its places.
#[derive(Debug)]
struct Sample {
    places: Vec<RecordBatch>,
    /// Whether they are all of the table.
    is_whole: bool,
}

impl Sample {
    /// Of columns of a table with `rows` rows.
    fn new(schema: SchemaRef, columns: &[Arc<ColumnSample>], rows: usize) -> Result<Self> {
        let count = columns.first().map_or(0, |column| column.places.len());
        let place = |place: usize| {
            let of_place = columns.iter().map(|column| column.places.get(place).cloned());
            let of_place = of_place.collect::<Option<Vec<_>>>();
            let of_place = of_place.ok_or_else(|| internal_datafusion_err!("a column has fewer places than others"))?;
            RecordBatch::try_new(Arc::clone(&schema), of_place).map_err(DataFusionError::from)
        };
        let places = (0..count).map(place).collect::<Result<Vec<_>>>()?;
        let is_whole = places.iter().map(RecordBatch::num_rows).sum::<usize>() == rows;
        Ok(Self { places, is_whole })
    }

    /// The rows of each place that pass.
    fn evaluate(&self, predicate: &PhysicalExprRef) -> Result<Vec<BooleanArray>> {
        let passing = self.places.iter().map(|place| {
            let passes = predicate.evaluate(place)?.into_array(place.num_rows())?;
            let passes = passes.as_boolean_opt().cloned();
            passes.ok_or_else(|| internal_datafusion_err!("a filter gave no booleans"))
        });
        passing.collect()
    }

    fn share(&self, passing: &[BooleanArray]) -> Option<Share> {
        let places: Vec<_> = passing.iter().map(|place| (place.len(), place.true_count())).collect();
        Share::of(&places, self.is_whole)
    }

    fn passing(&self, predicate: &PhysicalExprRef) -> Result<Option<Share>> {
        Ok(self.share(&self.evaluate(predicate)?))
    }

    /// The range of the only column of `keys`, a sample of the same rows, in the rows that pass.
    fn passing_range(&self, predicate: &PhysicalExprRef, keys: &Self) -> Result<Option<[f64; 2]>> {
        let passing = self.evaluate(predicate)?;
        if self.share(&passing).is_none_or(|share| share.bounds.is_none()) {
            return Ok(None);
        }
        let mut range: Option<[i64; 2]> = None;
        for (place, passes) in keys.places.iter().zip(&passing) {
            let numbers = cast(place.column(0), &DataType::Int64)?;
            let numbers = filter(&numbers, passes)?;
            let numbers = numbers.as_primitive::<Int64Type>();
            if let (Some(least), Some(most)) = (min(numbers), max(numbers)) {
                range = Some(range.map_or([least, most], |[first, last]| [first.min(least), last.max(most)]));
            }
        }
        let passed: usize = passing.iter().map(BooleanArray::true_count).sum();
        Ok(range.map(|[least, most]| {
            let (least, most) = (least as f64, most as f64);
            // Of rows that were not read some lie beyond the outermost that were.
            let beyond = if self.is_whole { 0.0 } else { (most - least) / (passed as f64 - 1.0).max(1.0) };
            [least - beyond, most + beyond]
        }))
    }
}

/// Reads rows of files. It keeps the file that it read last open, as the next rows are often of the same one.
struct Reader {
    /// The columns, of the types of the table.
    schema: SchemaRef,
    opened: Option<(PathBuf, File, ArrowReaderMetadata)>,
}

impl Reader {
    /// Up to `count` rows of one row group, from the row of this number on.
    fn rows(&mut self, files: &[SampledFile], mut first: usize, count: usize) -> Result<RecordBatch> {
        let holds = |rows: usize, first: &mut usize| {
            let is_before = *first < rows;
            if !is_before {
                *first -= rows;
            }
            is_before
        };
        let missing = || internal_datafusion_err!("a file has fewer rows than its statistics say");
        let file = files.iter().find(|file| holds(file.rows, &mut first)).ok_or_else(missing)?;
        if self.opened.as_ref().is_none_or(|(path, ..)| *path != file.path) {
            let opened = File::open(&file.path)?;
            let metadata = ArrowReaderMetadata::load(&opened, ArrowReaderOptions::new())?;
            self.opened = Some((file.path.clone(), opened, metadata));
        }
        let (_, opened, metadata) = self.opened.as_ref().ok_or_else(missing)?;
        let mut groups = metadata.metadata().row_groups().iter().map(|group| group.num_rows() as usize).enumerate();
        let (group, rows) = groups.find(|(_, rows)| holds(*rows, &mut first)).ok_or_else(missing)?;
        let count = count.min(rows - first);
        let names = self.schema.fields().iter().map(|field| field.name().as_str());
        let mask = ProjectionMask::columns(metadata.parquet_schema(), names);
        let selection = RowSelection::from(vec![RowSelector::skip(first), RowSelector::select(count)]);
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(opened.try_clone()?, metadata.clone());
        let reader = reader.with_row_groups(vec![group]).with_projection(mask).with_batch_size(count);
        let mut batches = reader.with_row_selection(selection).build()?;
        let batch = batches.next().ok_or_else(missing)??;
        let column = |field: &Arc<arrow::datatypes::Field>| -> Result<ArrayRef> {
            let column = batch.column_by_name(field.name()).ok_or_else(missing)?;
            Ok(cast(column, field.data_type())?)
        };
        let columns = self.schema.fields().iter().map(column).collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(DataFusionError::from)
    }
}

/// The scan whose rows a filter sees.
fn scan_below(node: &Arc<dyn ExecutionPlan>) -> Option<&DataSourceExec> {
    if node.is::<RepartitionExec>() || node.is::<CoalescePartitionsExec>() {
        return scan_below(node.children()[0]);
    }
    node.downcast_ref()
}

/// The files of a scan; `None` if they are not on this machine, or the rows of one are not known.
fn files_of(config: &FileScanConfig) -> Option<Vec<SampledFile>> {
    if config.object_store_url.as_str() != "file:///" {
        return None;
    }
    let mut files: Vec<SampledFile> = vec![];
    for file in config.file_groups.iter().flat_map(|group| group.iter()) {
        let path = PathBuf::from("/").join(file.object_meta.location.as_ref());
        // Large files are scanned in parts.
        if files.iter().any(|known| known.path == path) {
            continue;
        }
        let rows = *file.statistics.as_ref()?.num_rows.get_value()?;
        let modified = file.object_meta.last_modified.timestamp_micros();
        files.push(SampledFile { path, bytes: file.object_meta.size, modified, rows });
    }
    Some(files)
}

/// The name that a column of a scan has in its files; `None` if it is no column of them.
fn name_in_file(config: &FileScanConfig, column: usize) -> Option<String> {
    let in_table = match config.file_source().projection() {
        Some(projection) => projection.as_ref().get(column)?.expr.downcast_ref::<Column>()?.index(),
        None => column,
    };
    config.file_schema().fields().get(in_table).map(|field| field.name().clone())
}

/// The columns of files that a predicate over a scan reads, and the predicate over these columns. `None` if one is not a column of the files.
fn over_file(predicate: &PhysicalExprRef, config: &FileScanConfig) -> Option<(Vec<String>, PhysicalExprRef)> {
    let name_of = |column: &Column| name_in_file(config, column.index());
    let names = collect_columns(predicate).iter().map(name_of).collect::<Option<Vec<_>>>();
    let mut names = names.filter(|names| !names.is_empty())?;
    names.sort_unstable();
    names.dedup();
    let over = Arc::clone(predicate).transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let name = name_of(column).ok_or_else(|| internal_datafusion_err!("a column has no name"))?;
        let place = names.iter().position(|known| *known == name);
        let place = place.ok_or_else(|| internal_datafusion_err!("a column is not sampled"))?;
        Ok(Transformed::yes(Arc::new(Column::new(&name, place)) as _))
    });
    let over = over.data().ok()?;
    Some((names, over))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_agree_give_bounds() {
        let even = Share::of(&[(4096, 400); PLACES], false).unwrap();
        let [least, most] = even.bounds.unwrap();
        assert!((even.share - 400.0 / 4096.0).abs() < 1e-12);
        assert!(least > 0.08 && least < even.share && most > even.share && most < 0.12, "{even:?}");
        // All passing rows are in one place, as if the table were sorted.
        let mut sorted = [(4096, 0); PLACES];
        sorted[3].1 = 3200;
        let sorted = Share::of(&sorted, false).unwrap();
        assert_eq!((sorted.share, sorted.bounds), (even.share, None));
    }

    #[test]
    fn few_rows_are_a_hint_and_all_rows_the_truth() {
        let few = Share::of(&[(4096, 1); PLACES], false).unwrap();
        assert_eq!((few.share, few.bounds), (1.0 / 4096.0, None));
        let none = Share::of(&[(4096, 0); PLACES], false).unwrap();
        assert_eq!((none.share, none.bounds), (0.5 / 32768.0, None));
        assert_eq!(Share::of(&[(5, 1)], true), Some(Share { share: 0.2, bounds: Some([0.2, 0.2]) }));
        assert_eq!(Share::of(&[(5, 0)], true), Some(Share { share: 0.0, bounds: Some([0.0, 0.0]) }));
        assert_eq!(Share::of(&[], true), None);
    }
}
