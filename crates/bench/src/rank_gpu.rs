//! The GPU of a rank.

use overspill_exchange::transport::Endpoint;
use overspill_experiments::{DeviceArgs, Gpu};
use overspill_machine::DeviceKind;
use overspill_machine::driver::Driver;

/// Opens the GPU of a rank, or says why it has none. Ranks of a node have one each, from the one that is asked for on, as far as there are
/// some.
pub(crate) fn gpu_of(device: &DeviceArgs, endpoint: &Endpoint) -> Result<Gpu, String> {
    let mut device = device.clone();
    if device.device == DeviceKind::Gpu {
        let gpus = Driver::nvidia().map_err(|error| error.to_string())?.device_count();
        let neighbours = endpoint.topology().neighbours(endpoint.rank());
        let place = neighbours.iter().position(|rank| *rank == endpoint.rank()).unwrap_or(0);
        device.gpu = (device.gpu + place) % gpus;
    }
    device.open().map_err(|error| error.to_string())?.gpu
}
