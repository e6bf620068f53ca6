//! The radix partitions of one side of a join.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;

use super::radix::Radix;
use super::store::SpillStore;
use crate::error::Result;
use crate::keys::Keys;
use crate::memory::{Grant, UnitMemory, batch_bytes, row_bytes};
use crate::spec::Side;

/// Rows distributed over partitions by the bits of their hash, each partition in memory or in a file.
///
/// Rows are collected in a *stage* and written out by partition when it is full: this is software write-combining with
/// one buffer for all partitions, whose size does not depend on how unevenly they fill.
#[derive(Debug)]
pub struct RadixPartitions<S: SpillStore> {
    side: Side,
    radix: Radix,
    store: Arc<S>,
    partitions: Vec<Partition<S>>,
    stage: Stage,
    /// The memory of the resident partitions.
    resident: Grant,
    /// Held for the life of the partitions: the stage and the copy of it that is being written.
    _buffers: Grant,
}

#[derive(Debug)]
struct Stage {
    limit: usize,
    bytes: usize,
    batches: Vec<RecordBatch>,
    /// For each partition, the staged rows that belong to it, as numbers of a batch and a row in it.
    rows: Vec<Vec<(usize, usize)>>,
    /// Numbers the rows that cannot match, to spread them evenly.
    unmatchable: u64,
}

struct Partition<S: SpillStore> {
    place: Place<S>,
    rows: usize,
    bytes: usize,
    /// The least and greatest hash of the rows that can match.
    hashes: Option<(u64, u64)>,
    unmatchable: bool,
}

enum Place<S: SpillStore> {
    Resident(Vec<RecordBatch>),
    Spilled(Option<S::Writer>),
}

/// A partition that has been moved to a file.
#[derive(Debug, Clone)]
pub struct SpilledPartition<F> {
    /// Its rows.
    pub file: F,
    /// How many they are.
    pub rows: usize,
    /// The bytes they took in memory.
    pub bytes: usize,
    /// Whether partitioning it again would part its rows: they do not all have one hash.
    pub splittable: bool,
}

impl<S: SpillStore> RadixPartitions<S> {
    /// Partitions that all start in memory, or all in files.
    ///
    /// The buffers, twice `stage` bytes, are taken even if that exceeds the budget: partitioning is how the memory to
    /// pay for them is found.
    pub fn new(
        side: Side,
        radix: Radix,
        store: Arc<S>,
        memory: &Arc<UnitMemory>,
        stage: usize,
        resident: bool,
    ) -> Self {
        let partitions = (0..radix.fanout())
            .map(|_| Partition {
                place: if resident { Place::Resident(Vec::new()) } else { Place::Spilled(None) },
                rows: 0,
                bytes: 0,
                hashes: None,
                unmatchable: false,
            })
            .collect();
        let rows = vec![Vec::new(); radix.fanout()];
        let stage = Stage { limit: stage, bytes: 0, batches: Vec::new(), rows, unmatchable: 0 };
        let mut buffers = memory.grant();
        buffers.grow(2 * stage.limit);
        Self { side, radix, store, partitions, stage, resident: memory.grant(), _buffers: buffers }
    }

    /// How rows are assigned to partitions.
    pub fn radix(&self) -> Radix {
        self.radix
    }

    /// Adds rows with their keys. Rows that cannot match may go to any partition.
    pub fn push(&mut self, batch: &RecordBatch, keys: &Keys) -> Result<()> {
        let hashes = keys.hashes();
        let row_bytes = row_bytes(batch);
        let mut start = 0;
        while start < batch.num_rows() {
            let room = self.stage.limit.saturating_sub(self.stage.bytes) / row_bytes;
            let rows = room.max(1).min(batch.num_rows() - start);
            self.stage_rows(batch.slice(start, rows), rows * row_bytes, |row| {
                keys.is_matchable(start + row).then(|| hashes[start + row])
            });
            if self.stage.bytes >= self.stage.limit {
                self.flush()?;
            }
            start += rows;
        }
        Ok(())
    }

    fn stage_rows(&mut self, slice: RecordBatch, bytes: usize, hash: impl Fn(usize) -> Option<u64>) {
        let row_bytes = bytes / slice.num_rows().max(1);
        let index = self.stage.batches.len();
        for row in 0..slice.num_rows() {
            let number = match hash(row) {
                Some(hash) => {
                    let number = self.radix.partition(hash);
                    let (least, greatest) = self.partitions[number].hashes.unwrap_or((hash, hash));
                    self.partitions[number].hashes = Some((least.min(hash), greatest.max(hash)));
                    number
                }
                None => {
                    self.stage.unmatchable += 1;
                    let number = self.stage.unmatchable as usize % self.partitions.len();
                    self.partitions[number].unmatchable = true;
                    number
                }
            };
            self.partitions[number].rows += 1;
            self.partitions[number].bytes += row_bytes;
            self.stage.rows[number].push((index, row));
        }
        self.stage.batches.push(slice);
        self.stage.bytes += bytes;
    }

