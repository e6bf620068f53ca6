//! `overspill join`: an inner join of two tables of files, without SQL.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueEnum};
use tokio::runtime::Runtime;

use crate::args::{ResourceArgs, SqlArguments};
use crate::failure::{Failure, Outcome, tell};
use crate::ranks::MpiArgs;
use crate::shell::Shell;
use crate::sql;

#[derive(Debug, Args)]
pub struct JoinArgs {
    #[command(flatten)]
    join: JoinOfFiles,

    /// How many levels rows are shuffled on among ranks: two go over the ranks of a node [default: auto]
    #[arg(long, value_name = "LEVELS", value_parser = ["auto", "one", "two"], help_heading = "MPI")]
    shuffle: Option<String>,

    /// How rows are compressed between nodes [default: auto]
    #[arg(long, value_name = "HOW", value_parser = ["auto", "cascaded", "off"], help_heading = "MPI")]
    compression: Option<String>,

    #[command(flatten, next_help_heading = "MPI")]
    mpi: MpiArgs,

    /// What joins run on, as overspill.device says: cpu, gpu or emulated [default: auto]
    #[arg(long, value_name = "DEVICE", help_heading = "Resources")]
    device: Option<String>,

    #[command(flatten, next_help_heading = "Resources")]
    resources: ResourceArgs,

    /// Leave out the progress bar and the time
    #[arg(short, long)]
    quiet: bool,
}

/// The two tables, their keys, and where the joined rows go.
#[derive(Debug, Args)]
pub struct JoinOfFiles {
    /// The left table: a file, a folder that ends in /, or a pattern such as 'orders/*.parquet'
    #[arg(long, value_name = "FILES")]
    left: String,

    /// The right table
    #[arg(long, value_name = "FILES")]
    right: String,

    /// Pairs of columns with equal values, the left one first; a column alone has the same name on both sides
    #[arg(long, value_name = "A=B,…", value_delimiter = ',', value_parser = parse_key, required = true)]
    on: Vec<Key>,

    /// Write the joined rows into this folder: each rank files of its own
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    output: Option<PathBuf>,

    /// The format of these files
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = FileFormat::Parquet, requires = "output", help_heading = "Output")]
    format: FileFormat,
}

/// Columns with equal values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    left: String,
    right: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileFormat {
    /// Apache Parquet
    Parquet,
    /// Comma-separated values with a header
    Csv,
    /// One JSON object per line
    Json,
    /// Apache Arrow IPC
    Arrow,
}

fn parse_key(text: &str) -> Result<Key, String> {
    let (left, right) = text.split_once('=').unwrap_or((text, text));
    match (left.trim(), right.trim()) {
        ("", _) | (_, "") => Err("a key is written A=B, or A for columns of the same name".to_owned()),
        (left, right) => Ok(Key { left: left.to_owned(), right: right.to_owned() }),
    }
}

