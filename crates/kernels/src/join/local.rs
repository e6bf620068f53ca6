//! The local join of a rank (paper 4, section 3.3).
//!
//! The hash table has 8 bytes for each of its entries, a hash and a row number, and is half full. Keys are compared in the columns of the
//! input, so that they may have any columns of fixed width. Probe rows are looked up twice: to count the pairs, for which memory is then
//! allocated, and to write them. [`Gather`](crate::Gather) makes rows of the pairs.

use overspill_machine::driver::{Arguments, Function, LaunchShape, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use crate::columns::{KeyArguments, KeyColumn};
use crate::gather::RowNumbers;
use crate::{Kernels, PrefixSum};

/// Threads of a block. Each takes rows until none are left.
const THREADS: u32 = 256;
/// The value of each byte of an empty entry.
const EMPTY: u8 = 0xFF;
/// The layout of `join/local.cuh`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct LocalJoinArguments {
    entries: u64,
    slots: u64,
    build_keys: KeyArguments,
    build_rows: u64,
    probe_keys: KeyArguments,
    probe_rows: u64,
    chunk: u64,
    counts: u64,
    offsets: u64,
    build_numbers: u64,
    probe_numbers: u64,
    seed: u32,
    padding: u32,
}

/// A hash table of the rows of the build side, whose keys stay where they are.
#[derive(Debug)]
pub struct RowTable<'a> {
    entries: DeviceBuffer,
    slots: u64,
    keys: Vec<KeyColumn<'a>>,
    rows: u64,
}

/// The pairs of a join: two row numbers each, in the order of probe rows. The build rows of one probe row are in any order.
#[derive(Debug)]
pub struct JoinedRows {
    /// The build row of each pair.
    pub build: RowNumbers,
    /// The probe row of each pair.
    pub probe: RowNumbers,
}

/// Joins tables in GPU memory.
#[derive(Debug)]
pub struct LocalJoin {
    kernels: Kernels,
    build: Function,
    count: Function,
    write: Function,
}

impl LocalJoin {
    /// The seed of the table's hash: that of the key's first word of 8 bytes, whose hash is the seed of the next. It differs from the seeds of
    /// partitions (1 and 8) and of heavy keys (15), as the hashes of rows of one partition have common bits there.
    pub const SEED: u32 = 22;

