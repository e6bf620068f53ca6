//! Finds joins that may look rows up in an index.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::HashJoinExec;

use super::exec::IndexLookupExec;
use super::lookup::Lookup;
use super::side::scanned;
use crate::index_scan::IndexedScan;

/// The lookup in place of a side of a join, and which side; `None` if there is no index for either. `index_dir` is that of the
/// settings.
///
/// It is only for a side whose rows without a partner make no difference.
pub(crate) fn index_lookup(join: &HashJoinExec, index_dir: &str) -> Option<(JoinSide, IndexLookupExec)> {
    use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
    if join.null_aware {
        return None;
    }
    let join_type = *join.join_type();
    let of_right = matches!(join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark | RightSemi);
    let of_left = matches!(join_type, Inner | Right | RightSemi | RightAnti | RightMark | LeftSemi);
    let right = of_right.then(|| lookup_in(join, JoinSide::Right, index_dir)).flatten();
    right.or_else(|| of_left.then(|| lookup_in(join, JoinSide::Left, index_dir)).flatten())
}

fn lookup_in(join: &HashJoinExec, side: JoinSide, index_dir: &str) -> Option<(JoinSide, IndexLookupExec)> {
    let nulls_match = join.null_equality() == NullEquality::NullEqualsNull;
    join.on().iter().find_map(|(left, right)| {
        let (plan, own, other) =
            if side == JoinSide::Left { (join.left(), left, right) } else { (join.right(), right, left) };
        let column = own.downcast_ref::<Column>()?.index();
        let (scan, column) = scanned(plan, column)?;
        let scan = IndexedScan::of(scan, column, nulls_match, index_dir)?;
        let lookup = Lookup { scan: Arc::new(scan), key: PhysicalExprRef::clone(other) };
        Some((side, IndexLookupExec::new(Arc::clone(plan), lookup)))
    })
}
