//! Makes a table of a file path in FROM.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::Schema;
use async_trait::async_trait;
use datafusion::catalog::{TableProvider, UrlTableFactory};
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::SessionState;
use datafusion::execution::context::SessionContext;
use datafusion::object_store::ObjectMeta;
use futures::TryStreamExt;
use parking_lot::RwLock;

use super::format::{KNOWN_NAMES, NamedFormat, holds_json_array};

type State = std::sync::Weak<RwLock<SessionState>>;

/// Gives a table for every name that no catalog knows and that names files of this machine.
#[derive(Debug, Default)]
pub struct FileTables {
    /// The session whose settings and formats apply, held weakly, because the session holds this.
    session: OnceLock<State>,
}

impl FileTables {
    /// Says which session asks. Only the first call counts.
    pub fn serve(&self, context: &SessionContext) {
        let _ = self.session.set(context.state_weak_ref());
    }

    fn state(&self) -> Option<SessionState> {
        Some(self.session.get()?.upgrade()?.read().clone())
    }
}

#[async_trait]
impl UrlTableFactory for FileTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(state) = self.state() else { return Ok(None) };
        let expanded = expand_home(name);
        let is_file = Path::new(&expanded).exists();
        if !is_file && !looks_like_files(name) {
            return Ok(None);
        }
        let urls =
            locations(&expanded).map_err(|reason| plan_datafusion_err!("'{name}' is no usable path: {reason}"))?;
        let mut files = Vec::new();
        for url in &urls {
            // Asked first, so that s3:// and its like are refused in the store's words.
            let store = state.runtime_env().object_store(url)?;
            if url.get_glob().is_none() && !url_exists(url) {
                return plan_err!("the file '{name}' does not exist");
            }
            let listed = url.list_all_files(&state, store.as_ref(), "").await?.try_collect::<Vec<ObjectMeta>>().await;
            files.extend(
                listed.map_err(|error| plan_datafusion_err!("cannot read '{name}': {}", error.strip_backtrace()))?,
            );
        }
        let Some((file, format)) =
            files.iter().find_map(|file| Some((file, NamedFormat::of(file.location.filename()?)?)))
        else {
            return match files.first() {
                None => plan_err!("no file matches '{name}'"),
                Some(_) => plan_err!("'{name}' is not a table: a file is read by its name, {KNOWN_NAMES}"),
            };
        };
        read_files(&state, urls, &format, file).await.map(Some)
    }
}

/// Where the files of a path lie. A glob in folders (`logs/*/*.csv`) becomes the files themselves, because listing only
/// looks for a glob in the last folder.
fn locations(path: &str) -> Result<Vec<ListingTableUrl>, String> {
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    if !path.contains("://") && folders.contains(['*', '?', '[']) {
        let matches = glob::glob(path).map_err(|error| error.to_string())?;
        // A folder that may not be read holds nothing that could be.
        let files = matches.flatten().filter(|file| file.is_file());
        return files.map(|file| parse(&file.to_string_lossy())).collect();
    }
    Ok(vec![parse(path)?])
}

fn parse(path: &str) -> Result<ListingTableUrl, String> {
    ListingTableUrl::parse(path).map_err(|error| error.strip_backtrace())
}

async fn read_files(
    state: &SessionState,
    urls: Vec<ListingTableUrl>,
    format: &NamedFormat,
    first: &ObjectMeta,
) -> Result<Arc<dyn TableProvider>> {
    let mut options = HashMap::new();
    if let Some(delimiter) = format.delimiter {
        options.insert("format.delimiter".to_string(), delimiter.to_string());
    }
    if !format.compression.option.is_empty() {
        options.insert("format.compression".to_string(), format.compression.option.to_string());
    }
    if format.known_as == "json" {
        let path = Path::new("/").join(first.location.as_ref());
        // A file that cannot be read now fails below with the reader's own words.
        if holds_json_array(&path, format.compression.variant).unwrap_or(false) {
            options.insert("format.newline_delimited".to_string(), "false".to_string());
        }
    }
    let factory = state
        .get_file_format_factory(format.known_as)
        .ok_or_else(|| plan_datafusion_err!("this build cannot read {} files", format.known_as))?;
    let options = ListingOptions::new(factory.create(state, &options)?).with_file_extension(format.suffix.as_str());
    let mut schemas = Vec::new();
    for url in &urls {
        schemas.push(options.infer_schema(state, url).await?.as_ref().clone());
    }
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(Arc::new(Schema::try_merge(schemas)?))
        .infer_partitions_from_path(state)
        .await?;
    let table = ListingTable::try_new(config)?;
    Ok(Arc::new(table.with_cache(state.runtime_env().cache_manager.get_file_statistic_cache())))
}

/// Whether a name that no catalog knows was meant as a path, so that its absence is worth a word about files.
fn looks_like_files(name: &str) -> bool {
    name.contains(['/', '*', '?', '[']) || NamedFormat::of(name).is_some()
}

fn url_exists(url: &ListingTableUrl) -> bool {
    url.get_url().to_file_path().is_ok_and(|path| path.exists())
}

fn expand_home(name: &str) -> String {
    match (name.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest).to_string_lossy().into_owned(),
        _ => name.to_string(),
    }
}
