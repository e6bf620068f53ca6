use arrow::array::{ArrayRef, Int64Array, StringViewArray};
use datafusion::execution::memory_pool::{GreedyMemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

use super::*;
use crate::memory::HeadroomPool;

const MB: usize = 1 << 20;

fn batch(rows: i64) -> RecordBatch {
    RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef)]).unwrap()
}

fn stream(batches: Vec<Result<RecordBatch>>) -> SendableRecordBatchStream {
    Box::pin(RecordBatchStreamAdapter::new(batch(0).schema(), futures::stream::iter(batches)))
}

async fn table(pool: &Arc<dyn MemoryPool>, partitions: Vec<SendableRecordBatchStream>) -> Result<ReservedMemTable> {
    ReservedMemTable::try_new("numbers", batch(0).schema(), partitions, pool, |table| table).await
}

#[tokio::test]
async fn a_table_holds_its_memory_until_dropped() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(4 * MB));
    let half = || stream((0..10).map(|_| Ok(batch(8192))).collect());
    let table = table(&pool, vec![half(), half()]).await.unwrap();
    let bytes = 20 * 8192 * 8;
    assert_eq!(pool.reserved(), table.reserved());
    assert!((bytes..bytes + 20 * 1000).contains(&table.reserved()), "{} for {bytes}", table.reserved());
    assert_eq!(table.partitions.len(), 2);
    drop(table);
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test]
async fn slices_count_by_their_rows() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MB));
    let large = batch(1_000_000);
    let slices = (0..10).map(|number| Ok(large.slice(number * 100, 100))).collect();
    let table = table(&pool, vec![stream(slices)]).await.unwrap();
    assert!(table.reserved() < 20_000, "{}", table.reserved());
}

#[tokio::test]
async fn views_count_by_the_bytes_they_use() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MB));
    let all = StringViewArray::from_iter_values((0..100_000).map(|row| format!("a string of some length {row}")));
    let some = RecordBatch::try_from_iter([("s", Arc::new(all.slice(0, 100)) as ArrayRef)]).unwrap();
    let schema = some.schema();
    let rows = RecordBatchStreamAdapter::new(Arc::clone(&schema), futures::stream::iter([Ok(some)]));
    let table = ReservedMemTable::try_new("strings", schema, vec![Box::pin(rows)], &pool, |table| table).await.unwrap();
    assert!(table.reserved() < 10_000, "{}", table.reserved());
}

#[tokio::test]
async fn a_table_that_does_not_fit_names_itself_the_limit_and_the_setting() {
    let headroom: Arc<dyn MemoryPool> = Arc::new(HeadroomPool::new(4 * MB));
    let greedy: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(4 * MB));
    for pool in [headroom, greedy] {
        let endless = stream((0..1000).map(|_| Ok(batch(8192))).collect());
        let message = table(&pool, vec![endless]).await.unwrap_err().to_string();
        let part = "Table 'numbers' does not fit within the memory limit of 4MiB: it holds 4.1 MB";
        assert!(message.contains(part), "{part} is not in: {message}");
        assert_eq!(message.matches("--memory-limit").count(), 1, "{message}");
        assert_eq!(message.matches("datafusion.runtime.memory_limit").count(), 1, "{message}");
        assert_eq!(pool.reserved(), 0);
    }
}

#[tokio::test]
async fn an_error_of_one_partition_frees_the_others() {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let good = stream((0..10).map(|_| Ok(batch(8192))).collect());
    let bad = stream(vec![Ok(batch(8192)), Err(exec_datafusion_err!("a broken file"))]);
    let message = table(&pool, vec![good, bad]).await.unwrap_err().to_string();
    assert!(message.contains("a broken file"), "{message}");
    // Aborted tasks release their memory when the runtime drops them.
    for _ in 0..1000 {
        if pool.reserved() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} bytes are still reserved", pool.reserved());
}

#[tokio::test]
async fn no_partitions_make_an_empty_table() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(0));
    let table = table(&pool, vec![]).await.unwrap();
    assert_eq!(table.reserved(), 0);
    assert_eq!(table.partitions.len(), 1);
}
