//! Rewords DataFusion's messages for developers into sentences for the user.
//!
//! These messages are recognized by their text. The facts in them are kept: names, types, limits.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;

use super::suggest::{nearest, nearest_setting};

const SIGNATURES_LISTED: usize = 8;

/// The text that DataFusion appends to its internal errors.
const BUG_REPORT: &str = "\nThis issue was likely caused by a bug in DataFusion's code.";
const BUG_REPORT_END: &str = "https://github.com/apache/datafusion/issues.";

/// Names of error kinds that remain in a text when an error was converted to text and wrapped.
const KINDS: [&str; 9] = [
    "Error during planning: ",
    "Schema error: ",
    "Execution error: ",
    "Internal error: ",
    "This feature is not implemented: ",
    "Invalid or Unsupported Configuration: ",
    "External error: ",
    "Arrow error: ",
    "SQL error: ",
];

/// A message for the user, and the name that was probably meant.
#[derive(Debug)]
pub struct Words {
    pub text: String,
    pub meant: Option<String>,
}

impl Words {
    /// Words about an unknown name: `text`, and a question about the name that was probably meant.
    fn unknown(text: String, meant: Option<&str>) -> Self {
        let question = meant.map(|name| format!(" Did you mean '{name}'?")).unwrap_or_default();
        Self { text: text + &question, meant: meant.map(str::to_owned) }
    }

    /// The same with another text.
    pub fn map(self, change: impl FnOnce(String) -> String) -> Self {
        Self { text: change(self.text), ..self }
    }
}

impl From<String> for Words {
    fn from(text: String) -> Self {
        Self { text, meant: None }
    }
}

/// The names known to the session, for suggestions.
#[derive(Debug, Default)]
pub struct Names {
    functions: Vec<String>,
    tables: Vec<String>,
    settings: Vec<String>,
}

impl Names {
    pub fn of(context: &SessionContext) -> Self {
        let state = context.state();
        let mut functions: Vec<_> = state.scalar_functions().keys().cloned().collect();
        functions.extend(state.aggregate_functions().keys().cloned());
        functions.extend(state.window_functions().keys().cloned());
        functions.extend(state.table_functions().keys().cloned());
        let catalogs = Arc::clone(state.catalog_list());
        let schemas =
            catalogs.catalog_names().into_iter().filter_map(|name| catalogs.catalog(&name)).flat_map(|catalog| {
                let names = catalog.schema_names().into_iter().filter(|name| name != "information_schema");
                names.filter_map(|name| catalog.schema(&name)).collect::<Vec<_>>()
            });
        let tables = schemas.flat_map(|schema| schema.table_names()).collect();
        let settings = state.config().options().entries().into_iter().map(|entry| entry.key).collect();
        Self { functions, tables, settings }
    }
}

/// The text without the call stack that DataFusion may append.
pub fn without_backtrace(text: &str) -> &str {
    text.split_once(DataFusionError::BACK_TRACE_SEP).map_or(text, |(text, _)| text)
}

/// Rewords a message for the user.
pub fn reword(text: &str, names: &Names) -> Words {
    let mut text = without_bug_report(text);
    for kind in KINDS {
        text = text.replace(kind, "");
    }
    let known = [
        wrong_arguments(&text).map(Words::from),
        misplaced_expression(&text).map(Words::from),
        unsupported_join(&text).map(Words::from),
        unsupported_table(&text).map(Words::from),
        unknown_function(&text, names),
        unknown_table(&text, names),
        unknown_option(&text).map(Words::from),
        unknown_setting(&text, names),
    ];
    known.into_iter().flatten().next().unwrap_or_else(|| without_dumps(text.trim_end()).into())
}

fn without_bug_report(text: &str) -> String {
    let Some((before, after)) = text.split_once(BUG_REPORT) else { return text.to_string() };
    let after = after.split_once(BUG_REPORT_END).map_or("", |(_, after)| after);
    format!("{before}{after}")
}

