//! Scans of files, dealt out to ranks.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning};
use overspill::travel::FileKind;

/// Whether a node scans files.
pub fn is_scan(plan: &Arc<dyn ExecutionPlan>) -> bool {
    files(plan).is_some()
}

/// Whether a node scans files of one of Overspill's formats.
pub fn is_of_overspill(plan: &Arc<dyn ExecutionPlan>) -> bool {
    files(plan).is_some_and(|scan| FileKind::of(scan.file_source().as_ref()).is_some())
}

fn files(plan: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref()
}

/// The scan of each rank, whose groups of files follow on each other; `None` for what is no scan that can be dealt out.
pub fn dealt(plan: &Arc<dyn ExecutionPlan>, ranks: usize) -> Result<Option<Vec<Arc<dyn ExecutionPlan>>>> {
    let Some(scan) = files(plan) else { return Ok(None) };
    let source = scan.file_source();
    let is_known = source.is::<ParquetSource>() || FileKind::of(source.as_ref()).is_some();
    let groups = &scan.file_groups;
    if !is_known || groups.len() < 2 || !matches!(plan.output_partitioning(), Partitioning::UnknownPartitioning(_)) {
        return Ok(None);
    }
    let scans = (0..ranks).map(|rank| {
        let mut own = groups[rank * groups.len() / ranks..(rank + 1) * groups.len() / ranks].to_vec();
        if own.is_empty() {
            own.push(FileGroup::new(vec![]));
        }
        let scan = FileScanConfigBuilder::from(scan.clone()).with_file_groups(own).build();
        DataSourceExec::from_data_source(scan) as Arc<dyn ExecutionPlan>
    });
    Ok(Some(scans.collect()))
}
