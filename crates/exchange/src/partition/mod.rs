//! Hash partitions of any number, in which rows keep their order (paper 4, section 3.1).

mod murmur3;

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{DataType, SchemaRef};
use overspill_join::keys::{KeyCodec, KeyData};
use overspill_join::memory::row_bytes;
use overspill_join::rows::{scatter_batches, sort_by_number};

use crate::error::{Error, Result};
use crate::heavy_keys::{self, Route, Routes};
use murmur3::{murmur3, murmur3_word};

/// The largest number of a partition.
const MOST: usize = u16::MAX as usize;

/// What decides the partition of a row.
#[derive(Debug, Clone)]
pub struct HashPartitioning {
    /// The columns with its key.
    pub keys: Vec<usize>,
    /// Whether two nulls are equal. If not, rows with a null in their key have no partner, and go where `home` says.
    pub null_equal: bool,
    /// The seed of the hash function. Partitions of partitions need another.
    pub seed: u32,
    /// How many partitions there are.
    pub partitions: usize,
    /// The partition of rows that have no partner, or whose key is too heavy to move them.
    pub home: usize,
    /// The keys that many rows have.
    pub heavy: Arc<Routes>,
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
    /// The partition of each row. One more than there are stands for all.
    numbers: Vec<u16>,
    /// Of each partition.
    bytes: Vec<usize>,
    /// Of rows that go to all.
    everywhere: usize,
}

impl HashPartitioner {
    /// A partitioner of rows of this schema.
    ///
    /// # Errors
    /// If there are no keys, or of a type that cannot be joined, or more than 65,534 partitions.
    pub fn new(schema: SchemaRef, partitioning: HashPartitioning) -> Result<Self> {
        if partitioning.partitions >= MOST {
            let count = partitioning.partitions;
            let most = MOST - 1;
            return Err(Error::Invalid(format!("rows cannot be partitioned for {count} ranks: {most} are the most")));
        }
        let columns = schema.fields().len();
        if partitioning.keys.is_empty() || partitioning.keys.iter().any(|key| *key >= columns) {
            return Err(Error::Invalid(format!("rows of {columns} columns have no key {:?}", partitioning.keys)));
        }
        let types: Vec<DataType> = partitioning.keys.iter().map(|key| schema.field(*key).data_type().clone()).collect();
        let codec = KeyCodec::try_new(&types, partitioning.null_equal)?;
        let bytes = vec![0; partitioning.partitions];
        Ok(Self { schema, partitioning, codec, batches: vec![], numbers: vec![], bytes, everywhere: 0 })
    }

    /// Hashes of the keys of rows, by which heavy ones are told. `O(n)`.
    ///
    /// # Errors
    /// If keys cannot be packed.
    pub fn hashes(&self, batch: &RecordBatch) -> Result<Vec<u32>> {
        let keys = self.codec.encode(&self.key_columns(batch))?;
        Ok(hashes(&keys.data, batch.num_rows(), heavy_keys::SEED))
    }

    /// From now on rows with these keys are treated as they say.
    pub fn set_heavy(&mut self, heavy: Arc<Routes>) {
        self.partitioning.heavy = heavy;
    }

    fn key_columns(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        self.partitioning.keys.iter().map(|key| batch.column(*key).clone()).collect()
    }

    /// Takes rows in. `O(n)`.
    ///
    /// # Errors
    /// If their keys cannot be packed.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let keys = self.codec.encode(&self.key_columns(&batch))?;
        let HashPartitioning { seed, partitions, home, heavy, .. } = &self.partitioning;
        let begin = self.numbers.len();
        // The upper bits of the product: no division, and any number of partitions.
        let partition = |hash: u32| ((u64::from(hash) * *partitions as u64) >> 32) as u16;
        self.numbers.extend(hashes(&keys.data, batch.num_rows(), *seed).into_iter().map(partition));
        let numbers = &mut self.numbers[begin..];
        if !heavy.is_empty() {
            for (number, hash) in numbers.iter_mut().zip(hashes(&keys.data, batch.num_rows(), heavy_keys::SEED)) {
                match heavy.of(hash) {
                    Some(Route::Stay) => *number = *home as u16,
                    Some(Route::Everywhere) => *number = *partitions as u16,
                    None => {}
                }
            }
        }
        if let Some(matchable) = &keys.matchable {
            for (number, is_matchable) in numbers.iter_mut().zip(matchable) {
                if !is_matchable {
                    *number = *home as u16;
                }
            }
        }
        let row_bytes = row_bytes(&batch);
        for number in numbers {
            match self.bytes.get_mut(usize::from(*number)) {
                Some(bytes) => *bytes += row_bytes,
                None => self.everywhere += row_bytes,
            }
        }
        self.batches.push(batch);
        Ok(())
    }

    /// The bytes of the largest partition, each row counted as the average of its batch.
    pub fn largest(&self) -> usize {
        self.bytes.iter().copied().max().unwrap_or(0) + self.everywhere
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
        self.everywhere = 0;
        let (rows, ends) = sort_by_number(&self.numbers, self.partitioning.partitions + 1);
        self.numbers.clear();
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let mut pieces: Vec<ScalarBuffer<u32>> =
            begins.zip(&ends).map(|(begin, end)| rows.slice(begin, end - begin)).collect();
        let everywhere = pieces.pop().unwrap_or_default();
        let pieces = pieces.into_iter().map(|piece| match everywhere.is_empty() {
            true => UInt32Array::new(piece, None),
            false => UInt32Array::from([&piece[..], &everywhere[..]].concat()),
        });
        let batches = std::mem::take(&mut self.batches);
        if batches.is_empty() {
            return Ok(vec![RecordBatch::new_empty(self.schema.clone()); self.partitioning.partitions]);
        }
        Ok(scatter_batches(&self.schema, batches, &pieces.collect::<Vec<_>>())?)
    }
}

/// A hash of each key.
fn hashes(keys: &KeyData, rows: usize, seed: u32) -> Vec<u32> {
    match keys {
        KeyData::Word64(words) => words.iter().map(|word| murmur3_word(*word, seed)).collect(),
        KeyData::Word128(words) => {
            words.iter().map(|[low, high]| murmur3_word(*high, murmur3_word(*low, seed))).collect()
        }
        KeyData::Rows(keys) => (0..rows).map(|row| murmur3(keys.get(row), seed)).collect(),
    }
}

#[cfg(test)]
mod tests {
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
        let (keys, heavy) = (keys.to_vec(), Arc::default());
        let partitioning = HashPartitioning { keys, null_equal: false, seed, partitions, home: partitions - 1, heavy };
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
