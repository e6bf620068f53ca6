//! Rows of states, by the hash of their keys.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{concat, take};
use datafusion::common::Result;
use datafusion::common::hash_utils::create_hashes;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_plan::repartition::REPARTITION_RANDOM_STATE;
use overspill_join::grouping::{HashSplit, PartitionedRows};
use parking_lot::Mutex;

use super::files::Files;
use super::functions::Functions;
use crate::join_execution::disk::{DiskFile, FileWriter};

/// The number of partitions, about: few enough that writes to them fit a core's cache.
const PARTITIONS: usize = 256;

/// The number of open files, about.
const FILES: usize = 64;

/// The most rows of a batch in a file. Who reads it back may have little memory.
const FILE_ROWS: usize = 4 << 10;

/// Rows of states, in partitions. Each partition belongs to one output stream, and the partitions of a stream lie side by side.
///
/// Rows stay in memory while the pool has room. Then they move to files. A file has the rows of several partitions.
pub(super) struct StatePartitions {
    functions: Arc<Functions>,
    split: HashSplit,
    /// Partitions of a file: a power of two, and at most those of an output.
    partitions_of_file: usize,
    /// `None` if the session has no temporary files.
    files: Option<Arc<Files>>,
    held: Mutex<Held>,
}

struct Held {
    blocks: Vec<Block>,
    files: Vec<Option<FileWriter>>,
    memory: MemoryReservation,
}

/// Rows ordered by partition.
pub(super) struct Block {
    columns: Vec<ArrayRef>,
    /// Where each partition begins, and where the last one ends.
    starts: Vec<u32>,
}

impl Block {
    /// The rows of some partitions.
    pub fn rows(&self, partitions: &Range<usize>) -> Vec<ArrayRef> {
        let (start, end) = (self.starts[partitions.start] as usize, self.starts[partitions.end] as usize);
        self.columns.iter().map(|column| column.slice(start, end - start)).collect()
    }

    fn len(&self, partitions: &Range<usize>) -> usize {
        (self.starts[partitions.end] - self.starts[partitions.start]) as usize
    }

    fn bytes(&self) -> usize {
        let columns = self.columns.iter().map(|column| column.get_array_memory_size()).sum::<usize>();
        columns + self.starts.capacity() * size_of::<u32>()
    }
}

/// All rows of some partitions, that are merged together.
pub(super) struct Part {
    /// The blocks in memory. They are freed when the last part that shares them is dropped.
    pub blocks: Arc<Complete>,
    pub partitions: Range<usize>,
    pub file: Option<DiskFile>,
    /// How often these rows have been partitioned.
    pub level: u32,
}

/// Blocks to which no rows are added any more.
pub(super) struct Complete {
    pub blocks: Vec<Block>,
    /// Their memory.
    _memory: MemoryReservation,
}

