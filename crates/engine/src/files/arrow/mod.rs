//! Arrow files that are checked for damage, with errors that name the file.
//!
//! DataFusion 55 reads Arrow files by Arrow's reader. It allocates whatever a damaged length says, so that the process ends,
//! and panics if other parts are inconsistent. This module checks lengths first (`check`), turns panics into errors
//! (`caught`), and names the file in errors.

mod caught;
mod check;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, GetExt, Result, Statistics, internal_datafusion_err};
use datafusion::datasource::file_format::arrow::{ArrowFormat as HostFormat, ArrowFormatFactory as HostFactory};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSinkConfig, FileSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::{GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{LexOrdering, LexRequirement, PhysicalExpr};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use futures::future::poll_fn;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use tokio::task::spawn_blocking;

use super::local::in_file;
use super::text::part_of;
use caught::caught;
pub use caught::panic_is_caught;
pub(crate) use check::{BatchPlace, batch_places};

/// Makes [`ArrowFormat`]s for a session.
#[derive(Debug, Default)]
pub struct ArrowFormatFactory;

impl FileFormatFactory for ArrowFormatFactory {
    fn create(&self, _state: &dyn Session, _options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        Ok(FileFormatFactory::default(self))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(ArrowFormat { host: HostFormat })
    }
}

impl GetExt for ArrowFormatFactory {
    fn get_ext(&self) -> String {
        HostFactory.get_ext()
    }
}

/// DataFusion's format, with a check of files before they are read.
#[derive(Debug)]
pub struct ArrowFormat {
    host: HostFormat,
}

#[async_trait]
impl FileFormat for ArrowFormat {
    fn get_ext(&self) -> String {
        self.host.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.host.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.host.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let mut schemas = Vec::with_capacity(objects.len());
        for object in objects {
            check_object(store.as_ref(), object, None).await?;
            let schema = self.host.infer_schema(state, store, std::slice::from_ref(object));
            schemas.push(Arc::unwrap_or_clone(without_panic(object, schema).await?));
        }
        Ok(Arc::new(Schema::try_merge(schemas)?))
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.host.infer_stats(state, store, table_schema, object).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // It looks into the first file, and names no file in errors.
        let first = config.file_groups.iter().find_map(|group| Some(group.iter().next()?.object_meta.clone()));
        let plan = self.host.create_physical_plan(state, config).await.map_err(|error| match &first {
            Some(object) => in_file(object, error),
            None => error,
        })?;
        let scan = plan
            .downcast_ref::<DataSourceExec>()
            .and_then(|scan| (scan.data_source().as_ref() as &dyn std::any::Any).downcast_ref::<FileScanConfig>())
            .ok_or_else(|| internal_datafusion_err!("the scan of Arrow files is no scan of files"))?;
        let source = CheckedSource::new(Arc::clone(scan.file_source()));
        let config = FileScanConfigBuilder::from(scan.clone()).with_source(Arc::new(source)).build();
        Ok(DataSourceExec::from_data_source(config))
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.host.create_writer_physical_plan(input, state, config, order).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.host.file_source(table_schema)
    }
}

/// DataFusion's source, with a check of files when they are opened.
#[derive(Clone)]
pub(crate) struct CheckedSource {
    host: Arc<dyn FileSource>,
}

impl CheckedSource {
    /// Checks the files of a source of DataFusion.
    pub fn new(host: Arc<dyn FileSource>) -> Self {
        Self { host }
    }
}

impl FileSource for CheckedSource {
    fn create_file_opener(
        &self,
        object_store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let host = self.host.create_file_opener(Arc::clone(&object_store), config, partition)?;
        Ok(Arc::new(CheckedOpener { host, object_store }))
    }

    fn table_schema(&self) -> &TableSchema {
        self.host.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self { host: self.host.with_batch_size(batch_size) })
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.host.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.host.metrics()
    }

    fn file_type(&self) -> &str {
        self.host.file_type()
    }

    fn fmt_extra(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        self.host.fmt_extra(format, f)
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        repartition_file_min_size: usize,
        output_ordering: Option<LexOrdering>,
        config: &FileScanConfig,
    ) -> Result<Option<FileScanConfig>> {
        self.host.repartitioned(target_partitions, repartition_file_min_size, output_ordering, config)
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let host = self.host.try_pushdown_projection(projection)?;
        Ok(host.map(|host| Arc::new(Self { host }) as Arc<dyn FileSource>))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.host.apply_expressions(f)
    }
}

/// Opens the files of a scan.
struct CheckedOpener {
    host: Arc<dyn FileOpener>,
    object_store: Arc<dyn ObjectStore>,
}

impl FileOpener for CheckedOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let (host, store) = (Arc::clone(&self.host), Arc::clone(&self.object_store));
        Ok(Box::pin(async move {
            let object = file.object_meta.clone();
            check_object(store.as_ref(), &object, part_of(&file)).await?;
            let batches = without_panic(&object, host.open(file)?).await?;
            Ok(stream_without_panic(object, batches))
        }))
    }
}

/// Checks a file of this machine. Remote files are read without a check.
async fn check_object(store: &dyn ObjectStore, object: &ObjectMeta, part: Option<Range<u64>>) -> Result<()> {
    let result = store.get(&object.location).await.map_err(|error| in_file(object, error))?;
    let GetResultPayload::File(mut file, _) = result.payload else { return Ok(()) };
    let checked = spawn_blocking(move || check::check(&mut file, part)).await;
    let checked = checked.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?;
    checked.map_err(|error| in_file(object, error))
}

/// Waits for a result. An error or a panic becomes an error that names the file.
async fn without_panic<T>(object: &ObjectMeta, future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = pin!(future);
    let result = poll_fn(|context| match caught(|| future.as_mut().poll(context)) {
        Ok(poll) => poll.map_err(|error| error.strip_backtrace()),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    result.await.map_err(|error| in_file(object, error))
}

/// The batches of a file up to the first error or panic, which becomes an error that names the file.
fn stream_without_panic<T: Send + 'static>(
    object: ObjectMeta,
    mut batches: BoxStream<'static, Result<T>>,
) -> BoxStream<'static, Result<T>> {
    let mut has_failed = false;
    stream::poll_fn(move |context| {
        if has_failed {
            return Poll::Ready(None);
        }
        let polled = match caught(|| batches.poll_next_unpin(context)) {
            Ok(polled) => polled.map_err(|error| error.strip_backtrace()),
            Err(panic) => Poll::Ready(Some(Err(panic))),
        };
        has_failed = matches!(polled, Poll::Ready(Some(Err(_))));
        polled.map_err(|error| in_file(&object, error))
    })
    .boxed()
}
