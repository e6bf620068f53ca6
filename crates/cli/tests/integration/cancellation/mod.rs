//! Ctrl-C at random moments: the prompt comes back, the shell goes on, and nothing of the statement stays.
//!
//! `OVERSPILL_INTERRUPTS=200` tries all kinds of statement, that often together; without it a few kinds are tried once.
//! `OVERSPILL_INTERRUPTS_SEED` repeats the moments of a run, which prints its seed; `OVERSPILL_INTERRUPTS_KIND` tries one
//! kind only.

mod kinds;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::shell::Shell;
use crate::terminal::{PROMPT, Terminal};
use kinds::{DEFAULTS, KINDS, Kind, SETUP, SOME};

/// What a user is ready to wait for the prompt, for the next answer, and for the machine to be idle again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same beside other tests, which take the processors.
const PATIENCE_IN_COMPANY: Duration = Duration::from_secs(4);

/// How long the end is waited for all the same, to tell how late it was.
const LATEST: Duration = Duration::from_secs(20);

/// The longest that a statement runs before it is interrupted, in milliseconds.
const LATEST_MOMENT: u64 = 1500;

/// How long threads are watched for work, and the processor time that is no work: the shell itself waits.
const WATCHED: Duration = Duration::from_millis(150);
const IDLE_TICKS: u64 = 1;

/// What an interruption took.
struct Figures {
    prompt: Duration,
    answer: Duration,
    idle: Duration,
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let rounds = std::env::var("OVERSPILL_INTERRUPTS").ok().map(|count| count.parse::<usize>().unwrap());
    let only = std::env::var("OVERSPILL_INTERRUPTS_KIND").ok();
    let seed = std::env::var("OVERSPILL_INTERRUPTS_SEED").map_or_else(|_| now(), |seed| seed.parse().unwrap());
    println!("OVERSPILL_INTERRUPTS_SEED={seed}");
    let kinds: Vec<_> = KINDS
        .iter()
        .filter(|kind| match &only {
            Some(only) => kind.name == only,
            None => rounds.is_some() || SOME.contains(&kind.name),
        })
        .collect();
    let patience = if rounds.is_some() { PATIENCE } else { PATIENCE_IN_COMPANY };
    let mut random = Random(seed);
    let mut late = Vec::new();
    let shell = Shell::new();
    let mut terminal = open(&shell);
    for round in 0..rounds.unwrap_or(kinds.len()) {
        let kind = kinds[round % kinds.len()];
        let moment = Duration::from_millis(random.next() % LATEST_MOMENT);
        match interrupt(&shell, &mut terminal, kind, moment) {
            Ok(Figures { prompt, answer, idle }) => {
                println!(
                    "{:24} after {moment:6.1?}: prompt {prompt:6.1?}, answer {answer:6.1?}, idle {idle:6.1?}",
                    kind.name
                );
                if prompt > patience || answer > patience || idle > patience {
                    late.push(format!(
                        "{} after {moment:?}: prompt {prompt:?}, answer {answer:?}, idle {idle:?}",
                        kind.name
                    ));
                }
            }
            Err(complaint) => {
                println!("{:24} after {moment:6.1?}: {complaint}", kind.name);
                late.push(format!("{} after {moment:?}: {complaint}", kind.name));
                drop(terminal);
                terminal = open(&shell);
            }
        }
    }
    assert!(late.is_empty(), "with seed {seed}:\n{}", late.join("\n"));
    assert_eq!(terminal.end(), 0);
}

#[test]
fn ctrl_c_between_the_statements_of_a_file_ends_the_file_alone() {
    let shell = Shell::new();
    let pipe = shell.folder().join("lines.sql");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut terminal = Terminal::open_plain(&shell, &["--quiet"]);
    terminal.type_in("SELECT 1;\r");
    terminal.expect(PROMPT);
    terminal.type_in(".read lines.sql\r");
    let mut lines = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    lines.write_all(b"SELECT 'be' || 'gun' AS s;\n").unwrap();
    terminal.await_text("begun", LATEST).unwrap();
    // The shell waits for the next line, which does not come.
    std::thread::sleep(WATCHED);
    terminal.interrupt();
    let said = terminal.await_text(PROMPT, LATEST).expect("the prompt does not come back");
    assert!(said.contains("interrupted"), "{said}");
    terminal.type_in("SELECT 40 + 2 AS answer;\r");
    let said = terminal.await_text(PROMPT, LATEST).expect("SELECT does not answer");
    assert!(said.contains("42"), "{said}");
    drop(lines);
    assert_eq!(terminal.end(), 0);
}

