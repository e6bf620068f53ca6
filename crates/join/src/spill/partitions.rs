//! The radix partitions of one side of a join.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::buffer::BooleanBuffer;
use tracing::debug_span;

use super::radix::Radix;
use super::store::SpillStore;
use crate::error::Result;
use crate::hash_table::IndexCost;
use crate::keys::Keys;
use crate::memory::{Grant, HeldMemory, UnitMemory, compact, row_bytes};
use crate::rows::{scatter_batches, sort_by_number};
use crate::spec::Side;

/// Rows partitioned by bits of their hash, each partition in memory or in a file.
///
/// Rows are collected in a *stage* and written out by partition when it is full. This is software write-combining with one
/// buffer for all partitions, so that the buffer size does not depend on how unevenly they fill.
#[derive(Debug)]
pub struct RadixPartitions<S: SpillStore> {
    side: Side,
    radix: Radix,
    store: Arc<S>,
    partitions: Vec<Partition<S>>,
    stage: Stage,
    residents: Option<Residents>,
}

#[derive(Debug)]
struct Stage {
    /// In bytes.
    limit: usize,
    bytes: usize,
    batches: Vec<RecordBatch>,
    /// For each staged row, the number of its partition, or the number of partitions if the row is skipped.
    numbers: Vec<u16>,
    /// For each partition, the bytes of staged keys besides the rows.
    key_bytes: Vec<usize>,
    /// Counts the rows that cannot match, to distribute them evenly.
    unmatchable: usize,
}

/// State that the partitions in memory share.
#[derive(Debug)]
struct Residents {
    memory: Grant,
    index: IndexCost,
    held: HeldMemory,
}

struct Partition<S: SpillStore> {
    place: Place<S>,
    rows: usize,
    /// Bytes that the rows take in memory, with their index on the build side.
    bytes: usize,
    /// The hash of the first row that can match.
    first_hash: Option<u64>,
    /// Whether there are rows with different hashes, or rows that cannot match.
    splittable: bool,
}

enum Place<S: SpillStore> {
    /// In memory: batches, and the bytes paid for all of them.
    Resident(Vec<RecordBatch>, usize),
    Spilled(Option<S::Writer>),
}

/// A partition that has been moved to a file.
#[derive(Debug, Clone)]
pub struct SpilledPartition<F> {
    /// The rows.
    pub file: F,
    /// Number of rows.
    pub rows: usize,
    /// Bytes that the rows take in memory, with their index on the build side.
    pub bytes: usize,
    /// Whether another partitioning can split the rows: they do not all have the same hash.
    pub splittable: bool,
}

impl<S: SpillStore> RadixPartitions<S> {
    /// Creates partitions that all start in files.
    ///
    /// `stage` is in bytes. The owner of the partitions pays for it, and for half as much again of working buffers.
    pub fn in_files(side: Side, radix: Radix, store: Arc<S>, stage: usize) -> Self {
        Self::new(side, radix, store, stage, None)
    }

    /// Creates partitions that all start in memory. Their memory also pays for indexing the rows at the cost of `index`.
    pub fn in_memory(
        side: Side,
        radix: Radix,
        store: Arc<S>,
        stage: usize,
        memory: &Arc<UnitMemory>,
        index: IndexCost,
    ) -> Self {
        let residents = Residents { memory: memory.grant(), index, held: HeldMemory::default() };
        Self::new(side, radix, store, stage, Some(residents))
    }

    fn new(side: Side, radix: Radix, store: Arc<S>, stage: usize, residents: Option<Residents>) -> Self {
        let partitions = (0..radix.fanout())
            .map(|_| Partition {
                place: if residents.is_some() { Place::Resident(Vec::new(), 0) } else { Place::Spilled(None) },
                rows: 0,
                bytes: 0,
                first_hash: None,
                splittable: false,
            })
            .collect();
        let key_bytes = vec![0; radix.fanout()];
        let stage =
            Stage { limit: stage, bytes: 0, batches: Vec::new(), numbers: Vec::new(), key_bytes, unmatchable: 0 };
        Self { side, radix, store, partitions, stage, residents }
    }

