//! `overspill`: SQL whose joins finish, on the command line.

mod advise;
mod allocator;
mod args;
mod budget;
mod command;
mod failure;
mod files;
mod interrupt;
mod machine;
mod machine_memory;
mod output;
mod progress;
mod repl;
mod script;
mod session;
mod settings;
mod shell;
mod statement;
mod tool;
mod trace;
mod workers;

use std::panic;
use std::process::ExitCode;

fn main() -> ExitCode {
    report_panics();
    let arguments = args::Arguments::from_command_line();
    match arguments.tool {
        Some(tool) => tool::main(tool),
        None => shell::main(arguments.sql),
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
