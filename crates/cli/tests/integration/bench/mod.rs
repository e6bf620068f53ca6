//! The experiments of `overspill bench` on the emulated device. All of them at once take minutes: by its name that test is among
//! the first, so that others run beside it.

mod all;

use crate::shell::Shell;

/// What `bench` gives for these words where the emulated device has such settings.
pub(super) fn bench_with_the_emulated_driver(shell: &Shell, settings: &str, words: &[&str]) -> std::process::Output {
    // Built for the tests of the kernels, and put among the libraries.
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_overspill"));
    let library = program.with_file_name("deps").join("liboverspill_emulated_driver.so");
    let mut command = shell.command();
    command.env("OVERSPILL_EMULATED_DRIVER", library).env("OVERSPILL_EMULATED", settings).arg("bench").args(words);
    command.output().unwrap()
}

pub(super) fn text(run: &std::process::Output) -> String {
    String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr)
}

/// The points of a line, in the panel whose axis is named so.
pub(super) fn points(experiment: &serde_json::Value, panel: &str, line: &str) -> Vec<f64> {
    let panels = experiment["figures"].as_array().unwrap().iter();
    let panels = panels.filter(|figure| figure["y"]["label"].as_str().unwrap().starts_with(panel));
    let mut lines = panels.flat_map(|figure| figure["series"].as_array().unwrap());
    let line = lines.find(|other| other["name"] == line).unwrap();
    line["points"].as_array().unwrap().iter().map(|point| point[1].as_f64().unwrap()).collect()
}

/// The lines of an experiment that were measured, of all its panels, with how many points they have.
pub(super) fn measured(experiment: &serde_json::Value) -> Vec<(String, usize)> {
    let panels = experiment["figures"].as_array().unwrap().iter();
    let lines = panels.flat_map(|figure| figure["series"].as_array().unwrap());
    lines
        .filter(|line| line["source"] == "measured")
        .map(|line| (line["name"].as_str().unwrap().to_owned(), line["points"].as_array().unwrap().len()))
        .collect()
}

pub(super) fn notes(experiment: &serde_json::Value) -> String {
    let panels = experiment["figures"].as_array().unwrap().iter();
    panels
        .flat_map(|figure| figure["notes"].as_array().unwrap())
        .map(|note| format!("{}\n", note.as_str().unwrap()))
        .collect()
}
