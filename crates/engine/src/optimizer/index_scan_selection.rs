//! Puts [`IndexScanExec`] between filters of an indexed column and the scan of its table.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::Node;
use crate::config::{IndexUse, OverspillConfig};
use crate::index_scan::{IndexScanExec, IndexedScan, words_of};

/// Lets a filter read only rows that an index has for it, unless `overspill.indexes` is `never`.
///
/// The rule runs after all that push filters and projections into scans.
pub(crate) fn index_scan_selection(
    node: &Node,
    _: &ConfigOptions,
    overspill: &OverspillConfig,
) -> Result<Option<Node>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    if overspill.indexes.0 == Some(IndexUse::Never) {
        return Ok(None);
    }
    let Some(input) = below(filter.input(), filter, overspill.indexes.0)? else { return Ok(None) };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(node).replace_children(vec![input], options).map(Some)
}

/// The input of a filter with an index, if its rows are those of a scan.
fn below(node: &Node, filter: &FilterExec, used: Option<IndexUse>) -> Result<Option<Node>> {
    if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
        return Ok(indexed(node, scan, filter, used));
    }
    let moves_rows = node.is::<RepartitionExec>() || node.is::<CooperativeExec>();
    let [input] = node.children()[..] else { return Ok(None) };
    let Some(input) = moves_rows.then(|| below(input, filter, used)).transpose()?.flatten() else { return Ok(None) };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(node).replace_children(vec![input], options).map(Some)
}

fn indexed(node: &Node, scan: &DataSourceExec, filter: &FilterExec, used: Option<IndexUse>) -> Option<Node> {
    // Rows come in the order of the index.
    if node.properties().output_ordering().is_some() {
        return None;
    }
    let schema = node.schema();
    let words = |column: usize| words_of(filter.predicate().as_ref(), column, schema.field(column).data_type());
    let (scan, words) = (0..schema.fields().len()).find_map(|column| {
        let scan = IndexedScan::of(scan, column, |_| true)?;
        Some((scan, words(column)?))
    })?;
    Some(Arc::new(IndexScanExec::new(Arc::clone(node), scan, words, used)))
}
