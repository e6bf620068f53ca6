//! The blocks that an input has written, and the file of a task.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use arrow::array::LargeBinaryArray;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use ballista_core::execution_plans::sort_shuffle::ShuffleIndex;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::{SpillFile, SpillWriter};

use super::block_schema;
use crate::error::failed;

/// The blocks of one input, by the partition that they are for: in memory, and before those on disk.
pub struct Blocks {
    resident: Vec<Vec<Vec<u8>>>,
    resident_bytes: usize,
    spilled: Option<Spilled>,
}

/// A file of blocks that memory had no room for.
struct Spilled {
    file: Arc<dyn SpillFile>,
    writer: Box<dyn SpillWriter>,
    bytes: u64,
    /// Where the blocks of each partition lie.
    places: Vec<Vec<Range<u64>>>,
}

impl Blocks {
    /// A store without blocks, for blocks of `partitions` partitions.
    pub fn new(partitions: usize) -> Self {
        Self { resident: vec![vec![]; partitions], resident_bytes: 0, spilled: None }
    }

    /// Bytes in memory.
    pub fn resident_bytes(&self) -> usize {
        self.resident_bytes
    }

    /// Adds a block for a partition.
    pub fn push(&mut self, partition: usize, block: &[u8]) {
        self.resident[partition].push(block.to_vec());
        self.resident_bytes += block.len();
    }

    /// Moves all blocks to disk. Returns their bytes.
    pub fn spill(&mut self, disk: &Arc<DiskManager>) -> Result<usize> {
        if self.spilled.is_none() {
            let file = disk.create_tmp_file("rows for other tasks")?;
            let (writer, places) = (file.open_writer()?, vec![vec![]; self.resident.len()]);
            self.spilled = Some(Spilled { file, writer, bytes: 0, places });
        }
        let Some(spilled) = &mut self.spilled else { return Ok(0) };
        for (blocks, places) in self.resident.iter_mut().zip(&mut spilled.places) {
            for block in blocks.drain(..) {
                spilled.writer.write_all(&block)?;
                let begin = spilled.bytes;
                spilled.bytes += block.len() as u64;
                places.push(begin..spilled.bytes);
            }
        }
        spilled.writer.flush()?;
        Ok(std::mem::take(&mut self.resident_bytes))
    }

    /// Whether there is a block for a partition.
    fn has(&self, partition: usize) -> bool {
        let spilled = self.spilled.as_ref().is_some_and(|spilled| !spilled.places[partition].is_empty());
        spilled || !self.resident[partition].is_empty()
    }

    /// Gives the blocks of a partition to `emit`, in the order in which they were added.
    fn read(&self, partition: usize, mut emit: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some(Spilled { file, places, .. }) = &self.spilled {
            let path = file.path().ok_or_else(|| failed("a temporary file has no path"))?;
            let file = File::open(path)?;
            let mut block = Vec::new();
            for place in &places[partition] {
                block.resize((place.end - place.start) as usize, 0);
                file.read_exact_at(&mut block, place.start)?;
                emit(&block)?;
            }
        }
        self.resident[partition].iter().try_for_each(|block| emit(block))
    }
}

/// Writes the file of a task, and its index beside it: for each partition the blocks of all inputs, as an Arrow IPC stream of batches
/// that hold one block each. An empty stream comes first; its schema serves readers of partitions without rows. Returns the bytes.
pub fn write_file(inputs: &[&Blocks], partitions: usize, path: &Path, index_path: &Path) -> Result<u64> {
    let written = || -> Result<u64> {
        let schema = block_schema();
        let mut file = BufWriter::new(File::create(path)?);
        StreamWriter::try_new(&mut file, &schema)?.finish()?;
        let mut index = ShuffleIndex::new(partitions);
        for partition in 0..partitions {
            index.set_offset(partition, file.stream_position()? as i64);
            if !inputs.iter().any(|input| input.has(partition)) {
                continue;
            }
            let mut stream = StreamWriter::try_new(&mut file, &schema)?;
            for input in inputs {
                input.read(partition, |block| {
                    let value = LargeBinaryArray::from_iter_values([block]);
                    stream.write(&RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(value)])?)?;
                    Ok(())
                })?;
            }
            stream.finish()?;
        }
        let length = file.stream_position()?;
        index.set_total_length(length as i64);
        file.flush()?;
        index.write_to_file(index_path).map_err(|error| DataFusionError::External(Box::new(error)))?;
        Ok(length)
    };
    written().map_err(|error| {
        failed(format!(
            "Rows for other tasks cannot be written to {}: {}. Free space there, or choose another directory with --temp-dir",
            path.display(),
            error.strip_backtrace()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, SeekFrom};

    use arrow::array::AsArray;
    use arrow::ipc::reader::StreamReader;
    use datafusion::execution::runtime_env::RuntimeEnv;
    use tempfile::TempDir;

    use super::*;

    /// The blocks of a partition, as Ballista finds them.
    fn blocks_of(partition: usize, path: &Path, index_path: &Path) -> Vec<Vec<u8>> {
        let index = ShuffleIndex::read_from_file(index_path).unwrap();
        let (begin, end) = index.get_partition_range(partition);
        if begin == end {
            return vec![];
        }
        let mut file = File::open(path).unwrap();
        file.seek(SeekFrom::Start(begin as u64)).unwrap();
        let batches = StreamReader::try_new(file.take((end - begin) as u64), None).unwrap();
        batches.map(|batch| batch.unwrap().column(0).as_binary::<i64>().value(0).to_vec()).collect()
    }

    #[test]
    fn a_file_has_the_blocks_of_each_partition_in_order() {
        let (folder, runtime) = (TempDir::new().unwrap(), RuntimeEnv::default());
        let block = |input: u8, number: u8| vec![input, number, 7, 7, 7];
        let mut inputs = [Blocks::new(3), Blocks::new(3), Blocks::new(3)];
        for (input, blocks) in (0..).zip(&mut inputs[..2]) {
            for number in 0..9 {
                blocks.push(usize::from(number % 2), &block(input, number));
                // The second input keeps all of its blocks in memory.
                if input == 0 && number % 4 == 2 {
                    assert!(blocks.spill(&runtime.disk_manager).unwrap() > 0);
                    assert_eq!(blocks.resident_bytes(), 0);
                }
            }
        }
        let (path, index_path) = (folder.path().join("data.arrow"), folder.path().join("data.arrow.index"));
        let inputs: Vec<&Blocks> = inputs.iter().collect();
        let length = write_file(&inputs, 3, &path, &index_path).unwrap();
        assert_eq!(length, std::fs::metadata(&path).unwrap().len());
        for partition in 0..2 {
            let numbers = || (0..9).filter(|number| number % 2 == partition);
            let expected: Vec<_> =
                numbers().map(|number| block(0, number)).chain(numbers().map(|number| block(1, number))).collect();
            assert_eq!(blocks_of(partition.into(), &path, &index_path), expected);
        }
        assert!(blocks_of(2, &path, &index_path).is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("missing").join("data.arrow");
        let error = write_file(&[&Blocks::new(1)], 1, &path, &path).unwrap_err().to_string();
        assert!(error.contains("missing/data.arrow") && error.contains("--temp-dir"), "{error}");
    }
}
