//! What must hold on any machine: more of a resource never makes a join slower, more work never faster.

use overspill_advisor::{Bound, Gpu, HashTable, Join, Link, Machine, PrefixSumProcessor, Side, Strategy};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const DRAWS: usize = 1500;

/// What rounding may cost.
const EQUAL: f64 = 1.0 + 1e-9;

fn draw_join(random: &mut ChaCha8Rng) -> Join {
    let mut side = || {
        let tuple_bytes = *[8, 12, 16, 32, 64].get(random.random_range(0..5)).unwrap();
        Side::new(2f64.powf(random.random_range(0.0..33.0)) as u64, tuple_bytes)
    };
    let (build, probe) = (side(), side());
    Join {
        build,
        probe,
        hash_table: HashTable::ALL[random.random_range(0..2)],
        match_rate: random.random_range(0.0..1.0),
        result_bytes: *[0, 8, 16].get(random.random_range(0..3)).unwrap(),
        gpu_memory_limit: random.random_bool(0.5).then(|| 2f64.powf(random.random_range(20.0..38.0)) as u64),
        threads: random.random_bool(0.3).then(|| random.random_range(1..100)),
    }
}

/// A known machine with some figures changed.
fn draw_machine(random: &mut ChaCha8Rng) -> Machine {
    let names: Vec<_> = Machine::names().collect();
    let mut machine = Machine::named(names[random.random_range(0..names.len())]).unwrap();
    let mut factor = || 2f64.powf(random.random_range(-1.5..1.5));
    machine.cpu.read *= factor();
    machine.cpu.copy *= factor();
    machine.cpu.row_work.partition *= factor();
    let gpu = machine.gpu.as_mut().unwrap();
    gpu.memory_bytes = (gpu.memory_bytes as f64 * factor()) as u64;
    gpu.bandwidth *= factor();
    gpu.clock *= factor();
    faster_link(&mut gpu.link, factor());
    machine
}

fn faster_link(link: &mut Link, factor: f64) {
    link.read *= factor;
    link.write *= factor;
    link.both *= factor;
}

/// Draws machines and joins, changes one of them, and asserts that no strategy takes less time after the change.
/// Returns how many took more.
fn never_faster(change: impl Fn(&mut Machine, &mut Join)) -> usize {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut slower = 0;
    for _ in 0..DRAWS {
        let (mut machine, mut join) = (draw_machine(&mut random), draw_join(&mut random));
        let before = machine.advise(&join);
        change(&mut machine, &mut join);
        let after = machine.advise(&join);
        for (one, other) in before.strategies.iter().zip(&after.strategies) {
            let is_law = other.seconds * EQUAL >= one.seconds;
            assert!(
                is_law,
                "{}: {} s, then {} s\n{join:?}\n{}",
                one.strategy, one.seconds, other.seconds, machine.name
            );
            slower += usize::from(other.seconds > one.seconds * 1.01);
        }
    }
    slower
}

fn gpu(machine: &mut Machine) -> &mut Gpu {
    machine.gpu.as_mut().unwrap()
}

#[test]
fn a_slower_link_is_never_faster() {
    let slower = never_faster(|machine, _| faster_link(&mut gpu(machine).link, 0.5));
    assert!(slower > DRAWS / 2, "{slower}");
}

#[test]
fn a_wider_link_makes_what_it_bounds_faster() {
    let join = Join::new(128_000_000, 2_048_000_000, 16);
    let mut bound = 0;
    for name in Machine::names() {
        let mut machine = Machine::named(name).unwrap();
        // Processors and memory that do not hold it up.
        machine.cpu.read *= 4.0;
        machine.cpu.copy *= 4.0;
        let before = machine.advise(&join);
        faster_link(&mut gpu(&mut machine).link, 2.0);
        let after = machine.advise(&join);
        for (before, after) in before.strategies.iter().zip(&after.strategies) {
            let transfers = before.phases.iter().filter(|phase| phase.bound == Bound::Transfer);
            let transferred: f64 = transfers.map(|phase| phase.seconds).sum();
            if transferred > before.seconds * 0.5 {
                bound += 1;
                assert!(after.seconds < before.seconds * 0.97, "{name}: {before:?} {after:?}");
            }
        }
    }
    // On NVLink-C2C the GPU's random access takes longer.
    assert!(bound >= 8, "{bound}");
}

