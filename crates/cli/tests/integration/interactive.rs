//! The interactive shell on a terminal of its own.

use std::process::Stdio;
use std::time::Duration;

use nix::pty::{Winsize, openpty};

use crate::shell::Shell;
use crate::terminal::Terminal;

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
    terminal.expect("not a command of this shell");
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
    terminal.interrupt();
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
    terminal.expect("ran in ");
    terminal.type_in("\\?\r");
    terminal.expect(".timer on|off");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn a_long_query_shows_its_progress() {
    let mut terminal = Terminal::open(&Shell::new(), &[]);
    terminal.type_in("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.value * b.value % 7 = 3;\r");
    terminal.expect("rows read");
    terminal.interrupt();
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
