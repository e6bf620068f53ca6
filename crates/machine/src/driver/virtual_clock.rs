//! What the stand-in says its calls would cost on a GPU.

use std::ops::Sub;

use serde::Serialize;

use super::library::Driver;
use crate::driver::DriverKind;

/// The calls of one kind.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Charge {
    /// The number of calls.
    pub calls: u64,
    /// The bytes that they were for.
    pub bytes: u64,
    /// The modelled nanoseconds of all of them.
    pub nanoseconds: u64,
}

/// The virtual clock of the stand-in. It is a model: kernels, and the bytes that cross the link, are not in it. The layout is that
/// of the stand-in's own `Clock`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct VirtualClock {
    /// Waits for a stream, an event or a device, and calls that free memory, as they wait too.
    pub waits: Charge,
    /// Kernel launches.
    pub launches: Charge,
    /// Copies that were queued.
    pub copies: Charge,
    /// Registrations of CPU memory.
    pub registrations: Charge,
    /// Mappings of pieces of GPU and CPU memory.
    pub mappings: Charge,
}

impl VirtualClock {
    /// Reads the clock; `None` if the driver is not the stand-in, or is one of another version.
    pub fn now() -> Option<Self> {
        Driver::loaded().filter(|driver| driver.kind() == DriverKind::Emulated)?;
        // SAFETY: only looks for a function by its name.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"overspill_emulated_clock".as_ptr()) };
        if function.is_null() {
            return None;
        }
        // SAFETY: the stand-in exports a function of this name and type.
        let read: unsafe extern "C" fn(*mut Self, usize) -> i32 = unsafe { std::mem::transmute(function) };
        let mut clock = Self::default();
        // SAFETY: the place is valid, and the function writes to it only if its size is this one.
        let refused = unsafe { read(&mut clock, size_of::<Self>()) };
        (refused == 0).then_some(clock)
    }

    /// The kinds of calls by name.
    pub fn charges(&self) -> [(&'static str, Charge); 5] {
        [
            ("waits", self.waits),
            ("launches", self.launches),
            ("copies", self.copies),
            ("registrations", self.registrations),
            ("mappings", self.mappings),
        ]
    }

    /// The modelled nanoseconds of all calls.
    pub fn nanoseconds(&self) -> u64 {
        self.charges().iter().map(|(_, charge)| charge.nanoseconds).sum()
    }
}

impl Sub for Charge {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            bytes: self.bytes - earlier.bytes,
            nanoseconds: self.nanoseconds - earlier.nanoseconds,
        }
    }
}

impl Sub for VirtualClock {
    type Output = Self;

    /// What was charged since an earlier reading.
    fn sub(self, earlier: Self) -> Self {
        Self {
            waits: self.waits - earlier.waits,
            launches: self.launches - earlier.launches,
            copies: self.copies - earlier.copies,
            registrations: self.registrations - earlier.registrations,
            mappings: self.mappings - earlier.mappings,
        }
    }
}