    /// # Errors
    /// If the kernels cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        let [build, count, write] =
            ["build", "count", "write"].map(|step| kernels.function(&format!("local_join_{step}")));
        Ok(Self { kernels: kernels.clone(), build: build?, count: count?, write: write? })
    }

    /// Builds a table of `rows` rows, best those of the smaller side, and waits for completion. Rows with a null in their key are left out.
    /// Takes 16 bytes of GPU memory for each row. `O(n)`, and `O(d²)` for a key that `d` rows have, as each walks over those before it.
    ///
    /// # Errors
    /// If there are more than 2^32 - 2 rows, keys have more than 16 columns, a column is too short, misaligned or of another width than 1,
    /// 2, 4, 8 or 16 bytes, there is no memory, or the device fails.
    pub fn build<'a>(&self, stream: &Stream, rows: u64, keys: &[KeyColumn<'a>]) -> Result<RowTable<'a>> {
        check_rows("build", rows)?;
        let build_keys = KeyArguments::new(keys, rows)?;
        // At least one is empty, where each lookup ends.
        let slots = (rows * 2).max(1);
        let mut entries = DeviceBuffer::new(self.kernels.device(), slots * 8)?;
        let address = entries.view_mut().address();
        entries.fill(stream, EMPTY)?;
        let arguments = LocalJoinArguments {
            entries: address,
            slots,
            build_keys,
            build_rows: rows,
            seed: Self::SEED,
            ..Default::default()
        };
        let shape = self.kernels.share().full(&self.build, THREADS)?;
        // SAFETY: the kernel takes these arguments. It reads keys, which have been found to have so many rows, and writes to the entries,
        // twice as many. Both live until the stream is done, which is waited for here, also after an error.
        let built = unsafe { self.build.launch(stream, shape, Arguments::default().with(&arguments)) };
        stream.finish(built, || stream.synchronize())?;
        Ok(RowTable { entries, slots, keys: keys.to_vec(), rows })
    }

    /// Looks `rows` rows up, and waits for completion. Rows with a null in their key have no partner. Takes 4 bytes of GPU memory for each
    /// row while it runs, and 8 for each pair. `O(n + pairs)`, if few rows share a key.
    ///
    /// # Errors
    /// As [`LocalJoin::build`], or if keys have other types than those of the table.
    pub fn probe(
        &self,
        stream: &Stream,
        table: &RowTable<'_>,
        rows: u64,
        keys: &[KeyColumn<'_>],
    ) -> Result<JoinedRows> {
        check_rows("probe", rows)?;
        table.check_types(keys)?;
        let device = self.kernels.device();
        if table.entries.device().ordinal() != device.ordinal() {
            return Err(Error::Invalid(format!("a hash table that GPU {} does not reach", device.ordinal())));
        }
        let shape = self.probe_shape(rows)?;
        let mut counts = DeviceBuffer::new(device, rows * 4)?;
        let mut offsets = DeviceBuffer::new(device, u64::from(shape.blocks) * 8)?;
        let mut prefix_sum = PrefixSum::new(&self.kernels, u64::from(shape.blocks))?;
        let mut arguments = LocalJoinArguments {
            entries: table.entries.view().address(),
            slots: table.slots,
            build_keys: KeyArguments::new(&table.keys, table.rows)?,
            build_rows: table.rows,
            probe_keys: KeyArguments::new(keys, rows)?,
            probe_rows: rows,
            chunk: rows.div_ceil(u64::from(shape.blocks)).next_multiple_of(32),
            counts: counts.view_mut().address(),
            offsets: offsets.view_mut().address(),
            seed: Self::SEED,
            ..Default::default()
        };
        // SAFETY: the kernel takes these arguments. It reads the table and the keys of both sides, which have been found to have so many
        // rows, and writes a count for each probe row and each block. All of it is borrowed or owned here until the stream is done, which
        // the prefix sum waits for, also after an error.
        let counted = unsafe { self.count.launch(stream, shape, Arguments::default().with(&arguments)) };
        let pairs = stream.finish(counted, || prefix_sum.run_in_place(stream, offsets.view_mut()))?;
        let mut build = RowNumbers::unwritten(stream, pairs, table.rows)?;
        let mut probe = RowNumbers::unwritten(stream, pairs, rows)?;
        if pairs > 0 {
            arguments.build_numbers = build.address();
            arguments.probe_numbers = probe.address();
            // SAFETY: as above. The kernel writes as many pairs as have been counted in the same table for the same keys, from where those
            // of each block start.
            let written = unsafe { self.write.launch(stream, shape, Arguments::default().with(&arguments)) };
            stream.finish(written, || stream.synchronize())?;
        }
        Ok(JoinedRows { build, probe })
    }

    /// The shape of both lookups, which divide the rows alike.
    fn probe_shape(&self, rows: u64) -> Result<LaunchShape> {
        let full = self.kernels.share().full(&self.write, THREADS)?;
        let needed = u32::try_from(rows.div_ceil(u64::from(full.threads))).unwrap_or(u32::MAX);
        Ok(LaunchShape { blocks: full.blocks.min(needed).max(1), ..full })
    }
}

impl RowTable<'_> {
    /// The number of rows of the build side.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn check_types(&self, keys: &[KeyColumn<'_>]) -> Result<()> {
        let types = |keys: &[KeyColumn<'_>]| {
            let name = |key: &KeyColumn<'_>| format!("{}{}", if key.is_float { "f" } else { "i" }, key.width * 8);
            keys.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        let (own, others) = (types(&self.keys), types(keys));
        if own != others {
            return Err(Error::Invalid(format!("keys of ({others}) are looked up in a table of keys of ({own})")));
        }
        Ok(())
    }
}

/// # Errors
/// If row numbers of 4 bytes, of which the largest stands for none, do not count so far.
fn check_rows(side: &str, rows: u64) -> Result<()> {
    let most = u64::from(u32::MAX) - 1;
    if rows > most {
        return Err(Error::Invalid(format!("a local join of {rows} rows on the {side} side: it takes at most {most}")));
    }
    Ok(())
}
