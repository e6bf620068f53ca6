//! Makes a table of a file path in FROM.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

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
        let url = ListingTableUrl::parse(&expanded)
            .map_err(|error| plan_datafusion_err!("'{name}' is no usable path: {}", error.strip_backtrace()))?;
        // Asked first, so that s3:// and its like are refused in the store's words.
        let store = state.runtime_env().object_store(&url)?;
        if !is_file && url.get_glob().is_none() && url.scheme() == "file" && !url_exists(&url) {
            return plan_err!("the file '{name}' does not exist");
        }
        let files: Vec<ObjectMeta> = url
            .list_all_files(&state, store.as_ref(), "")
            .await?
            .try_collect()
            .await
            .map_err(|error| plan_datafusion_err!("cannot read '{name}': {}", error.strip_backtrace()))?;
        let Some((file, format)) =
            files.iter().find_map(|file| Some((file, NamedFormat::of(file.location.filename()?)?)))
        else {
            return match files.first() {
                None => plan_err!("no file matches '{name}'"),
                Some(_) => plan_err!("'{name}' is not a table: a file is read by its name, {KNOWN_NAMES}"),
            };
        };
        read_files(&state, url, &format, file).await.map(Some)
    }
}

async fn read_files(
    state: &SessionState,
    url: ListingTableUrl,
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
    let config = ListingTableConfig::new(url)
        .with_listing_options(options)
        .infer_partitions_from_path(state)
        .await?
        .infer_schema(state)
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
