//! Hash partitions of any number, in which rows keep their order (paper 4, section 3.1).

mod murmur3;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, SchemaRef};
use overspill_join::keys::{KeyCodec, KeyData};
use overspill_join::memory::row_bytes;
use overspill_join::rows::{scatter_batches, sort_by_number};

use crate::error::{Error, Result};
use murmur3::{murmur3, murmur3_word};

/// The most partitions.
const MOST: usize = u16::MAX as usize;

/// What decides the partition of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashPartitioning {
    /// The columns with its key.
    pub keys: Vec<usize>,
    /// Whether two nulls are equal. If not, rows with a null in their key have no partner, and go where `home` says.
    pub null_equal: bool,
    /// The seed of the hash function. Partitions of partitions need another.
    pub seed: u32,
    /// How many partitions there are.
    pub partitions: usize,
    /// The partition of rows that have no partner.
    pub home: usize,
}

/// Collects rows, and hands them out in partitions. The first pass counts the rows of each partition as they come, the second moves all
/// rows, column by column.
///
/// Two ranks give a key the same partition if they run on the same kind of processor.
#[derive(Debug)]
pub struct HashPartitioner {
    schema: SchemaRef,
    partitioning: HashPartitioning,
    codec: KeyCodec,
    batches: Vec<RecordBatch>,
    /// The partition of each row.
    numbers: Vec<u16>,
    /// Of each partition.
    bytes: Vec<usize>,
}

impl HashPartitioner {
    /// A partitioner of rows of this schema.
    ///
    /// # Errors
    /// If there are no keys, or of a type that cannot be joined, or more than 65,535 partitions.
    pub fn new(schema: SchemaRef, partitioning: HashPartitioning) -> Result<Self> {
        if partitioning.partitions > MOST {
            let count = partitioning.partitions;
            return Err(Error::Invalid(format!("rows cannot be partitioned for {count} ranks: {MOST} are the most")));
        }
        let columns = schema.fields().len();
        if partitioning.keys.is_empty() || partitioning.keys.iter().any(|key| *key >= columns) {
            return Err(Error::Invalid(format!("rows of {columns} columns have no key {:?}", partitioning.keys)));
        }
        let types: Vec<DataType> = partitioning.keys.iter().map(|key| schema.field(*key).data_type().clone()).collect();
        let codec = KeyCodec::try_new(&types, partitioning.null_equal)?;
        let bytes = vec![0; partitioning.partitions];
        Ok(Self { schema, partitioning, codec, batches: vec![], numbers: vec![], bytes })
    }

