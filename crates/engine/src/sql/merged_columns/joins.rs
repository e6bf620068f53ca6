//! Writes the joins of a `FROM` with `ON`, and finds out which columns it provides.

use datafusion::common::{DFSchemaRef, TableReference};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    JoinConstraint, JoinOperator, ObjectName, TableFactor, TableWithJoins, Value, ValueWithSpan,
};

use super::names::Subqueries;
use super::scope::{Column, Scope, only_part, quoted};
use crate::sql::balance::balanced;

/// The rows that a join returns, as far as its columns depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// Rows of the left side, with or without a match.
    Left,
    /// Rows of the right side, with or without a match.
    Right,
    /// Rows of either side.
    Either,
    /// Columns of the left side alone.
    OnlyLeft,
    OnlyRight,
}

type MakeOperator = fn(JoinConstraint) -> JoinOperator;

/// Takes a join operator apart. Returns None for operators that DataFusion does not know.
fn parts(operator: &JoinOperator) -> Option<(MakeOperator, Gives, &JoinConstraint)> {
    Some(match operator {
        JoinOperator::Join(constraint) => (JoinOperator::Join, Gives::Left, constraint),
        JoinOperator::Inner(constraint) => (JoinOperator::Inner, Gives::Left, constraint),
        JoinOperator::CrossJoin(constraint) => (JoinOperator::CrossJoin, Gives::Left, constraint),
        JoinOperator::Left(constraint) => (JoinOperator::Left, Gives::Left, constraint),
        JoinOperator::LeftOuter(constraint) => (JoinOperator::LeftOuter, Gives::Left, constraint),
        JoinOperator::Right(constraint) => (JoinOperator::Right, Gives::Right, constraint),
        JoinOperator::RightOuter(constraint) => (JoinOperator::RightOuter, Gives::Right, constraint),
        JoinOperator::FullOuter(constraint) => (JoinOperator::FullOuter, Gives::Either, constraint),
        JoinOperator::LeftSemi(constraint) => (JoinOperator::LeftSemi, Gives::OnlyLeft, constraint),
        JoinOperator::LeftAnti(constraint) => (JoinOperator::LeftAnti, Gives::OnlyLeft, constraint),
        JoinOperator::RightSemi(constraint) => (JoinOperator::RightSemi, Gives::OnlyRight, constraint),
        JoinOperator::RightAnti(constraint) => (JoinOperator::RightAnti, Gives::OnlyRight, constraint),
        _ => return None,
    })
}

/// The tables of a `FROM`, from left to right, if any of them are joined by `USING` or `NATURAL`.
pub(super) fn merged_tables(from: &[TableWithJoins]) -> Vec<&TableFactor> {
    let (mut tables, mut merges) = (vec![], false);
    for joined in from {
        collect_tables(joined, &mut tables, &mut merges);
    }
    if merges { tables } else { vec![] }
}

fn collect_tables<'t>(joined: &'t TableWithJoins, tables: &mut Vec<&'t TableFactor>, merges: &mut bool) {
    for factor in std::iter::once(&joined.relation).chain(joined.joins.iter().map(|join| &join.relation)) {
        match factor {
            TableFactor::NestedJoin { table_with_joins, .. } => collect_tables(table_with_joins, tables, merges),
            table => tables.push(table),
        }
    }
    *merges |= joined
        .joins
        .iter()
        .filter_map(|join| parts(&join.join_operator))
        .any(|(_, _, constraint)| matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural));
}

impl Scope {
    /// Rewrites the joins of a `FROM` with `ON`. `schemas` holds the schemas of its [`merged_tables`]. Returns None if a name
    /// is ambiguous or missing, or if the kind of a join is unknown.
    pub fn of(from: &mut [TableWithJoins], schemas: Vec<DFSchemaRef>, subqueries: &Subqueries<'_>) -> Option<Self> {
        let mut schemas = schemas.into_iter();
        from.iter_mut().try_fold(Self::default(), |scope, joined| {
            Some(scope.and(Self::of_joins(joined, &mut schemas, subqueries)?))
        })
    }

    fn of_joins(
        joined: &mut TableWithJoins,
        schemas: &mut dyn Iterator<Item = DFSchemaRef>,
        subqueries: &Subqueries<'_>,
    ) -> Option<Self> {
        let mut scope = Self::of_factor(&mut joined.relation, schemas, subqueries)?;
        for join in &mut joined.joins {
            let right = Self::of_factor(&mut join.relation, schemas, subqueries)?;
            scope = scope.join(right, &mut join.join_operator, subqueries)?;
        }
        Some(scope)
    }

