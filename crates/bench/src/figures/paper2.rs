//! Figures of paper 2, section 7: Lutz et al., *Pump Up the Volume*. Rates are stated in its text, for a V100 with an IBM
//! POWER9 (NVLink 2.0) and an Intel Xeon (PCIe 3.0).

use overspill::Strategy;
use overspill_experiments::Axis;
use overspill_join::hash_table::TableChoice;

use super::claim::{Claim, Ratio};
use super::sweep::{Detail, OnGpu, Run, Sweep, Way};
use super::tables::Sizes;
use crate::datagen::{TablePair, Workload};

/// The GPU's join with this share of the hash table in GPU memory.
fn table(share: f64) -> Way {
    Way::Gpu(OnGpu::new(Strategy::GpuNoPartition).cached(share))
}

const RADIX: Way = Way::Radix(TableChoice::Perfect);

/// Section 7.2.5: workload C with tuples of 16 bytes.
pub(super) fn scaling_the_probe_side(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in [128, 512, 2048, 8196] {
        let pair = sizes.millions(1024, millions);
        runs.extend(Run::each(
            millions as f64,
            &pair,
            [("no_partition", Way::NoPartition), ("radix", RADIX), ("gpu_no_partition", table(1.0))],
        ));
    }
    Sweep {
        name: "paper2-16",
        title: "Scaling the probe side",
        paper: "paper 2, figure 16",
        x: Axis::logarithmic("million tuples of s"),
        runs,
        claims: vec![Claim::lines(
            "gpu_no_partition of radix",
            "3.2 to 7.3 x with NVLink 2.0",
            "gpu_no_partition",
            "radix",
        )],
        notes: vec!["the paper: NVLink 2.0 is 3 to 6 times as fast as PCIe 3.0, which does not outperform the CPU"],
        ..Sweep::default()
    }
}

/// Section 7.2.6: workload C with tuples of 16 bytes.
pub(super) fn scaling_the_build_side(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in [128, 512, 1024, 2048] {
        let pair = sizes.millions(millions, millions);
        runs.extend(Run::each(
            millions as f64,
            &pair,
            [
                ("radix", RADIX),
                ("gpu_no_partition, hybrid table", table(1.0)),
                ("gpu_no_partition, table in CPU memory", table(0.0)),
            ],
        ));
    }
    Sweep {
        name: "paper2-17",
        title: "Scaling the build side",
        paper: "paper 2, figure 17",
        x: Axis::linear("million tuples a side"),
        runs,
        claims: vec![
            Claim::lines(
                "gpu_no_partition of radix",
                "3 to 5.8 x with NVLink 2.0 while the table is in GPU memory",
                "gpu_no_partition, hybrid table",
                "radix",
            ),
            Claim::lines(
                "a table in CPU memory of radix",
                "0.87 x at least, out of core",
                "gpu_no_partition, table in CPU memory",
                "radix",
            ),
            Claim::lines(
                "a hybrid table of one in CPU memory",
                "1 to 2.2 x where the table is beyond GPU memory",
                "gpu_no_partition, hybrid table",
                "gpu_no_partition, table in CPU memory",
            ),
        ],
        notes: vec![
            "the paper, in G tuples/s: PCIe 3.0 has 0.77 with tables in GPU memory, 0.02 beyond; NVLink 2.0 is 3 and 8 to 18 times as \
             fast",
        ],
        ..Sweep::default()
    }
}

/// Section 7.2.7: workload C with tuples of 16 bytes, 2 GiB of r.
pub(super) fn build_to_probe_ratios(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for ratio in [1, 2, 4, 8, 16] {
        let pair = sizes.millions(128, 128 * ratio);
        let lines = [("no_partition", Way::NoPartition), ("gpu_no_partition", table(1.0))];
        runs.extend(Run::each(ratio as f64, &pair, lines));
    }
    Sweep {
        name: "paper2-18",
        title: "Build-to-probe ratios",
        paper: "paper 2, figure 18",
        x: Axis::logarithmic("tuples of s for each of r"),
        runs,
        detail: Detail::Phases,
        notes: vec!["the paper: building takes 71 % of the time, and is 45 % slower than probing"],
        ..Sweep::default()
    }
}

