//! Names of merged columns, including names in subqueries that refer to a column of an outer query.

use std::cell::RefCell;
use std::ops::ControlFlow;

use datafusion::common::DFSchemaRef;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};

use super::scope::{Scope, tables_of};
use super::{Enclosing, Writing, trees_of};

/// Resolves the tables of subqueries and collects the queries and names that it cannot resolve.
pub(super) struct Subqueries<'a> {
    writing: &'a Writing<'a>,
    findings: RefCell<Findings>,
}

/// The findings of a walk through subqueries.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Queries with schemas that are needed.
    pub needed: Vec<Query>,
    /// The reason to refuse the statement.
    pub refused: Option<String>,
}

impl<'a> Subqueries<'a> {
    /// The subqueries of the visited query.
    pub fn new(writing: &'a Writing<'a>) -> Self {
        Self { writing, findings: RefCell::default() }
    }

    /// A name as the planner compares it.
    pub fn normalized(&self, name: &Ident) -> String {
        self.writing.normalizer.normalize(name.clone())
    }

    pub fn findings(self) -> Findings {
        self.findings.into_inner()
    }

    /// Remembers the first reason to refuse the statement.
    pub fn refuse(&self, reason: String) {
        self.findings.borrow_mut().refused.get_or_insert(reason);
    }

    /// The columns of a `FROM` in these queries, listed from outermost to innermost. `Ok(None)` if there is no `FROM`.
    /// Returns an error if the columns are unknown, or not known yet.
    fn columns(&self, from: &[TableWithJoins], inside: &[Frame]) -> Result<Option<DFSchemaRef>, Unknown> {
        if from.is_empty() {
            return Ok(None);
        }
        let inside: Vec<_> = inside.iter().filter_map(|frame| frame.enclosing()).collect();
        let probe = self.writing.probe(from, &inside).ok_or(Unknown::Forever)?;
        match self.writing.schemas.get(&probe.to_string()) {
            Some(schema) => schema.clone().map(Some).ok_or(Unknown::Forever),
            None => {
                self.findings.borrow_mut().needed.push(probe);
                Err(Unknown::Yet)
            }
        }
    }
}

/// Why the columns of a `FROM` are not known.
enum Unknown {
    /// Their schema has been requested.
    Yet,
    /// They cannot be planned separately from the query around them.
    Forever,
}

impl Scope {
    /// Replaces the names of merged columns by their values, except for the names in `except`.
    ///
    /// A name in a subquery means a column of the subquery's own tables if they have one of its name.
    pub fn write_names<T: VisitMut>(&self, tree: &mut T, except: &[String], subqueries: &Subqueries<'_>) {
        let mut names = Names { scope: self, except, subqueries, frames: vec![] };
        let _ = tree.visit(&mut names);
    }
}

/// A walk through an expression.
struct Names<'a> {
    scope: &'a Scope,
    except: &'a [String],
    subqueries: &'a Subqueries<'a>,
    /// The subqueries around the place that is visited.
    frames: Vec<Frame>,
}

/// A part of a subquery, with the names that it makes visible inside.
enum Frame {
    /// A query. Anything inside it but outside its `SELECT`s is its `ORDER BY`.
    Query {
        enclosing: Enclosing,
        /// The tables and the result names that its `ORDER BY` can name. None after a set operation: only its result names
        /// are visible there.
        order: Option<(Vec<TableWithJoins>, Vec<String>)>,
        /// Its common table expressions and the queries of its set operations, by address. They do not see its tables.
        parts: Vec<*const Query>,
        /// Whether it is a part of the query around it.
        is_part: bool,
    },
    Select {
        from: Vec<TableWithJoins>,
        outputs: Vec<String>,
    },
    /// A subquery in `FROM`, which does not see the other tables there.
    Derived,
}

impl Frame {
    fn enclosing(&self) -> Option<&Enclosing> {
        match self {
            Self::Query { enclosing, .. } => Some(enclosing),
            Self::Select { .. } | Self::Derived => None,
        }
    }
}

/// The meaning of a name in a subquery.
enum Meaning {
    /// A column of the subquery, or not known yet.
    Own,
    /// The merged column.
    Merged,
    Refused(String),
}