fn open(shell: &Shell) -> Terminal {
    let mut terminal = Terminal::open_plain(shell, &["--quiet", "--memory-limit", "1GB"]);
    for statement in SETUP {
        terminal.type_in(&format!("{statement};\r"));
        let output = terminal.expect(PROMPT);
        assert!(!output.contains("error"), "{statement}: {output}");
    }
    terminal
}

/// Interrupts a statement at a moment of its life.
fn interrupt(shell: &Shell, terminal: &mut Terminal, kind: &Kind, moment: Duration) -> Result<Figures, String> {
    for setting in DEFAULTS.iter().chain(kind.settings) {
        terminal.type_in(&format!("{setting};\r"));
        terminal.expect(PROMPT);
    }
    // A statement that is longer than a terminal takes in a line comes from a file.
    let sql = if kind.sql == "PLANNING" { planning() } else { kind.sql.to_string() };
    // Its first line says that it is being run: a signal before that belongs to the prompt.
    shell.write("statement.sql", format!("SELECT 'be' || 'gun' AS s;\n{sql}"));
    terminal.type_in(".read statement.sql\r");
    terminal.await_text("begun", LATEST).ok_or("the statement does not begin")?;
    std::thread::sleep(moment);
    let start = Instant::now();
    terminal.interrupt();
    let said = terminal.await_text(PROMPT, LATEST).ok_or("the prompt does not come back")?;
    let prompt = start.elapsed();
    if !said.contains("interrupted") {
        return Err(format!("it ended by itself: {said:?}"));
    }
    let start_of_answer = Instant::now();
    terminal.type_in("SELECT 40 + 2 AS answer;\r");
    let said = terminal.await_text(PROMPT, LATEST).ok_or("SELECT does not answer")?;
    let answer = start_of_answer.elapsed();
    if !said.contains("42") {
        return Err(format!("SELECT gave {said:?}"));
    }
    let idle = loop {
        let since = start.elapsed();
        if worked(terminal.pid(), WATCHED) <= IDLE_TICKS {
            break since;
        }
        if since > LATEST {
            return Err("threads still work".to_string());
        }
    };
    let left = left_behind(shell.folder());
    if !left.is_empty() {
        return Err(format!("files are left: {left:?}"));
    }
    Ok(Figures { prompt, answer, idle })
}

/// A statement that takes long to plan: a sum is a tree as deep as it is long.
fn planning() -> String {
    let operands: Vec<_> = (0..600).map(|number| format!("k * {number}.5e0")).collect();
    format!("SELECT max({}) FROM items", operands.join(" + "))
}

/// The processor time that threads of a process take while they are watched, in ticks of a hundredth of a second.
fn worked(pid: i32, watched: Duration) -> u64 {
    let ticks = || -> u64 {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
        let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        let times = stats.filter_map(|stat| {
            // The name of the thread, in parentheses, may hold blanks. User and system time are the 14th and 15th field.
            let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').map(str::to_string).collect();
            Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
        });
        times.sum()
    };
    let before = ticks();
    std::thread::sleep(watched);
    ticks().saturating_sub(before)
}

/// Files that only a statement that runs has: spilled state, and parts of files that it writes.
fn left_behind(folder: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let spilled = entry.path().to_string_lossy().contains("/overspill-") && name != ".overspill.lock";
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else if spilled || name.contains('#') || name.contains(".part") || name.starts_with("copied") {
                left.push(entry.path().display().to_string());
            }
        }
    }
    left
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs())
}

/// Draws numbers: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
