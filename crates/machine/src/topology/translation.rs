//! Translation lookaside buffers, as the processor itself tells of them.

use serde::Serialize;

/// What a buffer translates for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TranslationKind {
    /// Data.
    Data,
    /// Instructions.
    Instruction,
    /// Both.
    Unified,
}

/// A translation lookaside buffer of a core.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TranslationCache {
    /// 1 is asked first.
    pub level: u32,
    /// What it translates for.
    pub kind: TranslationKind,
    /// Pages that it holds.
    pub entries: u32,
    /// Bytes of the pages that it may hold, smallest first.
    pub pages: Vec<u64>,
}

/// Intel's processors tell in leaf 18h; others do not tell in one place, and so are not asked.
#[cfg(target_arch = "x86_64")]
pub(super) fn read() -> Vec<TranslationCache> {
    use raw_cpuid::{CpuId, DatType};

    let Some(parameters) = CpuId::new().get_deterministic_address_translation_info() else { return Vec::new() };
    parameters
        .filter_map(|cache| {
            let kind = match cache.cache_type() {
                DatType::DataTLB | DatType::LoadOnly | DatType::StoreOnly => TranslationKind::Data,
                DatType::InstructionTLB => TranslationKind::Instruction,
                DatType::UnifiedTLB => TranslationKind::Unified,
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
