//! `overspill`: SQL whose joins finish, on the command line.

mod advise;
mod allocator;
mod args;
mod cluster;
mod command;
mod failure;
mod interrupt;
mod join;
mod machine;
mod output;
mod progress;
mod ranks;
mod repl;
mod script;
mod shell;
mod sql;
mod statement;
mod tls;
mod tool;
mod trace;

use std::panic;
use std::process::ExitCode;

use args::SqlArguments;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use join::JoinArgs;
use tool::Tool;

/// SQL over Parquet, CSV, JSON and Arrow files, with joins that finish in the memory they are given.
///
/// Without -c, -f or piped input, an interactive shell opens.
#[derive(Debug, Parser)]
#[command(name = "overspill", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    sql: SqlArguments,
}

/// What is done instead of SQL.
#[derive(Debug, Subcommand)]
enum Command {
    /// Join two tables of files, in one process or among the ranks of mpirun
    ///
    /// Prints the number of joined rows, or writes them with --output: the columns of the left side, then those of the right one. A key that
    /// has the same name on both sides is written once; another column of the right side whose name the left side has, too, gets the end
    /// `_right`.
    Join(JoinArgs),
    #[command(flatten)]
    Tool(Tool),
}

impl Arguments {
    /// Parses the process's arguments. If they are wrong, prints usage and exits with status 2.
    fn from_command_line() -> Self {
        let matches = Self::command().get_matches();
        let mut arguments = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        arguments.sql.keep_order(&matches);
        arguments
    }
}

fn main() -> ExitCode {
    report_panics();
    allocator::allow_huge_pages();
    let arguments = Arguments::from_command_line();
    match arguments.command {
        Some(Command::Join(join)) => join::main(join),
        Some(Command::Tool(tool)) => tool::main(tool),
        None => sql::main(arguments.sql),
    }
}

/// Suppresses the report of panics that become errors about a damaged file.
fn report_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !overspill::files::panic_is_caught() {
            report(panic);
        }
    }));
}
