//! `CREATE EXTERNAL TABLE` over a pattern.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::{Result, internal_datafusion_err, plan_datafusion_err, plan_err};
use datafusion::datasource::provider::DefaultTableFactory;
use datafusion::execution::SessionState;
use datafusion::logical_expr::CreateExternalTable;

use super::format::NamedFormat;
use super::listing;
use super::scan::FilesTable;
use super::selection::Selection;
use super::table;

/// Lists the files of a pattern as FROM does; DataFusion 55 would walk through all folders below the pattern's first part.
/// Leaves single files and folders to DataFusion.
#[derive(Debug, Default)]
pub struct ExternalTables {
    host: DefaultTableFactory,
}

#[async_trait]
impl TableProviderFactory for ExternalTables {
    async fn create(&self, state: &dyn Session, command: &CreateExternalTable) -> Result<Arc<dyn TableProvider>> {
        let is_pattern = |location: &String| {
            location.contains(['*', '?', '[']) && !location.contains("://") && !Path::new(location).exists()
        };
        let Some(location) = command.locations.iter().find(|location| is_pattern(location)) else {
            if command.schema.fields().is_empty() {
                refuse_leaving_out(command)?;
            }
            return self.host.create(state, &taken_literally(command)).await;
        };
        let state = state
            .as_any()
            .downcast_ref::<SessionState>()
            .ok_or_else(|| internal_datafusion_err!("external tables belong to a session"))?;
        let is_more = command.locations.len() > 1
            || command.unbounded
            || !command.order_exprs.is_empty()
            || !command.table_partition_cols.is_empty()
            || !command.column_defaults.is_empty();
        if is_more {
            return plan_err!(
                "CREATE EXTERNAL TABLE over the pattern '{location}' takes no other location, and neither PARTITIONED BY, \
                 WITH ORDER, UNBOUNDED nor DEFAULT: name the folder '…/' instead, or files one by one"
            );
        }
        let format = state
            .get_file_format_factory(&command.file_type)
            .ok_or_else(|| plan_datafusion_err!("there is no format {}", command.file_type))?
            .create(state, &command.options)?;
        let selection = Selection { name: location.clone(), path: location.clone(), named: None };
        let declared = (!command.schema.fields().is_empty()).then(|| Arc::clone(command.schema.inner()));
        let kind = command.file_type.to_ascii_lowercase();
        let (file_schema, columns) = table::columns(state, format.as_ref(), &kind, &selection, declared).await?;
        Ok(Arc::new(FilesTable::new(selection, format, file_schema, columns, command.definition.clone())))
    }
}

/// The command with URLs for paths that DataFusion would take for patterns.
fn taken_literally(command: &CreateExternalTable) -> CreateExternalTable {
    let mut command = command.clone();
    for location in &mut command.locations {
        let path = Path::new(location);
        if location.contains(['*', '?', '['])
            && path.exists()
            && let Some(url) = listing::literal_url(path)
        {
            *location = url.into();
        }
    }
    command
}

/// Refuses a folder if DataFusion would skip files of the format because of their extension.
fn refuse_leaving_out(command: &CreateExternalTable) -> Result<()> {
    let kind = command.file_type.to_ascii_lowercase();
    for location in command.locations.iter().filter(|location| Path::new(location).is_dir()) {
        let Ok(files) = listing::files(location) else { continue };
        let named = files.iter().filter_map(|file| Some((file, NamedFormat::of(file.path.to_str()?)?)));
        let of_kind: Vec<_> = named.filter(|(_, named)| named.known_as == kind).collect();
        let is_read = |suffix: &str| suffix.starts_with(&format!(".{kind}")) && suffix == suffix.to_ascii_lowercase();
        let Some((first, of_first)) = of_kind.iter().find(|(_, named)| is_read(&named.suffix)) else { continue };
        if let Some((other, _)) = of_kind.iter().find(|(_, named)| named.suffix != of_first.suffix) {
            return plan_err!(
                "CREATE EXTERNAL TABLE over the folder '{location}' would read {} and leave {} out: name the files of one \
                 format by a pattern, as in '{}/*'",
                first.path.display(),
                other.path.display(),
                location.trim_end_matches('/')
            );
        }
    }
    Ok(())
}