    fn of_factor(
        factor: &mut TableFactor,
        schemas: &mut dyn Iterator<Item = DFSchemaRef>,
        subqueries: &Subqueries<'_>,
    ) -> Option<Self> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            // Recursion is as deep as the parentheses; the parser limits these.
            return Self::of_joins(table_with_joins, schemas, subqueries);
        }
        let schema = schemas.next()?;
        let mut scope = Self::default();
        for (table, field) in schema.iter() {
            let name = field.name();
            scope.columns.push(Column { name: name.clone(), value: column(table, name), is_merged: false });
            scope.fields.push((table.cloned(), name.clone()));
        }
        Some(scope)
    }

    /// The columns of a join with its constraint written as `ON`.
    fn join(self, right: Self, operator: &mut JoinOperator, subqueries: &Subqueries<'_>) -> Option<Self> {
        let (make, gives, constraint) = parts(operator)?;
        let names: Vec<_> = match constraint {
            JoinConstraint::None => return Some(self.given(right, gives)),
            JoinConstraint::On(condition) => {
                let mut condition = condition.clone();
                let (columns, fields) = (self.columns.clone(), self.fields.clone());
                let both = self.and(Self { columns: right.columns.clone(), fields: right.fields.clone() });
                both.write_names(&mut condition, &[], subqueries);
                *operator = make(JoinConstraint::On(condition));
                return Some(Self { columns, fields }.given(right, gives));
            }
            JoinConstraint::Using(names) => {
                names.iter().map(|name| Some(subqueries.normalized(&only_part(name)?))).collect::<Option<_>>()?
            }
            JoinConstraint::Natural => {
                let is_shared = |name: &String| right.columns.iter().any(|column| column.name == *name);
                self.columns.iter().map(|column| column.name.clone()).filter(is_shared).collect()
            }
        };
        let (mut merged, mut equalities) = (vec![], vec![]);
        for name in &names {
            let (left_value, right_value) = (self.only(name)?.value.clone(), right.only(name)?.value.clone());
            // The planner does not distinguish a column without a table from another column of the same name.
            if [&left_value, &right_value].iter().any(|value| matches!(value, Expr::Identifier(_))) {
                return None;
            }
            equalities.push(binary(left_value.clone(), BinaryOperator::Eq, right_value.clone()));
            let value = match gives {
                Gives::Left | Gives::OnlyLeft => left_value,
                Gives::Right | Gives::OnlyRight => right_value,
                Gives::Either => coalesce(left_value, right_value),
            };
            merged.push(Column { name: name.clone(), value, is_merged: true });
        }
        // NATURAL without common columns joins every pair.
        let count = equalities.len();
        let condition = match count {
            0 => Expr::Value(ValueWithSpan::from(Value::Boolean(true))),
            _ => balanced(&mut equalities.into_iter(), count, &|left, right| binary(left, BinaryOperator::And, right)),
        };
        *operator = match (gives, names.is_empty()) {
            (Gives::Left, true) if !matches!(operator, JoinOperator::Left(_) | JoinOperator::LeftOuter(_)) => {
                JoinOperator::CrossJoin(JoinConstraint::None)
            }
            _ => make(JoinConstraint::On(condition)),
        };
        if matches!(gives, Gives::OnlyLeft | Gives::OnlyRight) {
            return Some(self.given(right, gives));
        }
        let mut scope = self.given(right, gives);
        scope.columns.retain(|column| !names.contains(&column.name));
        scope.columns.splice(0..0, merged);
        Some(scope)
    }

    fn given(self, right: Self, gives: Gives) -> Self {
        match gives {
            Gives::OnlyLeft => self,
            Gives::OnlyRight => right,
            _ => self.and(right),
        }
    }
}

fn column(table: Option<&TableReference>, name: &str) -> Expr {
    match table {
        None => Expr::Identifier(quoted(name)),
        Some(table) => {
            let parts = [table.catalog(), table.schema(), Some(table.table()), Some(name)];
            Expr::CompoundIdentifier(parts.into_iter().flatten().map(quoted).collect())
        }
    }
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

/// The first value that is not NULL. Values that are such expressions themselves are flattened: if nested, the planner would
/// plan each of them twice for the one around it.
fn coalesce(left: Expr, right: Expr) -> Expr {
    let values = [left, right].into_iter().flat_map(|value| match value {
        Expr::Function(Function { args: FunctionArguments::List(list), .. }) => list.args,
        value => vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(value))],
    });
    let args = values.collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new("coalesce")]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: vec![] }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}
