//! Byte sizes with units, as settings accept them and messages show them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use datafusion::common::{DataFusionError, Result, config_datafusion_err};

/// The settings whose value is a number of bytes.
const SIZE_SETTINGS: [&str; 24] = [
    "overspill.gpu_memory_limit",
    "overspill.gpu_pinned_memory",
    "overspill.join_memory_limit",
    "datafusion.execution.hash_join_buffering_capacity",
    "datafusion.execution.max_spill_file_size_bytes",
    "datafusion.execution.objectstore_writer_buffer_size",
    "datafusion.execution.parquet.content_defined_chunking.max_chunk_size",
    "datafusion.execution.parquet.content_defined_chunking.min_chunk_size",
    "datafusion.execution.parquet.data_pagesize_limit",
    "datafusion.execution.parquet.dictionary_page_size_limit",
    "datafusion.execution.parquet.max_predicate_cache_size",
    "datafusion.execution.parquet.max_row_group_bytes",
    "datafusion.execution.parquet.metadata_size_hint",
    "datafusion.execution.sort_in_place_threshold_bytes",
    "datafusion.execution.sort_pushdown_buffer_capacity",
    "datafusion.execution.sort_spill_reservation_bytes",
    "datafusion.optimizer.hash_join_inlist_pushdown_max_size",
    "datafusion.optimizer.hash_join_single_partition_threshold",
    "datafusion.optimizer.repartition_file_min_size",
    "datafusion.runtime.file_statistics_cache_limit",
    "datafusion.runtime.list_files_cache_limit",
    "datafusion.runtime.max_temp_directory_size",
    "datafusion.runtime.memory_limit",
    "datafusion.runtime.metadata_cache_limit",
];

/// The prefix of the settings of DataFusion's runtime. DataFusion reads their `K`, `M` and `G` as multiples of 1,024.
const RUNTIME: &str = "datafusion.runtime.";

/// Units, the largest first. Of two nearly equal ones, the multiple of 1,024 comes first.
const UNITS: [(&str, usize); 8] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
];

/// The longest number before a unit that is shown exactly. Longer ones come from measurements, not from users, and are
/// rounded.
const EXACT_BELOW: usize = 10_000;

/// A number of bytes. It is read with or without a unit: `KB`, `MB`, `GB` and `TB` are powers of 1,000, `KiB`, `MiB`, `GiB`
/// and `TiB` are powers of 1,024. It is shown in the largest unit that expresses it exactly: 64,000,000 bytes are `64MB`. A
/// size that no unit expresses exactly with a short number is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

impl Size {
    /// The size in the unit that expresses it exactly with the shortest number; plain bytes if there is none.
    pub fn exact(self) -> String {
        self.in_unit(usize::MAX).unwrap_or_else(|| self.0.to_string())
    }

    fn in_unit(self, below: usize) -> Option<String> {
        let (unit, bytes) = UNITS.into_iter().find(|(_, bytes)| self.0 > 0 && self.0.is_multiple_of(*bytes))?;
        (self.0 / bytes < below).then(|| format!("{}{unit}", self.0 / bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.in_unit(EXACT_BELOW) {
            Some(exact) => f.write_str(&exact),
            None => write!(f, "{}", ByteSize(self.0 as u64).display().si()),
        }
    }
}

impl FromStr for Size {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        let size = text.trim().parse::<ByteSize>().map_err(|_| {
            config_datafusion_err!(
                "'{text}' is no size: a size is a number with or without a unit, as in 512MB, 1.5GiB or 1048576"
            )
        })?;
        let bytes = usize::try_from(size.as_u64());
        bytes.map(Self).map_err(|_| config_datafusion_err!("'{text}' is more than this machine can count"))
    }
}

/// Whether the value of a setting is a number of bytes.
pub(crate) fn is_size(key: &str) -> bool {
    SIZE_SETTINGS.contains(&key)
}

/// The value of a setting in the form that DataFusion reads: a size with a unit becomes a number of bytes, other values are
/// unchanged.
///
/// # Errors
/// A configuration error if the setting is a size and the value is not.
pub fn setting_in_bytes<'a>(key: &str, value: &'a str) -> Result<Cow<'a, str>> {
    let key = key.to_ascii_lowercase();
    if !is_size(&key) {
        return Ok(Cow::Borrowed(value));
    }
    let value = value.trim();
    // Settings without a limit use a word or an empty value for that.
    if value.is_empty() || value.eq_ignore_ascii_case("null") || value.eq_ignore_ascii_case("default") {
        return Ok(Cow::Borrowed(value));
    }
    if key.starts_with(RUNTIME) {
        if value.ends_with(['K', 'M', 'G']) {
            return Ok(Cow::Borrowed(value));
        }
        return Ok(Cow::Owned(runtime_size(value.parse()?)));
    }
    Ok(Cow::Owned(value.parse::<Size>()?.0.to_string()))
}

/// A size for DataFusion's runtime. Its parser requires a unit and accepts fractions of it.
fn runtime_size(Size(bytes): Size) -> String {
    match bytes {
        0 => "0".to_string(),
        // Dividing by a power of two is exact, and so is multiplying by it again.
        bytes => format!("{}K", bytes as f64 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::OverspillConfig;

    #[test]
    fn sizes_are_shown_as_they_were_given() {
        for given in ["64MB", "8GiB", "1GB", "1536MiB", "10kB", "3TiB", "4096GB", "1023KiB"] {
            let size: Size = given.parse().unwrap();
            assert_eq!(size.to_string(), given);
            assert_eq!(size.exact(), given);
        }
        assert_eq!(Size(20_132_659_201).to_string(), "20.1 GB");
        assert_eq!(Size(20_132_659_201).exact(), "20132659201");
        assert_eq!(Size(0).exact(), "0");
        assert_eq!(Size(0).to_string(), "0 B");
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for nonsense in ["", "MB", "-1", "lots", "12 parsecs"] {
            assert!(nonsense.parse::<Size>().is_err(), "{nonsense:?} is no size");
        }
    }

    #[test]
    fn only_sizes_take_units() {
        assert_eq!(setting_in_bytes("overspill.join_memory_limit", "8GiB").unwrap(), "8589934592");
        assert_eq!(setting_in_bytes("datafusion.execution.batch_size", "8KB").unwrap(), "8KB");
        assert_eq!(setting_in_bytes("datafusion.runtime.memory_limit", "512M").unwrap(), "512M");
        assert!(setting_in_bytes("overspill.join_memory_limit", "much").is_err());
    }

    #[test]
    fn a_size_of_the_runtime_arrives_to_the_byte() {
        for bytes in [1, 1023, 64_000_000, 1 << 30, 123_456_789_012] {
            let text = setting_in_bytes("datafusion.runtime.memory_limit", &bytes.to_string()).unwrap().into_owned();
            let read = SessionContext::parse_capacity_limit("datafusion.runtime.memory_limit", &text).unwrap();
            assert_eq!(read, bytes, "{text}");
        }
    }

    #[test]
    fn every_size_setting_is_a_setting() {
        let mut config = SessionConfig::new();
        config.options_mut().extensions.insert(OverspillConfig::default());
        let known: Vec<_> = config.options().entries().into_iter().map(|entry| entry.key).collect();
        for key in SIZE_SETTINGS.iter().filter(|key| !key.starts_with(RUNTIME)) {
            assert!(known.iter().any(|known| known == key) || key.contains("content_defined_chunking"), "{key}");
        }
    }
}
