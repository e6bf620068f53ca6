//! What the reports of the experiments have in common.

use std::io::{IsTerminal, Write};
use std::path::Path;

use datafusion::common::{Result, exec_datafusion_err, human_readable_size};
use overspill_machine::topology::Topology;

/// The value in the middle, or between the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}

/// Bytes, for people.
pub(crate) fn size(bytes: u64) -> String {
    human_readable_size(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// What is measured on, in a line.
pub(crate) fn machine(topology: &Topology) -> String {
    let model = topology.cpu.model.as_deref().unwrap_or("a processor of unknown model");
    format!("{model}, {} processors", topology.cpu.threads)
}

/// That times of this program are not its best, where they are not.
pub(crate) fn slow_build() -> Option<&'static str> {
    cfg!(debug_assertions).then_some("This program was built with debug assertions, which cost time.")
}

/// Tells a person on a terminal what takes so long.
pub(crate) fn tell(what: &str) {
    if std::io::stderr().is_terminal() {
        _ = writeln!(std::io::stderr(), "{what} …");
    }
}

/// Writes a file that the user asked for.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| exec_datafusion_err!("The file '{}' cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }
}
