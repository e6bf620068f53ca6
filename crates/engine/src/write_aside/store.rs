//! An object store that writes files aside and reads files from their final places.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::object_store::{ObjectStoreRegistry, ObjectStoreUrl};
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult, UploadPart,
};
use futures::FutureExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use url::Url;

use super::staging::Staging;

/// The context with a store for local files that writes to `staging`.
pub(super) fn context_with_staging(context: &TaskContext, staging: &Arc<Staging>) -> Result<Arc<TaskContext>> {
    let mut runtime = context.runtime_env().as_ref().clone();
    let files = runtime.object_store(ObjectStoreUrl::local_filesystem())?;
    let store: Arc<dyn ObjectStore> = Arc::new(StagingStore { files, staging: Arc::clone(staging) });
    runtime.object_store_registry = Arc::new(StagingRegistry { stores: runtime.object_store_registry, store });
    Ok(Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone(),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        Arc::new(runtime),
    )))
}

/// The stores of a session, with another store for local files.
#[derive(Debug)]
struct StagingRegistry {
    stores: Arc<dyn ObjectStoreRegistry>,
    store: Arc<dyn ObjectStore>,
}

impl ObjectStoreRegistry for StagingRegistry {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.stores.register_store(url, store)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if url.scheme() == "file" { Ok(Arc::clone(&self.store)) } else { self.stores.get_store(url) }
    }
}

#[derive(Debug)]
struct StagingStore {
    files: Arc<dyn ObjectStore>,
    staging: Arc<Staging>,
}

impl Display for StagingStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "StagingStore({})", self.files)
    }
}

impl StagingStore {
    async fn create(&self, location: &Path) -> StoreResult<Part> {
        let path = LocalFileSystem::new().path_to_filesystem(location)?;
        let staging = Arc::clone(&self.staging);
        let file = spawn_blocking(move || staging.create(path).inspect_err(|error| staging.remember(error)));
        Ok(Part {
            file: Arc::new(Mutex::new(file.await?.map_err(generic)?)),
            staging: Arc::clone(&self.staging),
            end: 0,
        })
    }
}

#[async_trait]
impl ObjectStore for StagingStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, _: PutOptions) -> StoreResult<PutResult> {
        let mut part = self.create(location).await?;
        part.put_part(payload).await?;
        part.complete().await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        Ok(Box::new(self.create(location).await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.files.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.files.copy_opts(from, to, options).await
    }
}

/// A file being written.
#[derive(Debug)]
struct Part {
    file: Arc<Mutex<File>>,
    staging: Arc<Staging>,
    /// The position of the next bytes.
    end: u64,
}

#[async_trait]
impl MultipartUpload for Part {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let start = self.end;
        self.end += payload.content_length() as u64;
        let (file, staging) = (Arc::clone(&self.file), Arc::clone(&self.staging));
        async move {
            let written =
                spawn_blocking(move || write(&file, start, &payload).inspect_err(|error| staging.remember(error)));
            written.await?.map_err(generic)
        }
        .boxed()
    }

    async fn complete(&mut self) -> StoreResult<PutResult> {
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn abort(&mut self) -> StoreResult<()> {
        // All files of the statement are removed.
        Ok(())
    }
}

/// Writes at a position: parts may come in any order.
fn write(file: &Mutex<File>, start: u64, payload: &PutPayload) -> io::Result<()> {
    let mut file = file.lock();
    file.seek(SeekFrom::Start(start))?;
    payload.iter().try_for_each(|bytes| file.write_all(bytes))
}

fn generic(error: io::Error) -> Error {
    Error::Generic { store: "staging", source: Box::new(error) }
}
