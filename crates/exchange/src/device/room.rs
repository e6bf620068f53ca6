//! The room for the rows that a rank gets.

use overspill_machine::memory::{DeviceBuffer, DevicePlace, DividedBuffer};

use super::Gpu;
use crate::error::{Error, Result};

/// GPU memory for all rows that a rank gets, allocated before they arrive (section 3.2): an array for each column, with a part for each
/// rank that sends.
pub struct Room {
    rows: u64,
    arrays: Vec<DividedBuffer>,
}

impl Room {
    /// Allocates arrays with values of these widths, for `counts` rows of each rank. Returns them, and for each rank its place in each array.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn new(gpu: &Gpu<'_>, counts: &[u64], widths: &[u64]) -> Result<(Self, Vec<Vec<DevicePlace>>)> {
        let rows = counts.iter().try_fold(0_u64, |sum, rows| sum.checked_add(*rows));
        let rows = rows.ok_or_else(|| Error::Invalid("ranks send more rows than can be counted".to_owned()))?;
        let mut places: Vec<_> = counts.iter().map(|_| Vec::with_capacity(widths.len())).collect();
        let mut arrays = Vec::with_capacity(widths.len());
        for width in widths {
            let memory = DeviceBuffer::new(gpu.stream.device(), rows.saturating_mul(*width))?;
            let mut array = DividedBuffer::new(memory);
            for (count, places) in counts.iter().zip(&mut places) {
                places.push(array.take(count * width)?);
            }
            arrays.push(array);
        }
        Ok((Self { rows, arrays }, places))
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The arrays, once all rows have arrived.
    ///
    /// # Errors
    /// If a place is still held.
    pub fn into_arrays(self) -> Result<Vec<DeviceBuffer>> {
        self.arrays.into_iter().map(|array| Ok(array.into_whole()?)).collect()
    }
}
