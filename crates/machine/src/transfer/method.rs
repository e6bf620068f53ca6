//! The transfer methods, and which of them a machine supports.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::driver::Properties;
use crate::memory::{HostBuffer, UnifiedBuffer};
use crate::{Error, Result};

/// A method to transfer data from CPU memory to a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferMethod {
    /// The driver copies through its own pinned buffer.
    PageableCopy,
    /// Our threads copy to pinned slabs, from which the GPU copies.
    StagedCopy,
    /// Each chunk is pinned in place, copied, and unpinned.
    DynamicPinning,
    /// The GPU copies from pinned memory.
    PinnedCopy,
    /// The driver moves pages of unified memory before the kernel runs.
    UnifiedPrefetch,
    /// Pages of unified memory move when the kernel touches them.
    UnifiedMigration,
    /// The kernel reads pinned memory across the link.
    ZeroCopy,
    /// The kernel reads pageable memory across a coherent link.
    Coherence,
}

/// The kind of memory that holds a relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceMemory {
    /// Ordinary memory, as programs allocate it.
    Pageable,
    /// Registered with the driver.
    Pinned,
    /// Unified memory.
    Unified,
}

/// The data to transfer.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// CPU memory, pageable or pinned.
    Host(&'a HostBuffer),
    /// Unified memory.
    Unified(&'a UnifiedBuffer),
}

impl Source<'_> {
    /// The kind of memory.
    pub fn memory(&self) -> SourceMemory {
        match self {
            Self::Host(buffer) if buffer.is_pinned() => SourceMemory::Pinned,
            Self::Host(_) => SourceMemory::Pageable,
            Self::Unified(_) => SourceMemory::Unified,
        }
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Host(buffer) => buffer.bytes() as u64,
            Self::Unified(buffer) => buffer.bytes(),
        }
    }
}

impl TransferMethod {
    /// All eight, in the order of paper 2, table 1.
    pub const ALL: [Self; 8] = [
        Self::PageableCopy,
        Self::StagedCopy,
        Self::DynamicPinning,
        Self::PinnedCopy,
        Self::UnifiedPrefetch,
        Self::UnifiedMigration,
        Self::ZeroCopy,
        Self::Coherence,
    ];

    /// The name used by settings and benchmarks.
    pub fn name(self) -> &'static str {
        match self {
            Self::PageableCopy => "pageable-copy",
            Self::StagedCopy => "staged-copy",
            Self::DynamicPinning => "dynamic-pinning",
            Self::PinnedCopy => "pinned-copy",
            Self::UnifiedPrefetch => "unified-prefetch",
            Self::UnifiedMigration => "unified-migration",
            Self::ZeroCopy => "zero-copy",
            Self::Coherence => "coherence",
        }
    }

    /// The kind of memory that the method reads.
    pub fn memory(self) -> SourceMemory {
        match self {
            Self::PageableCopy | Self::StagedCopy | Self::DynamicPinning | Self::Coherence => SourceMemory::Pageable,
            Self::PinnedCopy | Self::ZeroCopy => SourceMemory::Pinned,
            Self::UnifiedPrefetch | Self::UnifiedMigration => SourceMemory::Unified,
        }
    }

    /// Whether data is copied to the pipeline's own GPU memory before the kernel reads it.
    pub fn copies(self) -> bool {
        match self {
            Self::PageableCopy | Self::StagedCopy | Self::DynamicPinning | Self::PinnedCopy => true,
            Self::UnifiedPrefetch | Self::UnifiedMigration | Self::ZeroCopy | Self::Coherence => false,
        }
    }

    /// Checks whether a device with these properties supports the method.
    ///
    /// # Errors
    /// If not, with the reason.
    pub fn check_device(self, device: &Properties) -> Result<()> {
        match self {
            Self::Coherence if !device.coherent => {
                Err(self.refused("the GPU does not read pageable memory through the page tables of the CPU"))
            }
            Self::UnifiedPrefetch | Self::UnifiedMigration if !device.unified_memory => {
                Err(self.refused("the GPU has no unified memory"))
            }
            Self::UnifiedPrefetch if !device.concurrent_unified_access => {
                Err(self.refused("the GPU moves unified memory as a whole, never ahead of a kernel"))
            }
            _ => Ok(()),
        }
    }

    /// Checks whether the method can read this source on a device with these properties.
    ///
    /// # Errors
    /// If not, with the reason.
    pub fn check(self, device: &Properties, source: &Source<'_>) -> Result<()> {
        self.check_device(device)?;
        let word = |memory| match memory {
            SourceMemory::Pageable => "pageable",
            SourceMemory::Pinned => "pinned",
            SourceMemory::Unified => "unified",
        };
        match (self.memory(), source.memory()) {
            (wanted, found) if wanted == found => Ok(()),
            (wanted, found) => {
                Err(self.refused(&format!("it reads {} memory, and this is {}", word(wanted), word(found))))
            }
        }
    }

    fn refused(self, reason: &str) -> Error {
        Error::TransferRefused { method: self.name(), reason: reason.to_owned() }
    }
}

impl FromStr for TransferMethod {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|method| method.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::Invalid(format!("there is no transfer method {text}; there are {names}"))
        })
    }
}

impl std::fmt::Display for TransferMethod {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
