//! What a file's name says about what is in it.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use datafusion::datasource::file_format::file_compression_type::FileCompressionType;

/// How to read a file, by the end of its name: `.csv`, `.csv.gz`, `.parquet` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFormat {
    /// The extension under which DataFusion knows the format.
    pub known_as: &'static str,
    /// The end that the names of all files of the table have.
    pub suffix: String,
    pub delimiter: Option<char>,
    pub compression: Compression,
}

/// The compression around the file, as DataFusion's option names it; empty for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    pub option: &'static str,
    pub variant: FileCompressionType,
}

const COMPRESSIONS: [(&str, Compression); 4] = [
    (".gz", Compression { option: "gzip", variant: FileCompressionType::GZIP }),
    (".bz2", Compression { option: "bzip2", variant: FileCompressionType::BZIP2 }),
    (".xz", Compression { option: "xz", variant: FileCompressionType::XZ }),
    (".zst", Compression { option: "zstd", variant: FileCompressionType::ZSTD }),
];

/// What the refusal of an unknown file lists.
pub const KNOWN_NAMES: &str =
    ".parquet, .csv, .tsv, .json, .ndjson, .jsonl, .arrow or .feather (text files also with .gz, .bz2, .xz or .zst)";

impl NamedFormat {
    pub fn of(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        let compressed = COMPRESSIONS.iter().find(|(end, _)| lower.ends_with(end));
        let (stem, compression) = match compressed {
            Some((end, compression)) => (&lower[..lower.len() - end.len()], *compression),
            None => (&lower[..], Compression { option: "", variant: FileCompressionType::UNCOMPRESSED }),
        };
        let (_, extension) = stem.rsplit_once('.')?;
        let (known_as, delimiter) = match extension {
            "parquet" | "parq" => ("parquet", None),
            "csv" => ("csv", None),
            "tsv" => ("csv", Some('\t')),
            "json" | "ndjson" | "jsonl" => ("json", None),
            "arrow" | "feather" | "ipc" => ("arrow", None),
            _ => return None,
        };
        if compressed.is_some() && !matches!(known_as, "csv" | "json") {
            return None;
        }
        // Listing compares the names as they are written: keep the letters' case.
        let length = extension.len() + 1 + compressed.map_or(0, |(end, _)| end.len());
        let suffix = name[name.len() - length..].to_string();
        Some(Self { known_as, suffix, delimiter, compression })
    }
}

/// Whether a JSON file holds one array instead of an object a line.
pub fn holds_json_array(path: &Path, compression: FileCompressionType) -> io::Result<bool> {
    let reader = compression.convert_read(File::open(path)?).map_err(io::Error::other)?;
    for byte in BufReader::new(reader).bytes().take(1 << 16) {
        let byte = byte?;
        if !byte.is_ascii_whitespace() {
            return Ok(byte == b'[');
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> Option<(&'static str, String, &'static str)> {
        NamedFormat::of(name).map(|format| (format.known_as, format.suffix, format.compression.option))
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
