//! The room for the rows that a rank gets.

use overspill_machine::memory::{DeviceBuffer, DevicePlace, DividedBuffer};

use super::Gpu;
use super::sizes::Sizes;
use super::table::VALID;
use crate::error::{Error, Result};

/// GPU memory for all rows that a rank gets, allocated before they arrive (section 3.2): arrays for each column, with a part for each rank
/// that sends.
pub struct Room {
    rows: u64,
    columns: Vec<RoomOfColumn>,
}

struct RoomOfColumn {
    values: DividedBuffer,
    /// If one of the ranks has nulls. All rows of the others are valid.
    validity: Option<DividedBuffer>,
}

impl Room {
    /// Allocates room for what ranks send. Returns it, and for each rank the places of its arrays, in the order of [`Sizes::arrays`].
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn new(gpu: &Gpu<'_>, sizes: &[Sizes]) -> Result<(Self, Vec<Vec<DevicePlace>>)> {
        let rows = sizes.iter().try_fold(0_u64, |sum, sizes| sum.checked_add(sizes.rows));
        let rows = rows.ok_or_else(|| Error::Invalid("ranks send more rows than can be counted".to_owned()))?;
        let mut places: Vec<Vec<DevicePlace>> = sizes.iter().map(|_| vec![]).collect();
        let mut columns = vec![];
        for number in 0..sizes.first().map_or(0, |sizes| sizes.columns.len()) {
            let width = sizes[0].columns[number].width;
            let has_validity = |sizes: &Sizes| sizes.columns[number].has_validity;
            let memory = DeviceBuffer::new(gpu.stream.device(), rows.saturating_mul(width))?;
            let mut column = RoomOfColumn { values: DividedBuffer::new(memory), validity: None };
            if sizes.iter().any(|sizes| sizes.rows > 0 && has_validity(sizes)) {
                let mut memory = DeviceBuffer::new(gpu.stream.device(), rows)?;
                memory.fill(gpu.stream, VALID)?;
                column.validity = Some(DividedBuffer::new(memory));
            }
            for (sizes, places) in sizes.iter().zip(&mut places) {
                places.push(column.values.take(sizes.rows * width)?);
                let Some(validity) = &mut column.validity else {
                    // A rank without rows has none to say that they are valid.
                    continue;
                };
                let place = validity.take(sizes.rows)?;
                if has_validity(sizes) {
                    places.push(place);
                }
            }
            columns.push(column);
        }
        // Nothing is queued that would write what has arrived.
        gpu.stream.synchronize()?;
        Ok((Self { rows, columns }, places))
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The values and the validity of each column, once all rows have arrived.
    ///
    /// # Errors
    /// If a place is still held.
    pub fn into_columns(self) -> Result<Vec<(DeviceBuffer, Option<DeviceBuffer>)>> {
        let columns = self.columns.into_iter().map(|RoomOfColumn { values, validity }| {
            Ok((values.into_whole()?, validity.map(DividedBuffer::into_whole).transpose()?))
        });
        columns.collect()
    }
}