    /// Takes rows in. `O(n)`.
    ///
    /// # Errors
    /// If their keys cannot be packed.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let HashPartitioning { keys, seed, partitions, home, .. } = &self.partitioning;
        let columns: Vec<_> = keys.iter().map(|key| batch.column(*key).clone()).collect();
        let keys = self.codec.encode(&columns)?;
        // The upper bits of the product: no division, and any number of partitions.
        let partition = |hash: u32| ((u64::from(hash) * *partitions as u64) >> 32) as u16;
        let begin = self.numbers.len();
        match &keys.data {
            KeyData::Word64(words) => {
                self.numbers.extend(words.iter().map(|word| partition(murmur3_word(*word, *seed))));
            }
            KeyData::Word128(words) => {
                let hash = |[low, high]: &[u64; 2]| murmur3_word(*high, murmur3_word(*low, *seed));
                self.numbers.extend(words.iter().map(|words| partition(hash(words))));
            }
            KeyData::Rows(rows) => {
                self.numbers.extend((0..batch.num_rows()).map(|row| partition(murmur3(rows.get(row), *seed))));
            }
        }
        if let Some(matchable) = &keys.matchable {
            for (number, is_matchable) in self.numbers[begin..].iter_mut().zip(matchable) {
                if !is_matchable {
                    *number = *home as u16;
                }
            }
        }
        let row_bytes = row_bytes(&batch);
        for number in &self.numbers[begin..] {
            self.bytes[usize::from(*number)] += row_bytes;
        }
        self.batches.push(batch);
        Ok(())
    }

    /// The bytes of the largest partition, each row counted as the average of its batch.
    pub fn largest(&self) -> usize {
        self.bytes.iter().copied().max().unwrap_or(0)
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Hands all rows out: a batch for each partition. `O(n)`.
    ///
    /// # Errors
    /// If Arrow cannot put rows together.
    pub fn take(&mut self) -> Result<Vec<RecordBatch>> {
        self.bytes.fill(0);
        let (rows, ends) = sort_by_number(&self.numbers, self.partitioning.partitions);
        self.numbers.clear();
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let pieces = begins.zip(&ends).map(|(begin, end)| UInt32Array::new(rows.slice(begin, end - begin), None));
        let batches = std::mem::take(&mut self.batches);
        if batches.is_empty() {
            return Ok(vec![RecordBatch::new_empty(self.schema.clone()); self.partitioning.partitions]);
        }
        Ok(scatter_batches(&self.schema, batches, &pieces.collect::<Vec<_>>())?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn batch(keys: impl Iterator<Item = Option<i64>> + Clone) -> RecordBatch {
        let texts = StringArray::from_iter(keys.clone().map(|key| key.map(|key| format!("text {key}"))));
        let rows = Int64Array::from_iter_values(0..keys.clone().count() as i64);
        let columns: [(&str, ArrayRef); 3] =
            [("key", Arc::new(Int64Array::from_iter(keys))), ("text", Arc::new(texts)), ("row", Arc::new(rows))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn partitioned(batches: &[RecordBatch], keys: &[usize], partitions: usize, seed: u32) -> Vec<RecordBatch> {
        let partitioning =
            HashPartitioning { keys: keys.to_vec(), null_equal: false, seed, partitions, home: partitions - 1 };
        let mut partitioner = HashPartitioner::new(batches[0].schema(), partitioning).unwrap();
        batches.iter().for_each(|batch| partitioner.push(batch.clone()).unwrap());
        partitioner.take().unwrap()
    }

    fn rows_of(batch: &RecordBatch) -> Vec<i64> {
        batch.column(2).as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn partitions_of_any_number_have_equal_shares_in_order() {
        let rows = 30_000;
        for partitions in [1, 2, 3, 9, 60] {
            for keys in [&[0][..], &[1], &[0, 1], &[0, 2]] {
                let parts = partitioned(&[batch((0..rows).map(Some))], keys, partitions, 1);
                assert_eq!(parts.len(), partitions);
                let mut all = vec![];
                for part in &parts {
                    let share = part.num_rows() as f64 * partitions as f64 / rows as f64;
                    assert!((0.8..1.2).contains(&share), "{partitions} partitions of {keys:?}: {share}");
                    let rows = rows_of(part);
                    assert!(rows.is_sorted());
                    all.extend(rows);
                }
                all.sort_unstable();
                assert!(all.iter().copied().eq(0..rows));
            }
        }
    }

    #[test]
    fn equal_keys_share_a_partition_and_nulls_stay_at_home() {
        let some = |key: i64| (key % 10 != 0).then_some(key % 500);
        for keys in [&[0][..], &[1], &[0, 1]] {
            let parts = partitioned(&[batch((0..4000).map(some)), batch((0..1000).map(some))], keys, 7, 3);
            let mut home = vec![None; 500];
            for (number, part) in parts.iter().enumerate() {
                for key in part.column(0).as_primitive::<Int64Type>() {
                    match key {
                        Some(key) => assert_eq!(*home[key as usize].get_or_insert(number), number),
                        None => assert_eq!(number, 6),
                    }
                }
            }
        }
    }

    #[test]
    fn another_seed_splits_a_partition_again() {
        let part = partitioned(&[batch((0..10_000).map(Some))], &[0], 4, 1).swap_remove(2);
        for part in partitioned(&[part], &[0], 4, 8) {
            assert!((500..750).contains(&part.num_rows()), "{} of 2,500 rows", part.num_rows());
        }
    }
}
