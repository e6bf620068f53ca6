//! The object stores available to DataFusion: only this machine's files so far.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry, ObjectStoreUrl};
use datafusion::object_store::ObjectStore;
use overspill::LocalStore;
use url::Url;

/// Returns the local file system, and refuses every other scheme. Scans, external tables and COPY all look up stores here.
#[derive(Debug)]
pub struct LocalFilesOnly {
    local: DefaultObjectStoreRegistry,
}

impl Default for LocalFilesOnly {
    fn default() -> Self {
        let local = DefaultObjectStoreRegistry::new();
        local.register_store(ObjectStoreUrl::local_filesystem().as_ref(), Arc::new(LocalStore::default()));
        Self { local }
    }
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
