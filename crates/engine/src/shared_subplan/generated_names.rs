//! Names that DataFusion's optimizer makes up, which differ between copies of a part.

use std::collections::{HashMap, HashSet};

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan, SubqueryAlias};

/// What they begin with; a number follows. They are those of common subexpressions and of the joins that `IN`, `EXISTS` and subqueries become.
const PREFIXES: [&str; 4] = ["__common_expr_", "__datafusion_extracted_", "__correlated_sq_", "__scalar_sq_"];

/// A plan with other names in the place of generated ones, in the order in which they are bound: equal for parts that differ in these alone. `None` if the plan binds none.
///
/// # Errors
/// If a node does not take the names.
pub(super) fn renamed(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let names = Names::of(plan)?;
    if names.0.is_empty() {
        return Ok(None);
    }
    let renamed = plan.clone().transform_up_with_subqueries(|node| {
        let node = node.map_expressions(|expr| expr.transform(|expr| Ok(names.in_expression(expr))))?.data;
        let node = match node {
            LogicalPlan::SubqueryAlias(alias) => {
                let name = names.in_text(alias.alias.table()).map(TableReference::bare);
                LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(alias.input, name.unwrap_or(alias.alias))?)
            }
            other => other.recompute_schema()?,
        };
        Ok(Transformed::yes(node))
    });
    renamed.data().map(Some)
}

/// The generated names of a plan, each with another one.
struct Names(HashMap<String, String>);

impl Names {
    /// Those that nodes of the plan give to columns and tables, and that are in no name of a scan.
    fn of(plan: &LogicalPlan) -> Result<Self> {
        let (mut bound, mut scanned) = (vec![], HashSet::new());
        plan.apply_with_subqueries(|node| {
            match node {
                LogicalPlan::SubqueryAlias(alias) => bound.push(alias.alias.table().to_owned()),
                LogicalPlan::TableScan(scan) => {
                    scanned.insert(scan.table_name.table().to_owned());
                    scanned.extend(scan.source.schema().fields().iter().map(|field| field.name().clone()));
                }
                _ => {}
            }
            node.apply_expressions(|expr| {
                expr.apply(|expr| {
                    if let Expr::Alias(alias) = expr {
                        bound.push(alias.name.clone());
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        })?;
        let mut names = HashMap::new();
        for name in bound {
            if is_generated(&name) && !scanned.iter().any(|scanned: &String| scanned.contains(&name)) {
                let number = names.len();
                names.entry(name).or_insert_with(|| format!("\u{1}{number}"));
            }
        }
        Ok(Self(names))
    }

    fn in_expression(&self, expr: Expr) -> Transformed<Expr> {
        match expr {
            Expr::Column(column) => {
                let name = self.in_text(&column.name);
                let table = column.relation.as_ref().and_then(|table| self.in_text(table.table()));
                if name.is_none() && table.is_none() {
                    return Transformed::no(Expr::Column(column));
                }
                let relation = table.map(TableReference::bare).or(column.relation);
                Transformed::yes(Expr::Column(Column::new(relation, name.unwrap_or(column.name))))
            }
            Expr::Alias(mut alias) => {
                let name = self.in_text(&alias.name);
                let is_renamed = name.is_some();
                alias.name = name.unwrap_or(alias.name);
                Transformed::new(Expr::Alias(alias), is_renamed, TreeNodeRecursion::Continue)
            }
            other => Transformed::no(other),
        }
    }

    /// A text in which all names are replaced; `None` if it has none. The names of columns have those of the columns that they are computed of.
    fn in_text(&self, text: &str) -> Option<String> {
        let (mut replaced, mut rest, mut is_renamed) = (String::new(), text, false);
        while let Some(start) = PREFIXES.iter().filter_map(|prefix| rest.find(prefix)).min() {
            let end = start + name_length(&rest[start..]);
            let (before, name) = (&rest[..start], &rest[start..end]);
            replaced.push_str(before);
            replaced.push_str(self.0.get(name).map_or(name, String::as_str));
            is_renamed |= self.0.contains_key(name);
            rest = &rest[end..];
        }
        replaced.push_str(rest);
        is_renamed.then_some(replaced)
    }
}

fn is_generated(name: &str) -> bool {
    let is_numbered = |prefix: &&str| name.strip_prefix(*prefix).is_some_and(|number| !number.is_empty());
    PREFIXES.iter().any(is_numbered) && name_length(name) == name.len()
}

/// The bytes of the generated name that a text begins with.
fn name_length(text: &str) -> usize {
    let prefix = PREFIXES.iter().find(|prefix| text.starts_with(**prefix)).map_or(0, |prefix| prefix.len());
    let digits = text[prefix..].bytes().take_while(u8::is_ascii_digit).count();
    prefix + digits
}
