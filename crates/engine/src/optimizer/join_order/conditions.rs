//! The conditions of joins, and how they may move.

use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use overspill_planner::{Predicate, PredicateKind, Relation, RelationSet};

use super::super::Node;
use super::estimates::Estimates;
use crate::fallible::{may_fail, widens};

/// The selectivity of a filter about which no statistics exist. It is the usual guess for `<`.
const USUAL_SHARE: f64 = 1.0 / 3.0;

/// A column of an input of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LeafColumn {
    pub leaf: usize,
    pub column: usize,
}

/// An expression over columns of a region's inputs. The index of a [`Column`] in it is a position in `columns`.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    pub expression: PhysicalExprRef,
    pub columns: Arc<[LeafColumn]>,
}

impl Expression {
    /// The columns that it uses, in ascending order.
    pub fn used(&self) -> Vec<LeafColumn> {
        let used = collect_columns(&self.expression).into_iter();
        let mut used: Vec<_> = used.map(|column| self.columns[column.index()]).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// The inputs whose columns it uses.
    pub fn relations(&self) -> RelationSet {
        self.used().into_iter().map(|column| column.leaf).collect()
    }

    /// The expression over a schema that has these columns.
    pub fn over(&self, columns: &[LeafColumn], schema: &Schema) -> Result<PhysicalExprRef> {
        let expression = Arc::clone(&self.expression).transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            let wanted = self.columns[column.index()];
            let position = columns.iter().position(|column| *column == wanted);
            let position = position.expect("joins keep the columns of the conditions above them");
            Ok(Transformed::yes(Arc::new(Column::new(schema.field(position).name(), position)) as _))
        });
        expression.data()
    }
}

/// A part of a join's condition.
#[derive(Debug, Clone)]
pub(super) enum Condition {
    /// Keys of a join's left and right side are equal.
    Equal {
        left: Expression,
        right: Expression,
        /// Where the keys are columns, or widening casts of some.
        columns: [Option<LeafColumn>; 2],
        /// Whether both keys are columns of one type.
        is_plain: bool,
    },
    /// A condition is true.
    Filter {
        filter: Expression,
        /// The relations that must be joined before it may be evaluated.
        needs: RelationSet,
        /// The relations that the filter uses, if it is never true where a column that it uses is null; else none.
        rejects_nulls: RelationSet,
        /// Whether it can fail on some row.
        may_fail: bool,
    },
}

impl Condition {
    /// The equality of keys of two inputs with these schemas.
    pub fn equal([left, right]: [Expression; 2], schemas: [&Schema; 2]) -> Self {
        let column =
            |key: &Expression, schema| plain_column(&key.expression, schema).map(|column| key.columns[column.index()]);
        let columns = [column(&left, schemas[0]), column(&right, schemas[1])];
        let type_of = |key: &Expression, schema| {
            key.expression.is::<Column>().then(|| key.expression.data_type(schema).ok()).flatten()
        };
        let types = type_of(&left, schemas[0]).zip(type_of(&right, schemas[1]));
        Self::Equal { left, right, columns, is_plain: types.is_some_and(|(left, right)| left == right) }
    }

    /// The equality of two columns of one type. Its keys have no names: they get those of the columns that they stand for.
    pub fn equal_columns([left, right]: [LeafColumn; 2]) -> Self {
        let key = |column| Expression { expression: Arc::new(Column::new("", 0)), columns: Arc::from([column]) };
        Self::Equal { left: key(left), right: key(right), columns: [Some(left), Some(right)], is_plain: true }
    }

    /// The columns that it says are equal, if they are of one type: if others are equal to them, they are to each other.
    pub fn plain_columns(&self) -> Option<[LeafColumn; 2]> {
        match self {
            Self::Equal { columns: [Some(left), Some(right)], is_plain: true, .. } => Some([*left, *right]),
            _ => None,
        }
    }

    /// A filter of the rows of `joined` inputs, over columns with this schema.
    pub fn filter(filter: Expression, schema: &Schema, joined: RelationSet) -> Self {
        let used = filter.relations();
        let may_fail = may_fail(&filter.expression, schema);
        let needs = if may_fail { joined } else { used };
        let rejects_nulls = if compares_columns(&filter.expression, schema) { used } else { RelationSet::EMPTY };
        Self::Filter { filter, needs, rejects_nulls, may_fail }
    }

    /// Whether it may be evaluated before or after other joins than in the written order. `shows_all` says whether all relations below its join
    /// are visible there: if not, a join of a filter that may fail must stay above the semi and anti joins that drop rows before.
    pub fn is_free(&self, shows_all: bool) -> bool {
        match self {
            Self::Equal { columns, .. } => columns.iter().all(Option::is_some),
            Self::Filter { may_fail, .. } => !may_fail || shows_all,
        }
    }

    /// The columns that it uses.
    pub fn used(&self) -> Vec<LeafColumn> {
        match self {
            Self::Equal { left, right, .. } => [left.used(), right.used()].concat(),
            Self::Filter { filter, .. } => filter.used(),
        }
    }

    /// What the planner has to know of it. `class` is a number of the equalities that follow from each other, if it is one of several.
    pub fn predicate(
        &self,
        leaves: &[Node],
        relations: &[Relation],
        estimates: &Estimates,
        class: Option<usize>,
    ) -> Predicate {
        let (left, right, columns) = match self {
            Self::Equal { left, right, columns, .. } => (left.relations(), right.relations(), columns),
            Self::Filter { needs, rejects_nulls, .. } => {
                return Predicate { rejects_nulls: *rejects_nulls, ..Predicate::residual(*needs, USUAL_SHARE) };
            }
        };
        let values =
            |column: Option<LeafColumn>| column.and_then(|key| estimates.key_values(&leaves[key.leaf], key.column));
        let values = values(columns[0]).zip(values(columns[1]));
        // If nothing is known of them, the keys of the larger input are unique.
        let most = |keys: RelationSet| keys.iter().map(|leaf| relations[leaf].rows).fold(1.0, f64::max);
        let selectivity = match values {
            Some((left, right)) => left.equal_pairs(right),
            None => 1.0 / most(left | right),
        };
        let distinct = values.map(|(left, right)| [left.distinct, right.distinct]);
        Predicate {
            relations: left | right,
            selectivity,
            kind: PredicateKind::Equality { left, right, distinct, class },
            rejects_nulls: columns.iter().flatten().map(|column| column.leaf).collect(),
        }
    }
}

/// The column that an expression is, if it is one, or a widening cast of one.
fn plain_column<'a>(expression: &'a PhysicalExprRef, schema: &Schema) -> Option<&'a Column> {
    match expression.downcast_ref::<CastExpr>() {
        Some(cast) => plain_column(cast.expr(), schema).filter(|_| widens(cast, schema)),
        None => expression.downcast_ref(),
    }
}

/// Whether the operator compares, and gives a null for a null.
fn is_ordinary_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

/// Whether an expression compares columns, and so is never true where one is null.
fn compares_columns(expression: &PhysicalExprRef, schema: &Schema) -> bool {
    let is_value = |side: &PhysicalExprRef| side.is::<Literal>() || plain_column(side, schema).is_some();
    expression.downcast_ref::<BinaryExpr>().is_some_and(|binary| {
        is_ordinary_comparison(*binary.op()) && is_value(binary.left()) && is_value(binary.right())
    })
}
