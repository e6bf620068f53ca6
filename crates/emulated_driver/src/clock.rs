//! The virtual clock: what the calls of a driver would cost on a machine with a GPU. It is a model. Kernels and the bytes that
//! they move are not in it.

use crate::settings::{Cost, settings};

/// The calls of one kind since the library was loaded. Mirrored by the programs that read it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Charge {
    pub calls: u64,
    pub bytes: u64,
    pub nanoseconds: u64,
}

/// All kinds of calls that cost something.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    /// Waits for a stream, an event or a device, and calls that free memory, as they wait too.
    pub waits: Charge,
    pub launches: Charge,
    /// Copies that are queued. Their bytes take the link's time, which is not counted here.
    pub copies: Charge,
    /// Registrations of CPU memory.
    pub registrations: Charge,
    /// Physical pieces that were mapped.
    pub mappings: Charge,
}

impl Charge {
    fn add(&mut self, bytes: usize, cost: Cost) {
        self.calls += 1;
        self.bytes += bytes as u64;
        self.nanoseconds += cost.call + (bytes as u64).saturating_mul(cost.mebibyte) / (1 << 20);
    }
}

impl Clock {
    pub fn wait(&mut self) {
        self.waits.add(0, settings().costs.wait);
    }

    pub fn launch(&mut self) {
        self.launches.add(0, settings().costs.launch);
    }

    pub fn copy(&mut self, bytes: usize) {
        self.copies.add(bytes, settings().costs.copy);
    }

    pub fn register(&mut self, bytes: usize) {
        self.registrations.add(bytes, settings().costs.registration);
    }

    pub fn map(&mut self, bytes: usize) {
        self.mappings.add(bytes, settings().costs.mapping);
    }
}
