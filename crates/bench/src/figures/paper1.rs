//! Figures of paper 1, section 6: Lutz et al., *Triton Join*. Rates are stated in its text, for an IBM AC922.

use overspill::{PrefixSumProcessor, Strategy};
use overspill_experiments::Axis;
use overspill_join::hash_table::TableChoice;
use overspill_kernels::Algorithm;

use super::claim::{Claim, Ratio};
use super::sweep::{Detail, OnGpu, Run, Stated, Sweep, Way};
use super::tables::Sizes;
use crate::datagen::TablePair;

/// The default workloads, in million tuples per side.
const WORKLOADS: [u64; 3] = [128, 512, 2048];

const MILLIONS: &str = "million tuples a side";

fn gpu_no_partition() -> Way {
    Way::gpu(Strategy::GpuNoPartition)
}

fn triton() -> OnGpu {
    OnGpu::new(Strategy::Triton)
}

/// The Triton join with a prefix sum on the GPU, as profiled in the paper (sections 6.2.2 and 6.2.3).
fn triton_alone() -> OnGpu {
    triton().counted_by(PrefixSumProcessor::Gpu)
}

/// A claim that compares a line's rates at two x.
fn points(says: &'static str, paper: &'static str, of: &'static str, at: f64, to: f64) -> Claim {
    Claim { says, paper, ratio: Ratio::Points { of, at, to } }
}

/// Section 6.2.1.
pub(super) fn scaling_the_build_side(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in [128, 640, 1024, 1408, 2048] {
        let (x, dense) = (millions as f64, sizes.millions(millions, millions));
        let sparse = sizes.sparse(&dense);
        let lines = [
            ("no_partition", Way::NoPartition),
            ("radix", Way::Radix(TableChoice::Perfect)),
            ("gpu_no_partition", gpu_no_partition()),
            ("triton", Way::Gpu(triton())),
        ];
        runs.extend(Run::each(x, &dense, lines));
        runs.push(Run::new("radix, linear probing", x, &sparse, Way::Radix(TableChoice::LinearProbing)));
        runs.push(Run::new("gpu_no_partition, linear probing", x, &sparse, gpu_no_partition()));
    }
    Sweep {
        name: "paper1-13",
        title: "Scaling the build side",
        paper: "paper 1, figure 13",
        x: Axis::linear(MILLIONS),
        runs,
        stated: vec![
            Stated { name: "POWER9, radix", points: vec![(128.0, 1.1), (2048.0, 0.9)] },
            Stated { name: "Xeon, radix", points: vec![(128.0, 1.0), (2048.0, 0.6)] },
            Stated { name: "V100, gpu_no_partition", points: vec![(128.0, 2.5), (640.0, 2.5), (2048.0, 0.5)] },
            Stated { name: "V100, gpu_no_partition, linear probing", points: vec![(2048.0, 0.0011)] },
            Stated { name: "V100, triton", points: vec![(896.0, 2.3), (2048.0, 1.7)] },
        ],
        claims: vec![
            Claim::lines("triton of radix", "1.9 to 2.6 x", "triton", "radix"),
            Claim::lines("triton of gpu_no_partition", "up to 3.9 x", "triton", "gpu_no_partition"),
            Claim::lines(
                "perfect hashing of linear probing, radix",
                "1.06 to 1.16 x (bucket chaining)",
                "radix",
                "radix, linear probing",
            ),
            Claim::lines(
                "perfect hashing of linear probing, gpu_no_partition",
                "up to 400 x",
                "gpu_no_partition",
                "gpu_no_partition, linear probing",
            ),
        ],
        ..Sweep::default()
    }
}

/// Section 6.2.2.
pub(super) fn interconnect_usage(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in [128, 512, 1024, 2048] {
        let (x, dense) = (millions as f64, sizes.millions(millions, millions));
        let sparse = sizes.sparse(&dense);
        let lines = [("gpu_no_partition", gpu_no_partition()), ("triton", Way::Gpu(triton_alone()))];
        runs.extend(Run::each(x, &dense, lines));
        runs.push(Run::new("gpu_no_partition, linear probing", x, &sparse, gpu_no_partition()));
    }
    Sweep {
        name: "paper1-14",
        title: "Use of the link",
        paper: "paper 1, figure 14",
        x: Axis::linear(MILLIONS),
        runs,
        detail: Detail::Link,
        notes: vec![
            "the paper, of 75 GB/s: triton's prefix sum and partitioning 90 to 100 %, its join 9 to 78 %; gpu_no_partition up to \
             63.6 %, out of core 25.2 %, with linear probing 0.4 %",
            "(b), translation requests a tuple: refused, it needs counters of the CPU's IOMMU; the paper: 5.3 with linear probing, \
             one in 10^5 tuples with triton",
        ],
        ..Sweep::default()
    }
}

