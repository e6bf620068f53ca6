//! Puts [`IndexScanExec`] between filters of an indexed column and the scan of its table.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::Node;
use crate::config::{IndexUse, OverspillConfig};
use crate::index_scan::{IndexScanExec, IndexedScan, words_of};
use crate::indexes::files::FileScan;

/// Lets a filter read only rows that an index has for it, unless `overspill.indexes` is `never`.
///
/// The rule runs after all that push filters and projections into scans.
pub(crate) fn index_scan_selection(
    node: &Node,
    _: &ConfigOptions,
    overspill: &OverspillConfig,
) -> Result<Option<Node>> {
    if overspill.indexes.0 == Some(IndexUse::Never) {
        return Ok(None);
    }
    if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
        return Ok(in_files(node, scan, overspill));
    }
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    let Some(input) = below(filter.input(), filter, overspill)? else { return Ok(None) };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(node).replace_children(vec![input], options).map(Some)
}

/// The scan of files with an index for the filter that was pushed into it.
fn in_files(node: &Node, scan: &DataSourceExec, overspill: &OverspillConfig) -> Option<Node> {
    let files = FileScan::of(scan)?;
    let predicate = files.source.filter()?;
    let mut columns: Vec<_> = collect_columns(&predicate).into_iter().collect();
    columns.sort_unstable_by_key(Column::index);
    let (mut scan, words) = columns.iter().find_map(|column| {
        let (name, data_type) = files.table_column(column.name())?;
        let words = words_of(predicate.as_ref(), column.index(), data_type)?;
        Some((IndexedScan::in_files(scan, &files, name, false, &overspill.index_dir)?, words))
    })?;
    if node.properties().equivalence_properties().oeq_class().len() > 1 {
        // A sort restores one order.
        scan.read_files();
    }
    Some(Arc::new(IndexScanExec::new(Arc::clone(node), scan, words, overspill.indexes.0)))
}

/// The input of a filter with an index, if its rows are those of a scan that takes no filter: of a table in memory or of Arrow files.
fn below(node: &Node, filter: &FilterExec, overspill: &OverspillConfig) -> Result<Option<Node>> {
    if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
        return Ok(scanned(node, scan, filter, overspill));
    }
    let moves_rows = node.is::<RepartitionExec>() || node.is::<CooperativeExec>();
    let [input] = node.children()[..] else { return Ok(None) };
    let Some(input) = moves_rows.then(|| below(input, filter, overspill)).transpose()?.flatten() else {
        return Ok(None);
    };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(node).replace_children(vec![input], options).map(Some)
}

fn scanned(node: &Node, scan: &DataSourceExec, filter: &FilterExec, overspill: &OverspillConfig) -> Option<Node> {
    // Rows come in the order of the index.
    if node.properties().output_ordering().is_some() {
        return None;
    }
    let schema = node.schema();
    let (scan, words) = (0..schema.fields().len()).find_map(|column| {
        let words = words_of(filter.predicate().as_ref(), column, schema.field(column).data_type())?;
        Some((IndexedScan::of(scan, column, false, &overspill.index_dir)?, words))
    })?;
    Some(Arc::new(IndexScanExec::new(Arc::clone(node), scan, words, overspill.indexes.0)))
}
