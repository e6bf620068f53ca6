//! Hash partitions of any number, in which rows keep their order (paper 4, section 3.1).

mod layout;

use std::ops::Range;

use overspill_machine::driver::{Arguments, Function, LaunchShape, Stream};
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::{Error, Result};

use crate::columns::{KeyArguments, KeyColumn, MovedColumn, moved_columns};
use crate::{Kernels, PrefixSum};
use layout::Layout;

/// The largest number of partitions. Devices with less scratchpad memory take fewer, but at least 1,024.
const MOST_PARTITIONS: u32 = 4096;
/// Keys are packed into a word of this many bits at most.
const MOST_KEY_BITS: u32 = 128;

/// What decides the partition of a row.
///
/// It is `hash * partitions / 2^32`, rounded down, of the MurmurHash3 of 32 bits of the row's key. A key is a word of 64 bits that its
/// columns are packed into, each appended below those before it, or of 128 bits if they do not fit one, of which the lower half is hashed
/// first. `overspill-exchange` partitions so on the CPU, and both give a row the same partition, with these exceptions: kernels know neither
/// keys whose nulls are equal, nor text, truth values and other keys without a fixed width, nor heavy keys that go elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashPartitioning {
    /// How many partitions there are.
    pub partitions: u32,
    /// The seed of the hash function. Partitions of partitions need another, and so does a hash table of a partition.
    pub seed: u32,
    /// The partition of rows with a null in their key, which have no partner.
    pub home: u32,
}

/// The layout of `hash_partition/arguments.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct HashPartitionArguments {
    keys: KeyArguments,
    rows: u64,
    chunk: u64,
    offsets: u64,
    starts: u64,
    columns: u64,
    column_count: u64,
    partitions: u32,
    seed: u32,
    home: u32,
    turns: u32,
}

/// Where the partitions of a table are.
#[derive(Debug)]
pub struct HashPartitions {
    starts: Vec<u64>,
    on_device: DeviceBuffer,
}

impl HashPartitions {
    /// The first row of each partition, and behind that the number of rows: partitions follow each other without gaps.
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// The rows of a partition.
    ///
    /// # Panics
    /// If there is no partition of this number.
    pub fn rows(&self, partition: usize) -> Range<u64> {
        self.starts[partition]..self.starts[partition + 1]
    }

    /// The starts in GPU memory, 8 bytes each.
    pub fn on_device(&self) -> View<'_> {
        self.on_device.view()
    }
}

/// Partitions tables.
#[derive(Debug)]
pub struct HashPartitioner {
    kernels: Kernels,
    partitioning: HashPartitioning,
    count: Function,
    scatter: Function,
}

impl HashPartitioner {
    /// # Errors
    /// If there are no partitions or more than 4,096, or there is no such home.
    pub fn new(kernels: &Kernels, partitioning: HashPartitioning) -> Result<Self> {
        let HashPartitioning { partitions, home, .. } = partitioning;
        if !(1..=MOST_PARTITIONS).contains(&partitions) {
            return Err(Error::Invalid(format!(
                "rows cannot be partitioned {partitions} ways: kernels make 1 to {MOST_PARTITIONS} partitions"
            )));
        }
        if home >= partitions {
            return Err(Error::Invalid(format!(
                "rows without a partner belong in partition {home}, and there are {partitions}, counted from 0"
            )));
        }
        let [count, scatter] = ["count", "scatter"].map(|pass| kernels.function(&format!("hash_partition_{pass}")));
        Ok(Self { kernels: kernels.clone(), partitioning, count: count?, scatter: scatter? })
    }

    /// Partitions `rows` rows and waits for completion. The first pass counts the rows of each partition, the second moves all columns,
    /// keys among them if they are given as columns. Rows of a partition keep their order.
    ///
    /// Reads keys twice and columns once, a column that is also a key the second time from the cache, and writes columns once. Takes 8
    /// bytes of GPU memory for each partition and block of the launch, of which there are two for each multiprocessor, as a rule. `O(n)`.
    ///
    /// Columns have values of 1, 2, 4, 8 or 16 bytes. Truth values and validity bits are moved as bytes, which the caller makes of them.
    ///
    /// # Errors
    /// If the key has more than 16 columns or 128 bits, a column is too short, misaligned, of another width or overlaps one that is written,
    /// the device has too little scratchpad memory for so many partitions, there is no memory, or the device fails. Then the contents of
    /// columns that are written are unspecified.
    pub fn run(
        &self,
        stream: &Stream,
        rows: u64,
        keys: &[KeyColumn<'_>],
        columns: &mut [MovedColumn<'_>],
    ) -> Result<HashPartitions> {
        let key_arguments = KeyArguments::new(keys, rows)?;
        if key_arguments.bits() > MOST_KEY_BITS {
            return Err(Error::Invalid(format!(
                "keys of {} bits: kernels partition by keys of at most {MOST_KEY_BITS}",
                key_arguments.bits()
            )));
        }
        let moved = moved_columns(columns, rows, rows, keys)?;
        let widest = columns.iter().map(|column| column.width).max().unwrap_or(1);
        let HashPartitioning { partitions, seed, home } = self.partitioning;
        let layout = Layout::new(&self.kernels, &self.scatter, partitions, rows, widest)?;
        let device = self.kernels.device();
        let list = DeviceBuffer::with_values(stream, &moved)?;
        let places = u64::from(partitions) * u64::from(layout.blocks);
        let mut offsets = DeviceBuffer::new(device, places * 8)?;
        let starts_count = u64::from(partitions) + 1;
        let mut starts = DeviceBuffer::new(device, starts_count * 8)?;
        let mut prefix_sum = PrefixSum::new(&self.kernels, places)?;
        let arguments = HashPartitionArguments {
            keys: key_arguments,
            rows,
            chunk: layout.chunk,
            offsets: offsets.view_mut().address(),
            starts: starts.view_mut().address(),
            columns: list.view().address(),
            column_count: moved.len() as u64,
            partitions,
            seed,
            home,
            turns: layout.turns,
        };
        let counters = layout.shape(&self.kernels, u64::from(partitions) * 4);
        // SAFETY: the kernel takes these arguments. It reads the keys, which have been found to have so many rows, and writes a count for
        // each partition and block. All of it is borrowed or owned here until the stream is done, which the prefix sum waits for.
        let counted = unsafe { self.count.launch(stream, counters, Arguments::default().with(&arguments)) };
        stream.finish(counted, || prefix_sum.run_in_place(stream, offsets.view_mut()))?;
        let shape: LaunchShape = layout.shape(&self.kernels, layout.scratchpad);
        // SAFETY: as above. The kernel reads and writes as many rows of each column as it has been found to have room for, as the offsets
        // are those of the same keys, and writes a start for each partition and one more.
        let scattered = unsafe { self.scatter.launch(stream, shape, Arguments::default().with(&arguments)) };
        let host = stream.finish(scattered, || starts.read::<u64>(stream, starts_count as usize))?;
        Ok(HashPartitions { starts: host, on_device: starts })
    }
}
