//! The interactive shell on a terminal of its own, as a user sees it.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::Shell;

pub const PROMPT: &str = "overspill> ";

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// Opens the shell and waits for its prompt.
    pub fn open(shell: &Shell, arguments: &[&str]) -> Self {
        Self::of_kind("xterm", shell, arguments)
    }

    /// Opens the shell on a terminal that can only write lines: it shows each prompt once.
    pub fn open_plain(shell: &Shell, arguments: &[&str]) -> Self {
        Self::of_kind("dumb", shell, arguments)
    }

    fn of_kind(kind: &str, shell: &Shell, arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let child = shell
            .open_command()
            .args(arguments)
            .env("TERM", kind)
            .env("OVERSPILL_EMULATED_DRIVER", emulated_driver())
            .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
            .stdout(Stdio::from(pty.slave.try_clone().unwrap()))
            .stderr(Stdio::from(pty.slave))
            .spawn()
            .unwrap();
        let keyboard = File::from(pty.master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last process that closes the terminal turns the read into an error.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut terminal = Self { child, keyboard, screen, seen: String::new() };
        terminal.expect(PROMPT);
        terminal
    }

    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Sends what Ctrl-C sends.
    pub fn interrupt(&self) {
        kill(Pid::from_raw(self.pid()), Signal::SIGINT).unwrap();
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until the text appears on the screen, and forgets the screen up to its end.
    pub fn expect(&mut self, text: &str) -> String {
        let found = self.await_text(text, PATIENCE);
        found.unwrap_or_else(|| panic!("{text:?} did not appear in {:?}", self.seen))
    }

    /// The same, for a time only; none if the text does not appear.
    pub fn await_text(&mut self, text: &str, patience: Duration) -> Option<String> {
        let start = Instant::now();
        loop {
            if let Some(position) = self.seen.find(text) {
                let before = self.seen[..position].to_string();
                self.seen.drain(..position + text.len());
                return Some(before);
            }
            let left = patience.checked_sub(start.elapsed())?;
            if let Ok(bytes) = self.screen.recv_timeout(left.min(Duration::from_millis(100))) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    pub fn end(mut self) -> i32 {
        self.type_in("\\q\r");
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap();
            }
            assert!(start.elapsed() < PATIENCE, "the shell does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The stand-in for a GPU, which cargo builds beside the tests.
fn emulated_driver() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_overspill")).with_file_name("deps").join("liboverspill_emulated_driver.so")
}
