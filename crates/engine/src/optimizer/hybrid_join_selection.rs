//! Replaces DataFusion's hash joins by [`HybridJoinExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::joins::HashJoinExec;

use super::Node;
use crate::config::OverspillConfig;
use crate::hybrid_join::HybridJoinExec;

/// Replaces every [`HashJoinExec`] that [`HybridJoinExec::supports`] by a [`HybridJoinExec`].
///
/// The rule runs between `join_selection` and the rules that enforce distribution and order: a hybrid join does not keep the
/// order of its probe side, and only later rules can add the sorts that are then needed.
pub(crate) fn hybrid_join_selection(node: &Node, _: &ConfigOptions, _: &OverspillConfig) -> Result<Option<Node>> {
    match node.downcast_ref::<HashJoinExec>() {
        Some(join) if HybridJoinExec::supports(join) => Ok(Some(Arc::new(HybridJoinExec::try_new(join)?))),
        _ => Ok(None),
    }
}
