//! Resolves a file path in FROM to a table.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{TableProvider, UrlTableFactory};
use datafusion::common::{DataFusionError, Result, plan_datafusion_err, plan_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::SessionState;
use datafusion::object_store::ObjectStore;
use futures::{StreamExt, TryStreamExt};

use super::format::NamedFormat;
use super::listing::Found;
use super::scan::FilesTable;
use super::selection::{Selection, find, local_files, one_format};
use super::{partitions, schema};
use crate::error::missing_table;
use crate::owner::Owner;

/// Resolves names that no catalog knows to tables, if they name files of this machine.
#[derive(Debug, Default)]
pub struct FileTables {
    /// The session that provides settings and formats.
    pub session: Owner,
}

#[async_trait]
impl UrlTableFactory for FileTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(state) = self.session.state() else { return Ok(None) };
        let path = expand_home(name);
        if !Path::new(&path).exists() && !looks_like_files(name) {
            return Ok(None);
        }
        if let Some((scheme, rest)) = path.split_once("://") {
            let url = ListingTableUrl::parse(&path)
                .map_err(|error| plan_datafusion_err!("'{name}' is not a usable path: {}", error.strip_backtrace()))?;
            // Check the store first, so that s3:// and similar are refused with its message.
            state.runtime_env().object_store(&url)?;
            return plan_err!("'{name}' is written as a path, without {scheme}://: '{rest}'");
        }
        match table(&state, name, path).await {
            Ok(table) => Ok(Some(table)),
            // CREATE TABLE also looks up its own name, and must not fail here. `why_no_table` gives the reason to a query.
            Err(_) if !looks_like_files(name) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Adds to the error of a missing table why the folder or file of its name cannot be used.
pub async fn why_no_table(state: &SessionState, error: DataFusionError) -> DataFusionError {
    let DataFusionError::Plan(text) = error.find_root() else { return error };
    // Keep the error of DROP, which says 'does not exist' instead.
    let Some(name) = missing_table(text).filter(|_| text.ends_with("not found")) else { return error };
    let path = expand_home(name);
    if looks_like_files(name) || !Path::new(&path).exists() {
        return error;
    }
    match table(state, name, path).await {
        Ok(_) => error,
        Err(reason) => reason,
    }
}

async fn table(state: &SessionState, name: &str, path: String) -> Result<Arc<dyn TableProvider>> {
    let is_folder = Path::new(&path).is_dir();
    let (format, _) = one_format(name, find(path.clone()).await?, is_folder)?;
    let reader = format.reader(state)?;
    let known_as = format.known_as;
    let selection = Selection { name: name.to_string(), path, named: Some(format) };
    let (file_schema, columns) = columns(state, reader.as_ref(), known_as, &selection, None).await?;
    Ok(Arc::new(FilesTable::new(selection, reader, file_schema, columns, None)))
}

/// The columns stored in files, unless declared, and the columns from their folders' names.
pub async fn columns(
    state: &SessionState,
    reader: &dyn FileFormat,
    known_as: &str,
    selection: &Selection,
    declared: Option<SchemaRef>,
) -> Result<(SchemaRef, Vec<FieldRef>)> {
    let files = selection.files().await?;
    let columns = partitions::columns(&selection.name, &files)?;
    let file_schema = match declared {
        Some(schema) => schema,
        None if files.is_empty() => return plan_err!("no file matches '{}'", selection.name),
        None => Arc::new(file_schema(state, reader, known_as, files).await?),
    };
    // A column stored in the file takes precedence.
    let of_folders = columns.into_iter().filter(|column| file_schema.field_with_name(column.name()).is_err()).collect();
    Ok((file_schema, of_folders))
}

async fn file_schema(
    state: &SessionState,
    reader: &dyn FileFormat,
    known_as: &str,
    files: Vec<Found>,
) -> Result<Schema> {
    let store = state.runtime_env().object_store(local_files()?)?;
    if matches!(known_as, "csv" | "json") {
        // These formats merge the schemas of their files themselves.
        let first = files.first().map(|file| file.path.display().to_string()).unwrap_or_default();
        let objects: Vec<_> = files.into_iter().map(|file| file.object).filter(|object| object.size > 0).collect();
        let schema = reader.infer_schema(state, &store, &objects).await?;
        if schema.fields().is_empty() {
            return plan_err!("{first} is empty: it has no column");
        }
        return Ok(schema.as_ref().clone());
    }
    let concurrency = state.config_options().execution.meta_fetch_concurrency.get();
    let schemas: Vec<_> = futures::stream::iter(files)
        .map(|file| schema_of(state, reader, &store, file))
        .buffered(concurrency)
        .try_collect()
        .await?;
    match known_as {
        "arrow" => schema::identical(&schemas),
        _ => schema::common(&schemas),
    }
}

async fn schema_of(
    state: &SessionState,
    reader: &dyn FileFormat,
    store: &Arc<dyn ObjectStore>,
    file: Found,
) -> Result<(Found, SchemaRef)> {
    if file.object.size == 0 {
        return plan_err!("cannot read {}: it is empty", file.path.display());
    }
    let schema = reader.infer_schema(state, store, std::slice::from_ref(&file.object)).await;
    let schema = schema.map_err(|error| match reader.get_ext().as_str() {
        // Its errors already name the file.
        "arrow" => error,
        _ => plan_datafusion_err!("cannot read {}: {}", file.path.display(), error.strip_backtrace()),
    })?;
    Ok((file, schema))
}

impl NamedFormat {
    /// The session's reader for the format.
    pub fn reader(&self, state: &SessionState) -> Result<Arc<dyn FileFormat>> {
        let mut options = HashMap::new();
        if let Some(delimiter) = self.delimiter {
            options.insert("format.delimiter".to_string(), delimiter.to_string());
        }
        if !self.compression.is_empty() {
            options.insert("format.compression".to_string(), self.compression.to_string());
        }
        let factory = state
            .get_file_format_factory(self.known_as)
            .ok_or_else(|| plan_datafusion_err!("this build cannot read {} files", self.known_as))?;
        factory.create(state, &options)
    }
}

/// Whether an unknown name was probably meant as a path, so that the error should mention files.
fn looks_like_files(name: &str) -> bool {
    name.contains(['/', '*', '?', '[']) || NamedFormat::of(name).is_some()
}

fn expand_home(name: &str) -> String {
    match (name.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest).to_string_lossy().into_owned(),
        _ => name.to_string(),
    }
}