impl Names<'_> {
    /// The meaning of a name at the current place, if it is the name of a merged column with this value.
    fn meaning(&self, name: &str, value: &Expr) -> Meaning {
        // Frames that are invisible to the inner ones.
        let (mut hides_query, mut hides_select) = (false, false);
        for (depth, frame) in self.frames.iter().enumerate().rev() {
            let (from, outputs) = match frame {
                Frame::Derived => {
                    hides_select = true;
                    continue;
                }
                Frame::Select { from, outputs } => {
                    hides_query = true;
                    if std::mem::take(&mut hides_select) {
                        continue;
                    }
                    (from, outputs)
                }
                Frame::Query { order, is_part, .. } => {
                    let is_hidden = std::mem::replace(&mut hides_query, *is_part);
                    if is_hidden {
                        continue;
                    }
                    match order {
                        Some((from, outputs)) if !outputs.iter().any(|output| output == name) => (from, outputs),
                        _ => return Meaning::Own,
                    }
                }
            };
            match self.subqueries.columns(from, &self.frames[..depth]) {
                Err(Unknown::Yet) => return Meaning::Own,
                Err(Unknown::Forever) => {
                    return Meaning::Refused(format!(
                        "The column {name} in a subquery may be one of the subquery, or the one that USING or NATURAL merges \
                         around it. Write it with its table"
                    ));
                }
                Ok(Some(schema)) if schema.iter().any(|(_, field)| field.name() == name) => return Meaning::Own,
                Ok(schema) => {
                    if outputs.iter().any(|output| output == name) {
                        return Meaning::Refused(format!(
                            "The column {name} in a subquery may be its result of that name, or the column that USING or \
                             NATURAL merges around it. Give the result another name, or write the column with its table"
                        ));
                    }
                    let of_inner = |table: &str| {
                        let tables = schema.iter().flat_map(|schema| schema.iter()).filter_map(|(table, _)| table);
                        tables.into_iter().any(|inner| inner.table() == table)
                    };
                    if let Some(table) = tables_of(value).into_iter().find(|table| of_inner(table)) {
                        return Meaning::Refused(format!(
                            "The column {name} in a subquery is the one that USING or NATURAL merges around it, of a table \
                             {table}, and the subquery has a table of that name. Give one of them another name"
                        ));
                    }
                }
            }
        }
        Meaning::Merged
    }
}

impl VisitorMut for Names<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let address = &raw const *query;
        let around = self.frames.iter_mut().rev().find_map(|frame| match frame {
            Frame::Query { enclosing, parts, .. } => Some((enclosing, parts.contains(&address))),
            _ => None,
        });
        let is_part = around.is_some_and(|(enclosing, is_part)| {
            enclosing.enter(query);
            is_part
        });
        let order = match query.body.as_ref() {
            SetExpr::Select(select) => Some((select.from.clone(), output_names(select, self.subqueries))),
            _ => None,
        };
        let enclosing = Enclosing::of(query);
        let mut parts = enclosing.expressions.clone();
        parts.extend(trees_of(&mut query.body).into_iter().filter_map(|tree| match tree {
            SetExpr::Query(query) => Some(&raw const **query),
            _ => None,
        }));
        self.frames.push(Frame::Query { enclosing, order, parts, is_part });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.frames.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if let Some(Frame::Query { enclosing, .. }) = self.frames.last_mut() {
            enclosing.leave();
        }
        // The `SELECT` that is being rewritten is not a subquery.
        let (from, outputs) = match self.frames.is_empty() {
            true => (vec![], vec![]),
            false => (select.from.clone(), output_names(select, self.subqueries)),
        };
        self.frames.push(Frame::Select { from, outputs });
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _: &mut Select) -> ControlFlow<()> {
        self.frames.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Derived { lateral: false, .. } = factor {
            self.frames.push(Frame::Derived);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Derived { lateral: false, .. } = factor {
            self.frames.pop();
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Identifier(name) = expr else { return ControlFlow::Continue(()) };
        let name = self.subqueries.normalized(name);
        let is_free = !self.except.contains(&name);
        if let Some(column) = self.scope.only(&name).filter(|column| column.is_merged && is_free) {
            match self.meaning(&name, &column.value) {
                Meaning::Own => {}
                Meaning::Merged => *expr = column.value.clone(),
                Meaning::Refused(reason) => self.subqueries.refuse(reason),
            }
        }
        ControlFlow::Continue(())
    }
}

/// The names that a `SELECT` gives its results.
fn output_names(select: &Select, subqueries: &Subqueries<'_>) -> Vec<String> {
    let aliases = select.projection.iter().filter_map(|item| match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(subqueries.normalized(alias)),
        _ => None,
    });
    aliases.collect()
}
