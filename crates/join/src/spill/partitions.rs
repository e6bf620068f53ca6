//! The radix partitions of one side of a join.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::BooleanBuffer;

use super::radix::Radix;
use super::store::SpillStore;
use crate::error::Result;
use crate::hash_table::IndexCost;
use crate::keys::Keys;
use crate::memory::{Grant, HeldMemory, UnitMemory, compact, row_bytes};
use crate::rows::interleave_batches;
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
    residents: Option<Residents>,
}

#[derive(Debug)]
struct Stage {
    /// Bytes.
    limit: usize,
    bytes: usize,
    batches: Vec<RecordBatch>,
    /// For each partition, the staged rows that belong to it.
    rows: Vec<StagedRows>,
    /// Numbers the rows that cannot match, to spread them evenly.
    unmatchable: usize,
}

#[derive(Debug, Default, Clone)]
struct StagedRows {
    /// The number of a batch and of a row in it.
    rows: Vec<(usize, usize)>,
    key_bytes: usize,
}

/// What the partitions in memory share.
#[derive(Debug)]
struct Residents {
    memory: Grant,
    index: IndexCost,
    held: HeldMemory,
}

struct Partition<S: SpillStore> {
    place: Place<S>,
    rows: usize,
    /// The hash of the first row that can match.
    first_hash: Option<u64>,
    /// Whether there are rows of different hashes, or rows that cannot match.
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
    /// Its rows.
    pub file: F,
    /// How many they are.
    pub rows: usize,
    /// Whether partitioning it again would part its rows: they do not all have one hash.
    pub splittable: bool,
}

impl<S: SpillStore> RadixPartitions<S> {
    /// Partitions that all start in files.
    ///
    /// `stage` is in bytes; whoever owns the partitions pays for it, and for half as much again of working buffers.
    pub fn in_files(side: Side, radix: Radix, store: Arc<S>, stage: usize) -> Self {
        Self::new(side, radix, store, stage, None)
    }

    /// Partitions that all start in memory, where `index` is paid for their rows as well.
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
                first_hash: None,
                splittable: false,
            })
            .collect();
        let rows = vec![StagedRows::default(); radix.fanout()];
        let stage = Stage { limit: stage, bytes: 0, batches: Vec::new(), rows, unmatchable: 0 };
        Self { side, radix, store, partitions, stage, residents }
    }

    /// Adds rows with their keys: all, or those that are selected. Rows that cannot match may go to any partition.
    pub fn push(&mut self, batch: &RecordBatch, keys: &Keys, selected: Option<&BooleanBuffer>) -> Result<()> {
        let hashes = keys.hashes();
        let row_bytes = row_bytes(batch);
        let mut start = 0;
        while start < batch.num_rows() {
            let room = self.stage.limit.saturating_sub(self.stage.bytes) / row_bytes;
            let end = batch.num_rows().min(start + room.max(1));
            let number = self.stage.batches.len();
            let mut stage = |row: usize| {
                let hash = keys.is_matchable(row).then(|| hashes[row]);
                self.stage_row((number, row - start), hash, keys.row_bytes(row));
            };
            match selected {
                None => (start..end).for_each(stage),
                Some(selected) => {
                    selected.slice(start, end - start).set_indices().for_each(|row| stage(start + row));
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

    #[inline(always)]
    fn stage_row(&mut self, row: (usize, usize), hash: Option<u64>, key_bytes: usize) {
        let number = match hash {
            Some(hash) => self.radix.partition(hash),
            None => {
                self.stage.unmatchable += 1;
                self.stage.unmatchable % self.partitions.len()
            }
        };
        let partition = &mut self.partitions[number];
        partition.splittable |= hash.is_none_or(|hash| *partition.first_hash.get_or_insert(hash) != hash);
        let staged = &mut self.stage.rows[number];
        staged.rows.push(row);
        staged.key_bytes += key_bytes;
    }

    /// Empties the stage into the partitions.
    fn flush(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.stage.batches);
        let staged: usize = self.stage.rows.iter().map(|staged| staged.rows.len()).sum();
        self.stage.bytes = 0;
        // However unevenly the rows are distributed, a copy is a small part of the stage.
        let piece = staged.div_ceil(MIN_PIECES).max(1);
        for number in 0..self.partitions.len() {
            let staged = std::mem::take(&mut self.stage.rows[number]);
            let row_key_bytes = staged.key_bytes.div_ceil(staged.rows.len().max(1));
            for rows in staged.rows.chunks(piece) {
                let copy = interleave_batches(&batches, rows)?;
                self.place(number, copy, row_key_bytes * rows.len())?;
            }
            // The allocation serves the next stage.
            self.stage.rows[number].rows = staged.rows;
            self.stage.rows[number].rows.clear();
        }
        Ok(())
    }

    /// Adds rows to a partition, moving partitions to files, largest first, until there is room.
    fn place(&mut self, number: usize, rows: RecordBatch, key_bytes: usize) -> Result<()> {
        self.partitions[number].rows += rows.num_rows();
        loop {
            match (&mut self.partitions[number].place, &mut self.residents) {
                (Place::Resident(batches, paid), Some(residents)) => {
                    let rows = compact(rows.clone())?;
                    let bytes = residents.held.add(&rows) + residents.index.of(&rows, key_bytes);
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
        // What was shared with these batches is counted again with the next that keep it alive.
        residents.held = HeldMemory::default();
        if batches.is_empty() {
            return Ok(());
        }
        let mut writer = self.store.create(self.side)?;
        for batch in batches {
            self.store.append(&mut writer, &batch)?;
        }
        residents.memory.shrink(paid);
        self.partitions[number].place = Place::Spilled(Some(writer));
        Ok(())
    }

    /// Completes the files. Gives the resident batches with the memory that pays for them and their index, and for
    /// each partition its file, if it has one.
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

/// A stage is written in at least so many pieces.
const MIN_PIECES: usize = 4;

impl<S: SpillStore> std::fmt::Debug for Partition<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("resident", &matches!(self.place, Place::Resident(..)))
            .field("rows", &self.rows)
            .finish()
    }
}