    /// Adds rows with their keys and key hashes: all rows, or only the selected ones. Rows that cannot match may go to any
    /// partition.
    pub fn push(
        &mut self,
        batch: &RecordBatch,
        keys: &Keys,
        hashes: &[u64],
        selected: Option<&BooleanBuffer>,
    ) -> Result<()> {
        let row_bytes = row_bytes(batch);
        let mut start = 0;
        while start < batch.num_rows() {
            let room = self.stage.limit.saturating_sub(self.stage.bytes) / row_bytes;
            let end = batch.num_rows().min(start + room.max(1));
            match (selected, &keys.matchable) {
                (None, None) => {
                    for hash in &hashes[start..end] {
                        let number = self.number(Some(*hash));
                        self.stage.numbers.push(number as u16);
                    }
                }
                _ => {
                    for (row, hash) in (start..end).zip(&hashes[start..end]) {
                        let number = match selected.is_none_or(|selected| selected.value(row)) {
                            true => self.number(keys.is_matchable(row).then_some(*hash)),
                            false => self.partitions.len(),
                        };
                        self.stage.numbers.push(number as u16);
                    }
                }
            }
            if self.residents.is_some() && keys.are_bytes() {
                let numbers = &self.stage.numbers[self.stage.numbers.len() - (end - start)..];
                for (row, number) in (start..end).zip(numbers) {
                    if let Some(bytes) = self.stage.key_bytes.get_mut(usize::from(*number)) {
                        *bytes += keys.row_bytes(row);
                    }
                }
            }
            self.stage.batches.push(batch.slice(start, end - start));
            self.stage.bytes += (end - start) * row_bytes;
            if self.stage.bytes >= self.stage.limit {
                self.flush()?;
            }
            start = end;
        }
        Ok(())
    }

    /// The partition of a row with this hash, or of a row that cannot match if there is no hash.
    #[inline(always)]
    fn number(&mut self, hash: Option<u64>) -> usize {
        let number = match hash {
            Some(hash) => self.radix.partition(hash),
            None => {
                self.stage.unmatchable += 1;
                self.stage.unmatchable % self.partitions.len()
            }
        };
        let partition = &mut self.partitions[number];
        if !partition.splittable {
            partition.splittable = hash.is_none_or(|hash| *partition.first_hash.get_or_insert(hash) != hash);
        }
        number
    }

    /// Moves the staged rows to the partitions.
    fn flush(&mut self) -> Result<()> {
        self.stage.bytes = 0;
        let batches = std::mem::take(&mut self.stage.batches);
        let Some(schema) = batches.first().map(RecordBatch::schema) else { return Ok(()) };
        let _dealing = debug_span!("partition rows", rows = self.stage.numbers.len()).entered();
        let (rows, ends) = sort_by_number(&self.stage.numbers, self.partitions.len());
        self.stage.numbers.clear();
        // However unevenly the rows are distributed, no piece is more than a small part of the stage.
        let most = rows.len().div_ceil(MIN_PIECES).max(1);
        let (mut pieces, mut numbers) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (number, end) in ends.into_iter().enumerate() {
            let key_bytes = std::mem::take(&mut self.stage.key_bytes[number]).div_ceil((end - start).max(1));
            while start < end {
                let length = most.min(end - start);
                pieces.push(UInt32Array::new(rows.slice(start, length), None));
                numbers.push((number, key_bytes * length));
                start += length;
            }
        }
        let dealt = scatter_batches(&schema, batches, &pieces)?;
        drop(pieces);
        for ((number, key_bytes), rows) in numbers.into_iter().zip(dealt) {
            self.place(number, rows, key_bytes)?;
        }
        Ok(())
    }

