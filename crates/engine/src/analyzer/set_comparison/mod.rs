//! Comparisons with ANY or ALL rows of a subquery.
//!
//! DataFusion 55 rewrites them to EXISTS, with the comparison as the condition of the subquery. This is wrong if the compared
//! expression and the subquery name the same table: in `i >= ALL (SELECT i FROM t)` both sides become the column of the
//! subquery, and every row passes. It also evaluates the subquery two or three times. [`order_comparison`] rewrites all of
//! them except `= ANY` and `<> ALL`, which are memberships and planned as such.

mod correlation;
mod order;
mod summary;
mod summary_field;

pub(super) use order::order_comparison;
pub(crate) use summary_field::SummaryField;
