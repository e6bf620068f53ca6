//! A table over the files that a path names.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{FieldRef, Schema, SchemaBuilder, SchemaRef};
use arrow::record_batch::RecordBatchOptions;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{
    ColumnStatistics, DFSchema, Result, ScalarValue, Statistics, internal_datafusion_err, plan_datafusion_err,
    plan_err, project_schema,
};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::helpers::expr_applicable_for_cols;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl, PartitionedFile,
};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::object_store::ObjectStore;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use futures::{StreamExt, TryStreamExt};
use overspill::write_aside::appended_aside;

use super::listing::{Found, literal_url};
use super::partitions;
use super::selection::{Selection, local_files};

/// The files that a path names. Each scan lists them again.
#[derive(Debug)]
pub struct FilesTable {
    selection: Selection,
    format: Arc<dyn FileFormat>,
    /// The columns stored in the files.
    file_schema: SchemaRef,
    /// The columns from the folders' names.
    partition_columns: Vec<FieldRef>,
    /// All columns.
    schema: SchemaRef,
    /// The SQL that defines the table.
    definition: Option<String>,
}

impl FilesTable {
    pub fn new(
        selection: Selection,
        format: Arc<dyn FileFormat>,
        file_schema: SchemaRef,
        partition_columns: Vec<FieldRef>,
        definition: Option<String>,
    ) -> Self {
        let mut all = SchemaBuilder::from(file_schema.as_ref().clone());
        for column in &partition_columns {
            all.push(Arc::clone(column));
        }
        let schema = Arc::new(all.finish().with_metadata(file_schema.metadata().clone()));
        Self { selection, format, file_schema, partition_columns, schema, definition }
    }

    fn is_of_partitions(&self, filter: &Expr) -> bool {
        let names: Vec<_> = self.partition_columns.iter().map(|column| column.name().as_str()).collect();
        !names.is_empty() && expr_applicable_for_cols(&names, filter)
    }

    /// The files whose folders pass the filters on the columns from the folders' names.
    async fn files(&self, state: &dyn Session, filters: &[Expr]) -> Result<Vec<PartitionedFile>> {
        let found = self.selection.files().await?;
        let files = found.iter().filter(|file| file.object.size > 0).map(|file| self.partitioned(file));
        let files = files.collect::<Result<Vec<_>>>()?;
        let on_folders: Vec<_> = filters.iter().filter(|filter| self.is_of_partitions(filter)).cloned().collect();
        let Some(filter) = conjunction(on_folders) else { return Ok(files) };
        if files.is_empty() {
            return Ok(files);
        }
        let schema = Schema::new(self.partition_columns.clone());
        let columns = (0..self.partition_columns.len())
            .map(|column| ScalarValue::iter_to_array(files.iter().map(|file| file.partition_values[column].clone())));
        let options = RecordBatchOptions::new().with_row_count(Some(files.len()));
        let folders = RecordBatch::try_new_with_options(
            Arc::new(schema.clone()),
            columns.collect::<Result<Vec<_>>>()?,
            &options,
        )?;
        let passes = state.create_physical_expr(filter, &DFSchema::try_from(schema)?)?;
        let passes = passes.evaluate(&folders)?.into_array(files.len())?;
        // NULL passes no filter, whatever its underlying bit is.
        let passes = passes.as_boolean().iter().map(|passes| passes == Some(true));
        Ok(files.into_iter().zip(passes).filter_map(|(file, passes)| passes.then_some(file)).collect())
    }

    fn partitioned(&self, file: &Found) -> Result<PartitionedFile> {
        let values = partitions::values(file, &self.partition_columns)?;
        Ok(PartitionedFile::new_from_meta(file.object.clone()).with_partition_values(values))
    }

    /// The known statistics of a file's and its folders' values.
    async fn statistics(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        file: &PartitionedFile,
    ) -> Result<Statistics> {
        let object = &file.object_meta;
        let schema = Arc::clone(&self.file_schema);
        let inferred = self.format.infer_stats(state, store, schema, object).await;
        let mut statistics = inferred
            .map_err(|error| plan_datafusion_err!("cannot read /{}: {}", object.location, error.strip_backtrace()))?;
        for (column, field) in statistics.column_statistics.iter_mut().zip(self.file_schema.fields()) {
            // A file may have a narrower type than the table.
            let fits = |value: &Precision<ScalarValue>| {
                value.get_value().is_none_or(|value| value.data_type() == *field.data_type())
            };
            if !fits(&column.min_value) || !fits(&column.max_value) {
                *column = ColumnStatistics::new_unknown();
            }
        }
        for value in &file.partition_values {
            let column = if value.is_null() {
                ColumnStatistics { null_count: statistics.num_rows, ..ColumnStatistics::new_unknown() }
            } else {
                ColumnStatistics {
                    null_count: Precision::Exact(0),
                    min_value: Precision::Exact(value.clone()),
                    max_value: Precision::Exact(value.clone()),
                    ..ColumnStatistics::new_unknown()
                }
            };
            statistics.column_statistics.push(column);
        }
        Ok(statistics)
    }
}

#[async_trait]
impl TableProvider for FilesTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.definition.as_deref()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut files = self.files(state, filters).await?;
        if files.is_empty() {
            return Ok(Arc::new(EmptyExec::new(project_schema(&self.schema, projection)?)));
        }
        let url = local_files()?;
        let store = state.runtime_env().object_store(&url)?;
        let mut statistics = Statistics::new_unknown(&self.schema);
        if state.config().collect_statistics() {
            let concurrency = state.config_options().execution.meta_fetch_concurrency.get();
            let asked: Vec<_> = files.iter().map(|file| self.statistics(state, &store, file)).collect();
            let known: Vec<_> = futures::stream::iter(asked).buffered(concurrency).try_collect().await?;
            statistics = Statistics::try_merge_iter(&known, &self.schema)?;
            for (file, known) in files.iter_mut().zip(known) {
                file.statistics = Some(Arc::new(known));
            }
        }
        let table_schema = TableSchema::builder(Arc::clone(&self.file_schema))
            .with_table_partition_cols(self.partition_columns.clone())
            .build();
        let config = FileScanConfigBuilder::new(url.object_store(), self.format.file_source(table_schema))
            .with_file_groups(FileGroup::new(files).split_files(state.config().target_partitions()))
            .with_statistics(statistics)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        self.format.create_physical_plan(state, config).await
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let pushdown = |filter: &&Expr| match self.is_of_partitions(filter) {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Inexact,
        };
        Ok(filters.iter().map(pushdown).collect())
    }

    async fn insert_into(
        &self,
        state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert_op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Selection { name, path, named: Some(named) } = &self.selection else {
            return plan_err!("rows cannot be inserted into the files of a pattern, '{}'", self.selection.name);
        };
        if !Path::new(path).is_dir() || !self.partition_columns.is_empty() {
            return plan_err!(
                "rows cannot be inserted into '{name}': they go to a folder of files without key=value folders, or to a \
                 new file with COPY … TO"
            );
        }
        let options = ListingOptions::new(Arc::clone(&self.format)).with_file_extension(&named.suffix);
        let url = literal_url(Path::new(path)).ok_or_else(|| plan_datafusion_err!("'{name}' is not a usable path"))?;
        let config = ListingTableConfig::new(ListingTableUrl::try_new(url, None)?)
            .with_listing_options(options)
            .with_schema(Arc::clone(&self.file_schema));
        let table = appended_aside(&ListingTable::try_new(config)?);
        let table = table.ok_or_else(|| internal_datafusion_err!("'{name}' is not a folder of this machine"))?;
        table.insert_into(state, input, insert_op).await
    }
}
