//! Compares values of different types as SQL does. DataFusion 55 would bring them to a type that cannot hold them.
//!
//! | types | DataFusion 55 | here, as in PostgreSQL |
//! |---|---|---|
//! | `DOUBLE` with `DECIMAL` | rounds the `DOUBLE` to 15 decimal places; NaN is an error | as `DOUBLE` |
//! | `DECIMAL` with a number as `0.1` | takes the number for a `DOUBLE` and rounds that | exactly |
//! | `REAL` with an integer of 32 bits or more | as `REAL` | as `DOUBLE` |
//! | an integer with a number beyond 64 bits | as `DOUBLE` | exactly |
//! | `TIMESTAMP WITH TIME ZONE` with `TIMESTAMP` or text | takes the latter as local time of the column's zone | as local time of `datafusion.execution.time_zone` |
//! | `TIMESTAMP WITH TIME ZONE` with `DATE` | drops the zone, as if it were UTC | as midnight of `datafusion.execution.time_zone` |
//! | `DATE` with a number or a `TIME` | takes the number for days | refused |
//!
//! The same holds where values only get a common type: in `UNION`, `CASE` and `coalesce`.

mod branches;
mod numbers;
mod sides;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{Between, Case, InList, InSubquery, ScalarFunction, SetComparison};
use datafusion::logical_expr::expr_schema::cast_subquery;
use datafusion::logical_expr::logical_plan::{Join, Subquery};
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, not};

use super::{input_schema, map_expressions};

use sides::Side;
pub(super) use sides::{Comparable, common_type, time_zone};

/// Brings operands to the types in which SQL compares them; see the module.
pub(super) fn comparisons(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|plan| rewrite_plan(plan, config)).data()
}

fn rewrite_plan(plan: LogicalPlan, config: &ConfigOptions) -> Result<Transformed<LogicalPlan>> {
    let plan = match plan {
        LogicalPlan::Union(union) => branches::of_union(union, config)?,
        plan => Transformed::no(plan),
    };
    let plan = plan.transform_data(|plan| match plan {
        LogicalPlan::Join(join) => rewrite_keys(join, config),
        plan => Ok(Transformed::no(plan)),
    })?;
    plan.transform_data(|plan| {
        let schema = input_schema(&plan)?;
        let rewriter = Rewriter { schema: &schema, config };
        let rewritten = map_expressions(plan, |expr| rewriter.rewrite(expr))?;
        if rewritten.transformed { rewritten.map_data(LogicalPlan::recompute_schema) } else { Ok(rewritten) }
    })
}

fn rewrite_keys(mut join: Join, config: &ConfigOptions) -> Result<Transformed<LogicalPlan>> {
    let mut is_changed = false;
    for (left, right) in &mut join.on {
        let (left_schema, right_schema) = (join.left.schema(), join.right.schema());
        let (left_type, right_type) = (left.get_type(left_schema)?, right.get_type(right_schema)?);
        let comparable = Comparable::of(left, &left_type, right, &right_type, config)?;
        if !comparable.is_as_it_is() {
            is_changed = true;
            *left = comparable.left(left.clone())?;
            *right = comparable.right(right.clone())?;
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), is_changed))
}

struct Rewriter<'a> {
    schema: &'a DFSchema,
    config: &'a ConfigOptions,
}

