//! The meaning of column names in a query, and the values of merged columns.

use datafusion::common::TableReference;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName,
};

/// The meaning of column names in a query.
#[derive(Debug, Default)]
pub(super) struct Scope {
    /// The columns that a name without a table may mean, in the order of `*`.
    pub columns: Vec<Column>,
    /// All columns of the tables, each with the name of its table.
    pub fields: Vec<(Option<TableReference>, String)>,
}

/// A column that a name without a table may mean.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub name: String,
    /// A qualified column name, or the value that a join merges from several columns.
    pub value: Expr,
    pub is_merged: bool,
}

impl Scope {
    pub fn and(mut self, other: Self) -> Self {
        self.columns.extend(other.columns);
        self.fields.extend(other.fields);
        self
    }

    /// The column that a name without a table means. None if it means no column or several.
    pub fn only(&self, name: &str) -> Option<&Column> {
        let mut columns = self.columns.iter().filter(|column| column.name == name);
        columns.next().filter(|_| columns.next().is_none())
    }
}

/// The name of a table without catalog and schema, or the name of a column: the only part of a name.
pub(super) fn only_part(name: &ObjectName) -> Option<Ident> {
    match name.0.as_slice() {
        [part] => part.as_ident().cloned(),
        _ => None,
    }
}

/// An identifier that is taken literally, whatever its letters.
pub(super) fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// The tables whose columns a merged column combines.
pub(super) fn tables_of(value: &Expr) -> Vec<&str> {
    match value {
        Expr::CompoundIdentifier(parts) => {
            parts.iter().rev().nth(1).map(|table| table.value.as_str()).into_iter().collect()
        }
        Expr::Function(Function { args: FunctionArguments::List(list), .. }) => {
            let values = list.args.iter().filter_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
                _ => None,
            });
            values.flat_map(tables_of).collect()
        }
        _ => vec![],
    }
}
