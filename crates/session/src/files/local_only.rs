//! The object stores available to DataFusion: only this machine's files so far.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::object_store::ObjectStore;
use url::Url;

/// Returns the local file system, and refuses every other scheme. Scans, external tables and COPY all look up stores here.
#[derive(Debug, Default)]
pub struct LocalFilesOnly {
    local: DefaultObjectStoreRegistry,
}

impl ObjectStoreRegistry for LocalFilesOnly {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.local.register_store(url, store)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if url.scheme() == "file" {
            return self.local.get_store(url);
        }
        plan_err!(
            "{url} is not a local file: object stores and web addresses (s3://, gs://, https://, …) are not supported. \
             Copy the file to this machine and give its path"
        )
    }
}
