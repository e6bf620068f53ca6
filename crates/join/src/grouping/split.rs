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

/// The order of rows by partition. Rows of a partition keep their order.
#[derive(Debug)]
pub struct PartitionedRows {
    /// The place of each row.
    pub(super) places: Vec<u32>,
    /// Where each partition begins, and where the last one ends.
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
        let mut places = vec![0_u32; hashes.len()];
        // First the partition of each row, then its place.
        for (place, hash) in places.iter_mut().zip(hashes) {
            let number = partition_of(*hash);
            *place = number as u32;
            starts[number + 1] += 1;
        }
        let mut rows = 0;
        for start in &mut starts {
            rows += *start;
            *start = rows;
        }
        let mut next = starts.clone();
        for place in &mut places {
            let next = &mut next[*place as usize];
            *place = *next;
            *next += 1;
        }
        PartitionedRows { places, starts }
    }
}
