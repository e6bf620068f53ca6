//! Reads of this machine's files, in the thread that decodes them.
//!
//! DataFusion's store for local files hands each read to another thread, whose buffer is new memory that is cleared first. The thread that waits for the rows sleeps
//! meanwhile, and has to be woken. [`LocalStore`] asks the system for bytes that it has in memory, and copies them itself ([`cached`]), to buffers that were used
//! before ([`buffers`]) and so are still in a cache. Only bytes that have to come from a disk are read by another thread.

mod buffers;
mod cached;

#[cfg(test)]
mod tests;

use std::fmt::{self, Display, Formatter};
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use futures::stream::BoxStream;

use buffers::Buffers;

/// The most bytes that a thread copies before it lets others run.
const MOST_AT_ONCE: u64 = 32 << 20;

/// The store of this machine's files, for `file://`.
///
/// It answers like DataFusion's own, `LocalFileSystem`, with equal errors, and shows itself by that name.
///
/// ```
/// use std::sync::Arc;
///
/// use datafusion::execution::object_store::ObjectStoreUrl;
/// use datafusion::prelude::SessionContext;
/// use overspill::LocalStore;
///
/// let context = SessionContext::new();
/// context.register_object_store(ObjectStoreUrl::local_filesystem().as_ref(), Arc::new(LocalStore::default()));
/// ```
#[derive(Debug, Default)]
pub struct LocalStore {
    files: LocalFileSystem,
    buffers: Arc<Buffers>,
}

impl Display for LocalStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.files)
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let bytes: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        if bytes <= MOST_AT_ONCE
            && let Ok(path) = self.files.path_to_filesystem(location)
            && let Some(read) = cached::read(&path, ranges, &self.buffers)
        {
            return Ok(read);
        }
        self.files.get_ranges(location, ranges).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.files.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.files.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.files.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.files.rename_opts(from, to, options).await
    }
}
