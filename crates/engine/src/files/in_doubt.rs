//! The files that may be the cause of an error.

use std::sync::Arc;

use arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;

/// The most files that are named.
const MOST: usize = 20;

/// Names the files that a plan reads, if an error is about the content of one that it does not name: the words to add to it.
pub fn files_in_doubt(error: &DataFusionError, plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let is_about_content = match error.find_root() {
        DataFusionError::ParquetError(_) => true,
        DataFusionError::ArrowError(error, _) => {
            matches!(**error, ArrowError::ParquetError(_) | ArrowError::IoError(_, _))
        }
        _ => false,
    };
    if !is_about_content {
        return None;
    }
    let mut files = Vec::new();
    let _ = plan.apply(|node| {
        let scan = node.downcast_ref::<DataSourceExec>().and_then(|scan| scan.data_source().downcast_ref());
        if let Some::<&FileScanConfig>(scan) = scan
            && scan.file_source().file_type() == "parquet"
        {
            let read = scan.file_groups.iter().flat_map(|group| group.iter());
            files.extend(read.map(|file| file.object_meta.location.clone()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    files.sort();
    files.dedup();
    if files.is_empty() {
        return None;
    }
    let more = if files.len() > MOST { format!(" and {} more", files.len() - MOST) } else { String::new() };
    let names: Vec<_> = files.iter().take(MOST).map(|file| format!("/{file}")).collect();
    Some(format!("while these files were read: {}{more}", names.join(", ")))
}
