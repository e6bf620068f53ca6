//! Runs and observes the processes that experiments measure.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use wait4::Wait4;

/// The number of characters of a failed process's error output to repeat.
const ERROR_TAIL: usize = 2000;

/// How often to sample the memory of a running process.
const POLL: Duration = Duration::from_millis(5);

pub(crate) struct Finished {
    pub(crate) output: String,
    pub(crate) errors: String,
    pub(crate) user_seconds: f64,
    /// Bytes.
    pub(crate) peak_memory: u64,
}

/// Runs a process until it exits.
pub(crate) fn finish(command: &mut Command) -> Result<Finished> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| exec_datafusion_err!("'{name}' could not be run: {error}");
    // Files instead of pipes, so that no thread must read while the process runs.
    let (mut output, mut errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().map_err(failed)?;
    let mut peak_memory = None;
    let ended = loop {
        peak_memory = high_water_mark(child.id()).or(peak_memory);
        match child.try_wait4().map_err(failed)? {
            Some(ended) => break ended,
            None => std::thread::sleep(POLL),
        }
    };
    let (output, errors) = (text(&mut output)?, text(&mut errors)?);
    if !ended.status.success() {
        return exec_err!("'{name}' failed ({}): {}", ended.status, tail(&errors));
    }
    let peak_memory = peak_memory.unwrap_or(ended.rusage.maxrss);
    Ok(Finished { output, errors, user_seconds: ended.rusage.utime.as_secs_f64(), peak_memory })
}

/// The peak resident memory of a running process, in bytes.
///
/// The system's figure for an ended process is no substitute: on Linux it starts from the parent's own peak.
pub(crate) fn high_water_mark(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|size| size << 10)
}

/// Resets the peak memory of a running process to its current resident memory. Returns false if the system does not support
/// it.
pub(crate) fn forget_high_water_mark(process: u32) -> bool {
    // proc_pid_clear_refs(5) documents the value 5.
    std::fs::write(format!("/proc/{process}/clear_refs"), "5").is_ok()
}

/// The end of a process's error output, which states the reason.
pub(crate) fn tail(errors: &str) -> &str {
    let characters = errors.char_indices().rev().take(ERROR_TAIL);
    characters.last().map_or("", |(start, _)| errors[start..].trim())
}

/// The number and the seconds in the line `time N SECONDS` that the command line prints after a statement.
pub(crate) fn time_line(line: &str) -> Option<(usize, f64)> {
    let (number, seconds) = line.strip_prefix("time ")?.split_once(' ')?;
    Some((number.parse().ok()?, seconds.trim_end().parse().ok()?))
}

/// Why an engine that needs Python is left out if no Python was given.
pub(crate) fn no_python(engine: &str, option: &str) -> String {
    format!("{engine} was skipped: name a Python that has it with {option}.")
}

/// Why an engine that did not start is left out, on one line.
pub(crate) fn skipped(engine: &str, error: &DataFusionError) -> String {
    format!("{engine} was skipped: {}", error.message().replace('\n', " "))
}

/// The program to measure: `named`, or this one.
pub(crate) fn program(named: Option<&Path>) -> Result<PathBuf> {
    match named {
        Some(program) => Ok(program.to_owned()),
        None => Ok(std::env::current_exe()?),
    }
}

fn text(file: &mut File) -> Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_repeat_what_the_process_said() {
        let message = finish(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"])).err().unwrap().to_string();
        assert!(message.contains("no luck") && message.contains("exit status: 3"), "{message}");
        let message = finish(&mut Command::new("/nowhere/at/all")).err().unwrap().to_string();
        assert!(message.contains("could not be run"), "{message}");
    }

    #[test]
    fn the_end_of_long_errors_is_repeated() {
        assert_eq!(tail(&format!("{}ü last words\n", "x".repeat(5000))).len(), ERROR_TAIL);
        assert_eq!((tail("short\n"), tail("")), ("short", ""));
    }

    #[test]
    fn times_are_read_from_their_lines() {
        assert_eq!(time_line("time 12 0.250"), Some((12, 0.25)));
        for other in ["time flies", "time 1", "times 1 2", "time one 2", " time 1 2"] {
            assert_eq!(time_line(other), None, "{other}");
        }
    }

    #[test]
    fn the_peak_memory_is_that_of_the_process() {
        let large = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); sleep 0.1; echo ok";
        let large = finish(Command::new("sh").args(["-c", large])).unwrap();
        assert_eq!(large.output, "ok\n");
        assert!(large.peak_memory > 30_000_000, "{}", large.peak_memory);
        // Memory of the parent does not count.
        let ballast = std::hint::black_box(vec![1u8; 50_000_000]);
        let small = finish(Command::new("sleep").arg("0.1")).unwrap();
        assert!(small.peak_memory < 20_000_000, "{}", small.peak_memory);
        drop(ballast);
    }

    #[test]
    fn the_peak_memory_starts_anew() {
        // Frees its memory before it prints the line.
        let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' a); x=; echo ok; read -r line";
        let mut child =
            Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let before = high_water_mark(child.id()).unwrap();
        let forgot = forget_high_water_mark(child.id());
        let after = high_water_mark(child.id()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(before > 30_000_000, "{before}");
        assert!(!forgot || after < before, "{after}");
        assert!(!forget_high_water_mark(0));
    }
}