/// `No function matches the given name and argument types 'sum(Utf8)'. …Candidate functions:…`
fn wrong_arguments(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("No function matches the given name and argument types '")?;
    let (call, rest) = rest.split_once('\'')?;
    let (name, types) = call.split_once('(')?;
    let types = types.strip_suffix(')').unwrap_or(types);
    let given = if types.is_empty() { "no arguments".to_string() } else { format!("arguments of type {types}") };
    let mut signatures = Vec::new();
    for line in rest.lines().map(str::trim).filter(|line| line.starts_with(&format!("{name}("))) {
        // The three in-memory representations of text are one type to the user.
        let line = line.replace("LargeUtf8", "Utf8").replace("Utf8View", "Utf8").replace("NullAry()", "");
        if !signatures.contains(&line) {
            signatures.push(line);
        }
    }
    let takes = match signatures.len() {
        0 => String::new(),
        1..=SIGNATURES_LISTED => format!(" It is called as {}.", signatures.join(", ")),
        more => format!(
            " It is called as {} and in {} other ways.",
            signatures[..SIGNATURES_LISTED].join(", "),
            more - SIGNATURES_LISTED
        ),
    };
    Some(format!("The function '{name}' does not take {given}.{takes} CAST(… AS …) changes the type of an argument."))
}

/// `Physical plan does not support logical expression AggregateFunction(AggregateFunction { func: …`
fn misplaced_expression(text: &str) -> Option<String> {
    let (_, dump) = text.split_once("Physical plan does not support logical expression ")?;
    let kind = dump.split(|next: char| !next.is_alphanumeric()).next()?;
    let columns = dumped_names(dump).join(", ");
    Some(match kind {
        "AggregateFunction" => {
            "An aggregate function stands where there are no groups yet, as in WHERE, GROUP BY or the condition of a \
             join: use HAVING, or compute it in a subquery"
                .to_string()
        }
        "WindowFunction" => {
            "A window function stands where it cannot be computed, as in WHERE, GROUP BY or HAVING: use \
                             QUALIFY, or compute it in a subquery"
                .to_string()
        }
        "InSubquery" | "Exists" | "ScalarSubquery" | "SetComparison" | "OuterReferenceColumn" => {
            let of = if columns.is_empty() { String::new() } else { format!(" (of {columns})") };
            format!(
                "This subquery uses columns of the query around it{of} in a way that cannot be planned as a join; write \
                 it as a join, or compute it in a common table expression first"
            )
        }
        "Placeholder" => "A parameter was not given a value".to_string(),
        "Unnest" => {
            "unnest stands where it cannot be computed: use it in SELECT or FROM, in a subquery if need be".to_string()
        }
        other => {
            let of = if columns.is_empty() { String::new() } else { format!(" of {columns}") };
            format!("{other}{of} stands where it cannot be computed; compute it in a subquery first")
        }
    })
}

/// `Unsupported JOIN operator Semi(On(BinaryOp { left: …`
fn unsupported_join(text: &str) -> Option<String> {
    let (_, dump) = text.split_once("Unsupported JOIN operator ")?;
    let kind = dump.split(|next: char| !next.is_alphanumeric()).next()?;
    Some(match kind {
        "Semi" => "SEMI JOIN is written LEFT SEMI JOIN or RIGHT SEMI JOIN".to_string(),
        "Anti" => "ANTI JOIN is written LEFT ANTI JOIN or RIGHT ANTI JOIN".to_string(),
        "AsOf" => "ASOF JOIN is not supported: join on an inequality, and keep the nearest row of each with a window \
                   function"
            .to_string(),
        "CrossApply" => "CROSS APPLY is not supported: write CROSS JOIN LATERAL".to_string(),
        "OuterApply" => "OUTER APPLY is not supported: write LEFT JOIN LATERAL … ON true".to_string(),
        other => format!("Joins of the kind {} are not supported", spaced(other)),
    })
}

