//! Divides rows among partitions by the hash of their keys.

/// How rows are divided among output streams by the remainder of their hash, and those of a stream among partitions by one of its bytes.
#[derive(Debug, Clone, Copy)]
pub struct HashSplit {
    /// Output streams.
    pub outputs: usize,
    /// Partitions of an output stream: a power of two, of at most 256.
    pub fanout: usize,
    /// Which byte of the hash is taken: 0 for the highest. Rows that are divided again need another one.
    pub level: u32,
}

/// Rows in the order of their partitions.
#[derive(Debug)]
pub struct PartitionedRows {
    /// The numbers of the rows. Those of a partition are in ascending order.
    pub order: Vec<u32>,
    /// Where each partition begins in `order`, and where the last one ends.
    pub starts: Vec<u32>,
}

impl HashSplit {
    /// The last level. The two lowest bytes of a hash choose output streams.
    pub const MOST_LEVEL: u32 = 5;

    /// The number of partitions. Those of an output stream are side by side.
    pub fn partitions(&self) -> usize {
        self.outputs * self.fanout
    }

    /// Divides rows with these hashes. `O(rows + partitions)`.
    ///
    /// # Panics
    /// If there are more than 2^32 - 1 rows.
    pub fn rows(&self, hashes: &[u64]) -> PartitionedRows {
        assert!(u32::try_from(hashes.len()).is_ok(), "{} rows are divided at a time", hashes.len());
        match self.outputs {
            1 => self.sorted(hashes, |_| 0),
            outputs if outputs.is_power_of_two() => self.sorted(hashes, |hash| hash & (outputs as u64 - 1)),
            outputs => self.sorted(hashes, |hash| hash % outputs as u64),
        }
    }

    /// A counting sort.
    #[inline(always)]
    fn sorted(&self, hashes: &[u64], output: impl Fn(u64) -> u64) -> PartitionedRows {
        let (shift, fanout) = (56 - 8 * self.level, self.fanout);
        let partition_of =
            |hash: u64| output(hash) as usize * fanout + usize::from((hash >> shift) as u8) * fanout / 256;
        let mut starts = vec![0_u32; self.partitions() + 1];
        let mut partitions = vec![0_u32; hashes.len()];
        for (partition, hash) in partitions.iter_mut().zip(hashes) {
            let number = partition_of(*hash);
            *partition = number as u32;
            starts[number + 1] += 1;
        }
        let mut rows = 0;
        for start in &mut starts {
            rows += *start;
            *start = rows;
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; hashes.len()];
        for (row, partition) in partitions.iter().enumerate() {
            let place = &mut next[*partition as usize];
            order[*place as usize] = row as u32;
            *place += 1;
        }
        PartitionedRows { order, starts }
    }
}
