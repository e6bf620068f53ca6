//! The arguments of a run of SQL.

use std::path::PathBuf;

use clap::{ArgMatches, Args, ValueEnum};
use datafusion::error::DataFusionError;
use overspill::size::Size;

use crate::ranks::MpiArgs;
use crate::tls::TlsArgs;

/// What a run may use.
#[derive(Debug, Clone, Default, Args)]
pub struct ResourceArgs {
    /// The memory limit of queries, as in 512MB, 1.5GiB or plain bytes [default: 80 % of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_limit: Option<usize>,

    /// The directory for state that exceeds the memory limit [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub temp_dir: Option<PathBuf>,

    /// The limit on the size of temporary files [default: 100GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub temp_limit: Option<usize>,

    /// The number of worker threads, and of partitions of a query; at most one for each 8 MB of the memory limit [default: one per processor]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub threads: Option<usize>,

    /// Change a setting of overspill.* or datafusion.*, as SET does; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub settings: Vec<(String, String)>,
}

#[derive(Debug, Default, Args)]
pub struct SqlArguments {
    /// Run these statements, then end; may be given several times
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    commands: Vec<String>,

    /// Run the statements of this file, then end; `-` is standard input; may be given several times
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The format of results [default: that of the name of --output, else table]
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<Format>,

    /// Write results to this file, which is replaced after the last statement
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Print `time N SECONDS` on standard error after the N-th statement
    #[arg(long, help_heading = "Output")]
    pub timing: bool,

    /// Write a timeline of all queries to this file, for Perfetto (https://ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,

    /// Leave out the banner, the row counts and the progress bar
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    #[command(flatten, next_help_heading = "Resources")]
    pub resources: ResourceArgs,

    /// Run queries of files on the cluster of this scheduler; see `overspill cluster --help`
    #[arg(long, value_name = "HOST:PORT", help_heading = "Cluster")]
    pub cluster: Option<String>,

    #[command(flatten, next_help_heading = "Cluster")]
    pub tls: TlsArgs,

    #[command(flatten, next_help_heading = "MPI")]
    pub mpi: MpiArgs,

    /// After a statement that fails: stop (the default of scripts) or continue
    #[arg(long, value_name = "ACTION")]
    pub on_error: Option<OnError>,

    /// The -c and -f arguments in the order they were written, which clap's lists do not keep.
    #[arg(skip)]
    pub sources: Vec<Source>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Text(String),
    File(PathBuf),
    StandardInput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, for people
    Table,
    /// Comma-separated values with a header
    Csv,
    /// One array of objects
    Json,
    /// One object per line
    Ndjson,
    /// An Apache Parquet file
    Parquet,
    /// An Apache Arrow IPC file
    Arrow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    Stop,
    Continue,
}

impl SqlArguments {
    /// The arguments of a run that has other work than statements.
    pub fn without_statements(resources: ResourceArgs, mpi: MpiArgs, quiet: bool) -> Self {
        Self { resources, mpi, quiet, ..Self::default() }
    }

    /// Notes the order of the -c and -f arguments of the command line.
    pub fn keep_order(&mut self, matches: &ArgMatches) {
        let positions = |id: &str| matches.indices_of(id).into_iter().flatten();
        let commands = self.commands.iter().cloned().map(Source::Text);
        let files = self.files.iter().cloned();
        let files = files.map(|path| if path.as_os_str() == "-" { Source::StandardInput } else { Source::File(path) });
        let mut sources: Vec<_> = positions("commands").zip(commands).chain(positions("files").zip(files)).collect();
        sources.sort_by_key(|(position, _)| *position);
        self.sources = sources.into_iter().map(|(_, source)| source).collect();
    }
}

/// Parses a size in bytes. `512MB` and `1.5GB` are powers of 1,000, `512MiB` powers of 1,024, and a bare number is bytes.
pub fn parse_size(text: &str) -> Result<usize, String> {
    text.parse().map(|Size(bytes)| bytes).map_err(|error: DataFusionError| error.message().into_owned())
}

fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=4096) => Ok(threads),
        _ => Err("the number of threads is a whole number from 1 to 4096".to_string()),
    }
}

pub fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_string(), value.trim().to_string())),
        _ => Err("a setting is written KEY=VALUE, as in overspill.spill=false".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    #[test]
    fn sizes_count_by_thousands_unless_the_unit_says_otherwise() {
        assert_eq!(parse_size("512MB"), Ok(512_000_000));
        assert_eq!(parse_size("512 MiB"), Ok(512 << 20));
        assert_eq!(parse_size("1.5GB"), Ok(1_500_000_000));
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("1"), Ok(1));
        assert_eq!(parse_size("64kb"), Ok(64_000));
        for nonsense in ["", "MB", "-1", "lots", "12 parsecs", "1e400GB"] {
            assert!(parse_size(nonsense).is_err(), "{nonsense:?} is no size");
        }
    }

    #[test]
    fn settings_are_split_at_the_first_equals_sign() {
        assert_eq!(parse_setting("a.b = c=d"), Ok(("a.b".into(), "c=d".into())));
        assert!(parse_setting("a.b").is_err());
        assert!(parse_setting("=c").is_err());
    }

    #[test]
    fn commands_and_files_keep_their_order() {
        let command = SqlArguments::augment_args(Command::new("overspill"));
        let matches = command.get_matches_from(["overspill", "-f", "a", "-c", "b", "-f", "-", "-c", "d"]);
        let mut arguments = SqlArguments::from_arg_matches(&matches).unwrap();
        arguments.keep_order(&matches);
        assert_eq!(
            arguments.sources,
            [Source::File("a".into()), Source::Text("b".into()), Source::StandardInput, Source::Text("d".into()),]
        );
    }
}
