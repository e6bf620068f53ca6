//! Names of columns in a `SELECT` and its `ORDER BY`.

use datafusion::common::DFSchemaRef;
use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, OrderBy, Select, SelectItem, SelectItemQualifiedWildcardKind, WildcardAdditionalOptions,
};

use super::names::Subqueries;
use super::scope::{Column, Scope, only_part, quoted};

/// The meaning of names in an `ORDER BY`.
pub(super) struct OrderNames {
    scope: Scope,
    /// The names of the columns of the result, which come first.
    outputs: Vec<String>,
}

impl OrderNames {
    pub fn write(&self, order: &mut OrderBy, subqueries: &Subqueries<'_>) {
        self.scope.write_names(order, &self.outputs, subqueries);
    }
}

/// Rewrites a `SELECT` over tables with these schemas. Returns None if that is not possible; the `SELECT` may then be partly
/// changed.
pub(super) fn rewrite_select(
    select: &mut Select,
    schemas: Vec<DFSchemaRef>,
    subqueries: &Subqueries<'_>,
) -> Option<OrderNames> {
    let scope = Scope::of(&mut select.from, schemas, subqueries)?;
    let mut items = vec![];
    for item in std::mem::take(&mut select.projection) {
        match item {
            SelectItem::Wildcard(options) => items.extend(all_columns(options, &scope, subqueries)?),
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
                let normalized = subqueries.normalized(&name);
                items.push(match scope.only(&normalized).filter(|column| column.is_merged) {
                    Some(column) => item_of(column),
                    None => SelectItem::UnnamedExpr(Expr::Identifier(name)),
                });
            }
            mut item => {
                scope.write_names(&mut item, &[], subqueries);
                items.push(item);
            }
        }
    }
    let outputs: Vec<_> = items.iter().flat_map(|item| output_names(item, &scope, subqueries)).collect();
    // The planner does not accept a column without a table next to a column of the same name that has a table.
    let is_doubled = |column: &&Column| {
        let is_of_a_table = matches!(column.value, Expr::CompoundIdentifier(_));
        let has_its_name = |item: &SelectItem| *item == item_of(column);
        let count = outputs.iter().filter(|output| **output == column.name).count();
        column.is_merged && !is_of_a_table && count > 1 && items.iter().any(has_its_name)
    };
    if let Some(Column { name, .. }) = scope.columns.iter().find(is_doubled) {
        subqueries.refuse(format!(
            "The result has the column {name} that a FULL JOIN merges, and another of that name. Name the columns, and give one of \
             them another name, as in SELECT {name} AS merged_{name}"
        ));
    }
    // All remaining names are in the scope of this FROM.
    let from = std::mem::take(&mut select.from);
    scope.write_names(select, &[], subqueries);
    (select.from, select.projection) = (from, items);
    Some(OrderNames { scope, outputs })
}

/// The columns of `*`. None for options that the planner refuses.
fn all_columns(
    options: WildcardAdditionalOptions,
    scope: &Scope,
    subqueries: &Subqueries<'_>,
) -> Option<Vec<SelectItem>> {
    if options.opt_ilike.is_some() || options.opt_rename.is_some() || options.opt_alias.is_some() {
        return None;
    }
    // The planner compares these names exactly as written.
    let mut excluded: Vec<String> = match &options.opt_exclude {
        None => vec![],
        Some(ExcludeSelectItem::Single(name)) => vec![only_part(name)?.value],
        Some(ExcludeSelectItem::Multiple(names)) => {
            names.iter().map(|name| Some(only_part(name)?.value)).collect::<Option<_>>()?
        }
    };
    if let Some(except) = &options.opt_except {
        let names = std::iter::once(&except.first_element).chain(&except.additional_elements);
        excluded.extend(names.map(|name| name.value.clone()));
    }
    let mut columns = scope.columns.clone();
    for (place, name) in excluded.iter().enumerate() {
        if excluded[..place].contains(name) || !columns.iter().any(|column| column.name == *name) {
            return None;
        }
        columns.retain(|column| column.name != *name);
    }
    let mut replaced = options.opt_replace.map(|replace| replace.items).unwrap_or_default();
    for item in &mut replaced {
        scope.write_names(&mut item.expr, &[], subqueries);
    }
    let items =
        columns.iter().map(|column| match replaced.iter().find(|replaced| replaced.column_name.value == column.name) {
            Some(replaced) => SelectItem::ExprWithAlias { expr: replaced.expr.clone(), alias: quoted(&column.name) },
            None => item_of(column),
        });
    Some(items.collect())
}

/// A column under its own name.
fn item_of(column: &Column) -> SelectItem {
    match &column.value {
        name @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_)) => SelectItem::UnnamedExpr(name.clone()),
        value => SelectItem::ExprWithAlias { expr: value.clone(), alias: quoted(&column.name) },
    }
}

fn output_names(item: &SelectItem, scope: &Scope, subqueries: &Subqueries<'_>) -> Vec<String> {
    match item {
        SelectItem::UnnamedExpr(expr) => output_name(expr, subqueries).into_iter().collect(),
        SelectItem::ExprWithAlias { alias, .. } => vec![subqueries.normalized(alias)],
        SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
            let Some(table) = name.0.last().and_then(|part| part.as_ident()) else { return vec![] };
            let table = subqueries.normalized(table);
            let fields = scope.fields.iter();
            let of_table = fields.filter(|(of, _)| of.as_ref().is_some_and(|of| of.table() == table));
            of_table.map(|(_, name)| name.clone()).collect()
        }
        _ => vec![],
    }
}

fn output_name(expr: &Expr, subqueries: &Subqueries<'_>) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(subqueries.normalized(name)),
        Expr::CompoundIdentifier(parts) => parts.last().map(|name| subqueries.normalized(name)),
        _ => None,
    }
}