impl Rewriter<'_> {
    fn rewrite(&self, expr: Expr) -> Result<Transformed<Expr>> {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
                let Some(comparable) = self.comparable(&left, &right)? else {
                    return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })));
                };
                Ok(Transformed::yes(binary_expr(comparable.left(*left)?, op, comparable.right(*right)?)))
            }
            Expr::Between(between) => self.between(between),
            Expr::InList(list) => self.in_list(list),
            Expr::Case(case) => self.case(case),
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => match self.with_subquery(&expr, &subquery)? {
                Some((expr, subquery)) => {
                    Ok(Transformed::yes(Expr::InSubquery(InSubquery::new(Box::new(expr), subquery, negated))))
                }
                None => Ok(Transformed::no(Expr::InSubquery(InSubquery { expr, subquery, negated }))),
            },
            Expr::SetComparison(comparison) => match self.with_subquery(&comparison.expr, &comparison.subquery)? {
                Some((expr, subquery)) => {
                    let SetComparison { op, quantifier, .. } = comparison;
                    let comparison = SetComparison::new(Box::new(expr), subquery, op, quantifier);
                    Ok(Transformed::yes(Expr::SetComparison(comparison)))
                }
                None => Ok(Transformed::no(Expr::SetComparison(comparison))),
            },
            Expr::ScalarFunction(ScalarFunction { func, args }) if gives_common_type(func.name()) => {
                let args = branches::of_values(args, self.schema, self.config)?;
                Ok(args.update_data(|args| Expr::ScalarFunction(ScalarFunction { func, args })))
            }
            Expr::Cast(Cast { expr, field }) => {
                sides::check_digits(&expr, field.data_type())?;
                Ok(Transformed::no(Expr::Cast(Cast { expr, field })))
            }
            expr => Ok(Transformed::no(expr)),
        }
    }

    /// The conversions that make two operands comparable; `None` if none are needed.
    fn comparable(&self, left: &Expr, right: &Expr) -> Result<Option<Comparable>> {
        let (left_type, right_type) = (left.get_type(self.schema)?, right.get_type(self.schema)?);
        let comparable = Comparable::of(left, &left_type, right, &right_type, self.config)?;
        Ok((!comparable.is_as_it_is()).then_some(comparable))
    }

    fn compare(&self, left: &Expr, op: Operator, right: &Expr) -> Result<Expr> {
        match self.comparable(left, right)? {
            Some(comparable) => Ok(binary_expr(comparable.left(left.clone())?, op, comparable.right(right.clone())?)),
            None => Ok(binary_expr(left.clone(), op, right.clone())),
        }
    }

    /// Whether there is one type that suits a value and everything that it is compared with. If so, the latter are converted
    /// for it.
    fn share_a_type(&self, value: &Expr, others: &mut [&mut Expr]) -> Result<Shared> {
        let value_type = value.get_type(self.schema)?;
        let types = others.iter().map(|other| other.get_type(self.schema)).collect::<Result<Vec<_>>>()?;
        // A DOUBLE among them would make all of them DOUBLE.
        let is_exact = value_type.is_integer() || value_type.is_decimal();
        let is_mixed = is_exact && types.iter().any(|t| t.is_floating()) && types.iter().any(|t| !t.is_floating());
        let mut sides = vec![];
        for (other, other_type) in others.iter().zip(&types) {
            let comparable = Comparable::of(value, &value_type, other, other_type, self.config)?;
            if !comparable.leaves_left() || (is_mixed && *comparable.right_side() != Side::Exact) {
                return Ok(Shared::No);
            }
            sides.push(comparable);
        }
        if sides.iter().all(Comparable::is_as_it_is) {
            return Ok(Shared::AsItIs);
        }
        for (other, comparable) in others.iter_mut().zip(sides) {
            **other = comparable.right(other.clone())?;
        }
        Ok(Shared::Changed)
    }

    fn between(&self, mut between: Between) -> Result<Transformed<Expr>> {
        let shared = self.share_a_type(&between.expr, &mut [&mut *between.low, &mut *between.high])?;
        if let Shared::No = shared {
            let Between { expr, negated, low, high } = between;
            let bounds = [self.compare(&expr, Operator::GtEq, &low)?, self.compare(&expr, Operator::LtEq, &high)?];
            let is_within = conjunction(bounds).unwrap_or(*expr);
            return Ok(Transformed::yes(if negated { not(is_within) } else { is_within }));
        }
        Ok(Transformed::new_transformed(Expr::Between(between), shared.is_changed()))
    }

    fn in_list(&self, mut list: InList) -> Result<Transformed<Expr>> {
        let shared = self.share_a_type(&list.expr, &mut list.list.iter_mut().collect::<Vec<_>>())?;
        if let Shared::No = shared {
            let lists = self.lists_of_one_type(&list.expr, list.list)?;
            let is_in = disjunction(lists.into_iter().map(Expr::InList)).unwrap_or(*list.expr);
            return Ok(Transformed::yes(if list.negated { not(is_in) } else { is_in }));
        }
        Ok(Transformed::new_transformed(Expr::InList(list), shared.is_changed()))
    }

    /// One list per type of items, so that a long list with few types is as fast as a list of one type.
    fn lists_of_one_type(&self, value: &Expr, items: Vec<Expr>) -> Result<Vec<InList>> {
        let mut lists: Vec<(DataType, InList)> = vec![];
        for item in items {
            let (value, item) = match self.comparable(value, &item)? {
                Some(comparable) => (comparable.left(value.clone())?, comparable.right(item)?),
                None => (value.clone(), item),
            };
            let item_type = item.get_type(self.schema)?;
            match lists.iter_mut().find(|(of, list)| *of == item_type && *list.expr == value) {
                Some((_, list)) => list.list.push(item),
                None => lists.push((item_type, InList::new(Box::new(value), vec![item], false))),
            }
        }
        Ok(lists.into_iter().map(|(_, list)| list).collect())
    }

    fn case(&self, mut case: Case) -> Result<Transformed<Expr>> {
        let mut is_changed = false;
        if let Some(operand) = case.expr.take() {
            let mut whens: Vec<&mut Expr> = case.when_then_expr.iter_mut().map(|(when, _)| &mut **when).collect();
            let shared = self.share_a_type(&operand, &mut whens)?;
            is_changed |= shared.is_changed();
            if let Shared::No = shared {
                for when in whens {
                    *when = self.compare(&operand, Operator::Eq, when)?;
                }
            } else {
                case.expr = Some(operand);
            }
        }
        let results = case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr);
        let results = branches::of_values(results.map(|then| (**then).clone()).collect(), self.schema, self.config)?;
        is_changed |= results.transformed;
        let places = case.when_then_expr.iter_mut().map(|(_, then)| then).chain(&mut case.else_expr);
        for (place, result) in places.zip(results.data) {
            **place = result;
        }
        Ok(Transformed::new_transformed(Expr::Case(case), is_changed))
    }

    fn with_subquery(&self, expr: &Expr, subquery: &Subquery) -> Result<Option<(Expr, Subquery)>> {
        let output = subquery.subquery.schema();
        let column = Expr::Column(output.qualified_field(0).into());
        let (left_type, right_type) = (expr.get_type(self.schema)?, output.field(0).data_type());
        let comparable = Comparable::of(expr, &left_type, &column, right_type, self.config)?;
        if comparable.is_as_it_is() {
            return Ok(None);
        }
        let subquery = match comparable.right_side() {
            Side::Cast(to) => cast_subquery(subquery.clone(), to)?,
            Side::AsItIs | Side::Exact => subquery.clone(),
        };
        Ok(Some((comparable.left(expr.clone())?, subquery)))
    }
}

/// Whether a value and everything that it is compared with have the same type.
enum Shared {
    AsItIs,
    Changed,
    No,
}

impl Shared {
    fn is_changed(&self) -> bool {
        !matches!(self, Shared::AsItIs)
    }
}

/// Whether an operator compares two values of one type.
pub(super) fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Functions that return one of their arguments, or that compare them.
fn gives_common_type(function: &str) -> bool {
    matches!(function, "coalesce" | "nvl" | "nvl2" | "nullif" | "greatest" | "least")
}
