//! The rows that one task has written for another, as a stream.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use ballista_core::client_pool::{BallistaClientPool, PooledClient};
use ballista_core::execution_plans::{ShuffleReaderExec, stats_for_partitions};
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::scheduler::PartitionLocation;
use datafusion::common::stats::Precision;
use datafusion::common::{Result, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{Count, Time};
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use overspill_codec::BlockReader;

use super::block_schema;
use crate::error::{LOST, failed};
use crate::executor::connections::Connections;
use overspill_distributed::settings::with_settings;

/// What a file holds in its record batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Rows,
    /// One binary value a block.
    Blocks,
}

/// Reads what tasks have written, from the files of this executor and from other executors.
#[derive(Debug)]
pub struct Fetch {
    /// The executor's directory for rows between tasks.
    pub directory: String,
    pub connections: Arc<Connections>,
    /// The columns of the rows.
    pub schema: SchemaRef,
    pub content: Content,
}

/// What the reading of a partition is counted in.
#[derive(Debug, Clone)]
pub struct Counters {
    pub local: Count,
    pub remote: Count,
    pub decompression: Time,
}

impl Fetch {
    /// What a task has written at `location` for this one, in its order. Nothing is read ahead but what is on its way: a window of the
    /// connection, and the message that is being put together.
    ///
    /// The stream ends with an error that begins with [`LOST`] if rows are missing or have changed.
    pub fn rows(
        self: Arc<Self>,
        location: PartitionLocation,
        context: Arc<TaskContext>,
        counters: Counters,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let expected = match stats_for_partitions(0, std::iter::once(location.partition_stats)).num_rows {
            Precision::Exact(rows) => Some(rows),
            _ => None,
        };
        let mut blocks = BlockReader::new(Arc::clone(&self.schema));
        let (content, decompression) = (self.content, counters.decompression.clone());
        let batches = stream::once(self.batches(location, context, counters)).try_flatten();
        let rows = batches.map(move |batch| {
            let batch = batch?;
            let rows = match content {
                Content::Rows => vec![batch],
                Content::Blocks => {
                    let _timer = decompression.timer();
                    decompress(&batch, &mut blocks)?
                }
            };
            Ok::<_, DataFusionError>(stream::iter(rows).map(Ok))
        });
        complete(rows.try_flatten().boxed(), expected).boxed()
    }

    /// The record batches of a file, as they are.
    async fn batches(
        self: Arc<Self>,
        location: PartitionLocation,
        context: Arc<TaskContext>,
        counters: Counters,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let config = context.session_config();
        let is_local = !config.ballista_shuffle_reader_force_remote_read()
            && location.path(&self.directory).is_ok_and(|path| path.exists());
        if is_local {
            counters.local.add(1);
            return Ok(self.local(location, &context)?.boxed());
        }
        counters.remote.add(1);
        let executor = location.executor_meta.clone();
        let lost = move |error: &dyn std::fmt::Display| {
            tracing::debug!(%error, "rows did not arrive");
            failed(format!("{LOST}rows of the executor at {}:{} did not arrive", executor.host, executor.port))
        };
        let config = (&config.ballista_config()).into();
        let (host, port) = (&location.executor_meta.host, location.executor_meta.port);
        let mut client = self.connections.acquire(host, port, &config, None).await.map_err(|error| lost(&error))?;
        let partition = &location.partition_id;
        let answer =
            client.fetch_partition(&location.executor_meta.id, partition, location.file_id, location.layout(), false);
        match answer.await {
            Ok(batches) => Ok(arriving(client, batches).map_err(move |error| lost(&error)).boxed()),
            Err(error) => {
                client.discard();
                Err(lost(&error))
            }
        }
    }

