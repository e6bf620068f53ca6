//! The known equivalences of columns in a join's result.

use std::sync::Arc;

use datafusion::common::{JoinType, Result};
use datafusion::physical_expr::equivalence::{EquivalenceClass, EquivalenceGroup};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};

/// The equivalence properties of one of our join operators, derived from those that DataFusion gives its own (`planned`).
///
/// Our operators keep no order. DataFusion 55 assumes that a column that is constant in one input is constant in the result,
/// although an outer join fills it with NULL, and drops sorts by it. So for columns that the join fills, only equalities with
/// one another are kept.
///
/// `left_columns` is the number of columns of the left side. `projection` gives, for each column of the result, its position
/// among those of both sides.
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
        // Columns of both sides that equal the same literal share a class: after the join they are no longer equal.
        classes.push(EquivalenceClass::new(class.iter().filter(|expr| !is_filled(expr)).cloned()));
        for left in [true, false] {
            // In a filled row every column is NULL, but an expression such as `coalesce(x, 0)` may be not NULL.
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
