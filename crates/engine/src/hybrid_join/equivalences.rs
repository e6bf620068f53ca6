//! What is known of the columns of a join's result.

use std::sync::Arc;

use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::equivalence::{EquivalenceClass, EquivalenceGroup};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};

/// What holds of the rows that an operator of ours puts out for a join, by what DataFusion says of the join.
///
/// They come in no order. DataFusion 55 believes that a column which is the same in all rows of a side is so behind an outer join
/// that fills it with NULL, and leaves out what sorts and groups by it. So nothing is kept of columns that the join fills but
/// that two of them are equal.
///
/// `left_columns` is how many columns the left side has, and `projection` which columns of the join the result has.
pub(crate) fn of_join(
    planned: &EquivalenceProperties,
    join_type: JoinType,
    left_columns: usize,
    projection: Option<&[usize]>,
) -> Result<EquivalenceProperties> {
    let (fills_left, fills_right) = match join_type {
        JoinType::Left => (false, true),
        JoinType::Right => (true, false),
        JoinType::Full => (true, true),
        _ => {
            let mut same = planned.clone();
            same.clear_orderings();
            return Ok(same);
        }
    };
    let is_of = |expr: &Arc<dyn PhysicalExpr>, left: bool| {
        let columns = collect_columns(expr);
        columns.iter().any(|column| {
            let of_join = projection.map_or(column.index(), |projection| projection[column.index()]);
            (of_join < left_columns) == left
        })
    };
    let is_filled =
        |expr: &Arc<dyn PhysicalExpr>| (fills_left && is_of(expr, true)) || (fills_right && is_of(expr, false));
    let mut classes = vec![];
    for class in planned.eq_group().iter() {
        // What is the same on both sides, such as a number, is not behind the join.
        classes.push(EquivalenceClass::new(class.iter().filter(|expr| !is_filled(expr)).cloned()));
        for left in [true, false] {
            // Where a side is NULL, `y` is, and `coalesce(x, 0)` is not.
            let columns = class.iter().filter(|expr| expr.is::<Column>() && is_filled(expr) && is_of(expr, left));
            classes.push(EquivalenceClass::new(columns.cloned()));
        }
    }
    let mut group = EquivalenceGroup::new(classes.into_iter().filter(|class| class.len() > 1));
    for constant in planned.constants() {
        if !is_filled(&constant.expr) && !constant.expr.is::<Literal>() {
            group.add_constant(constant);
        }
    }
    let mut known = EquivalenceProperties::new(Arc::clone(planned.schema()));
    known.set_constraints(planned.constraints().clone());
    known.add_equivalence_group(group)?;
    Ok(known)
}