    /// The record batches of a file of this executor, by Ballista's reader.
    fn local(&self, location: PartitionLocation, context: &TaskContext) -> Result<SendableRecordBatchStream> {
        let schema = match self.content {
            Content::Rows => Arc::clone(&self.schema),
            Content::Blocks => block_schema(),
        };
        let stage = location.partition_id.stage_id;
        let reader =
            ShuffleReaderExec::try_new(stage, vec![vec![location]], schema, Partitioning::UnknownPartitioning(1))?;
        // It would collect rows until it has a batch.
        let one_by_one = context.session_config().clone().with_batch_size(1);
        reader.with_work_dir(self.directory.clone()).execute(0, with_settings(context, one_by_one))
    }
}

/// The batches of a connection, which others may use afterwards, unless it fails.
fn arriving(client: PooledClient, batches: SendableRecordBatchStream) -> impl Stream<Item = Result<RecordBatch>> {
    stream::try_unfold((client, batches), |(client, mut batches)| async move {
        match batches.try_next().await {
            Ok(batch) => Ok(batch.map(|batch| (batch, (client, batches)))),
            Err(error) => {
                client.discard();
                Err(error)
            }
        }
    })
}

/// The rows, with an error at their end if there are not as many as were written.
fn complete(
    rows: BoxStream<'static, Result<RecordBatch>>,
    expected: Option<usize>,
) -> impl Stream<Item = Result<RecordBatch>> {
    stream::try_unfold((rows, 0), move |(mut rows, mut count)| async move {
        let batch = rows.try_next().await?;
        count += batch.as_ref().map_or(0, RecordBatch::num_rows);
        match (batch, expected) {
            (None, Some(expected)) if count != expected => {
                Err(failed(format!("{LOST}{count} of {expected} rows of another task have arrived")))
            }
            (batch, _) => Ok::<_, DataFusionError>(batch.map(|batch| (batch, (rows, count)))),
        }
    })
}

/// The rows of the blocks that a batch holds.
fn decompress(batch: &RecordBatch, reader: &mut BlockReader) -> Result<Vec<RecordBatch>> {
    let Some(blocks) = batch.columns().first().and_then(|column| column.as_binary_opt::<i64>()) else {
        return internal_err!("{} arrived for blocks", batch.schema());
    };
    let read = |block| {
        reader.read(block).map_err(|error| {
            // Another attempt reads blocks that are written anew.
            failed(format!("{LOST}rows of another task have changed since they were written: {error}"))
        })
    };
    blocks.iter().flatten().map(read).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, LargeBinaryArray};
    use overspill_codec::BlockWriter;

    use super::*;

    fn rows() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2500));
        RecordBatch::try_from_iter([("n", numbers)]).unwrap()
    }

    #[test]
    fn a_changed_block_is_noticed() {
        let rows = rows();
        let block = BlockWriter::default().write(&rows).unwrap().to_vec();
        let mut reader = BlockReader::new(rows.schema());
        let mut read = |block: &[u8]| {
            let blocks = Arc::new(LargeBinaryArray::from_iter_values([block]));
            decompress(&RecordBatch::try_new(block_schema(), vec![blocks]).unwrap(), &mut reader)
        };
        assert_eq!(read(&block).unwrap(), std::slice::from_ref(&rows));
        for position in 0..block.len() {
            let mut changed = block.clone();
            changed[position] ^= 4;
            let error = read(&changed).unwrap_err().to_string();
            assert!(error.contains(LOST), "{position}: {error}");
        }
        assert!(decompress(&rows, &mut reader).is_err());
    }

    #[tokio::test]
    async fn missing_rows_are_noticed() {
        let read = async |expected| {
            let batches = stream::iter([Ok(rows()), Ok(rows().slice(0, 10))]).boxed();
            complete(batches, expected).try_collect::<Vec<_>>().await
        };
        assert_eq!(read(Some(2510)).await.unwrap(), [rows(), rows().slice(0, 10)]);
        assert_eq!(read(None).await.unwrap().len(), 2);
        let error = read(Some(2511)).await.unwrap_err().to_string();
        assert!(error.contains(LOST) && error.contains("2510 of 2511"), "{error}");
    }
}
