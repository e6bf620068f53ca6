//! Derives the format of a file from its name.

/// The format of a file to read or write, from the end of its name: `.csv`, `.csv.gz`, `.parquet` and so on.
#[derive(Debug, Clone)]
pub struct NamedFormat {
    /// DataFusion's extension for the format.
    pub known_as: &'static str,
    /// The end of the file's name, as written.
    pub suffix: String,
    /// The character between fields, if it is not the format's own.
    pub delimiter: Option<char>,
    /// The file's compression, as DataFusion's option names it; empty for none.
    pub compression: &'static str,
}

/// Formats are equal if one reader reads the files of both.
impl PartialEq for NamedFormat {
    fn eq(&self, other: &Self) -> bool {
        (self.known_as, self.delimiter, self.compression) == (other.known_as, other.delimiter, other.compression)
    }
}

const COMPRESSIONS: [(&str, &str); 4] = [(".gz", "gzip"), (".bz2", "bzip2"), (".xz", "xz"), (".zst", "zstd")];

/// The names listed in the error about an unknown file.
pub const KNOWN_NAMES: &str =
    ".parquet, .csv, .tsv, .json, .ndjson, .jsonl, .arrow or .feather (text files also with .gz, .bz2, .xz or .zst)";

impl NamedFormat {
    /// The format given by the end of a name, if it is known.
    pub fn of(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let compressed = COMPRESSIONS.iter().find(|(end, _)| lower.ends_with(end));
        let (end, compression) = compressed.copied().unwrap_or_default();
        let stem = &lower[..lower.len() - end.len()];
        let (_, extension) = stem.rsplit_once('.')?;
        let (known_as, delimiter) = match extension {
            "parquet" | "parq" => ("parquet", None),
            "csv" => ("csv", None),
            "tsv" => ("csv", Some('\t')),
            "json" | "ndjson" | "jsonl" => ("json", None),
            "arrow" | "feather" | "ipc" => ("arrow", None),
            _ => return None,
        };
        if !compression.is_empty() && !matches!(known_as, "csv" | "json") {
            return None;
        }
        let length = extension.len() + 1 + end.len();
        let suffix = name[name.len() - length..].to_string();
        Some(Self { known_as, suffix, delimiter, compression })
    }

    /// The compression given by the end of a name, as DataFusion's option names it; empty for none.
    pub fn compression_of(name: &str) -> &'static str {
        let lower = name.to_ascii_lowercase();
        COMPRESSIONS.iter().find(|(end, _)| lower.ends_with(end)).map_or("", |(_, compression)| compression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> Option<(&'static str, String, &'static str)> {
        NamedFormat::of(name).map(|format| (format.known_as, format.suffix, format.compression))
    }

    #[test]
    fn names_tell_formats() {
        assert_eq!(known("a.b/orders.parquet"), Some(("parquet", ".parquet".into(), "")));
        assert_eq!(known("orders.2024.CSV.gz"), Some(("csv", ".CSV.gz".into(), "gzip")));
        assert_eq!(known("x.jsonl.zst"), Some(("json", ".jsonl.zst".into(), "zstd")));
        assert_eq!(known("x.feather"), Some(("arrow", ".feather".into(), "")));
    }

    #[test]
    fn other_names_tell_nothing() {
        for name in ["orders", "orders.xlsx", "x.parquet.gz", ".gz", "gz", ""] {
            assert_eq!(known(name), None, "{name}");
        }
    }
}
