//! Where DataFusion looks for the store of a URL: this machine's files, and nothing else yet.

use std::sync::Arc;

use datafusion::common::{Result, plan_err};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::object_store::ObjectStore;
use url::Url;

/// Gives local files, and refuses every other scheme in a sentence. Scans, external tables and COPY all ask here.
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
