//! Checks pages of GPU and CPU memory that the driver maps into one range, by copies and by a kernel.

use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, Mapping};
use overspill_machine::{Error, Result};

use crate::{HashFunction, HashTable, JoinSide, Kernels, KeyWidth, PairAggregate, TableKind, TablePlacement, Values};

/// Keys of the table. Its slots take 4 MiB.
const TUPLES: u64 = 100_000;
/// Half of the slots.
const DEVICE_BYTES: u64 = 2 << 20;

/// Writes mapped pages of both memories and reads them back: by copies, and by kernels that fill a hash table by compare-and-swap
/// and look its keys up. A faulty driver may end the process.
///
/// # Errors
/// If the driver refuses, or the data read differs from the data written.
pub fn check_mapping(kernels: &Kernels, node: u32) -> Result<()> {
    overspill_machine::memory::check_mapping(kernels.device(), node)?;
    let stream = Stream::new(kernels.device())?;
    let placement = TablePlacement::Spanning { device_bytes: DEVICE_BYTES, node, mapping: Mapping::Contiguous };
    let (kind, width, hash) = (TableKind::LinearProbing, KeyWidth::Eight, HashFunction::MultiplyShift);
    let mut table = HashTable::new(kernels, kind, width, TUPLES, hash, placement)?;
    let keys = DeviceBuffer::from_slice(&stream, &(1..=TUPLES).collect::<Vec<u64>>())?;
    let side = JoinSide { keys: keys.view(), values: Values::Eight(keys.view()) };
    let refused = table.build(&stream, &side)?;
    let found = table.probe_aggregate(&stream, &side, &PairAggregate::SUMS)?;
    // Each key matches itself, and is its own value on both sides.
    if refused > 0 || (found.matches, found.sum()) != (TUPLES, TUPLES * (TUPLES + 1)) {
        return Err(Error::Invalid("a hash table in memory that the driver mapped loses tuples".to_owned()));
    }
    Ok(())
}
