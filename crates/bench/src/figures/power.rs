//! Tuples a second for each watt of the processors (paper 1, section 6.2.11).

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use datafusion::common::Result;
use overspill_experiments::{Axis, Figure, SeriesSource};

use super::bench::{Bench, bytes_of};
use super::outcome::Outcome;
use super::sweep::regions;
use super::tables::Sizes;
use crate::operator::{How, Tables};

/// Where Linux has the counters of processors (RAPL), of Intel's and AMD's alike.
const POWERCAP: &str = "/sys/class/powercap";

/// Joins whose energy is counted together, as in the paper.
const JOINS: usize = 50;
const TOY_JOINS: usize = 3;

/// The largest workload, of so many million tuples a side.
const LARGEST: u64 = 2048;

pub(super) fn run(bench: &Bench) -> Result<Outcome> {
    let counters = match Counters::find(Path::new(POWERCAP)) {
        Ok(counters) => counters,
        Err(reason) => return Ok(Outcome::Refused(reason)),
    };
    let largest = Sizes { scale: 1.0 }.millions(LARGEST, LARGEST);
    let sizes = Sizes { scale: bench.scale_for(largest.build_rows + largest.probe_rows, bytes_of(&largest)) };
    let mut points = [vec![], vec![]];
    for millions in [128, 512, LARGEST] {
        let pair = sizes.millions(millions, millions);
        bench.check_memory(&pair)?;
        let tables = Tables::generate(&pair, bench.threads)?;
        let expected = tables.expected(bench.threads)?;
        for (radix, points) in [false, true].into_iter().zip(&mut points) {
            let joins = if bench.is_toy() { TOY_JOINS } else { JOINS };
            let (mut joules, mut is_radix) = (0.0, true);
            for _ in 0..joins {
                // Each join by itself: a counter starts anew after some minutes.
                let before = match counters.read() {
                    Ok(before) => before,
                    Err(reason) => return Ok(Outcome::Refused(reason)),
                };
                let probe_regions = radix.then(|| regions(bench, tables.build_rows));
                let joined = tables.join(bench.threads, How { probe_regions, ..How::default() })?;
                joined.check(expected)?;
                is_radix &= joined.is_radix;
                joules += match counters.joules_since(&before) {
                    Ok(joules) => joules,
                    Err(reason) => return Ok(Outcome::Refused(reason)),
                };
            }
            if radix && !is_radix {
                continue;
            }
            let tuples = (tables.build_rows + tables.probe_rows) * joins;
            // Counters of joins that are too short have not moved.
            if joules > 0.0 {
                points.push((millions as f64, tuples as f64 / joules / 1e6));
            }
        }
    }
    let mut figure = Figure {
        name: "paper1-23",
        title: "Tuples for each joule of the processors' packages",
        paper: "paper 1, figure 23",
        machine: bench.at(sizes.scale).describe(),
        emulated: bench.is_emulated(),
        x: Axis::linear("million tuples a side"),
        y: Axis::linear("million tuples a second and watt"),
        series: vec![],
        notes: vec![
            "the paper counts the whole system: the CPU's radix join 7 to 9.4; a GPU 62 to 80 W under load, its CPU 58 to 62 W idle"
                .to_owned(),
            "triton, gpu_no_partition: refused, the power of a GPU is not read".to_owned(),
        ],
    };
    let [no_partition, radix] = points;
    figure.add(SeriesSource::Measured, "no_partition", no_partition);
    figure.add(SeriesSource::Measured, "radix", radix);
    if figure.series.is_empty() {
        figure.notes.push("the counters of energy did not move: the joins are too short".to_owned());
    }
    Ok(Outcome::of(figure))
}

/// The energy counters of the processors, a package each.
#[derive(Debug)]
struct Counters {
    packages: Vec<PathBuf>,
}

impl Counters {
    /// Those in a folder, or in a sentence why there are none.
    fn find(folder: &Path) -> Result<Self, String> {
        let zones = read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_package =
            |zone: &PathBuf| read_to_string(zone.join("name")).is_ok_and(|name| name.starts_with("package-"));
        let packages: Vec<_> = zones.filter(is_package).collect();
        if packages.is_empty() {
            return Err(format!("this machine tells no energy of its processors in {}", folder.display()));
        }
        let counters = Self { packages };
        counters.read().map(|_| counters)
    }

    /// Microjoules of each package since some time.
    fn read(&self) -> Result<Vec<u64>, String> {
        self.packages.iter().map(|package| number(&package.join("energy_uj"))).collect()
    }

    /// Joules of all packages since they were read. A counter that has started anew since is taken to have done so once.
    fn joules_since(&self, before: &[u64]) -> Result<f64, String> {
        let mut microjoules = 0;
        for ((package, before), now) in self.packages.iter().zip(before).zip(self.read()?) {
            microjoules += match now.checked_sub(*before) {
                Some(more) => more,
                None => number(&package.join("max_energy_range_uj"))?.saturating_sub(*before) + now,
            };
        }
        Ok(microjoules as f64 / 1e6)
    }
}

fn number(path: &Path) -> Result<u64, String> {
    let text = read_to_string(path).map_err(|error| {
        format!("the energy counter {} cannot be read ({error}), which takes the rights of root", path.display())
    })?;
    text.trim().parse().map_err(|_| format!("the energy counter {} tells no number: {:?}", path.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, write};

    use super::*;

    fn zone(folder: &Path, zone: &str, name: &str, energy: &str) {
        let zone = folder.join(zone);
        create_dir(&zone).unwrap();
        write(zone.join("name"), format!("{name}\n")).unwrap();
        write(zone.join("energy_uj"), energy).unwrap();
        write(zone.join("max_energy_range_uj"), "1000000000\n").unwrap();
    }

    #[test]
    fn joules_of_packages_are_added() {
        let folder = tempfile::tempdir().unwrap();
        zone(folder.path(), "intel-rapl:0", "package-0", "1000000\n");
        zone(folder.path(), "intel-rapl:1", "package-1", "999000000\n");
        zone(folder.path(), "intel-rapl:0:0", "core", "5\n");
        let counters = Counters::find(folder.path()).unwrap();
        let before = counters.read().unwrap();
        write(folder.path().join("intel-rapl:0/energy_uj"), "3500000\n").unwrap();
        // It has started anew.
        write(folder.path().join("intel-rapl:1/energy_uj"), "500000\n").unwrap();
        write(folder.path().join("intel-rapl:0:0/energy_uj"), "900000\n").unwrap();
        assert_eq!(counters.joules_since(&before).unwrap(), 2.5 + 1.5);
    }

    #[test]
    fn machines_without_counters_are_told() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("nowhere")] {
            let reason = Counters::find(path).unwrap_err();
            assert!(reason.contains("tells no energy of its processors"), "{reason}");
        }
        zone(folder.path(), "intel-rapl:0", "package-0", "many");
        let reason = Counters::find(folder.path()).unwrap_err();
        assert!(reason.contains("tells no number: \"many\""), "{reason}");
        std::fs::remove_file(folder.path().join("intel-rapl:0/energy_uj")).unwrap();
        let reason = Counters::find(folder.path()).unwrap_err();
        assert!(reason.contains("cannot be read") && reason.contains("root"), "{reason}");
    }
}
