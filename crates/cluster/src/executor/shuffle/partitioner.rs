//! Collects rows by the partition that they are for.

use std::sync::Arc;

use arrow::compute::interleave_record_batch;
use arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::hash_utils::create_hashes;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::utils::evaluate_expressions_to_arrays;
use datafusion::physical_plan::repartition::REPARTITION_RANDOM_STATE;

use overspill_join::memory::column_bytes;

use super::{BLOCK_BYTES, BLOCK_ROWS};

/// Rows of one input that wait to be compressed. A row goes to the partition that DataFusion's hash of its keys names.
pub struct Partitioner {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    batches: Vec<RecordBatch>,
    /// For each partition its rows, each by the number of its batch and its place there.
    rows: Vec<Vec<(u32, u32)>>,
    bytes: usize,
    hashes: Vec<u64>,
}

impl Partitioner {
    /// A partitioner by these keys, without rows.
    pub fn new(keys: Vec<Arc<dyn PhysicalExpr>>, partitions: usize) -> Self {
        Self { keys, batches: vec![], rows: vec![vec![]; partitions], bytes: 0, hashes: vec![] }
    }

    /// Bytes of the rows that wait, and of their places.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a batch, in `O(rows)`.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let keys = evaluate_expressions_to_arrays(&self.keys, &batch)?;
        self.hashes.clear();
        self.hashes.resize(batch.num_rows(), 0);
        create_hashes(&keys, REPARTITION_RANDOM_STATE.random_state(), &mut self.hashes)?;
        let (number, partitions) = (self.batches.len() as u32, self.rows.len() as u64);
        if partitions.is_power_of_two() {
            for (place, hash) in (0..).zip(&self.hashes) {
                self.rows[(hash & (partitions - 1)) as usize].push((number, place));
            }
        } else {
            for (place, hash) in (0..).zip(&self.hashes) {
                self.rows[(hash % partitions) as usize].push((number, place));
            }
        }
        self.bytes += size_here(&batch);
        self.batches.push(batch);
        Ok(())
    }

    /// Gives all rows to `emit`, partition by partition, in batches for one block each and in the order in which they came.
    pub fn flush(&mut self, mut emit: impl FnMut(usize, &RecordBatch) -> Result<()>) -> Result<()> {
        let batches = std::mem::take(&mut self.batches);
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let row_bytes = self.bytes / rows.max(1) + 1;
        let rows_of_block = (BLOCK_BYTES / row_bytes).clamp(1, BLOCK_ROWS);
        self.bytes = 0;
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        let mut places = Vec::new();
        for (partition, rows) in self.rows.iter_mut().enumerate() {
            for rows in rows.chunks(rows_of_block) {
                places.clear();
                places.extend(rows.iter().map(|&(batch, place)| (batch as usize, place as usize)));
                emit(partition, &interleave_record_batch(&batches, &places)?)?;
            }
            rows.clear();
        }
        Ok(())
    }
}

/// Bytes that a batch takes here: those of the rows that it shows, and of their places.
pub fn size_here(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(column_bytes).sum::<usize>() + batch.num_rows() * size_of::<(u32, u32)>()
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::compute::concat_batches;
    use arrow::datatypes::Int64Type;
    use datafusion::physical_expr::expressions::Column;
    use datafusion::physical_plan::Partitioning;
    use datafusion::physical_plan::metrics::Time;
    use datafusion::physical_plan::repartition::BatchPartitioner;

    use super::*;

    fn batch(values: std::ops::Range<i64>) -> RecordBatch {
        let text = StringArray::from_iter(
            values.clone().map(|value| (value % 3 > 0).then(|| "x".repeat(value as usize % 40))),
        );
        let key: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
        RecordBatch::try_from_iter([("key", key), ("text", Arc::new(text) as ArrayRef)]).unwrap()
    }

    #[test]
    fn rows_go_where_datafusion_sends_them_and_keep_their_order() {
        let key: Arc<dyn PhysicalExpr> = Arc::new(Column::new("key", 0));
        for partitions in [1, 7, 8] {
            let mut ours = Partitioner::new(vec![Arc::clone(&key)], partitions);
            let mut theirs =
                BatchPartitioner::try_new(Partitioning::Hash(vec![Arc::clone(&key)], partitions), Time::new(), 0, 1)
                    .unwrap();
            let mut expected = vec![vec![]; partitions];
            let mut found: Vec<Vec<RecordBatch>> = vec![vec![]; partitions];
            let mut flush = |ours: &mut Partitioner| {
                ours.flush(|partition, rows| {
                    found[partition].push(rows.clone());
                    Ok(())
                })
                .unwrap();
                assert_eq!(ours.bytes(), 0);
            };
            for number in 0..30 {
                let rows = batch(number * 1000..(number + 1) * 1000 - number);
                theirs
                    .partition(rows.clone(), |partition, rows| {
                        expected[partition].push(rows);
                        Ok(())
                    })
                    .unwrap();
                ours.push(rows).unwrap();
                assert!(ours.bytes() > 8000);
                if number % 11 == 0 {
                    flush(&mut ours);
                }
            }
            flush(&mut ours);
            for (expected, found) in expected.iter().zip(&found) {
                let schema = batch(0..1).schema();
                assert_eq!(concat_batches(&schema, expected).unwrap(), concat_batches(&schema, found).unwrap());
            }
        }
    }

    #[test]
    fn blocks_of_long_rows_have_few() {
        let text: ArrayRef = Arc::new(StringArray::from_iter_values((0..100).map(|_| "y".repeat(BLOCK_BYTES / 10))));
        let key: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let rows = RecordBatch::try_from_iter([("key", key), ("text", text)]).unwrap();
        let mut partitioner = Partitioner::new(vec![Arc::new(Column::new("key", 0))], 2);
        partitioner.push(rows).unwrap();
        let mut keys = 0;
        partitioner
            .flush(|_, rows| {
                assert!(rows.num_rows() < 11);
                keys += rows.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>();
                Ok(())
            })
            .unwrap();
        assert_eq!(keys, 4950);
    }
}