/// Section 7.2.8: workload A.
pub(super) fn skew(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for zipf in [0.0, 0.5, 1.0, 1.5, 1.75] {
        let pair = TablePair { zipf, ..sizes.workload(Workload::A) };
        runs.extend(Run::each(
            zipf,
            &pair,
            [
                ("no_partition", Way::NoPartition),
                ("gpu_no_partition, table in GPU memory", table(1.0)),
                ("gpu_no_partition, half in GPU memory", table(0.5)),
                ("gpu_no_partition, table in CPU memory", table(0.0)),
            ],
        ));
    }
    Sweep {
        name: "paper2-19",
        title: "Skew of the probe side",
        paper: "paper 2, figure 19",
        x: Axis::linear("Zipf exponent"),
        runs,
        claims: vec![
            Claim::spread("most of least, no_partition", "3.5 x", "no_partition"),
            Claim::spread(
                "most of least, table in CPU memory",
                "3.6 x with NVLink 2.0, 6.1 x with PCIe 3.0",
                "gpu_no_partition, table in CPU memory",
            ),
        ],
        notes: vec!["the paper: no such effect with tables in GPU memory, as the relations' transfer bounds them"],
        ..Sweep::default()
    }
}

/// Section 7.2.9: workload A.
pub(super) fn selectivity(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for percent in [0.0, 10.0, 50.0, 100.0] {
        let pair = TablePair { match_rate: percent / 100.0, ..sizes.workload(Workload::A) };
        runs.extend(Run::each(
            percent,
            &pair,
            [
                ("no_partition", Way::NoPartition),
                ("gpu_no_partition, table in GPU memory", table(1.0)),
                ("gpu_no_partition, table in CPU memory", table(0.0)),
            ],
        ));
    }
    Sweep {
        name: "paper2-20",
        title: "Join selectivity",
        paper: "paper 2, figure 20",
        x: Axis::linear("% of the tuples of s that have a partner"),
        runs,
        claims: vec![
            Claim::spread(
                "most of least, table in GPU memory",
                "1.43 x with NVLink 2.0 (a decrease of 30 %)",
                "gpu_no_partition, table in GPU memory",
            ),
            Claim::lines(
                "table in GPU memory of no_partition",
                "up to 6 x",
                "gpu_no_partition, table in GPU memory",
                "no_partition",
            ),
        ],
        notes: vec!["the paper: PCIe 3.0 slows down by 7 % with a table in CPU memory"],
        ..Sweep::default()
    }
}

/// Section 7.2.10.
pub(super) fn cooperative(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for (place, workload) in [Workload::A, Workload::B, Workload::C].into_iter().enumerate() {
        let pair = sizes.workload(workload);
        runs.extend(Run::each(
            place as f64,
            &pair,
            [
                ("no_partition", Way::NoPartition),
                ("het", Way::gpu(Strategy::Het)),
                ("gpu_het", Way::gpu(Strategy::GpuHet)),
                ("gpu_no_partition", table(1.0)),
            ],
        ));
    }
    let claim = |says, paper, of, place: f64| Claim {
        says,
        paper,
        ratio: Ratio::Lines { of, to: "no_partition", at: Some(place) },
    };
    Sweep {
        name: "paper2-21",
        title: "CPU and GPU together",
        paper: "paper 2, figure 21",
        x: Axis::named("workload", ["A", "B", "C"]),
        runs,
        claims: vec![
            claim("A, het of no_partition", "1.5 x", "het", 0.0),
            claim("A, gpu_het of no_partition", "5.6 x", "gpu_het", 0.0),
            claim("A, gpu_no_partition of no_partition", "7.3 x", "gpu_no_partition", 0.0),
            claim("B, het of no_partition", "3.2 x", "het", 1.0),
            claim("B, gpu_het of no_partition", "9.7 x", "gpu_het", 1.0),
            claim("B, gpu_no_partition of no_partition", "8.32 x", "gpu_no_partition", 1.0),
            claim("C, het of no_partition", "within 10 %", "het", 2.0),
            claim("C, gpu_het of no_partition", "1.6 x", "gpu_het", 2.0),
            claim("C, gpu_no_partition of no_partition", "4.3 x", "gpu_no_partition", 2.0),
        ],
        detail: Detail::Phases,
        ..Sweep::default()
    }
}
