//! The inequalities in the condition of a join, and the rest of the condition, which is evaluated for each pair.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{HashMap, JoinSide, Result, internal_datafusion_err};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef, conjunction, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use overspill_join::spec::{ResidualFilter, Side};
use overspill_join::theta::{BlockSearch, Bound, Comparison, is_ordered};

use crate::join_execution::expressions::{Keys, Residual};

/// The maximum number of sort expressions of a block.
const MAX_KEYS: usize = 2;

/// The condition of a join, taken apart.
#[derive(Debug)]
pub(super) struct Condition {
    filter: JoinFilter,
    /// All parts, joined by AND.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    whole: PhysicalExprRef,
    /// The two compared expressions, if the part is an inequality between an expression of each side.
    inequality: Option<Inequality>,
}

/// `build OP probe`, each over the schema of its side.
#[derive(Debug)]
struct Inequality {
    build: PhysicalExprRef,
    comparison: Comparison,
    probe: PhysicalExprRef,
}

impl Inequality {
    /// The expression of the block, the operator, and the expression of the other side.
    fn seen_from(&self, block: Side) -> (&PhysicalExprRef, Comparison, &PhysicalExprRef) {
        match block {
            Side::Build => (&self.build, self.comparison, &self.probe),
            Side::Probe => (&self.probe, self.comparison.swap(), &self.build),
        }
    }
}

impl Condition {
    pub fn new(filter: &JoinFilter, build: &SchemaRef, probe: &SchemaRef) -> Result<Self> {
        let parts = split_conjunction(filter.expression()).into_iter().map(|part| {
            let inequality = inequality(filter, part, build, probe)?;
            Ok(Part { whole: Arc::clone(part), inequality })
        });
        Ok(Self { filter: filter.clone(), parts: parts.collect::<Result<_>>()? })
    }

    /// The whole condition, to be evaluated for pairs.
    pub fn whole(&self) -> Arc<dyn ResidualFilter> {
        Arc::new(Residual::new(self.filter.clone()))
    }

    /// The way to search blocks of a side; `None` if no inequality helps.
    pub fn search(&self, block: Side) -> Result<Option<BlockSearch>> {
        let keys = self.keys(block);
        if keys.is_empty() {
            return Ok(None);
        }
        let (mut bounds, mut stream_keys, mut residual) = (vec![], vec![], vec![]);
        for part in &self.parts {
            let seen = part.inequality.as_ref().map(|inequality| inequality.seen_from(block));
            let found = seen.and_then(|(key, comparison, stream_key)| {
                Some((keys.iter().position(|other| other == key)?, comparison, stream_key))
            });
            match found {
                Some((key, comparison, stream_key)) => {
                    bounds.push(Bound { key, comparison });
                    stream_keys.push(Arc::clone(stream_key));
                }
                None => residual.push(Arc::clone(&part.whole)),
            }
        }
        let residual = match residual.is_empty() {
            true => None,
            false => Some(Arc::new(Residual::new(narrowed(&self.filter, conjunction(residual))?)) as _),
        };
        Ok(Some(BlockSearch {
            block_keys: Arc::new(Keys(keys)),
            stream_keys: Arc::new(Keys(stream_keys)),
            bounds,
            residual,
        }))
    }

    /// The sort expressions for blocks of a side. If one of them has bounds from both directions it comes first: such bounds
    /// leave the fewest positions to look at.
    fn keys(&self, block: Side) -> Vec<PhysicalExprRef> {
        let mut keys: Vec<(PhysicalExprRef, bool, bool)> = vec![];
        for (key, comparison, _) in self.inequalities().map(|inequality| inequality.seen_from(block)) {
            let place = keys.iter().position(|(other, ..)| other == key).unwrap_or_else(|| {
                keys.push((Arc::clone(key), false, false));
                keys.len() - 1
            });
            let (_, lower, upper) = &mut keys[place];
            *(if comparison.is_upper_bound() { upper } else { lower }) = true;
        }
        keys.sort_by_key(|(_, lower, upper)| !(*lower && *upper));
        keys.into_iter().map(|(key, ..)| key).take(MAX_KEYS).collect()
    }

