//! Checks whether the driver maps CPU pages. Some drivers crash when they try, so a separate process checks it.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Layout, SpanningBuffer, SpanningLayout};
use crate::driver::{Device, Stream};
use crate::{Error, Result};

/// How a [`SpanningBuffer`] is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// One address range, using virtual memory management.
    Contiguous,
    /// GPU memory and CPU memory as two arrays, each with its own addresses.
    TwoArrays,
}

const STRIPE: u64 = 2 << 20;
const STRIPES: u64 = 4;

/// Creates a small buffer in the layouts `Greedy` and `Interleaved`, writes it and reads it back. A faulty driver may end the
/// process.
///
/// # Errors
/// If the driver refuses, or the data read differs from the data written.
pub fn check_mapping(device: &Arc<Device>, node: u32) -> Result<()> {
    let stream = Stream::new(device)?;
    for layout in [Layout::Greedy, Layout::Interleaved] {
        let asked = SpanningLayout {
            layout,
            bytes: STRIPES * STRIPE,
            device_bytes: vec![STRIPES / 2 * STRIPE],
            stripe_bytes: STRIPE,
            node,
        };
        let mut buffer = SpanningBuffer::new(std::slice::from_ref(device), &asked, Mapping::Contiguous)?;
        let values: Vec<u64> = (0..STRIPES * STRIPE / 8).collect();
        buffer.write(&stream, 0, &values)?;
        if buffer.read::<u64>(&stream, 0, values.len())? != values {
            return Err(Error::invalid("memory that the driver mapped does not keep what is written to it"));
        }
    }
    Ok(())
}

/// Runs a command that calls [`check_mapping`] and reports success by its exit status.
pub fn probe_mapping(command: &mut Command, patience: Duration) -> Mapping {
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        return Mapping::TwoArrays;
    };
    if let Some(success) = wait_for(&mut child, patience) {
        return if success { Mapping::Contiguous } else { Mapping::TwoArrays };
    }
    // A process that hangs in the driver may not even die; do not wait for it.
    let _ = child.kill();
    wait_for(&mut child, Duration::from_secs(1));
    Mapping::TwoArrays
}

/// Returns whether the process succeeded, or `None` if it does not end in time.
fn wait_for(child: &mut Child, patience: Duration) -> Option<bool> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) | Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_trusted() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let patience = Duration::from_secs(20);
        assert_eq!(probe_mapping(&mut shell("exit 0"), patience), Mapping::Contiguous);
        assert_eq!(probe_mapping(&mut shell("exit 3"), patience), Mapping::TwoArrays);
        assert_eq!(probe_mapping(&mut shell("kill -SEGV $$"), patience), Mapping::TwoArrays);
        assert_eq!(probe_mapping(&mut Command::new("/no/such/program"), patience), Mapping::TwoArrays);
    }

    #[test]
    fn a_probe_that_hangs_is_ended() {
        let before = Instant::now();
        let mut sleep = Command::new("sleep");
        assert_eq!(probe_mapping(sleep.arg("600"), Duration::from_millis(50)), Mapping::TwoArrays);
        assert!(before.elapsed() < Duration::from_secs(60));
    }
}