/// Section 6.2.3.
pub(super) fn time_breakdown(sizes: Sizes) -> Sweep {
    let runs = WORKLOADS.map(|millions| {
        Run::new("triton", millions as f64, &sizes.millions(millions, millions), Way::Gpu(triton_alone()))
    });
    Sweep {
        name: "paper1-15",
        title: "Where the Triton join's time goes",
        paper: "paper 1, figure 15",
        x: Axis::linear(MILLIONS),
        runs: runs.into(),
        detail: Detail::Kernels,
        notes: vec!["instructions and stalls of each kernel: refused, it needs counters of the GPU's multiprocessors"],
        ..Sweep::default()
    }
}

/// Section 6.2.4.
pub(super) fn partitioning_processor(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in WORKLOADS {
        let (x, pair) = (millions as f64, sizes.millions(millions, millions));
        let lines = [("triton", Way::Gpu(triton())), ("cpu_partitioned", Way::gpu(Strategy::CpuPartitioned))];
        runs.extend(Run::each(x, &pair, lines));
    }
    Sweep {
        name: "paper1-16",
        title: "Partitioning by the CPU and by the GPU",
        paper: "paper 1, figure 16",
        x: Axis::linear(MILLIONS),
        runs,
        stated: vec![Stated { name: "V100, cpu_partitioned", points: vec![(128.0, 1.8), (2048.0, 1.3)] }],
        claims: vec![
            Claim::lines("triton of cpu_partitioned", "1.2 to 1.3 x", "triton", "cpu_partitioned"),
            points("cpu_partitioned, 128 M of 2048 M", "1.38 x", "cpu_partitioned", 128.0, 2048.0),
        ],
        detail: Detail::Phases,
        notes: vec![
            "(b), the first pass alone, is the experiment partition; the paper: the GPU is 1.5 to 1.7 times as fast",
        ],
    }
}

/// Section 6.2.5, without caching.
pub(super) fn partitioning_algorithms(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in [128, 512, 1280, 2048] {
        let pair = sizes.millions(millions, millions);
        for algorithm in Algorithm::ALL {
            let way = OnGpu { first_pass: Some(algorithm), ..triton().cached(0.0) };
            runs.push(Run::new(algorithm.name(), millions as f64, &pair, Way::Gpu(way)));
        }
    }
    Sweep {
        name: "paper1-17",
        title: "Algorithms of the first pass",
        paper: "paper 1, figure 17",
        x: Axis::linear(MILLIONS),
        runs,
        claims: vec![
            Claim::lines("hierarchical of linear", "1.1 to 1.9 x", "hierarchical", "linear"),
            Claim::lines("hierarchical of standard", "3.6 to 4 x", "hierarchical", "standard"),
        ],
        notes: vec![
            "the paper, in G tuples/s: shared 1.5 to 1.6 up to 1280 M tuples, 0.9 to 1 beyond; hierarchical 1.4 to 1.5 everywhere",
        ],
        ..Sweep::default()
    }
}

/// Section 6.2.7.
pub(super) fn cache_size(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in WORKLOADS {
        let dense = sizes.millions(millions, millions);
        let sparse = sizes.sparse(&dense);
        for percent in [0.0, 50.0, 79.0, 100.0] {
            let cached = |strategy| Way::Gpu(OnGpu::new(strategy).cached(percent / 100.0));
            runs.push(Run::new(format!("triton, {millions} M"), percent, &dense, cached(Strategy::Triton)));
            let table = cached(Strategy::GpuNoPartition);
            runs.push(Run::new(format!("gpu_no_partition, {millions} M"), percent, &dense, table));
        }
        for percent in [0.0, 96.0, 100.0] {
            let table = Way::Gpu(OnGpu::new(Strategy::GpuNoPartition).cached(percent / 100.0));
            let line = format!("gpu_no_partition, linear probing, {millions} M");
            runs.push(Run::new(line, percent, &sparse, table));
        }
    }
    Sweep {
        name: "paper1-19",
        title: "Scaling the cache in GPU memory",
        paper: "paper 1, figure 19",
        x: Axis::linear("% of the hash table or partitions that may lie in GPU memory"),
        runs,
        claims: vec![
            points(
                "all cached of none, gpu_no_partition, 128 M",
                "4.6 to 4.8 x",
                "gpu_no_partition, 128 M",
                100.0,
                0.0,
            ),
            points(
                "all cached of none, gpu_no_partition, 512 M",
                "4.6 to 4.8 x",
                "gpu_no_partition, 512 M",
                100.0,
                0.0,
            ),
            points("79 % cached of none, triton, 128 M", "1.4 x", "triton, 128 M", 79.0, 0.0),
            points("79 % cached of none, triton, 512 M", "1.4 x", "triton, 512 M", 79.0, 0.0),
            points("79 % cached of none, triton, 2048 M", "1.1 x", "triton, 2048 M", 79.0, 0.0),
        ],
        notes: vec![
            "the paper: 128 M tuples are 1.5 % slower with all cached than with 79 %; 4 % of a table of linear probing outside GPU \
             memory leave 1.8 x",
        ],
        ..Sweep::default()
    }
}