    fn inequalities(&self) -> impl Iterator<Item = &Inequality> {
        self.parts.iter().filter_map(|part| part.inequality.as_ref())
    }
}

/// Shows the inequalities that are used to search blocks, for EXPLAIN.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Inequality { build, comparison, probe }) in self.inequalities().enumerate() {
            let operator = match comparison {
                Comparison::Less => "<",
                Comparison::LessOrEqual => "<=",
                Comparison::Greater => ">",
                Comparison::GreaterOrEqual => ">=",
            };
            write!(f, "{}{build} {operator} {probe}", if number > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Converts a part of a condition to an inequality between the sides, if it is one.
fn inequality(
    filter: &JoinFilter,
    part: &PhysicalExprRef,
    build: &Schema,
    probe: &Schema,
) -> Result<Option<Inequality>> {
    let Some(comparison) = part.downcast_ref::<BinaryExpr>() else { return Ok(None) };
    let operator = match comparison.op() {
        Operator::Lt => Comparison::Less,
        Operator::LtEq => Comparison::LessOrEqual,
        Operator::Gt => Comparison::Greater,
        Operator::GtEq => Comparison::GreaterOrEqual,
        _ => return Ok(None),
    };
    let (left, right) = (comparison.left(), comparison.right());
    // A random number must be drawn for each pair.
    if is_volatile(part) {
        return Ok(None);
    }
    let (left_side, right_side) = (side_of(filter, left), side_of(filter, right));
    let (build_key, operator, probe_key) = match (left_side, right_side) {
        (Some(JoinSide::Left), Some(JoinSide::Right)) => (left, operator, right),
        (Some(JoinSide::Right), Some(JoinSide::Left)) => (right, operator.swap(), left),
        _ => return Ok(None),
    };
    let (build_key, probe_key) = (over_side(filter, build_key)?, over_side(filter, probe_key)?);
    let (build_type, probe_type) = (build_key.data_type(build)?, probe_key.data_type(probe)?);
    let is_comparable = build_type.equals_datatype(&probe_type) && is_ordered(&build_type);
    Ok(is_comparable.then_some(Inequality { build: build_key, comparison: operator, probe: probe_key }))
}

/// The side of an expression that reads columns of one side only.
fn side_of(filter: &JoinFilter, expression: &PhysicalExprRef) -> Option<JoinSide> {
    let mut sides = collect_columns(expression).into_iter().map(|column| filter.column_indices()[column.index()].side);
    let first = sides.next()?;
    sides.all(|side| side == first).then_some(first)
}

/// An expression of one side, rewritten from the filter's schema to the schema of that side.
fn over_side(filter: &JoinFilter, expression: &PhysicalExprRef) -> Result<PhysicalExprRef> {
    with_columns(expression, |column| Ok(filter.column_indices()[column.index()].index))
}

/// A filter that reads only the columns of its expression.
fn narrowed(filter: &JoinFilter, expression: PhysicalExprRef) -> Result<JoinFilter> {
    let mut used: Vec<usize> = collect_columns(&expression).iter().map(Column::index).collect();
    used.sort_unstable();
    let places: HashMap<usize, usize> = used.iter().enumerate().map(|(place, index)| (*index, place)).collect();
    let expression = with_columns(&expression, |column| {
        let place = places.get(&column.index()).copied();
        place.ok_or_else(|| internal_datafusion_err!("the filter of a join has no column {column}"))
    })?;
    let columns: Vec<ColumnIndex> = used.iter().map(|index| filter.column_indices()[*index].clone()).collect();
    Ok(JoinFilter::new(expression, columns, Arc::new(filter.schema().project(&used)?)))
}

fn with_columns(expression: &PhysicalExprRef, index: impl Fn(&Column) -> Result<usize>) -> Result<PhysicalExprRef> {
    let moved = Arc::clone(expression).transform(|node| match node.downcast_ref::<Column>() {
        Some(column) => {
            let moved: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), index(column)?));
            Ok(Transformed::yes(moved))
        }
        None => Ok(Transformed::no(node)),
    });
    Ok(moved?.data)
}
