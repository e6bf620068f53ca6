//! `CREATE INDEX`, `DROP INDEX`, `REINDEX` and `SHOW INDEXES`, read from the parser's tree: DataFusion 55 plans the first without some of its
//! clauses, and runs none of them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, Result, TableReference, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::sql::parser;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{self, Ident, IndexOption, IndexType, ObjectName, ObjectType, Statement};
use overspill_index::IndexKind;

/// A statement about indexes, as a plan without inputs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct IndexStatement {
    pub action: IndexAction,
    schema: DFSchemaRef,
}

/// What a statement does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum IndexAction {
    Create(CreateIndex),
    Drop(DropIndex),
    /// Makes an index, or all of a table, anew: `REINDEX [INDEX | TABLE] name`.
    Rebuild(TableReference),
    /// Lists the indexes of a table, or of all.
    Show(Option<TableReference>),
}

/// `CREATE INDEX [IF NOT EXISTS] [name] ON table [USING kind] (column) [INCLUDE (column, …)]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CreateIndex {
    pub name: String,
    pub table: TableReference,
    pub column: String,
    /// Other columns, each once.
    pub included: Vec<String>,
    /// `None` if the statement does not say.
    pub kind: Option<IndexKind>,
    pub if_not_exists: bool,
}

/// `DROP INDEX [IF EXISTS] name, … [ON table]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DropIndex {
    /// `None` if the statement does not say.
    pub table: Option<TableReference>,
    pub names: Vec<String>,
    pub if_exists: bool,
}

impl IndexStatement {
    fn new(action: IndexAction) -> Self {
        Self { action, schema: Arc::new(DFSchema::empty()) }
    }
}

