//! The command line, run as a user runs it.

mod bench;
mod cancellation;
mod cluster;
mod cluster_advice;
mod copy;
mod deep_statements;
mod errors;
mod exit_status;
mod files;
mod formats;
mod interactive;
mod interrupts;
mod join;
mod manual;
mod output_file;
mod paper4;
mod settings;
mod shell;
mod statements;
mod temporary_files;
mod terminal;
mod timing;
mod tools;
mod trace;