#[test]
fn less_gpu_memory_is_never_faster() {
    let slower = never_faster(|machine, join| {
        gpu(machine).memory_bytes /= 2;
        join.gpu_memory_limit = join.gpu_memory_limit.map(|limit| limit / 2);
    });
    assert!(slower > DRAWS / 10, "{slower}");
    never_faster(|machine, join| {
        let limit = join.gpu_memory_limit.unwrap_or(u64::MAX).min(gpu(machine).memory_bytes);
        join.gpu_memory_limit = Some(limit / 10 * 9);
    });
}

#[test]
fn more_threads_read_keys_sooner() {
    for (name, of_one, least_of_cpu) in
        [("ac922", PrefixSumProcessor::Gpu, 4), ("xeon-v100-pcie3", PrefixSumProcessor::Gpu, 2)]
    {
        let machine = Machine::named(name).unwrap();
        let processors: Vec<_> =
            (1..=machine.cpu.threads + 1).map(|threads| machine.prefix_sum(threads).unwrap()).collect();
        assert_eq!(processors[0], of_one, "{name}");
        let counted_by_gpu = processors.iter().take_while(|processor| **processor == PrefixSumProcessor::Gpu).count();
        assert_eq!(counted_by_gpu + 1, least_of_cpu, "{name}: {processors:?}");
        // What all threads read no thread more makes less.
        assert!(processors[counted_by_gpu..].iter().all(|processor| *processor == PrefixSumProcessor::Cpu), "{name}");
    }
    // A profile without a GPU.
    let machine = Machine { gpu: None, ..Machine::named("ac922").unwrap() };
    assert_eq!(machine.prefix_sum(64), None);
}

#[test]
fn slower_memories_are_never_faster() {
    never_faster(|machine, _| machine.cpu.read *= 0.5);
    never_faster(|machine, _| machine.cpu.copy *= 0.5);
    never_faster(|machine, _| machine.cpu.random_reads *= 0.5);
    never_faster(|machine, _| gpu(machine).bandwidth *= 0.5);
    never_faster(|machine, _| gpu(machine).random_reads *= 0.5);
    never_faster(|machine, _| gpu(machine).random_writes = gpu(machine).random_writes.map(|rate| rate * 0.5));
    never_faster(|machine, _| gpu(machine).link.random_reads *= 0.5);
    never_faster(|machine, _| {
        let link = &mut gpu(machine).link;
        link.random_writes = link.random_writes.map(|rate| rate * 0.5);
    });
}

#[test]
fn less_compute_is_never_faster() {
    never_faster(|machine, _| gpu(machine).clock *= 0.5);
    never_faster(|machine, _| machine.cpu.row_work.partition *= 2.0);
    never_faster(|machine, _| machine.cpu.row_work.lookup *= 2.0);
    never_faster(|machine, join| join.threads = Some(join.threads.unwrap_or(machine.cpu.threads).div_ceil(2)));
    never_faster(|machine, _| gpu(machine).launch = gpu(machine).launch.map(|launch| launch * 2.0));
}

#[test]
fn more_rows_are_never_faster() {
    never_faster(|_, join| join.probe.rows *= 2);
    never_faster(|_, join| join.build.rows *= 2);
    never_faster(|_, join| join.result_bytes += 8);
}

#[test]
fn answers_are_numbers() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for draw in 0..DRAWS {
        let (machine, mut join) = (draw_machine(&mut random), draw_join(&mut random));
        match draw % 8 {
            0 => join.build.rows = 0,
            1 => join.probe.rows = 0,
            2 => (join.build.rows, join.probe.rows) = (u64::MAX, u64::MAX),
            3 => (join.build.tuple_bytes, join.build.key_bytes) = (0, 0),
            4 => join.gpu_memory_limit = Some(0),
            _ => {}
        }
        let advice = machine.advise(&join);
        assert_eq!(advice.strategies.len(), Strategy::ALL.len());
        for prediction in &advice.strategies {
            let sum: f64 = prediction.phases.iter().map(|phase| phase.seconds).sum();
            match &prediction.refusal {
                None => {
                    assert!(prediction.seconds.is_finite() && prediction.seconds >= 0.0, "{prediction:?} {join:?}");
                    assert!(prediction.link_bytes.total() >= 0.0, "{prediction:?} {join:?}");
                    assert_eq!(prediction.seconds, sum);
                }
                Some(refusal) => {
                    assert!(
                        prediction.seconds.is_infinite() && prediction.strategy != advice.choice
                            || prediction.strategy == Strategy::Hybrid
                    );
                    assert!(refusal.to_string().len() > 20, "{refusal}");
                }
            }
        }
        assert_eq!(advice.of(advice.choice).refusal, None);
    }
}
