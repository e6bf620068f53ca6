//! What a device does with the memory of another.

use std::ffi::c_int;

use cudarc::driver::sys::{self, CUdevice_P2PAttribute, CUresult};

use crate::driver::Device;
use crate::{Error, Result};

/// How kernels of one device reach the memory of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAccess {
    /// Whether they read and write it.
    pub reads_and_writes: bool,
    /// Whether atomic operations there are atomic for both devices (NVLink). Without, one device alone may change what
    /// others read later.
    pub native_atomics: bool,
}

impl Device {
    /// How kernels of this device reach the memory of another. The way back is a question of its own.
    ///
    /// # Errors
    /// If it is the same device, or the driver does not tell.
    pub fn access_to(&self, other: &Device) -> Result<PeerAccess> {
        let failed = |error| Error::driver("asking for access to another GPU", self.ordinal(), error);
        let (own, peer) = (self.context().cu_device(), other.context().cu_device());
        let flag = |ask: &dyn Fn(&mut c_int) -> CUresult| {
            let mut value = 0;
            ask(&mut value).result().map_err(failed)?;
            Ok::<_, Error>(value != 0)
        };
        // SAFETY: the place is valid, and both are devices that the driver has named.
        let reads_and_writes = flag(&|place| unsafe { sys::cuDeviceCanAccessPeer(place, own, peer) })?;
        let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: as above.
        let native_atomics = flag(&|place| unsafe { sys::cuDeviceGetP2PAttribute(place, atomics, own, peer) })?;
        Ok(PeerAccess { reads_and_writes, native_atomics })
    }
}