/// `Unsupported ast node Pivot { table: … } in create_relation`
fn unsupported_table(text: &str) -> Option<String> {
    let (_, dump) = text.split_once("Unsupported ast node ")?;
    let kind = dump.trim_start_matches("\"").split(|next: char| !next.is_alphanumeric()).next()?;
    let columns = dumped_names(dump);
    let of = if columns.is_empty() { String::new() } else { format!(" (of {})", columns.join(", ")) };
    Some(match kind {
        "Pivot" => format!("PIVOT is not supported{of}: write an aggregate with FILTER (WHERE …) for each column"),
        "Unpivot" => format!("UNPIVOT is not supported{of}: write a UNION ALL of the columns"),
        other => format!("{} is not supported{of}", spaced(other)),
    })
}

/// `Invalid function 'cout'.\nDid you mean 'cot'?`
fn unknown_function(text: &str, names: &Names) -> Option<Words> {
    let (_, rest) = text.split_once("Invalid function '")?;
    let (name, rest) = rest.split_once('\'')?;
    let known = nearest(name, names.functions.iter().map(String::as_str));
    // Without a session, keep the planner's suggestion.
    let planner =
        rest.split_once("Did you mean '").and_then(|(_, meant)| meant.split_once('\'')).map(|(meant, _)| meant);
    let meant = if names.functions.is_empty() { planner } else { known };
    Some(Words::unknown(format!("There is no function '{name}'."), meant))
}

/// The name of the missing table in `table 'datafusion.public.orderz' not found`.
pub fn missing_table(text: &str) -> Option<&str> {
    let (before, rest) = text.split_once("able '")?;
    let (name, after) = rest.split_once('\'')?;
    if !(before.is_empty() || before.ends_with(['t', 'T'])) || !(after == " not found" || after == " doesn't exist.") {
        return None;
    }
    Some(name.strip_prefix("datafusion.public.").unwrap_or(name))
}

fn unknown_table(text: &str, names: &Names) -> Option<Words> {
    let short = missing_table(text)?;
    let last = short.rsplit('.').next().unwrap_or(short);
    let meant = nearest(last, names.tables.iter().map(String::as_str));
    Some(Words::unknown(format!("Table '{short}' not found."), meant))
}

/// `'overspill.stratgy' is not a variable which can be viewed with 'SHOW'`
fn unknown_setting(text: &str, names: &Names) -> Option<Words> {
    let name = text.strip_suffix("' is not a variable which can be viewed with 'SHOW'")?.strip_prefix('\'')?;
    let meant = nearest_setting(name, &names.settings);
    Some(Words::unknown(format!("There is no setting '{name}'."), meant.as_deref()))
}

/// `Config value "nope" not found on CsvOptions`
fn unknown_option(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Config value \"")?;
    let (name, _) = rest.split_once("\" not found on ")?;
    Some(format!("There is no option '{name}'"))
}

/// Splits a camel case name into words.
fn spaced(name: &str) -> String {
    let mut words = String::new();
    for next in name.chars() {
        if next.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(next.to_uppercase());
    }
    words
}

/// The names of columns and tables in a dump of the planner's structures, in order.
fn dumped_names(dump: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for field in ["name: \"", "value: \""] {
        for part in dump.split(field).skip(1) {
            let Some((name, _)) = part.split_once('"') else { continue };
            if !names.iter().any(|known| known == name) {
                names.push(name.to_string());
            }
        }
    }
    names
}

/// Replaces dumps of the planner's structures (`Ident { value: "a", … }`) by the names in them.
fn without_dumps(text: &str) -> String {
    let mut words = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = dump_start(rest) {
        let end = start + balanced_end(&rest[start..]);
        let dump = &rest[start..end];
        words.push_str(&rest[..start]);
        let names = dumped_names(dump);
        let kind = dump.split(|next: char| !next.is_alphanumeric()).next().unwrap_or_default();
        match names.as_slice() {
            [] => words.push_str(&spaced(kind)),
            names => words.push_str(&format!("{} {}", spaced(kind), names.join(", "))),
        }
        rest = &rest[end..];
    }
    words.push_str(rest);
    words
}