impl StatePartitions {
    /// For the rows of `outputs` streams, which are partitioned for the `level`th time, from 0.
    pub fn new(
        functions: &Arc<Functions>,
        outputs: usize,
        level: u32,
        files: Option<Arc<Files>>,
        pool: &Arc<dyn MemoryPool>,
    ) -> Self {
        let fanout = (PARTITIONS / outputs).max(1).next_power_of_two().min(PARTITIONS);
        let files_of_output = (FILES / outputs).max(1).next_power_of_two().min(fanout);
        let memory = MemoryConsumer::new("HybridAggregateExec states").with_can_spill(true).register(pool);
        Self {
            functions: Arc::clone(functions),
            split: HashSplit { outputs, fanout, level },
            partitions_of_file: fanout / files_of_output,
            files,
            held: Mutex::new(Held { blocks: vec![], files: vec![], memory }),
        }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// Without temporary files, those of the pool if it has no room; and those of the disk.
    pub fn add(&self, columns: &[ArrayRef]) -> Result<()> {
        if columns[0].is_empty() {
            return Ok(());
        }
        let block = self.partitioned(columns)?;
        let bytes = block.bytes();
        let mut held = self.held.lock();
        let mut refused = held.memory.try_grow(bytes).err();
        if refused.is_some() && !held.blocks.is_empty() && self.files.is_some() {
            self.spill_all(&mut held)?;
            refused = held.memory.try_grow(bytes).err();
        }
        match refused {
            None => held.blocks.push(block),
            Some(_) if self.files.is_some() => self.spill(&mut held, &[block])?,
            Some(error) => return Err(error),
        }
        Ok(())
    }

    /// The rows ordered by partition.
    fn partitioned(&self, columns: &[ArrayRef]) -> Result<Block> {
        let mut hashes = vec![0; columns[0].len()];
        create_hashes(&columns[..self.functions.keys()], REPARTITION_RANDOM_STATE.random_state(), &mut hashes)?;
        let PartitionedRows { order, starts } = self.split.rows(&hashes);
        let order = UInt32Array::from(order);
        let columns = columns.iter().map(|column| Ok(take(column, &order, None)?)).collect::<Result<_>>()?;
        Ok(Block { columns, starts })
    }

    /// Writes all rows that are in memory to files.
    fn spill_all(&self, held: &mut Held) -> Result<()> {
        let blocks = std::mem::take(&mut held.blocks);
        self.spill(held, &blocks)?;
        drop(blocks);
        held.memory.free();
        Ok(())
    }

    fn spill(&self, held: &mut Held, blocks: &[Block]) -> Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        let partitions = self.split.partitions();
        held.files.resize_with(partitions / self.partitions_of_file, || None);
        for (file, first) in held.files.iter_mut().zip((0..partitions).step_by(self.partitions_of_file)) {
            let rows = first..first + self.partitions_of_file;
            let parts: Vec<Vec<ArrayRef>> =
                blocks.iter().filter(|block| block.len(&rows) > 0).map(|block| block.rows(&rows)).collect();
            if parts.is_empty() {
                continue;
            }
            let column = |number: usize| {
                let parts: Vec<&dyn Array> = parts.iter().map(|columns| columns[number].as_ref()).collect();
                concat(&parts)
            };
            let columns = (0..parts[0].len()).map(column).collect::<Result<_, _>>()?;
            let batch = RecordBatch::try_new(Arc::clone(self.functions.states()), columns)?;
            let file = match file {
                Some(file) => file,
                None => file.insert(files.create()?),
            };
            for first in (0..batch.num_rows()).step_by(FILE_ROWS) {
                files.append(file, &batch.slice(first, FILE_ROWS.min(batch.num_rows() - first)))?;
            }
        }
        Ok(())
    }

    /// The parts of each output, when all rows have been added. The states of a part are those of the same groups in no other part.
    ///
    /// `few` rows are not worth a part of their own.
    pub fn complete(&self, few: usize) -> Result<Vec<Vec<Part>>> {
        let mut held = self.held.lock();
        let files = self.files.as_ref().filter(|_| held.files.iter().any(Option::is_some));
        if files.is_some() {
            // The tables of groups need the memory.
            self.spill_all(&mut held)?;
        }
        let blocks = std::mem::take(&mut held.blocks);
        let complete = Arc::new(Complete { blocks, _memory: held.memory.take() });
        let part = |partitions, file| Part { blocks: Arc::clone(&complete), partitions, file, level: self.split.level };
        if let Some(files) = files {
            let finish = |file: Option<FileWriter>| file.map(|file| files.finish(file)).transpose();
            let finished = std::mem::take(&mut held.files).into_iter().map(finish).collect::<Result<Vec<_>>>()?;
            let files_of_output = self.split.fanout / self.partitions_of_file;
            let parts = finished
                .chunks(files_of_output)
                .map(|files| files.iter().flatten().map(|file| part(0..0, Some(file.clone()))).collect());
            return Ok(parts.collect());
        }
        let of_output = |output: usize| {
            let of_stream = output * self.split.fanout..(output + 1) * self.split.fanout;
            let (mut parts, mut first, mut rows) = (vec![], of_stream.start, 0);
            for partition in of_stream.clone() {
                let next = partition + 1;
                rows += complete.blocks.iter().map(|block| block.len(&(partition..next))).sum::<usize>();
                if rows >= few || next == of_stream.end {
                    parts.push(part(first..next, None));
                    (first, rows) = (next, 0);
                }
            }
            parts
        };
        Ok((0..self.split.outputs).map(of_output).collect())
    }

    /// Whether rows of this level can be partitioned again.
    pub fn can_split(level: u32) -> bool {
        level < HashSplit::MOST_LEVEL
    }
}