/// Section 6.2.8, the join.
pub(super) fn prefix_sum_processor(sizes: Sizes) -> Sweep {
    const BY_CPU: &str = "triton, prefix sum on the CPU";
    const BY_GPU: &str = "triton, prefix sum on the GPU";
    let mut runs = Vec::new();
    for millions in WORKLOADS {
        let (x, pair) = (millions as f64, sizes.millions(millions, millions));
        for (line, processor) in [(BY_CPU, PrefixSumProcessor::Cpu), (BY_GPU, PrefixSumProcessor::Gpu)] {
            runs.push(Run::new(line, x, &pair, Way::Gpu(triton().counted_by(processor))));
        }
    }
    Sweep {
        name: "paper1-20",
        title: "The Triton join by the processor of its prefix sum",
        paper: "paper 1, figure 20 (a)",
        x: Axis::linear(MILLIONS),
        runs,
        stated: vec![Stated {
            name: "V100 and POWER9, prefix sum on the CPU",
            points: vec![(128.0, 2.2), (512.0, 2.2), (2048.0, 1.6)],
        }],
        claims: vec![Claim::lines("a prefix sum on the CPU of one on the GPU", "1.1 x", BY_CPU, BY_GPU)],
        ..Sweep::default()
    }
}

/// Section 6.2.9, with a constant data size.
pub(super) fn build_to_probe_ratios(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for ratio in [1, 4, 8, 32] {
        for millions in [512, 2048] {
            let all = 2 * millions;
            let dense = sizes.millions_of(all as f64 / (1 + ratio) as f64, (all * ratio) as f64 / (1 + ratio) as f64);
            runs.push(Run::new(format!("triton, {millions} M"), ratio as f64, &dense, Way::Gpu(triton())));
            runs.push(Run::new(format!("gpu_no_partition, {millions} M"), ratio as f64, &dense, gpu_no_partition()));
            if millions == 2048 {
                let line = "gpu_no_partition, linear probing, 2048 M";
                runs.push(Run::new(line, ratio as f64, &sizes.sparse(&dense), gpu_no_partition()));
            }
        }
    }
    Sweep {
        name: "paper1-21",
        title: "Build-to-probe ratios",
        paper: "paper 1, figure 21",
        x: Axis::logarithmic("tuples of s for each of r"),
        runs,
        claims: vec![
            Claim::spread(
                "triton, best of worst, 2048 M",
                "1.13 x (1.66 to 1.88 G tuples/s, the workload is not stated)",
                "triton, 2048 M",
            ),
            points("1:32 of 1:1, linear probing", "3414 x", "gpu_no_partition, linear probing, 2048 M", 32.0, 1.0),
        ],
        notes: vec![
            "the paper: gpu_no_partition gains 60 % within GPU memory; it probes 4.3 and builds 1.8 G tuples/s",
        ],
        ..Sweep::default()
    }
}

/// Section 6.2.10.
pub(super) fn payload_attributes(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for (millions, most) in [(512, 16), (2048, 2)] {
        for payloads in [0, 1, 2, 4, 8, 16].into_iter().filter(|payloads| *payloads <= most) {
            let pair = TablePair { probe_payloads: payloads, ..sizes.millions(millions, millions) };
            let x = payloads as f64;
            runs.push(Run::new(format!("no_partition, {millions} M"), x, &pair, Way::NoPartition));
            let way = OnGpu { wants_pairs: true, ..triton() };
            runs.push(Run::new(format!("triton, {millions} M"), x, &pair, Way::Gpu(way)));
        }
    }
    Sweep {
        name: "paper1-22",
        title: "Payload attributes of the probe side",
        paper: "paper 1, figure 22",
        x: Axis::linear("payload attributes of 8 bytes"),
        runs,
        stated: vec![
            Stated { name: "V100, join index, one workload", points: vec![(0.0, 2.0)] },
            Stated { name: "V100, join index, another", points: vec![(0.0, 1.5)] },
            Stated { name: "V100, late materialization by the CPU, at most", points: vec![(16.0, 0.088)] },
        ],
        notes: vec![
            "the paper: 16 attributes leave 86 to 88 M tuples/s, as the CPU reads them at random by the join index; 2048 M tuples end at \
             2 for want of memory",
        ],
        ..Sweep::default()
    }
}

/// Section 6.2.12.
pub(super) fn multiprocessors(sizes: Sizes) -> Sweep {
    let mut runs = Vec::new();
    for millions in WORKLOADS {
        let pair = sizes.millions(millions, millions);
        for percent in [25.0, 50.0, 75.0, 100.0] {
            let way = OnGpu { multiprocessors: percent / 100.0, ..triton() };
            runs.push(Run::new(format!("triton, {millions} M"), percent, &pair, Way::Gpu(way)));
        }
    }
    Sweep {
        name: "paper1-24",
        title: "Multiprocessors of the GPU",
        paper: "paper 1, figure 24",
        x: Axis::linear("% of the multiprocessors"),
        runs,
        detail: Detail::Phases,
        notes: vec![
            "the paper, of 80 multiprocessors: 28 (35 %) give 75 % of the peak for 128 M and 512 M tuples, 55 (69 %) 95 % for all",
        ],
        ..Sweep::default()
    }
}
