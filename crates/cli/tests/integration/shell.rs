//! Runs the binary in a folder of its own.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::unistd::alarm;
use tempfile::TempDir;

/// The longest that a process may take, in seconds: many times what the longest takes. One that hangs is killed, and its test fails by name.
pub const LONGEST: u32 = 900;

pub struct Shell {
    folder: TempDir,
}

/// What a run wrote, and its exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub out: String,
    pub err: String,
    pub status: i32,
}

impl Shell {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.folder().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder().join(name)).unwrap()
    }

    /// The binary in the shell's folder, which is also its home and its place for temporary files.
    pub fn command(&self) -> Command {
        self.command_at(Path::new(env!("CARGO_BIN_EXE_overspill")))
    }

    /// The same of the binary at another place.
    pub fn command_at(&self, binary: &Path) -> Command {
        let mut command = self.unlimited(binary);
        let limited = || {
            alarm::set(LONGEST);
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one system call, which signal handlers may make too, and touches no memory. The alarm
        // outlives exec.
        unsafe { command.pre_exec(limited) };
        command
    }

    /// The binary, for as long as its test keeps it open.
    pub fn open_command(&self) -> Command {
        self.unlimited(Path::new(env!("CARGO_BIN_EXE_overspill")))
    }

    fn unlimited(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.current_dir(self.folder()).env("HOME", self.folder()).env("TMPDIR", self.folder());
        command.env_remove("XDG_CACHE_HOME");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::from(self.command().args(arguments).output().unwrap())
    }

    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Run {
        let mut child = self.command().args(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        Run::from(child.wait_with_output().unwrap())
    }

    /// The standard output of a run that must succeed and say nothing else.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!((run.status, run.err.as_str()), (0, ""), "{arguments:?} gave {run:?}");
        run.out
    }

    /// The standard error of a run that must fail with status 1.
    pub fn fail(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(run.status, 1, "{arguments:?} gave {run:?}");
        assert!(run.err.starts_with("error: "), "{arguments:?} gave {run:?}");
        assert!(!run.err.contains("panicked"), "{arguments:?} gave {run:?}");
        run.err
    }

    /// The rows of a query, each as the text of its JSON object.
    pub fn rows(&self, sql: &str) -> Vec<String> {
        self.succeed(&["--format", "ndjson", "-c", sql]).lines().map(str::to_string).collect()
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            status: output.status.code().expect("the binary must end by itself"),
        }
    }
}
