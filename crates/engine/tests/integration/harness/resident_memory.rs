//! What this process holds in memory, as the operating system counts it.

use std::fs;

/// Bytes.
pub struct ResidentMemory {
    pub now: usize,
    /// The most since the process started, or since the peak was forgotten.
    pub peak: usize,
}

impl ResidentMemory {
    pub fn of_this_process() -> Result<Self, String> {
        let status = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
        let bytes = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let kibibytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
            kibibytes.map(|kibibytes| kibibytes << 10).ok_or_else(|| format!("{name} is not in /proc/self/status"))
        };
        Ok(Self { now: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }

    pub fn forget_peak() -> Result<(), String> {
        fs::write("/proc/self/clear_refs", "5").map_err(|error| format!("/proc/self/clear_refs: {error}"))
    }
}