/// The start of the first dump of a structure with named fields: `Name { field: `, possibly within `Name(`.
fn dump_start(text: &str) -> Option<usize> {
    let brace = text.match_indices(" { ").map(|(position, _)| position).find(|&position| {
        let fields = &text[position + 3..];
        let field = fields.split(|next: char| !(next.is_alphanumeric() || next == '_')).next().unwrap_or_default();
        text[..position].ends_with(|last: char| last.is_alphanumeric())
            && !field.is_empty()
            && fields[field.len()..].starts_with(": ")
    })?;
    // Skip back over the names and parentheses around it.
    let wrapped = text[..brace].rfind(|last: char| !(last.is_alphanumeric() || matches!(last, '(' | '[')));
    Some(wrapped.map_or(0, |position| position + text[position..].chars().next().map_or(1, char::len_utf8)))
}

/// The length of a dump: the text up to the end of everything that it opened.
fn balanced_end(dump: &str) -> usize {
    let mut open = 0_usize;
    let mut quoted = false;
    for (position, next) in dump.char_indices() {
        match next {
            '"' => quoted = !quoted,
            '(' | '[' | '{' if !quoted => open += 1,
            ')' | ']' | '}' if !quoted => {
                open = open.saturating_sub(1);
                if open == 0 {
                    return position + 1;
                }
            }
            _ => {}
        }
    }
    dump.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        let names = Names {
            functions: ["count", "cot", "sum"].map(str::to_string).to_vec(),
            tables: vec!["orders".to_string()],
            settings: vec!["overspill.strategy".to_string()],
        };
        reword(text, &names).text
    }

    #[test]
    fn arguments_that_a_function_does_not_take_are_told_with_those_it_takes() {
        let text = "Internal error: Function 'sum' failed to match any signature, errors: Error during planning: x..\n\
                    This issue was likely caused by a bug in DataFusion's code. Please help us to resolve this by \
                    filing a bug report in our issue tracker: https://github.com/apache/datafusion/issues. No function \
                    matches the given name and argument types 'sum(Utf8)'. You might need to add explicit type casts.\n\
                    \tCandidate functions:\n\tsum(Decimal)\n\tsum(Int64)";
        assert_eq!(
            words(text),
            "The function 'sum' does not take arguments of type Utf8. It is called as sum(Decimal), sum(Int64). \
             CAST(… AS …) changes the type of an argument."
        );
    }

    #[test]
    fn dumps_become_the_names_in_them() {
        assert_eq!(
            words(
                "cannot use Wrapped([Ident { value: \"a\", quote_style: None, span: Span(Location(1,2)..Location(1,3)) }]) here"
            ),
            "cannot use WRAPPED a here"
        );
        for plain in ["Struct(\"x\": Int32) is no number", "a { b", "f(x) and {\"a\": 1}", "Range { .. }"] {
            assert_eq!(words(plain), plain);
        }
    }

    #[test]
    fn joins_are_told_with_their_spelling() {
        assert!(words("Unsupported JOIN operator Semi(On(BinaryOp { left: x }))").contains("LEFT SEMI JOIN"));
        assert_eq!(
            words("Unsupported JOIN operator FullOuterFoo"),
            "Joins of the kind FULL OUTER FOO are not supported"
        );
    }

    #[test]
    fn names_nearby_are_suggested() {
        assert_eq!(
            words("Invalid function 'cout'.\nDid you mean 'cot'?"),
            "There is no function 'cout'. Did you mean 'count'?"
        );
        assert_eq!(
            words("table 'datafusion.public.order' not found"),
            "Table 'order' not found. Did you mean 'orders'?"
        );
        assert_eq!(words("Table 'zzz' doesn't exist."), "Table 'zzz' not found.");
    }
}
