//! Scans that read the included columns of an index in place of its files.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetRowSelection;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::parquet::arrow::arrow_reader::RowSelection;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;

use super::catalog::{FileIndex, type_name};
use super::included::IncludedRows;
use super::scan::{FileScan, path_of};

/// Whether an index includes all that a scan reads, of all its files. The rows come in another order.
pub(super) fn is_index_only(index: &FileIndex, scan: &FileScan<'_>) -> bool {
    let description = &index.description;
    // Rows of one file may have to stay together.
    let has_partitions = scan.config.output_partitioning.is_some();
    let is_of_all = scan.files().len() == description.files.len() && scan.reads_rows_once();
    if description.included.is_empty() || has_partitions || !is_of_all {
        return false;
    }
    let schema = scan.source.table_schema();
    let projected = scan.source.projection().into_iter().flat_map(ProjectionExprs::expr_iter);
    let mut read = projected.chain(scan.source.filter());
    schema.virtual_columns().is_empty() && read.all(|expr| is_included(&expr, index, schema.file_schema()))
}

/// Whether an expression can be computed from the columns that an index has.
fn is_included(expr: &Arc<dyn PhysicalExpr>, index: &FileIndex, files: &Schema) -> bool {
    let has = |name: &str, data_type: &str| {
        let field = files.field_with_name(name);
        field.is_ok_and(|field| type_name(field.data_type()) == data_type)
    };
    let description = &index.description;
    let columns = collect_columns(expr);
    let has_columns = columns.iter().map(|column| column.name()).all(|name| {
        let is_own = name == description.column && has(name, &description.data_type);
        is_own || description.included.iter().any(|column| column.name == name && has(name, &column.data_type))
    });
    // Functions without arguments may ask for the name of the file, or the number of the row in it.
    let mut asks_for_place = false;
    let visited = expr.apply(|part| {
        asks_for_place |= part.downcast_ref::<ScalarFunctionExpr>().is_some_and(|function| function.args().is_empty());
        Ok(TreeNodeRecursion::Continue)
    });
    visited.is_ok() && has_columns && !asks_for_place
}

/// The scan of rows of the included columns, which are in ranges in ascending order: about as many in each partition, and in no
/// order.
///
/// # Errors
/// If the columns cannot be read in place of the files.
pub(super) fn selected(
    scan: &FileScan<'_>,
    included: IncludedRows,
    places: &[Range<u64>],
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = scan.source.table_schema();
    let part = scan.config.file_groups.iter().find_map(|group| group.iter().next());
    let part = part.ok_or_else(|| internal_datafusion_err!("the scan reads no file"))?;
    let mut file = PartitionedFile::new(path_of(part).to_string_lossy(), included.bytes());
    // No column of the names of folders is read.
    let folders = schema.table_partition_cols().iter();
    file.partition_values = folders.map(|field| ScalarValue::try_from(field.data_type())).collect::<Result<_>>()?;
    let total: u64 = included.metadata.row_groups().iter().map(|group| group.num_rows().unsigned_abs()).sum();
    let rows: u64 = places.iter().map(|places| places.end - places.start).sum();
    let streams = scan.config.file_groups.len().max(1) as u64;
    let groups = (0..streams).map(|stream| {
        let own = part_of(places, rows * stream / streams..rows * (stream + 1) / streams);
        if own.is_empty() {
            return FileGroup::new(vec![]);
        }
        let own = own.into_iter().map(|places| places.start as usize..places.end as usize);
        let selection = RowSelection::from_consecutive_ranges(own, total as usize);
        FileGroup::new(vec![file.clone().with_extension(ParquetRowSelection::new(selection))])
    });
    let groups = groups.collect();
    let source: Arc<dyn FileSource> = match scan.source.downcast_ref::<ParquetSource>() {
        Some(source) => Arc::new(source.clone().with_parquet_file_reader_factory(Arc::new(included))),
        None => {
            let source = ParquetSource::new(schema.clone()).with_parquet_file_reader_factory(Arc::new(included));
            let projected = scan.source.projection().map(|projection| source.try_pushdown_projection(projection));
            let projected = projected.transpose()?.flatten();
            projected.ok_or_else(|| internal_datafusion_err!("the included columns cannot be projected"))?
        }
    };
    let config = FileScanConfigBuilder::from(scan.config.clone()).with_source(source).with_file_groups(groups);
    let config = config.with_output_ordering(vec![]).with_preserve_order(false).build();
    Ok(DataSourceExec::from_data_source(config))
}

/// Of the rows in ranges, those whose number among them is in `share`.
fn part_of(places: &[Range<u64>], share: Range<u64>) -> Vec<Range<u64>> {
    let (mut part, mut before) = (Vec::new(), 0);
    for places in places {
        let count = places.end - places.start;
        let start = share.start.clamp(before, before + count);
        let end = share.end.clamp(before, before + count);
        if start < end {
            part.push(places.start + start - before..places.start + end - before);
        }
        before += count;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_each_row_once() {
        let places = [3..5, 9..10, 20..40];
        let all: Vec<u64> = places.iter().cloned().flatten().collect();
        for streams in [1, 2, 3, 7, 50] {
            let rows = all.len() as u64;
            let shares = (0..streams)
                .flat_map(|stream| part_of(&places, rows * stream / streams..rows * (stream + 1) / streams));
            assert_eq!(shares.flatten().collect::<Vec<_>>(), all, "{streams} streams");
        }
    }
}
