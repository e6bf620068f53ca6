//! Describes a query's error to the user.

use arrow::error::ArrowError;
use datafusion::common::{Column, SchemaError, human_readable_size};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};
use overspill::OverspillConfig;
use overspill::size::Size;
use overspill::spill::explain_disk_full;

use super::suggest::nearest;
use super::words::{Names, Words, reword, without_backtrace};
use super::{Error, io_reason};
use crate::limits::in_force;

const COLUMNS_LISTED: usize = 40;

/// Describes the error of a statement, and locates it in the statement. If a budget caused the error, the text names the
/// budget and the setting that raises it.
pub fn describe(error: DataFusionError, sql: &str, context: &SessionContext) -> Error {
    let error = explain_disk_full(error, &context.runtime_env().disk_manager);
    let Words { text, meant } = match error.find_root() {
        DataFusionError::ResourcesExhausted(text) if text.contains("--") => without_backtrace(text).to_string().into(),
        // Overspill's own errors are complete; DataFusion's only name their pool.
        DataFusionError::ResourcesExhausted(text) => {
            let text = without_backtrace(text);
            let [limit, _] = in_force(&context.runtime_env());
            let limit = limit.map_or_else(|| "its size".to_string(), |bytes| Size(bytes).to_string());
            format!(
                "Not enough memory: {}\nThe memory limit is {limit}; raise it with --memory-limit on the command line \
                 or with SET datafusion.runtime.memory_limit in SQL.",
                text.trim_end()
            )
            .into()
        }
        _ => in_words(&error, &Names::of(context)),
    };
    let place = place_of(&error, sql, context);
    Error { sentence: with_limits_as_given(text, context), suggestion: meant, place }
}

/// Replaces limits by their original values: DataFusion rounds them to what it calls MB, and shows 64MB as 61.0.
fn with_limits_as_given(text: String, context: &SessionContext) -> String {
    let [memory, disk] = in_force(&context.runtime_env());
    let state = context.state();
    let join = state.config().options().extensions.get::<OverspillConfig>().map(|config| config.join_memory_limit);
    [memory, disk, join].into_iter().flatten().fold(text, |text, limit| {
        let rounded = human_readable_size(limit);
        let given = Size(limit).to_string();
        ["limit of ", "limit is "]
            .iter()
            .fold(text, |text, before| text.replace(&format!("{before}{rounded}"), &format!("{before}{given}")))
    })
}

/// The error's own message, without the names of the layers it passed through.
pub fn plain(error: &DataFusionError) -> String {
    in_words(error, &Names::default()).text
}

fn in_words(error: &DataFusionError, names: &Names) -> Words {
    let reword = |text: &str| reword(without_backtrace(text), names);
    match error {
        DataFusionError::Context(context, inner) if names_code(context) => in_words(inner, names),
        DataFusionError::Context(context, inner) => in_words(inner, names).map(|words| format!("{words} ({context})")),
        DataFusionError::Diagnostic(_, inner) => in_words(inner, names),
        DataFusionError::Shared(inner) => in_words(inner, names),
        DataFusionError::SQL(error, _) => parser_words(error).into(),
        DataFusionError::Plan(text)
        | DataFusionError::Configuration(text)
        | DataFusionError::Execution(text)
        | DataFusionError::Internal(text)
        | DataFusionError::ResourcesExhausted(text) => reword(text),
        DataFusionError::NotImplemented(text) => reword(text).map(|text| match text.trim() {
            // Some errors consist only of the name of the unsupported feature.
            name if !name.contains(' ') => format!("{name} is not supported"),
            text => text.to_string(),
        }),
        DataFusionError::ArrowError(error, _) => arrow_words(error, names),
        DataFusionError::SchemaError(error, _) => schema_words(error),
        DataFusionError::IoError(error) => io_reason(error).into(),
        DataFusionError::External(error) => match error.downcast_ref::<DataFusionError>() {
            Some(inner) => in_words(inner, names),
            None => reword(&error.to_string()),
        },
        DataFusionError::Collection(errors) => {
            let words: Vec<_> = errors.iter().map(|error| in_words(error, names)).collect();
            let meant = words.iter().find_map(|words| words.meant.clone());
            let mut texts: Vec<_> = words.into_iter().map(|words| words.text).collect();
            texts.dedup();
            Words { text: texts.join("\n  "), meant }
        }
        other => reword(&other.strip_backtrace()),
    }
}

/// Whether a context names the part of the planner that an error passed through, which means nothing to the user.
fn names_code(context: &str) -> bool {
    !context.contains(' ')
        || context.starts_with("Optimizer rule ")
        || context.starts_with("Invalid (non-executable) plan")
        || context.starts_with("Error setting config ")
        || context.starts_with("Error parsing ")
}

