//! Measured rates of transfer methods, and the choice of the fastest.

use serde::{Deserialize, Serialize};

use super::method::{SourceMemory, TransferMethod};
use crate::driver::Properties;

/// The measured rate of a method on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TransferRate {
    /// The method.
    pub method: TransferMethod,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// The measured rates of the methods that a GPU supports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TransferRates(pub Vec<TransferRate>);

impl TransferRates {
    /// Returns the method for `auto`: the fastest one measured for this kind of memory. Without measurements, returns the one
    /// that was fastest on most machines of paper 2 (section 7.2.1): coherence before staged copy for pageable memory,
    /// zero-copy for pinned memory, prefetching for unified memory.
    pub fn best(&self, device: &Properties, memory: SourceMemory) -> TransferMethod {
        let works = |method: &TransferMethod| method.memory() == memory && method.check_device(device).is_ok();
        let measured = self.0.iter().filter(|rate| works(&rate.method));
        let fastest = measured.max_by(|one, other| one.bytes_per_second.total_cmp(&other.bytes_per_second));
        fastest.map_or_else(
            || {
                let order: &[TransferMethod] = match memory {
                    SourceMemory::Pageable => &[TransferMethod::Coherence, TransferMethod::StagedCopy],
                    SourceMemory::Pinned => &[TransferMethod::ZeroCopy],
                    SourceMemory::Unified => &[TransferMethod::UnifiedPrefetch, TransferMethod::UnifiedMigration],
                };
                *order.iter().find(|method| works(method)).unwrap_or(&order[order.len() - 1])
            },
            |rate| rate.method,
        )
    }
}
