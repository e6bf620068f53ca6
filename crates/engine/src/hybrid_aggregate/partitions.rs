//! Rows and states, by the hash of their keys.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::concat;
use datafusion::common::Result;
use datafusion::common::hash_utils::create_hashes;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_plan::repartition::REPARTITION_RANDOM_STATE;
use overspill_join::grouping::HashSplit;
use parking_lot::Mutex;

use super::files::Files;
use super::functions::{Functions, Layout};
use crate::join_execution::disk::{DiskFile, FileWriter};
use crate::join_execution::to_datafusion;

/// The number of partitions, about: few enough that writes to them fit a core's cache.
const PARTITIONS: usize = 256;

/// The number of open files, about.
const FILES: usize = 64;

/// The most rows of a batch in a file. Who reads it back may have little memory.
const FILE_ROWS: usize = 4 << 10;

/// Rows or states of one layout, as arrays that follow each other.
pub(super) struct Rows {
    layout: Layout,
    parts: Vec<Vec<ArrayRef>>,
    rows: usize,
    bytes: usize,
}

impl Rows {
    /// None yet.
    pub fn new(layout: Layout) -> Self {
        Self { layout, parts: vec![], rows: 0, bytes: 0 }
    }

    /// Those of `columns`.
    pub fn of(layout: Layout, columns: Vec<ArrayRef>) -> Self {
        let mut rows = Self::new(layout);
        rows.push(columns);
        rows
    }

    pub fn push(&mut self, columns: Vec<ArrayRef>) {
        self.rows += columns[0].len();
        self.bytes += columns.iter().map(|column| column.get_array_memory_size()).sum::<usize>();
        self.parts.push(columns);
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The columns of each part.
    pub fn parts(&self) -> &[Vec<ArrayRef>] {
        &self.parts
    }

    pub fn into_parts(self) -> Vec<Vec<ArrayRef>> {
        self.parts
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A column of all rows, in parts.
    fn column(&self, number: usize) -> Vec<&dyn Array> {
        self.parts.iter().map(|columns| columns[number].as_ref()).collect()
    }
}

/// Rows and states, in partitions. Each partition belongs to one output stream, and the partitions of a stream lie side by side.
///
/// They stay in memory while the pool has room. Then they move to files. A file has those of several partitions, in one layout.
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
    /// The files of rows and those of states.
    files: [Vec<Option<FileWriter>>; 2],
    memory: MemoryReservation,
}

const LAYOUTS: [Layout; 2] = [Layout::Rows, Layout::States];

/// Rows ordered by partition.
pub(super) struct Block {
    pub layout: Layout,
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
    pub files: Vec<(Layout, DiskFile)>,
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
    /// For those of `outputs` streams, which are partitioned for the `level`th time, from 0.
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
            held: Mutex::new(Held { blocks: vec![], files: [vec![], vec![]], memory }),
        }
    }

    /// Adds rows or states.
    ///
    /// # Errors
    /// Without temporary files, those of the pool if it has no room; and those of the disk.
    pub fn add(&self, rows: &Rows) -> Result<()> {
        if rows.len() == 0 {
            return Ok(());
        }
        let block = self.partitioned(rows)?;
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
    fn partitioned(&self, rows: &Rows) -> Result<Block> {
        let mut hashes = vec![0; rows.len()];
        let mut rest = hashes.as_mut_slice();
        for columns in &rows.parts {
            let hashes = rest.split_off_mut(..columns[0].len()).unwrap_or_default();
            create_hashes(&columns[..self.functions.keys()], REPARTITION_RANDOM_STATE.random_state(), hashes)?;
        }
        let partitioned = self.split.rows(&hashes);
        let columns = (0..rows.parts[0].len()).map(|number| partitioned.ordered(&rows.column(number)));
        let columns = columns.collect::<overspill_join::Result<_>>().map_err(to_datafusion)?;
        Ok(Block { layout: rows.layout, columns, starts: partitioned.starts })
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
        for (layout, writers) in LAYOUTS.into_iter().zip(&mut held.files) {
            let Some(schema) = self.functions.schema(layout) else { continue };
            let blocks: Vec<&Block> = blocks.iter().filter(|block| block.layout == layout).collect();
            writers.resize_with(partitions / self.partitions_of_file, || None);
            for (file, first) in writers.iter_mut().zip((0..partitions).step_by(self.partitions_of_file)) {
                let rows = first..first + self.partitions_of_file;
                let parts = blocks.iter().filter(|block| block.len(&rows) > 0).map(|block| block.rows(&rows));
                let parts: Vec<Vec<ArrayRef>> = parts.collect();
                if parts.is_empty() {
                    continue;
                }
                let column = |number: usize| {
                    let parts: Vec<&dyn Array> = parts.iter().map(|columns| columns[number].as_ref()).collect();
                    concat(&parts)
                };
                let columns = (0..parts[0].len()).map(column).collect::<Result<_, _>>()?;
                let batch = RecordBatch::try_new(Arc::clone(schema), columns)?;
                let file = match file {
                    Some(file) => file,
                    None => file.insert(files.create(layout)?),
                };
                for first in (0..batch.num_rows()).step_by(FILE_ROWS) {
                    let rows = batch.slice(first, FILE_ROWS.min(batch.num_rows() - first));
                    files.append(layout, file, &rows)?;
                }
            }
        }
        Ok(())
    }

    /// The parts of each output, when all rows have been added. The states of a part are those of the same groups in no other part.
    ///
    /// `few` rows are not worth a part of their own.
    pub fn complete(&self, few: usize) -> Result<Vec<Vec<Part>>> {
        let mut held = self.held.lock();
        let has_files = held.files.iter().flatten().any(Option::is_some);
        let files = self.files.as_ref().filter(|_| has_files);
        if files.is_some() {
            // The tables of groups need the memory.
            self.spill_all(&mut held)?;
        }
        let blocks = std::mem::take(&mut held.blocks);
        let complete = Arc::new(Complete { blocks, _memory: held.memory.take() });
        let part =
            |partitions, files| Part { blocks: Arc::clone(&complete), partitions, files, level: self.split.level };
        if let Some(files) = files {
            let mut of_parts = vec![vec![]; self.split.partitions() / self.partitions_of_file];
            for (layout, writers) in LAYOUTS.into_iter().zip(&mut held.files) {
                for (of_part, writer) in of_parts.iter_mut().zip(writers.drain(..)) {
                    if let Some(writer) = writer {
                        of_part.push((layout, files.finish(layout, writer)?));
                    }
                }
            }
            let files_of_output = self.split.fanout / self.partitions_of_file;
            let parts = of_parts.chunks(files_of_output).map(|files| {
                files.iter().filter(|files| !files.is_empty()).map(|files| part(0..0, files.clone())).collect()
            });
            return Ok(parts.collect());
        }
        let of_output = |output: usize| {
            let of_stream = output * self.split.fanout..(output + 1) * self.split.fanout;
            let (mut parts, mut first, mut rows) = (vec![], of_stream.start, 0);
            for partition in of_stream.clone() {
                let next = partition + 1;
                rows += complete.blocks.iter().map(|block| block.len(&(partition..next))).sum::<usize>();
                if rows >= few || next == of_stream.end {
                    parts.push(part(first..next, vec![]));
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
