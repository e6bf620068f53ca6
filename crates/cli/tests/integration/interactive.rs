//! The interactive shell on a terminal of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shell::Shell;

const PATIENCE: Duration = Duration::from_secs(60);

struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn open(shell: &Shell, arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let child = shell
            .command()
            .args(arguments)
            .env("TERM", "xterm")
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
        terminal.expect("overspill> ");
        terminal
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the text appears on the screen, and forgets the screen up to its end.
    fn expect(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(position) = self.seen.find(text) {
                let before = self.seen[..position].to_string();
                self.seen.drain(..position + text.len());
                return before;
            }
            assert!(start.elapsed() < PATIENCE, "{text:?} did not appear in {:?}", self.seen);
            if let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(100)) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes));
            }
        }
    }

    fn end(mut self) -> i32 {
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

#[test]
fn statements_run_over_several_lines_and_are_remembered() {
    let shell = Shell::new();
    let mut terminal = Terminal::open(&shell, &[]);
    terminal.type_in("SELECT 40 +\r");
    terminal.type_in("2 AS answer;\r");
    terminal.expect(" answer\r\n");
    terminal.expect("42\r\n(1 row)");
    terminal.expect("overspill> ");
    assert_eq!(terminal.end(), 0);
    assert!(shell.read(".overspill_history").contains("2 AS answer;"));
}

#[test]
fn errors_leave_the_shell_open() {
    let shell = Shell::new();
    let mut terminal = Terminal::open(&shell, &[]);
    terminal.type_in("SELEC;\r");
    terminal.expect("error: ");
    terminal.expect("overspill> ");
    terminal.type_in("\\nonsense\r");
    terminal.expect("no command of this shell");
    terminal.type_in("SELECT 'still ' || 'here' AS s;\r");
    terminal.expect("still here\r\n");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn control_c_cancels_the_query_and_not_the_shell() {
    let shell = Shell::new();
    let mut terminal = Terminal::open(&shell, &["--quiet"]);
    terminal.type_in("SELECT count(*) FROM range(1000000) a JOIN range(1000000) b ON a.value % 2 = b.value % 2 AND a.value * b.value % 7 = 3;\r");
    std::thread::sleep(Duration::from_secs(1));
    kill(Pid::from_raw(terminal.child.id() as i32), Signal::SIGINT).unwrap();
    terminal.expect("interrupted");
    terminal.expect("overspill> ");
    terminal.type_in("SELECT 'after' || 'wards' AS s;\r");
    terminal.expect("afterwards\r\n");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn control_c_at_the_prompt_gives_up_the_line() {
    let mut terminal = Terminal::open(&Shell::new(), &[]);
    terminal.type_in("SELECT 'never\x03");
    terminal.expect("overspill> ");
    terminal.type_in("SELECT 'o' || 'k' AS s;\r");
    terminal.expect("ok\r\n");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn tab_completes_tables_and_columns() {
    let mut terminal = Terminal::open(&Shell::new(), &[]);
    terminal.type_in("CREATE TABLE shipments AS SELECT 77 AS weight_in_tons;\r");
    terminal.expect("overspill> ");
    terminal.type_in("SELECT weight_\t FROM shipm\t;\r");
    terminal.expect(" weight_in_tons\r\n");
    terminal.expect("77\r\n");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn the_rc_file_runs_first_and_commands_work() {
    let shell = Shell::new();
    shell.write(".overspillrc", ".timer on\nCREATE TABLE from_rc AS SELECT 5 AS five;\n");
    shell.write("more.sql", "SELECT five * 3 AS fifteen FROM from_rc;\n");
    let mut terminal = Terminal::open(&shell, &[]);
    terminal.type_in("\\d\r");
    terminal.expect("from_rc | BASE TABLE");
    terminal.type_in("\\d from_rc\r");
    terminal.expect(" five ");
    terminal.type_in(".read more.sql\r");
    terminal.expect("15\r\n");
    terminal.expect("time 2 ");
    terminal.type_in("\\?\r");
    terminal.expect(".timer on|off");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_long_query_shows_its_progress() {
    let mut terminal = Terminal::open(&Shell::new(), &[]);
    terminal.type_in("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.value * b.value % 7 = 3;\r");
    terminal.expect("rows read");
    kill(Pid::from_raw(terminal.child.id() as i32), Signal::SIGINT).unwrap();
    terminal.expect("interrupted");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn files_for_machines_are_kept_off_the_terminal() {
    let shell = Shell::new();
    let size = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    let output = shell
        .command()
        .args(["--format", "parquet", "-c", "SELECT 1"])
        .stdout(Stdio::from(pty.slave))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--output"));
}