/// The statement about indexes that this one is; `None` if it is another. `normalizes` says whether names without quotes are in
/// small letters.
///
/// # Errors
/// If it has a clause that indexes do not support.
pub(crate) fn statement_of(statement: &parser::Statement, normalizes: bool) -> Result<Option<IndexStatement>> {
    let parser::Statement::Statement(statement) = statement else { return Ok(None) };
    let action = match statement.as_ref() {
        Statement::CreateIndex(create) => IndexAction::Create(created(create, normalizes)?),
        Statement::Drop { object_type: ObjectType::Index, if_exists, names, cascade, table, .. } => {
            if *cascade {
                return plan_err!("DROP INDEX does not support CASCADE: nothing depends on an index");
            }
            let names = names.iter().map(|name| index_name(name, normalizes)).collect::<Result<_>>()?;
            let table = table.clone().map(|table| object_name_to_table_reference(table, normalizes)).transpose()?;
            IndexAction::Drop(DropIndex { table, names, if_exists: *if_exists })
        }
        Statement::Vacuum(vacuum) if vacuum.reindex => match &vacuum.table_name {
            Some(name) if vacuum.threshold.is_none() && !vacuum.boost && !vacuum.full && !vacuum.recluster => {
                IndexAction::Rebuild(object_name_to_table_reference(name.clone(), normalizes)?)
            }
            _ => return plan_err!("REINDEX takes the name of an index or of a table, and nothing else"),
        },
        Statement::ShowVariable { variable } => match &variable[..] {
            [word, rest @ ..] if word.value.eq_ignore_ascii_case("indexes") => IndexAction::Show(match rest {
                [] => None,
                [from, table @ ..] if from.value.eq_ignore_ascii_case("from") && !table.is_empty() => {
                    let name = ObjectName::from(table.to_vec());
                    Some(object_name_to_table_reference(name, normalizes)?)
                }
                // The parser leaves text in single quotes out.
                _ => {
                    return plan_err!(
                        "SHOW INDEXES takes FROM and a table, or a file in double quotes, and nothing else"
                    );
                }
            }),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(IndexStatement::new(action)))
}

fn created(create: &ast::CreateIndex, normalizes: bool) -> Result<CreateIndex> {
    let refused = [
        (create.unique, "UNIQUE: declare the column UNIQUE or PRIMARY KEY in CREATE TABLE"),
        (create.concurrently, "CONCURRENTLY"),
        (create.predicate.is_some(), "WHERE: an index is over all rows"),
        (create.nulls_distinct.is_some(), "NULLS DISTINCT"),
        (!create.with.is_empty() || !create.alter_options.is_empty(), "options"),
    ];
    if let Some((_, clause)) = refused.iter().find(|(is_there, _)| *is_there) {
        return plan_err!("CREATE INDEX does not support {clause}");
    }
    let [column] = &create.columns[..] else {
        return plan_err!("An index is over one column, and {} are named", create.columns.len());
    };
    let order = &column.column;
    let ast::Expr::Identifier(ident) = &order.expr else {
        return plan_err!("An index is over a column, not over the expression {}", order.expr);
    };
    let is_plain = order.options.asc.is_none() && order.options.nulls_first.is_none() && order.with_fill.is_none();
    if !is_plain || column.operator_class.is_some() {
        return plan_err!("The column of an index has no order and no operator class: write ({ident})");
    }
    let mut kind = create.using.as_ref().map(kind_of).transpose()?;
    for option in &create.index_options {
        match option {
            IndexOption::Using(_) if kind.is_some() => return plan_err!("CREATE INDEX has USING twice"),
            IndexOption::Using(named) => kind = Some(kind_of(named)?),
            IndexOption::Comment(_) => return plan_err!("CREATE INDEX does not support COMMENT"),
        }
    }
    let column = text(ident, normalizes);
    let included: Vec<String> = create.include.iter().map(|ident| text(ident, normalizes)).collect();
    let mut named: HashSet<&str> = HashSet::from([column.as_str()]);
    if let Some(twice) = included.iter().find(|name| !named.insert(name)) {
        return plan_err!("Column '{twice}' is named twice: INCLUDE is for columns besides the indexed one, each once");
    }
    let table = object_name_to_table_reference(create.table_name.clone(), normalizes)?;
    let name = match &create.name {
        Some(name) => index_name(name, normalizes)?,
        None => format!("{}_{column}_idx", table.table()),
    };
    Ok(CreateIndex { name, table, column, included, kind, if_not_exists: create.if_not_exists })
}

/// The kind that USING names.
fn kind_of(named: &IndexType) -> Result<IndexKind> {
    let name = match named {
        IndexType::Custom(ident) => ident.value.to_ascii_lowercase(),
        other => other.to_string().to_ascii_lowercase(),
    };
    match IndexKind::ALL.into_iter().find(|kind| kind.name() == name) {
        Some(kind) => Ok(kind),
        None => {
            plan_err!("There is no index of kind '{name}', but: {}", IndexKind::ALL.map(IndexKind::name).join(", "))
        }
    }
}

/// The name of an index, which belongs to no schema.
fn index_name(name: &ObjectName, normalizes: bool) -> Result<String> {
    match &name.0[..] {
        [part] if part.as_ident().is_some() => {
            Ok(part.as_ident().map(|ident| text(ident, normalizes)).unwrap_or_default())
        }
        _ => plan_err!("The name of an index has no schema, as in '{name}'"),
    }
}

fn text(ident: &Ident, normalizes: bool) -> String {
    if normalizes && ident.quote_style.is_none() { ident.value.to_ascii_lowercase() } else { ident.value.clone() }
}

impl PartialOrd for IndexStatement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for IndexStatement {
    fn name(&self) -> &'static str {
        "IndexStatement"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.action {
            IndexAction::Create(create) => {
                write!(f, "CreateIndex: {} on {} ({})", create.name, create.table, create.column)?;
                if create.included.is_empty() { Ok(()) } else { write!(f, " include ({})", create.included.join(", ")) }
            }
            IndexAction::Drop(drop) => write!(f, "DropIndex: {}", drop.names.join(", ")),
            IndexAction::Rebuild(name) => write!(f, "Reindex: {name}"),
            IndexAction::Show(None) => write!(f, "ShowIndexes"),
            IndexAction::Show(Some(table)) => write!(f, "ShowIndexes: {table}"),
        }
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, _: Vec<LogicalPlan>) -> Result<Self> {
        Ok(self.clone())
    }
}
