//! Translation lookaside buffers as reported by the processor.

use serde::Serialize;

use super::CacheKind;

/// A translation lookaside buffer of a core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TranslationCache {
    /// Level; 1 is looked up first.
    pub level: u32,
    /// The kind of accesses that it translates.
    pub kind: CacheKind,
    /// Number of pages that it holds.
    pub entries: u32,
    /// Page sizes in bytes that it can hold, smallest first.
    pub pages: Vec<u64>,
}

/// Reads CPUID leaf 18h of Intel's processors. Other processors do not report this in one place and are not queried.
#[cfg(target_arch = "x86_64")]
pub(super) fn read() -> Vec<TranslationCache> {
    use raw_cpuid::{CpuId, DatType};

    let Some(parameters) = CpuId::new().get_deterministic_address_translation_info() else { return Vec::new() };
    parameters
        .filter_map(|cache| {
            let kind = match cache.cache_type() {
                DatType::DataTLB | DatType::LoadOnly | DatType::StoreOnly => CacheKind::Data,
                DatType::InstructionTLB => CacheKind::Instruction,
                DatType::UnifiedTLB => CacheKind::Unified,
                _ => return None,
            };
            let sizes = [
                (cache.has_4k_entries(), 4 << 10),
                (cache.has_2mb_entries(), 2 << 20),
                (cache.has_4mb_entries(), 4 << 20),
                (cache.has_1gb_entries(), 1 << 30),
            ];
            Some(TranslationCache {
                level: cache.cache_level().into(),
                kind,
                entries: u32::from(cache.ways()) * cache.sets(),
                pages: sizes.into_iter().filter(|(has, _)| *has).map(|(_, page)| page).collect(),
            })
        })
        .collect()
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn read() -> Vec<TranslationCache> {
    Vec::new()
}
