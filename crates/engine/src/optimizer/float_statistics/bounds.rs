//! Bounds of floats.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, Statistics};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;

use super::has_floats;
use crate::config::OverspillConfig;
use crate::optimizer::Node;

/// Drops the least and greatest values of float columns from the statistics of Parquet files.
pub(crate) fn float_bounds(node: &Node, _: &ConfigOptions, _: &OverspillConfig) -> Result<Option<Node>> {
    Ok(without_float_bounds(node.as_ref()))
}

/// The scan of Parquet files without bounds of floats; `None` for other nodes.
fn without_float_bounds(node: &dyn ExecutionPlan) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = node.downcast_ref::<DataSourceExec>()?;
    let (config, _) = scan.downcast_to_file_source::<ParquetSource>()?;
    let schema = config.file_source().table_schema().table_schema();
    if !schema.fields().iter().any(|field| has_floats(field.data_type())) {
        return None;
    }
    let file_groups = config.file_groups.iter().map(|group| {
        let of_group = group.file_statistics(None).cloned();
        let mut files = group.clone().into_inner();
        for file in &mut files {
            if let Some(statistics) = &mut file.statistics {
                drop_float_bounds(Arc::make_mut(statistics), schema);
            }
        }
        match of_group {
            Some(mut statistics) => {
                drop_float_bounds(&mut statistics, schema);
                FileGroup::new(files).with_statistics(Arc::new(statistics))
            }
            None => FileGroup::new(files),
        }
    });
    let file_groups = file_groups.collect();
    // Before any filter is pushed down these are the statistics of all files, and exact if the file statistics are.
    let mut statistics = config.statistics();
    drop_float_bounds(&mut statistics, schema);
    let config = FileScanConfigBuilder::from(config.clone()).with_file_groups(file_groups).with_statistics(statistics);
    Some(Arc::new(scan.clone().with_data_source(Arc::new(config.build()))))
}

fn drop_float_bounds(statistics: &mut Statistics, schema: &Schema) {
    for (field, column) in schema.fields().iter().zip(&mut statistics.column_statistics) {
        if has_floats(field.data_type()) {
            (column.min_value, column.max_value) = (Precision::Absent, Precision::Absent);
        }
    }
}
