//! `REINDEX`, which the parser does not know.

use std::borrow::Cow;

/// The text of a statement as the parser knows it: `REINDEX [INDEX | TABLE] name` is its `VACUUM REINDEX name`.
pub(super) fn known(text: &str) -> Cow<'_, str> {
    let Some(rest) = after_word(text.trim_start(), "reindex") else { return Cow::Borrowed(text) };
    let name = ["index", "table"].into_iter().find_map(|word| after_word(rest, word)).unwrap_or(rest);
    Cow::Owned(format!("VACUUM REINDEX {name}"))
}

/// The text after a word and blanks, if it begins with the word and goes on.
fn after_word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let (first, rest) = text.split_once(char::is_whitespace)?;
    first.eq_ignore_ascii_case(word).then(|| rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::known;

    #[test]
    fn reindex_is_known_as_vacuum() {
        for text in ["REINDEX i", "reindex INDEX i", " Reindex\n table  i"] {
            assert_eq!(known(text), "VACUUM REINDEX i", "{text}");
        }
        for text in ["SELECT 1", "REINDEXED i", "REINDEX", ""] {
            assert_eq!(known(text), text);
        }
        assert_eq!(known("REINDEX TABLE 'a b.parquet'"), "VACUUM REINDEX 'a b.parquet'");
    }
}