fn parser_words(error: &ParserError) -> String {
    match error {
        ParserError::RecursionLimitExceeded => {
            "Parentheses, functions or subqueries are nested too deep; SET datafusion.sql_parser.recursion_limit \
             raises the limit"
                .to_string()
        }
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => {
            text.rsplit_once(" at Line: ").map_or(text.as_str(), |(text, _)| text).to_string()
        }
    }
}

fn arrow_words(error: &ArrowError, names: &Names) -> Words {
    match error {
        ArrowError::ExternalError(error) => match error.downcast_ref::<DataFusionError>() {
            Some(inner) => in_words(inner, names),
            None => reword(&error.to_string(), names),
        },
        ArrowError::CastError(text) | ArrowError::ComputeError(text) | ArrowError::InvalidArgumentError(text) => {
            reword(text, names)
        }
        other => reword(&other.to_string(), names),
    }
}

fn schema_words(error: &SchemaError) -> Words {
    let SchemaError::FieldNotFound { field, valid_fields } = error else { return error.to_string().into() };
    let mut text = format!("No field named {}.", field.quoted_flat_name());
    let meant = nearest_column(field, valid_fields);
    if let Some(meant) = meant {
        text.push_str(&format!(" Did you mean {}?", meant.quoted_flat_name()));
        if meant.name != field.name && meant.name.to_lowercase() == field.name.to_lowercase() {
            text.push_str(" Names in double quotes keep their case, others are read in lower case.");
        }
    }
    let mut columns: Vec<_> = valid_fields.iter().map(Column::quoted_flat_name).collect();
    columns.dedup();
    match columns.len() {
        0 => {}
        1..=COLUMNS_LISTED => text.push_str(&format!("\nThe columns are {}.", columns.join(", "))),
        more => text.push_str(&format!(
            "\nThe columns are {} and {} more.",
            columns[..COLUMNS_LISTED].join(", "),
            more - COLUMNS_LISTED
        )),
    }
    Words { text, meant: meant.map(Column::quoted_flat_name) }
}

/// The column that was probably meant: the same name in another table, or a similar name.
fn nearest_column<'a>(field: &Column, columns: &'a [Column]) -> Option<&'a Column> {
    let same = columns.iter().find(|column| column.name.eq_ignore_ascii_case(&field.name));
    same.or_else(|| {
        let name = nearest(&field.name, columns.iter().map(|column| column.name.as_str()))?;
        columns.iter().find(|column| column.name == name)
    })
}

/// The place of the error in the statement: where the parser stopped, where the planner points, or the only occurrence of the
/// name that the error quotes.
fn place_of(error: &DataFusionError, sql: &str, context: &SessionContext) -> Option<Location> {
    if let DataFusionError::SQL(error, _) = error.find_root() {
        return parser_place(error, sql);
    }
    if let Some(span) = error.diagnostic().and_then(|diagnostic| diagnostic.span) {
        return Some(Location::new(span.start.line, span.start.column));
    }
    let dialect = dialect_from_str(context.state().config().options().sql_parser.dialect)?;
    let tokens = Tokenizer::new(dialect.as_ref(), sql).tokenize_with_location().ok()?;
    quoted_names(&error.strip_backtrace()).into_iter().find_map(|name| {
        let mut places = tokens.iter().filter(|token| match &token.token {
            Token::Word(word) => word.value.eq_ignore_ascii_case(&name),
            Token::SingleQuotedString(text) => *text == name,
            _ => false,
        });
        let place = places.next()?.span.start;
        places.next().is_none().then_some(place)
    })
}

fn parser_place(error: &ParserError, sql: &str) -> Option<Location> {
    let (ParserError::ParserError(text) | ParserError::TokenizerError(text)) = error else { return None };
    if let Some((_, place)) = text.rsplit_once(" at Line: ") {
        let (line, column) = place.split_once(", Column: ")?;
        return Some(Location::new(line.trim().parse().ok()?, column.trim().parse().ok()?));
    }
    if !text.contains("EOF") {
        return None;
    }
    let last = sql.lines().last()?;
    Some(Location::new(sql.lines().count() as u64, last.chars().count() as u64 + 1))
}

/// The quoted names in a text, also with the last parts of qualified names.
fn quoted_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for quote in ['\'', '"'] {
        let parts: Vec<_> = text.split(quote).collect();
        for name in parts.iter().skip(1).step_by(2).take(8) {
            names.push((*name).to_string());
            // The name of a function call, as in 'sum(Utf8)', or of a qualified table.
            let call = name.split('(').next().unwrap_or_default();
            names.push(call.rsplit('.').next().unwrap_or_default().to_string());
        }
    }
    names.retain(|name| !name.is_empty());
    names
}
