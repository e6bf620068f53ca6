//! The kernels against plain references, through the launchers and the driver's interface, on the stand-in driver or on a GPU.
//!
//! `OVERSPILL_TEST_GPU=1` takes the GPU of the machine. Tests of what only the stand-in can do (count calls, fail them, be several
//! devices) then end at once, and say so with `--nocapture`.
//! `OVERSPILL_EMULATED_DRIVER` names another build of the stand-in, such as one whose kernels a sanitizer watches.
//! `OVERSPILL_TEST_TUPLES` makes inputs smaller for such builds, `OVERSPILL_TEST_MULTIPROCESSORS` the device,
//! `OVERSPILL_TEST_WORKERS` sets how many blocks run at once, and `OVERSPILL_TEST_SCHEDULES` how many schedules are tried.

mod bad_driver;
mod codec;
mod columns;
mod device_memory;
mod faults;
mod hash_partitions;
mod index;
mod interleaved;
mod join;
mod local_joins;
mod memory_access;
mod partition;
mod prefix_sum;
mod selection;
mod share;
mod spanning;
mod test_gpu;
mod timeline;
mod transfer;
mod validity;