pub fn main(arguments: JoinArgs) -> ExitCode {
    let JoinArgs { join, shuffle, compression, mpi, device, mut resources, quiet } = arguments;
    let named = [
        ("overspill.shuffle_levels", shuffle),
        ("overspill.shuffle_compression", compression),
        ("overspill.device", device),
    ];
    resources.settings.extend(named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    let arguments = SqlArguments::without_statements(resources, mpi, quiet);
    sql::run_in_shell(arguments, false, |front, shell| join.run(front, shell))
}

impl JoinOfFiles {
    /// Runs the join, and prints the number of its rows.
    pub fn run(&self, runtime: &Runtime, shell: &mut Shell) -> Outcome<bool> {
        runtime.block_on(async {
            let joined = self.join(shell).await;
            shell.judge(joined)?;
            Ok(!shell.failed)
        })
    }

    async fn join(&self, shell: &mut Shell) -> Outcome<()> {
        let left = shell.columns(&text(&self.left)).await?;
        let right = shell.columns(&text(&self.right)).await?;
        for Key { left: of_left, right: of_right } in &self.on {
            check(of_left, &self.left, &left)?;
            check(of_right, &self.right, &right)?;
        }
        let start = Instant::now();
        let Some(folder) = &self.output else {
            shell.query(&format!("SELECT count(*) AS rows FROM {}", self.tables())).await?;
            if !shell.quiet {
                tell(&format!("joined in {:.2} s", start.elapsed().as_secs_f64()));
            }
            return Ok(());
        };
        let columns = self.columns(&left, &right)?;
        let format = self.format.to_possible_value().map(|format| format.get_name().to_ascii_uppercase());
        let folder =
            folder.to_str().ok_or_else(|| Failure::message("--output: the name of the folder is not UTF-8"))?;
        let place = text(&format!("{}/", folder.trim_end_matches('/')));
        let sql = format!(
            "COPY (SELECT {columns} FROM {}) TO {place} STORED AS {}",
            self.tables(),
            format.unwrap_or_default()
        );
        let rows = shell.copy(&sql).await?;
        if !shell.quiet {
            let rows = if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") };
            tell(&format!("{rows} written in {:.2} s", start.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    /// The FROM clause.
    fn tables(&self) -> String {
        let on: Vec<_> = self.on.iter().map(|key| format!("l.{} = r.{}", name(&key.left), name(&key.right))).collect();
        format!("{} AS l JOIN {} AS r ON {}", text(&self.left), text(&self.right), on.join(" AND "))
    }

    /// The columns that are written.
    fn columns(&self, left: &[String], right: &[String]) -> Outcome<String> {
        let mut columns: Vec<_> = left.iter().map(|column| format!("l.{}", name(column))).collect();
        for column in right {
            let of_both = |key: &Key| key.left == *column && key.right == *column;
            if self.on.iter().any(of_both) {
                continue;
            }
            let column_of_right = format!("r.{}", name(column));
            if !left.contains(column) {
                columns.push(column_of_right);
                continue;
            }
            let renamed = format!("{column}_right");
            if left.contains(&renamed) || right.contains(&renamed) {
                return Err(Failure::message(format!(
                    "both sides have a column {column}, and {renamed} is the name of another: rename one in a query with COPY"
                )));
            }
            columns.push(format!("{column_of_right} AS {}", name(&renamed)));
        }
        Ok(columns.join(", "))
    }
}

fn check(column: &str, table: &str, columns: &[String]) -> Outcome<()> {
    if columns.iter().any(|known| known == column) {
        return Ok(());
    }
    Err(Failure::message(format!("--on: {table} has no column {column}; it has {}", columns.join(", "))))
}

/// Quotes an identifier.
fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a string.
fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(on: &[&str]) -> JoinOfFiles {
        JoinOfFiles {
            left: "it's.parquet".to_owned(),
            right: "b/".to_owned(),
            on: on.iter().map(|key| parse_key(key).unwrap()).collect(),
            output: None,
            format: FileFormat::Parquet,
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn conditions_and_columns_are_quoted() {
        let join = join(&["a=b", "k"]);
        assert_eq!(join.tables(), r#"'it''s.parquet' AS l JOIN 'b/' AS r ON l."a" = r."b" AND l."k" = r."k""#);
        let columns = join.columns(&names(&["a", "k", "x\"y"]), &names(&["b", "k", "a", "z"])).unwrap();
        assert_eq!(columns, r#"l."a", l."k", l."x""y", r."b", r."a" AS "a_right", r."z""#);
        let error = join.columns(&names(&["a", "a_right", "k"]), &names(&["a", "b", "k"])).unwrap_err().to_string();
        assert!(error.contains("a_right"), "{error}");
    }

    #[test]
    fn keys_have_two_sides() {
        assert_eq!(parse_key("a=b").unwrap(), Key { left: "a".into(), right: "b".into() });
        assert_eq!(parse_key(" a ").unwrap(), Key { left: "a".into(), right: "a".into() });
        for wrong in ["", "=b", "a="] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
