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
/// It is only for a side whose rows without a partner make no difference. In a join that is `null_aware`, the members of a `NOT IN`
/// also say by a null, or by not being there at all, what becomes of others: lookups are then only in an index without nulls, and only
/// for keys that are not null.
pub(crate) fn index_lookup(
    join: &HashJoinExec,
    null_aware: bool,
    index_dir: &str,
) -> Option<(JoinSide, IndexLookupExec)> {
    use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
    if null_aware && (join.filter().is_some() || join.on().len() > 1) {
        return None;
    }
    let join_type = *join.join_type();
    let of_right = matches!(join_type, Inner | Left | LeftSemi | LeftAnti | LeftMark | RightSemi);
    let of_left = matches!(join_type, Inner | Right | RightSemi | RightAnti | RightMark | LeftSemi);
    let right = of_right.then(|| lookup_in(join, JoinSide::Right, null_aware, index_dir)).flatten();
    right.or_else(|| of_left.then(|| lookup_in(join, JoinSide::Left, null_aware, index_dir)).flatten())
}

fn lookup_in(
    join: &HashJoinExec,
    side: JoinSide,
    null_aware: bool,
    index_dir: &str,
) -> Option<(JoinSide, IndexLookupExec)> {
    let needs_nulls = null_aware || join.null_equality() == NullEquality::NullEqualsNull;
    join.on().iter().find_map(|(left, right)| {
        let (plan, own, other) =
            if side == JoinSide::Left { (join.left(), left, right) } else { (join.right(), right, left) };
        let column = own.downcast_ref::<Column>()?.index();
        let (scan, column) = scanned(plan, column)?;
        let scan = IndexedScan::of(scan, column, needs_nulls, index_dir)?;
        let lookup = Lookup { scan: Arc::new(scan), key: PhysicalExprRef::clone(other), refuses_nulls: null_aware };
        Some((side, IndexLookupExec::new(Arc::clone(plan), lookup)))
    })
}
