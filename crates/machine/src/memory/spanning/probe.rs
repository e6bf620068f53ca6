//! Checks whether the driver maps CPU pages. Some drivers crash when they try, so a separate process checks it.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
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

/// Bytes of standard error that are read: fewer than a pipe holds, so that the process never waits to write them.
const STDERR_BYTES: u64 = 16 << 10;

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

/// Runs a command that checks mapped pages and reports success by its exit status.
///
/// # Errors
/// The reason why the driver is not trusted to map pages: how the process ended, and the last line of its standard error.
pub fn probe_mapping(command: &mut Command, patience: Duration) -> std::result::Result<(), String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("the process that tries it cannot be started: {error}"))?;
    let Some(status) = wait_for(&mut child, patience) else {
        // A process that hangs in the driver may not even die; do not wait for it, nor for what it prints.
        let _ = child.kill();
        wait_for(&mut child, Duration::from_secs(1));
        return Err(format!("the process that tried it did not end within {} s", patience.as_secs_f64()));
    };
    if status.success() {
        return Ok(());
    }
    let mut printed = String::new();
    let _ = child.stderr.take().map(|stderr| stderr.take(STDERR_BYTES).read_to_string(&mut printed));
    let last = printed.lines().rfind(|line| !line.trim().is_empty());
    Err(format!(
        "the process that tried it ended with {status}{}",
        last.map(|line| format!(": {line}")).unwrap_or_default()
    ))
}

/// Returns how the process ended, or `None` if it does not end in time.
fn wait_for(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
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
        assert_eq!(probe_mapping(&mut shell("exit 0"), patience), Ok(()));
        let reason = probe_mapping(&mut shell("echo 'no pages' >&2; exit 3"), patience).unwrap_err();
        assert_eq!(reason, "the process that tried it ended with exit status: 3: no pages");
        let reason = probe_mapping(&mut shell("kill -SEGV $$"), patience).unwrap_err();
        assert!(reason.contains("signal: 11"), "{reason}");
        let reason = probe_mapping(&mut Command::new("/no/such/program"), patience).unwrap_err();
        assert!(reason.contains("cannot be started"), "{reason}");
    }

    #[test]
    fn a_probe_that_hangs_is_ended() {
        let before = Instant::now();
        let mut sleep = Command::new("sleep");
        let reason = probe_mapping(sleep.arg("600"), Duration::from_millis(50)).unwrap_err();
        assert_eq!(reason, "the process that tried it did not end within 0.05 s");
        assert!(before.elapsed() < Duration::from_secs(60));
    }
}
