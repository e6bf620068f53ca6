//! Indexes in memory that kernels read.

use overspill_kernels::{DeviceIndex, DeviceSearch};
use overspill_machine::driver::{Device, Stream};
use overspill_machine::memory::{Buffer, Placement, Plain};
use overspill_machine::{Error, Result};

use crate::index::Index;
use crate::search::IndexParts;

/// A copy of an index, in GPU memory or in CPU memory that kernels read across the link.
#[derive(Debug)]
pub struct PlacedIndex {
    keys: Buffer,
    length: u64,
    range: (u64, u64),
    rows: Option<Buffer>,
    search: PlacedSearch,
}

#[derive(Debug)]
enum PlacedSearch {
    BinarySearch,
    BTree { nodes: Buffer, node_keys: u32, levels: Vec<usize> },
    Harmonia { key_region: Buffer, child_region: Buffer, levels: u32 },
    RadixSpline { points: Buffer, table: Buffer, shift: u32 },
}

impl PlacedIndex {
    /// Copies an index. `rows` has the number of each sorted key's row; without it, rows are in the order of keys.
    ///
    /// # Errors
    /// If there are not as many row numbers as keys, there is no memory for the copy, or the device fails.
    pub fn new(stream: &Stream, index: &Index, rows: Option<&[u32]>, placement: Placement) -> Result<Self> {
        let copies = Copies { stream, placement };
        let keys = index.keys();
        if let Some(rows) = rows.filter(|rows| rows.len() != keys.len()) {
            return Err(Error::Invalid(format!("{} row numbers for {} keys of an index", rows.len(), keys.len())));
        }
        let narrow = |number: usize| {
            u32::try_from(number).map_err(|_| Error::Invalid(format!("an index of {number} levels or keys a node")))
        };
        let search = match index.parts() {
            IndexParts::BinarySearch => PlacedSearch::BinarySearch,
            IndexParts::BTree { nodes, node_keys, levels } => {
                PlacedSearch::BTree { nodes: copies.of(nodes)?, node_keys: narrow(node_keys)?, levels: levels.to_vec() }
            }
            IndexParts::Harmonia { key_region, child_region, levels } => PlacedSearch::Harmonia {
                key_region: copies.of(key_region)?,
                child_region: copies.of(child_region)?,
                levels: narrow(levels)?,
            },
            IndexParts::RadixSpline { points, table, shift } => {
                PlacedSearch::RadixSpline { points: copies.of(points)?, table: copies.of(table)?, shift }
            }
        };
        Ok(Self {
            keys: copies.of(keys.padded())?,
            length: keys.len() as u64,
            range: (keys.first().copied().unwrap_or(0), keys.last().copied().unwrap_or(0)),
            rows: rows.map(|rows| copies.of(rows)).transpose()?,
            search,
        })
    }

    /// The index for kernels of a device.
    ///
    /// # Errors
    /// If the device does not read the memory.
    #[allow(unsafe_code)]
    pub fn on(&self, device: &Device) -> Result<DeviceIndex<'_>> {
        let search = match &self.search {
            PlacedSearch::BinarySearch => DeviceSearch::BinarySearch,
            PlacedSearch::BTree { nodes, node_keys, levels } => {
                DeviceSearch::BTree { nodes: nodes.view(device)?, node_keys: *node_keys, levels }
            }
            PlacedSearch::Harmonia { key_region, child_region, levels } => DeviceSearch::Harmonia {
                key_region: key_region.view(device)?,
                child_region: child_region.view(device)?,
                levels: *levels,
            },
            PlacedSearch::RadixSpline { points, table, shift } => {
                DeviceSearch::RadixSpline { points: points.view(device)?, table: table.view(device)?, shift: *shift }
            }
        };
        let rows = self.rows.as_ref().map(|rows| rows.view(device)).transpose()?;
        // SAFETY: the arrays are copies of those of an index over these keys, and nothing writes them.
        unsafe { DeviceIndex::new(self.keys.view(device)?, self.length, self.range, rows, search) }
    }
}

/// Where arrays are copied to.
struct Copies<'a> {
    stream: &'a Stream,
    placement: Placement,
}

impl Copies<'_> {
    fn of<T: Copy + Plain>(&self, values: &[T]) -> Result<Buffer> {
        let mut buffer = Buffer::new(self.stream.device(), self.placement, size_of_val(values) as u64)?;
        buffer.write(self.stream, values)?;
        Ok(buffer)
    }
}
