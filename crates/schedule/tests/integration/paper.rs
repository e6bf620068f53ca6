//! What paper 5 says of its policy. It prints no values; a join's speed-up is only known to be such that four joins at once stay
//! faster on the GPU than on the CPU.

use overspill_schedule::simulator::{Mix, Outcome, run};
use overspill_schedule::{
    Arrivals, Class, CoRun, Cpu, Limits, Paper5Settings, PolicyKind, Processors, ScheduleConfig, Slots, check,
};

/// An Intel Xeon E5-2620 runs a query on each of six cores.
const PAPER: Processors = Processors { cpu: Cpu::CoreEach(6), co_run: CoRun { join: 0.0, aggregate: 0.0417 } };

/// Section 2.3: an aggregate alone is 1.5 times as fast on the GPU.
const AGGREGATE: f64 = 1.5;

/// Seconds on the CPU for a million rows.
const SECONDS: f64 = 0.2;

const SETTINGS: Paper5Settings = Paper5Settings { grace: 0.5, close: 0.6, arrivals: Arrivals::NextRound };

/// Six queries at once: two each on 28, 70 and 112 million rows, which join or aggregate.
fn of_sizes(kinds: &str, join: f64) -> Mix {
    let queries = kinds.chars().zip([28.0, 70.0, 112.0]).flat_map(|(kind, rows)| {
        let (class, speed_up) = if kind == 'J' { (Class::Join, join) } else { (Class::Aggregate, AGGREGATE) };
        let cpu = rows * SECONDS;
        [(0.0, class, cpu, cpu / speed_up); 2]
    });
    Mix::of(&queries.collect::<Vec<_>>())
}

fn outcome(mix: &Mix, policy: PolicyKind) -> Outcome {
    run(mix, &ScheduleConfig { policy, limits: Limits::PAPER, processors: PAPER, slots: Slots::ALL })
}

fn overall(mix: &Mix, policy: PolicyKind) -> f64 {
    outcome(mix, policy).overall
}

#[test]
fn aggregates_over_large_tables_take_as_long_as_on_the_cpu() {
    let mut worst = 0.0_f64;
    for kinds in ["AAA", "JAA", "JJA"] {
        let mix = of_sizes(kinds, 4.5);
        let on_cpu = overall(&mix, PolicyKind::AllCpu);
        let paper = overall(&mix, PolicyKind::Paper5(SETTINGS));
        assert!((0.95..1.05).contains(&(paper / on_cpu)), "{kinds}: {paper} s, {on_cpu} s on the CPU");
        worst = worst.max(overall(&mix, PolicyKind::AllGpu) / on_cpu);
    }
    assert!((2.7..3.3).contains(&worst), "all on the GPU take up to {worst} times as long");
}

#[test]
fn joins_over_large_tables_are_fastest_with_the_papers_policy() {
    for kinds in ["JJJ", "AAJ", "AJJ"] {
        let mix = of_sizes(kinds, 4.5);
        let paper = overall(&mix, PolicyKind::Paper5(SETTINGS));
        for other in [PolicyKind::AllCpu, PolicyKind::AllGpu] {
            assert!(paper < overall(&mix, other), "{kinds}: {paper} s, {} {} s", other.name(), overall(&mix, other));
        }
    }
}

#[test]
fn the_limits_are_kept() {
    for kinds in ["JJJ", "JJA", "JAA", "AAA", "AAJ", "AJJ"] {
        for policy in [PolicyKind::FirstCome, PolicyKind::Paper5(SETTINGS), PolicyKind::Overspill(Default::default())] {
            let log = outcome(&of_sizes(kinds, 4.5), policy).log;
            check(&log, &Limits::PAPER, usize::MAX)
                .unwrap_or_else(|error| panic!("{kinds}, {}: {error}", policy.name()));
        }
        let all = outcome(&of_sizes(kinds, 4.5), PolicyKind::AllGpu).log;
        assert!(
            check(&all, &Limits::PAPER, usize::MAX).unwrap_err().contains("the limits of the GPU are exceeded"),
            "{kinds}"
        );
    }
}

/// Table 4: which of the queries 12, 13, 14 and 16 of TPC-H run on the GPU. Two of them are slower there even alone (6.4.2).
#[test]
fn the_desired_placement_of_tpch_is_the_shortest() {
    let cpu = [70.0, 55.0, 60.0, 30.0];
    let speed_up = [2.5, 0.6, 3.0, 0.7];
    let placed = |on_gpu: [bool; 4]| {
        // A query whose place is fixed is offered no other.
        let mut mix = Mix::of(&std::array::from_fn::<_, 4, _>(|query| {
            (0.0, Class::Both, cpu[query], cpu[query] / speed_up[query])
        }));
        for (query, on_gpu) in mix.queries.iter_mut().zip(on_gpu) {
            query.demand.gpu = query.demand.gpu.filter(|_| on_gpu);
        }
        overall(&mix, PolicyKind::AllGpu)
    };
    let [default, pg_strom, custom, desired] =
        [[false, false, false, false], [true, true, true, true], [true, false, true, true], [true, false, true, false]]
            .map(placed);
    assert!(desired < default && desired < pg_strom && desired < custom, "{default} {pg_strom} {custom} {desired}");
}
