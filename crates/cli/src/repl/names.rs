//! The names for completion.

use std::collections::BTreeSet;

use datafusion::prelude::SessionContext;

/// The tables, their columns and the functions that the session currently knows.
pub async fn known(context: &SessionContext) -> BTreeSet<String> {
    let state = context.state();
    let mut names: BTreeSet<String> = state.scalar_functions().keys().cloned().collect();
    names.extend(state.aggregate_functions().keys().cloned());
    names.extend(state.window_functions().keys().cloned());
    for catalog in state.catalog_list().catalog_names() {
        let Some(catalog) = state.catalog_list().catalog(&catalog) else { continue };
        for schema in catalog.schema_names() {
            let Some(tables) = catalog.schema(&schema) else { continue };
            for table in tables.table_names() {
                if let Ok(Some(provider)) = tables.table(&table).await {
                    names.extend(provider.schema().fields().iter().map(|field| quoted(field.name())));
                }
                names.insert(quoted(&table));
            }
        }
    }
    names
}

/// A name quoted as SQL requires.
fn quoted(name: &str) -> String {
    let plain = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_')
        && name.chars().all(|next| next.is_ascii_lowercase() || next.is_ascii_digit() || next == '_');
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}
