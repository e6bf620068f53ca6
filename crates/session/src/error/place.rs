//! Shows the place of an error in a script as compilers do.

use std::fmt;

use datafusion::sql::sqlparser::tokenizer::Location;
use unicode_width::UnicodeWidthChar;

/// The maximum width of the shown part of a line, in terminal columns.
const SHOWN_WIDTH: usize = 100;

/// A place in a statement or a command, and the position of that text in its source.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The file or argument that contains the text. `None` for text typed at the prompt.
    pub source: Option<&'a str>,
    /// The statement or command.
    pub text: &'a str,
    /// Where the text begins in its source.
    pub begin: Location,
    /// The place relative to the beginning of the text.
    pub at: Location,
}

impl fmt::Display for Place<'_> {
    /// Shows the place on lines of their own:
    ///
    /// ```text
    ///   --> report.sql:3:8
    ///    | SELECT nope FROM t
    ///    |        ^
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = self.source {
            let Location { line, column } = within(self.begin, self.at);
            write!(f, "\n  --> {source}:{line}:{column}")?;
        }
        let line = usize::try_from(self.at.line.max(1) - 1).unwrap_or(usize::MAX);
        let Some(line) = self.text.lines().nth(line) else { return Ok(()) };
        let column = usize::try_from(self.at.column.max(1) - 1).unwrap_or(usize::MAX);
        let (shown, indent) = window(line, column);
        write!(f, "\n   | {shown}\n   | {:indent$}^", "")
    }
}

/// The part of a line around a character, and the width of the text before the character in it.
fn window(line: &str, character: usize) -> (String, usize) {
    let characters: Vec<char> = line.chars().map(|next| if next.is_control() { ' ' } else { next }).collect();
    let width = |range: &[char]| range.iter().map(|next| next.width().unwrap_or(0)).sum::<usize>();
    let character = character.min(characters.len());
    let mut start = 0;
    if width(&characters) > SHOWN_WIDTH {
        // Two thirds before the place, as the text before an error often explains it.
        while width(&characters[start..character]) > SHOWN_WIDTH * 2 / 3 {
            start += 1;
        }
    }
    let mut end = start;
    let mut shown = 0;
    while end < characters.len() && shown < SHOWN_WIDTH {
        shown += characters[end].width().unwrap_or(0);
        end += 1;
    }
    (characters[start..end].iter().collect(), width(&characters[start..character]))
}

/// Converts a place in a part that begins at `begin` to a place in the whole text.
pub fn within(begin: Location, at: Location) -> Location {
    match at.line {
        0 | 1 => Location::new(begin.line, begin.column + at.column.saturating_sub(1)),
        line => Location::new(begin.line + line - 1, at.column),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, begin: (u64, u64), at: (u64, u64)) -> String {
        let place = Place {
            source: Some("x.sql"),
            text,
            begin: Location::new(begin.0, begin.1),
            at: Location::new(at.0, at.1),
        };
        place.to_string()
    }

    #[test]
    fn the_caret_stands_under_the_place() {
        assert_eq!(shown("SELECT a,\n  nope", (4, 3), (2, 3)), "\n  --> x.sql:5:3\n   |   nope\n   |   ^");
        assert_eq!(shown("SELECT nope", (4, 3), (1, 8)), "\n  --> x.sql:4:10\n   | SELECT nope\n   |        ^");
    }

    #[test]
    fn wide_characters_and_tabs_do_not_move_the_caret() {
        assert_eq!(shown("'日本'\tx", (1, 1), (1, 6)), "\n  --> x.sql:1:6\n   | '日本' x\n   |        ^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let text = format!("{}nope{}", "a ".repeat(500), " b".repeat(500));
        let shown = shown(&text, (1, 1), (1, 1001));
        let lines: Vec<_> = shown.lines().collect();
        let caret = lines[3].find('^').unwrap();
        assert_eq!(&lines[2][caret..caret + 4], "nope");
        assert!(lines[2].len() < 120, "{shown}");
    }

    #[test]
    fn a_place_beyond_the_end_is_the_end() {
        assert!(shown("SELECT", (1, 1), (1, 99)).ends_with("   |       ^"));
    }
}