    /// Adds rows to a partition. Moves partitions to files, largest first, until there is room.
    fn place(&mut self, number: usize, rows: RecordBatch, key_bytes: usize) -> Result<()> {
        let count = rows.num_rows();
        let index = self.residents.as_ref().map_or(0, |residents| residents.index.of(count, rows.columns(), key_bytes));
        self.partitions[number].rows += count;
        self.partitions[number].bytes += count * row_bytes(&rows) + index;
        loop {
            match (&mut self.partitions[number].place, &mut self.residents) {
                (Place::Resident(batches, paid), Some(residents)) => {
                    let rows = compact(rows.clone())?;
                    let bytes = residents.held.add(&rows) + index;
                    if residents.memory.try_grow(bytes).is_ok() {
                        batches.push(rows);
                        *paid += bytes;
                        return Ok(());
                    }
                    let victim = self.largest_resident().unwrap_or(number);
                    self.spill(victim)?;
                }
                (place, _) => {
                    let writer = match place {
                        Place::Spilled(Some(writer)) => writer,
                        _ => {
                            *place = Place::Spilled(Some(self.store.create(self.side)?));
                            continue;
                        }
                    };
                    return self.store.append(writer, &rows);
                }
            }
        }
    }

    fn largest_resident(&self) -> Option<usize> {
        (0..self.partitions.len())
            .filter_map(|number| match &self.partitions[number].place {
                Place::Resident(_, paid) if *paid > 0 => Some((*paid, number)),
                _ => None,
            })
            .max()
            .map(|(_, number)| number)
    }

    /// Moves a resident partition to a file.
    fn spill(&mut self, number: usize) -> Result<()> {
        let place = std::mem::replace(&mut self.partitions[number].place, Place::Spilled(None));
        let (Place::Resident(batches, paid), Some(residents)) = (place, &mut self.residents) else {
            unreachable!("only resident partitions are moved to files");
        };
        // Memory that was shared with these batches is counted again for the next batches that keep it alive.
        residents.held = HeldMemory::default();
        if batches.is_empty() {
            return Ok(());
        }
        let _moving = debug_span!("move partition to disk", partition = number).entered();
        let mut writer = self.store.create(self.side)?;
        for batch in batches {
            self.store.append(&mut writer, &batch)?;
        }
        residents.memory.shrink(paid);
        self.partitions[number].place = Place::Spilled(Some(writer));
        Ok(())
    }

    /// Completes the files. Returns the resident batches, the memory that pays for them and their index, and for each partition
    /// its file, if it has one.
    pub fn finish(mut self) -> Result<Finished<S>> {
        self.flush()?;
        let mut resident = Vec::new();
        let mut files = Vec::with_capacity(self.partitions.len());
        for partition in self.partitions {
            files.push(match partition.place {
                Place::Resident(batches, _) => {
                    resident.extend(batches);
                    None
                }
                Place::Spilled(None) => None,
                Place::Spilled(Some(writer)) => Some(SpilledPartition {
                    file: self.store.finish(writer)?,
                    rows: partition.rows,
                    bytes: partition.bytes,
                    splittable: partition.splittable,
                }),
            });
        }
        Ok(Finished { resident, memory: self.residents.map(|residents| residents.memory), files })
    }
}

/// Partitions that have been filled.
#[derive(Debug)]
pub struct Finished<S: SpillStore> {
    /// The rows of the partitions in memory.
    pub resident: Vec<RecordBatch>,
    /// Pays for them; `None` for partitions that started in files.
    pub memory: Option<Grant>,
    /// For each partition, its file, if it has one.
    pub files: Vec<Option<SpilledPartition<S::File>>>,
}

/// Minimum number of pieces in which a stage is written.
const MIN_PIECES: usize = 4;

impl<S: SpillStore> std::fmt::Debug for Partition<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("resident", &matches!(self.place, Place::Resident(..)))
            .field("rows", &self.rows)
            .finish()
    }
}
