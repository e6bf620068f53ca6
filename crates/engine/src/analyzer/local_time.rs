//! Casts a `TIMESTAMP WITH TIME ZONE` to local time.
//!
//! DataFusion 55 casts it to a `TIMESTAMP` in UTC, whatever its zone, and to a `DATE` or `TIME` in the zone of its type,
//! which is UTC for files. This rule casts all three to local time of the session's zone, `datafusion.execution.time_zone`,
//! as PostgreSQL does. If the type has a zone other than UTC, as `AT TIME ZONE` gives it, that zone is used instead.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::functions::expr_fn::to_local_time;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, TryCast};

use super::comparisons::time_zone;
use super::map_all_expressions;

/// Casts to local time; see the module.
pub(super) fn local_time(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    map_all_expressions(plan, |expr, schema| rewrite(expr, schema, config))
}

fn rewrite(expr: Expr, schema: &DFSchema, config: &ConfigOptions) -> Result<Transformed<Expr>> {
    match expr {
        Expr::Cast(Cast { expr, field }) => {
            let expr = local(*expr, field.data_type(), schema, config)?;
            Ok(expr.update_data(|expr| Expr::Cast(Cast { expr: Box::new(expr), field })))
        }
        Expr::TryCast(TryCast { expr, field }) => {
            let expr = local(*expr, field.data_type(), schema, config)?;
            Ok(expr.update_data(|expr| Expr::TryCast(TryCast { expr: Box::new(expr), field })))
        }
        expr => Ok(Transformed::no(expr)),
    }
}

/// A `TIMESTAMP WITH TIME ZONE` as local time, if it is cast to a type of local times in another zone; otherwise unchanged.
fn local(expr: Expr, to: &DataType, schema: &DFSchema, config: &ConfigOptions) -> Result<Transformed<Expr>> {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    if !matches!(to, Timestamp(_, None) | Date32 | Date64 | Time32(_) | Time64(_)) {
        return Ok(Transformed::no(expr));
    }
    let Timestamp(unit, Some(own)) = expr.get_type(schema)? else { return Ok(Transformed::no(expr)) };
    let session = time_zone(config);
    // `AT TIME ZONE 'UTC'` is a cast.
    let is_chosen = !is_utc(&own) || (matches!(expr, Expr::Cast(_)) && own != session);
    let zone = if is_chosen { &own } else { &session };
    let is_right = match to {
        Date32 | Time32(_) | Time64(_) => own == *zone || is_utc(&own) && is_utc(zone),
        _ => is_utc(zone),
    };
    if is_right {
        return Ok(Transformed::no(expr));
    }
    let there = if own == *zone {
        expr
    } else {
        Expr::Cast(Cast::new(Box::new(expr), Timestamp(unit, Some(Arc::clone(zone)))))
    };
    Ok(Transformed::yes(to_local_time(vec![there])))
}

fn is_utc(zone: &str) -> bool {
    ["UTC", "GMT", "Z", "Etc/UTC", "+00:00", "+0000", "+00"].iter().any(|utc| zone.eq_ignore_ascii_case(utc))
}
