//! Every example of `docs/sql.md` answers what the page says.

use crate::shell::Shell;

const PAGE: &str = include_str!("../../../../docs/sql.md");

/// A block of SQL, and what the page shows below it, if anything.
#[derive(Debug)]
struct Example {
    /// The line on which the SQL begins.
    line: usize,
    sql: String,
    shown: Option<String>,
}

/// The examples of each section. The statements of a section run in one session, in their order.
fn sections() -> Vec<Vec<Example>> {
    let mut sections: Vec<Vec<Example>> = vec![vec![]];
    let mut block: Option<(&str, usize, String)> = None;
    for (number, line) in PAGE.lines().enumerate() {
        match &mut block {
            None if line.starts_with("## ") => sections.push(vec![]),
            None => block = line.strip_prefix("```").map(|language| (language, number + 2, String::new())),
            Some((language, line, text)) if PAGE.lines().nth(number) == Some("```") => {
                let examples = sections.last_mut().unwrap();
                match *language {
                    "sql" => examples.push(Example { line: *line, sql: text.clone(), shown: None }),
                    "text" => examples.last_mut().expect("an answer stands below its SQL").shown = Some(text.clone()),
                    other => panic!("docs/sql.md, line {line}: a block of {other:?}"),
                }
                block = None;
            }
            Some((_, _, text)) => *text += &format!("{line}\n"),
        }
    }
    assert!(block.is_none(), "the last block of docs/sql.md is open");
    sections
}

#[test]
fn examples_answer_what_the_page_says() {
    let (mut checked, mut wrong) = (0, vec![]);
    for examples in sections() {
        let mut before = String::new();
        for example in examples {
            let Some(shown) = &example.shown else {
                before += &example.sql;
                continue;
            };
            let shell = Shell::new();
            let mut arguments = vec!["--quiet"];
            if !before.is_empty() {
                arguments.extend(["-c", &before]);
            }
            arguments.extend(["-c", &example.sql]);
            let run = shell.run(&arguments);
            let answer = if run.status == 0 { run.out } else { run.err };
            // Lines end where their text does.
            let answer: String = answer.lines().map(|line| format!("{}\n", line.trim_end())).collect();
            if answer != *shown {
                wrong.push(format!(
                    "docs/sql.md, line {}: {}\nanswers\n{answer}not\n{shown}",
                    example.line, example.sql
                ));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 20, "only {checked} examples have an answer");
}
