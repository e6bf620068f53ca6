//! Access of a device to the memory of another device.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUdevice_P2PAttribute, CUresult};

use crate::driver::Device;
use crate::{Error, Result};

/// How kernels of one device can access the memory of another device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAccess {
    /// Whether they can read and write it.
    pub reads_and_writes: bool,
    /// Whether atomic operations on it are atomic for both devices (NVLink). If not, only one device may change what the others
    /// read later.
    pub native_atomics: bool,
}

impl Device {
    /// Returns how kernels of this device can access the memory of another. The opposite direction may differ.
    ///
    /// # Errors
    /// If it is the same device, or the driver call fails.
    pub fn access_to(&self, other: &Device) -> Result<PeerAccess> {
        let failed = self.failed("asking for access to another GPU");
        let (own, peer) = (self.context().cu_device(), other.context().cu_device());
        let flag = |ask: &dyn Fn(&mut c_int) -> CUresult| {
            let mut value = 0;
            ask(&mut value).result().map_err(failed)?;
            Ok::<_, Error>(value != 0)
        };
        // SAFETY: the output pointer is valid, and both devices were returned by the driver.
        let reads_and_writes = flag(&|place| unsafe { sys::cuDeviceCanAccessPeer(place, own, peer) })?;
        let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: as above.
        let native_atomics = flag(&|place| unsafe { sys::cuDeviceGetP2PAttribute(place, atomics, own, peer) })?;
        Ok(PeerAccess { reads_and_writes, native_atomics })
    }
}