    /// Empties the stage into the partitions.
    fn flush(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.stage.batches);
        self.stage.bytes = 0;
        let sources: Vec<_> = batches.iter().collect();
        for number in 0..self.partitions.len() {
            if !self.stage.rows[number].is_empty() {
                let rows = interleave_record_batch(&sources, &self.stage.rows[number])?;
                self.stage.rows[number].clear();
                self.place(number, rows)?;
            }
        }
        Ok(())
    }

    /// Adds rows to a partition, moving partitions to files, largest first, until there is room.
    fn place(&mut self, number: usize, rows: RecordBatch) -> Result<()> {
        let bytes = batch_bytes(&rows);
        loop {
            match &mut self.partitions[number].place {
                Place::Spilled(writer) => {
                    let writer = match writer {
                        Some(writer) => writer,
                        None => writer.insert(self.store.create(self.side)?),
                    };
                    return self.store.append(writer, &rows);
                }
                Place::Resident(batches) => {
                    if self.resident.try_grow(bytes).is_ok() {
                        batches.push(rows);
                        return Ok(());
                    }
                    let victim = self.largest_resident().unwrap_or(number);
                    self.spill(victim)?;
                }
            }
        }
    }

    fn largest_resident(&self) -> Option<usize> {
        (0..self.partitions.len())
            .filter_map(|number| match &self.partitions[number].place {
                Place::Resident(batches) => {
                    Some((batches.iter().map(batch_bytes).sum::<usize>(), number)).filter(|(bytes, _)| *bytes > 0)
                }
                Place::Spilled(_) => None,
            })
            .max()
            .map(|(_, number)| number)
    }

    /// Moves a resident partition to a file.
    fn spill(&mut self, number: usize) -> Result<()> {
        let Place::Resident(batches) = std::mem::replace(&mut self.partitions[number].place, Place::Spilled(None))
        else {
            unreachable!("only resident partitions are moved to files");
        };
        if batches.is_empty() {
            return Ok(());
        }
        let mut writer = self.store.create(self.side)?;
        for batch in batches {
            self.store.append(&mut writer, &batch)?;
            self.resident.shrink(batch_bytes(&batch));
        }
        self.partitions[number].place = Place::Spilled(Some(writer));
        Ok(())
    }

    /// Moves the largest resident partition to a file; false if none is left that holds rows.
    pub fn spill_largest(&mut self) -> Result<bool> {
        match self.largest_resident() {
            Some(number) => self.spill(number).map(|()| true),
            None => Ok(false),
        }
    }

    /// Places all rows that are still staged.
    pub fn finish_stage(&mut self) -> Result<()> {
        self.flush()
    }

    /// The batches of the partitions that are in memory.
    pub fn resident_batches(&self) -> impl Iterator<Item = &RecordBatch> {
        self.partitions.iter().flat_map(|partition| match &partition.place {
            Place::Resident(batches) => batches.as_slice(),
            Place::Spilled(_) => &[],
        })
    }

    /// Completes the files. Gives the resident batches with their memory, and for each partition its file, if it has
    /// one.
    #[expect(clippy::type_complexity, reason = "the three parts go three ways")]
    pub fn finish(mut self) -> Result<(Vec<RecordBatch>, Grant, Vec<Option<SpilledPartition<S::File>>>)> {
        self.flush()?;
        let mut resident = Vec::new();
        let mut files = Vec::with_capacity(self.partitions.len());
        for partition in self.partitions {
            files.push(match partition.place {
                Place::Resident(batches) => {
                    resident.extend(batches);
                    None
                }
                Place::Spilled(None) => None,
                Place::Spilled(Some(writer)) => Some(SpilledPartition {
                    file: self.store.finish(writer)?,
                    rows: partition.rows,
                    bytes: partition.bytes,
                    splittable: partition.unmatchable
                        || partition.hashes.is_some_and(|(least, greatest)| least != greatest),
                }),
            });
        }
        Ok((resident, self.resident, files))
    }
}

impl<S: SpillStore> std::fmt::Debug for Partition<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("resident", &matches!(self.place, Place::Resident(_)))
            .field("rows", &self.rows)
            .field("bytes", &self.bytes)
            .finish()
    }
}
