//! The commands and SQL of the pages run: each block of `sh` and `sql` of the README and of `docs/`. In `docs/sql.md` every
//! answer is the one that the page shows.
//!
//! A comment before a block says how it runs here, if not as it stands:
//!
//! - `<!-- not run: REASON -->`: it cannot run here.
//! - `<!-- first: COMMANDS -->`: these commands run before it, and make its files.
//! - `<!-- run with: TEXT => OTHER; … -->`: the block runs with less data.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{LONGEST, Run, Shell};

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    language: String,
    /// The line on which its text begins.
    line: usize,
    text: String,
    /// The comments before it.
    comments: Vec<String>,
    /// The number of its section.
    section: usize,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (mut blocks, mut comments, mut section) = (vec![], vec![], 0);
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut rest_until = |end: fn(&str) -> bool| {
            let mut rest = String::new();
            loop {
                let Some((line, _)) = lines.next() else { panic!("{page}, line {number}: the end is missing") };
                rest += line;
                rest.push('\n');
                if end(line) {
                    return rest;
                }
            }
        };
        if let Some(language) = line.strip_prefix("```") {
            let text = rest_until(|line| line == "```").trim_end().trim_end_matches("```").to_owned();
            let comments = std::mem::take(&mut comments);
            blocks.push(Block { language: language.to_owned(), line: number + 1, text, comments, section });
        } else if let Some(comment) = line.strip_prefix("<!-- ") {
            let mut comment = comment.to_owned();
            if !comment.ends_with("-->") {
                comment = format!("{comment}\n{}", rest_until(|line| line.ends_with("-->")));
            }
            comments.push(comment.trim_end().trim_end_matches("-->").trim_end().to_owned());
        } else {
            section += usize::from(line.starts_with("## "));
            comments.clear();
        }
    }
    blocks
}

impl Block {
    /// The commands to run. `None` if the block cannot run here.
    fn script(&self) -> Option<String> {
        let mut text = match self.language.as_str() {
            "sql" => format!("overspill --quiet --format ndjson <<'SQL'\n{}SQL\n", self.text),
            _ => self.text.clone(),
        };
        let mut first = String::new();
        for comment in &self.comments {
            match comment.split_once(": ") {
                Some(("not run", _)) => return None,
                Some(("first", commands)) => first = format!("{commands}\n"),
                Some(("run with", changes)) => {
                    for change in changes.split("; ") {
                        let (from, to) = change.split_once(" => ").expect("a change is written TEXT => OTHER");
                        assert!(text.contains(from), "line {}: there is no {from:?}", self.line);
                        text = text.replace(from, to);
                    }
                }
                _ => panic!("line {}: no comment of a block says {comment:?}", self.line),
            }
        }
        Some(first + &text)
    }
}

/// Runs commands in the shell's folder, which is also their home, with the binary on their path.
fn bash(shell: &Shell, commands: &str) -> Run {
    let folder = Path::new(env!("CARGO_BIN_EXE_overspill")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command
        .args([&LONGEST.to_string(), "bash", "-euo", "pipefail", "-c", commands])
        .current_dir(shell.folder())
        .stdin(Stdio::null());
    command.env("PATH", path).env("HOME", shell.folder()).env("TMPDIR", shell.folder()).env_remove("XDG_CACHE_HOME");
    // Tests build the library beside those that they depend on, not beside the program.
    command.env("OVERSPILL_EMULATED_DRIVER", folder.join("deps").join("liboverspill_emulated_driver.so"));
    Run::from(command.output().unwrap())
}

/// Runs a page's blocks one after the other, in a folder that has the tables of TPC-H, and returns how many have run.
fn run_page(page: &str) -> usize {
    let shell = Shell::new();
    shell.run(&["datagen", "tpch", "--scale", "0.01", "--dir", "."]);
    std::os::unix::fs::symlink(root().join("tests"), shell.folder().join("tests")).unwrap();
    let (mut ran, mut failed) = (0, vec![]);
    for block in blocks(page).iter().filter(|block| ["sh", "sql"].contains(&block.language.as_str())) {
        let Some(script) = block.script() else { continue };
        let run = bash(&shell, &script);
        if run.status != 0 {
            failed.push(format!("{page}, line {}: status {}\n{script}\n{}", block.line, run.status, run.err));
        }
        ran += 1;
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    ran
}

#[test]
fn commands_of_the_readme_run() {
    assert!(run_page("README.md") >= 1);
}

#[test]
fn commands_of_the_manual_run() {
    assert!(run_page("docs/cli.md") >= 4);
}

#[test]
fn commands_of_the_other_pages_run() {
    let pages =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages: Vec<_> = pages.filter(|name| name.ends_with(".md") && name != "cli.md" && name != "sql.md").collect();
    assert!(pages.iter().map(|name| run_page(&format!("docs/{name}"))).sum::<usize>() >= 5, "{pages:?}");
}

#[test]
fn examples_answer_what_the_page_says() {
    let (mut checked, mut wrong) = (0, vec![]);
    let blocks = blocks("docs/sql.md");
    // The statements of a section run in one session, in their order.
    for section in blocks.chunk_by(|one, other| one.section == other.section) {
        let mut before = String::new();
        for (place, block) in section.iter().enumerate() {
            let shown = section.get(place + 1).filter(|next| next.language == "text").map(|next| &next.text);
            match (block.language.as_str(), shown) {
                ("text", _) => assert!(place > 0, "an answer stands below its SQL"),
                ("sql", None) => before += &block.text,
                ("sql", Some(shown)) => {
                    let shell = Shell::new();
                    let mut arguments = vec!["--quiet"];
                    if !before.is_empty() {
                        arguments.extend(["-c", &before]);
                    }
                    arguments.extend(["-c", &block.text]);
                    let run = shell.run(&arguments);
                    let answer = if run.status == 0 { run.out } else { run.err };
                    // Lines end where their text does.
                    let answer: String = answer.lines().map(|line| format!("{}\n", line.trim_end())).collect();
                    if answer != *shown {
                        let (line, sql) = (block.line, &block.text);
                        wrong.push(format!("docs/sql.md, line {line}: {sql}\nanswers\n{answer}not\n{shown}"));
                    }
                    checked += 1;
                }
                (other, _) => panic!("docs/sql.md, line {}: a block of {other:?}", block.line),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 20, "only {checked} examples have an answer");
}
