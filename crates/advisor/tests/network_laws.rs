//! What must hold of joins on any network: more of a resource never makes one slower, fewer bytes neither.

use overspill_advisor::{
    Codec, Level, Levels, Machine, Messages, Network, RankSide, RepartitionedJoin, Shuffle, ShuffleAdvice,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const DRAWS: usize = 1000;

/// What rounding may cost.
const EQUAL: f64 = 1.0 + 1e-9;

/// A number whose logarithm is drawn evenly.
fn draw(random: &mut ChaCha8Rng, least: f64, most: f64) -> f64 {
    (random.random_range(least.ln()..most.ln())).exp()
}

/// From a slow Ethernet to NVSwitch.
fn draw_level(random: &mut ChaCha8Rng) -> Level {
    let latency = draw(random, 2e-7, 1e-3);
    Level {
        all_to_all_share: random.random_range(0.1..1.0),
        cross_rail_latency: random.random_bool(0.5).then(|| latency * random.random_range(1.0..3.0)),
        in_flight: random.random_range(1..65),
        ..Level::measured("drawn", draw(random, 1e7, 5e11), latency, draw(random, 1e-8, 1e-4))
    }
}

/// A known machine, with or without its GPU, on a network of any figures.
fn draw_machine(random: &mut ChaCha8Rng) -> Machine {
    let names: Vec<_> = Machine::names().collect();
    let mut machine = Machine::named(names[random.random_range(0..names.len())]).unwrap();
    if random.random_bool(0.5) {
        machine.gpu = None;
    }
    machine.network = Some(Network {
        ranks_per_node: 1,
        within: draw_level(random),
        across: Some(draw_level(random)),
        codec: Some(Codec { compress: draw(random, 1e8, 3e11), decompress: draw(random, 1e8, 6e11) }),
        ranks_per_machine: None,
        partition: random.random_bool(0.5).then(|| draw(random, 1e8, 1e11)),
    });
    machine
}

fn draw_join(random: &mut ChaCha8Rng) -> RepartitionedJoin {
    let mut side = || {
        let payloads = random.random_range(0..4);
        let columns: Vec<_> = (0..payloads + 1).map(|_| [4, 8, 8, 16][random.random_range(0..4)]).collect();
        RankSide::new(draw(random, 1.0, 4e8) as u64, columns)
    };
    let (build, probe) = (side(), side());
    let ranks_per_node = random.random_range(1..9);
    let nodes = draw(random, 1.0, 300.0) as u32;
    RepartitionedJoin {
        match_share: random.random_range(0.0..1.0),
        compression_ratio: random.random_bool(0.8).then(|| draw(random, 0.8, 20.0)),
        ..RepartitionedJoin::new(build, probe, nodes * ranks_per_node, nodes)
    }
}

fn network(machine: &mut Machine) -> &mut Network {
    machine.network.as_mut().unwrap()
}

fn across(machine: &mut Machine) -> &mut Level {
    network(machine).across.as_mut().unwrap()
}

/// Seconds of each way to shuffle, and of the chosen one; all infinite if the join is not possible.
fn seconds(machine: &Machine, join: &RepartitionedJoin) -> [f64; 5] {
    let Ok(advice) = machine.advise_shuffle(join) else { return [f64::INFINITY; 5] };
    let [a, b, c, d] = Shuffle::ALL.map(|shuffle| advice.of(shuffle).seconds);
    [a, b, c, d, advice.chosen().seconds]
}

/// Draws machines and joins, improves one of them, and asserts that no way to shuffle takes longer after that. Returns the
/// share of joins whose chosen way is faster by a thousandth.
fn never_slower(improve: impl Fn(&mut Machine, &mut RepartitionedJoin)) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(13);
    let mut faster = 0;
    for _ in 0..DRAWS {
        let (mut machine, mut join) = (draw_machine(&mut random), draw_join(&mut random));
        let before = seconds(&machine, &join);
        improve(&mut machine, &mut join);
        let after = seconds(&machine, &join);
        for (before, after) in before.into_iter().zip(after) {
            assert!(after <= before * EQUAL, "{before} s, then {after} s\n{machine:?}\n{join:?}");
        }
        faster += usize::from(after[4] < before[4] * 0.999);
    }
    faster as f64 / DRAWS as f64
}

#[test]
fn more_bandwidth_is_never_slower() {
    assert!(never_slower(|machine, _| across(machine).bandwidth *= 2.0) > 0.5);
    assert!(never_slower(|machine, _| network(machine).within.bandwidth *= 2.0) > 0.1);
    assert!(never_slower(|machine, _| across(machine).all_to_all_share = 1.0) > 0.5);
    assert!(never_slower(|machine, _| network(machine).within.all_to_all_share = 1.0) > 0.1);
}

#[test]
fn less_latency_and_cheaper_messages_are_never_slower() {
    let faster = never_slower(|machine, _| {
        let level = across(machine);
        level.latency /= 2.0;
        level.cross_rail_latency = level.cross_rail_latency.map(|latency| latency / 2.0);
    });
    assert!(faster > 0.1, "{faster}");
    never_slower(|machine, _| across(machine).cross_rail_latency = None);
    assert!(never_slower(|machine, _| across(machine).message /= 2.0) > 0.1);
    assert!(never_slower(|machine, _| across(machine).in_flight *= 2) > 0.1);
    never_slower(|machine, _| network(machine).within.latency /= 2.0);
    never_slower(|machine, _| network(machine).within.message /= 2.0);
    never_slower(|machine, _| network(machine).within.in_flight *= 2);
}

#[test]
fn fewer_bytes_are_never_slower() {
    assert!(never_slower(|_, join| join.build.rows /= 2) > 0.2);
    assert!(never_slower(|_, join| join.probe.rows /= 2) > 0.2);
    assert!(never_slower(|_, join| join.probe.columns[0] = 4) > 0.2);
    assert!(never_slower(|_, join| join.build.columns.truncate(1)) > 0.2);
    assert!(never_slower(|_, join| join.match_share /= 2.0) > 0.05);
    assert!(never_slower(|_, join| join.compression_ratio = join.compression_ratio.map(|ratio| ratio * 2.0)) > 0.1);
    never_slower(|_, join| join.compression_ratio = join.compression_ratio.or(Some(1.5)));
}

#[test]
fn faster_ranks_are_never_slower() {
    assert!(never_slower(|machine, _| machine.cpu.row_work.lookup /= 2.0) > 0.01);
    never_slower(|machine, _| machine.cpu.row_work.partition /= 2.0);
    never_slower(|machine, _| machine.cpu.copy *= 2.0);
    never_slower(|machine, _| machine.cpu.read *= 2.0);
    let gpu =
        |improve: fn(&mut overspill_advisor::Gpu)| never_slower(|machine, _| _ = machine.gpu.as_mut().map(improve));
    assert!(gpu(|gpu| gpu.random_reads *= 2.0) > 0.01);
    gpu(|gpu| gpu.random_writes = gpu.random_writes.map(|rate| rate * 2.0));
    gpu(|gpu| gpu.bandwidth *= 2.0);
    gpu(|gpu| gpu.clock *= 2.0);
    gpu(|gpu| gpu.memory_bytes *= 2);
    let codec = never_slower(|machine, _| {
        let codec = network(machine).codec.as_mut().unwrap();
        (codec.compress, codec.decompress) = (codec.compress * 2.0, codec.decompress * 2.0);
    });
    assert!(codec > 0.1, "{codec}");
}

/// The messages that the ranks of algorithms 1 and 2 send, one by one.
fn sent(levels: Levels, nodes: u32, ranks_per_node: u32) -> Messages {
    let mut messages = Messages::default();
    let places = || (0..nodes).flat_map(|node| (0..ranks_per_node).map(move |place| (node, place)));
    for from in places() {
        for to in places().filter(|to| *to != from) {
            let is_across = from.0 != to.0;
            match levels {
                Levels::One if is_across => messages.across += 1,
                Levels::Two if is_across && from.1 == to.1 => messages.across += 1,
                _ if !is_across => messages.within += 1,
                _ => {}
            }
        }
    }
    messages
}

#[test]
fn messages_are_those_that_are_sent() {
    for (nodes, ranks_per_node) in [(1, 1), (1, 5), (5, 1), (2, 2), (3, 4), (7, 8), (16, 3)] {
        for levels in [Levels::One, Levels::Two] {
            let found = levels.messages(nodes * ranks_per_node, nodes);
            assert_eq!(found, sent(levels, nodes, ranks_per_node), "{levels} of {nodes} x {ranks_per_node}");
        }
    }
}

/// Each byte goes to its rank: on one level at once, on two by way of the rank beside it.
#[test]
fn all_bytes_are_sent() {
    let mut random = ChaCha8Rng::seed_from_u64(17);
    for _ in 0..DRAWS {
        let (machine, join) = (draw_machine(&mut random), draw_join(&mut random));
        let Ok(advice) = machine.advise_shuffle(&join) else { continue };
        let bytes = |levels, name: &str| -> f64 {
            let prediction = advice.of(Shuffle { levels, compressed: false });
            prediction.phases.iter().filter(|phase| phase.name == name).map(|phase| phase.bytes).sum()
        };
        let is_near = |found: f64, expected: f64| (found - expected).abs() <= join.rank_bytes() * 1e-9;
        let sent = bytes(Levels::One, "shuffle across") + bytes(Levels::One, "shuffle within");
        assert!(is_near(sent, join.rank_bytes() * f64::from(join.ranks - 1) / f64::from(join.ranks)));
        if advice.of(Shuffle { levels: Levels::Two, compressed: false }).refusal.is_none() {
            assert!(is_near(bytes(Levels::Two, "shuffle across"), bytes(Levels::One, "shuffle across")));
            // A row finds its rank among M of a node with a chance of one in M, wherever it was.
            let on_node = f64::from(join.ranks / join.nodes);
            assert!(is_near(bytes(Levels::Two, "shuffle within") * on_node, join.rank_bytes() * (on_node - 1.0)));
        }
    }
}

#[test]
fn messages_decide_between_the_levels() {
    let mut random = ChaCha8Rng::seed_from_u64(19);
    let mut compared = 0;
    for _ in 0..DRAWS {
        let (mut machine, join) = (draw_machine(&mut random), draw_join(&mut random));
        let choose = |machine: &Machine| -> Option<ShuffleAdvice> {
            let advice = machine.advise_shuffle(&join).ok()?;
            advice.of(Shuffle { levels: Levels::Two, compressed: false }).refusal.is_none().then_some(advice)
        };
        if choose(&machine).is_none() {
            continue;
        }
        compared += 1;
        // Messages within a node are as many on both ways. Across nodes each takes longer than all else.
        let level = across(&mut machine);
        (level.message, level.bandwidth) = (1e6, 1e12);
        assert_eq!(choose(&machine).unwrap().choice.levels, Levels::Two, "{machine:?} {join:?}");
        let level = across(&mut machine);
        (level.message, level.latency, level.cross_rail_latency) = (1e-30, 1e-30, None);
        let within = &mut network(&mut machine).within;
        // Two levels send more bytes within a node.
        (within.bandwidth, within.all_to_all_share) = (1e6, 1.0);
        assert_eq!(choose(&machine).unwrap().choice.levels, Levels::One, "{machine:?} {join:?}");
    }
    assert!(compared > DRAWS / 2, "{compared}");
}

/// Processes on the processors of one machine, with figures as a measurement gives them.
#[test]
fn ranks_may_be_processes() {
    let mut machine = Machine { gpu: None, ..Machine::named("a100-pcie4").unwrap() };
    let memory = Level::measured("shared memory", 5e9, 2e-6, 1e-6);
    let network = |ranks_per_node: u32, across: Option<Level>| Network {
        ranks_per_node,
        within: memory.clone(),
        across,
        codec: None,
        ranks_per_machine: None,
        partition: None,
    };
    machine.network = Some(network(8, None));
    let join = |ranks: u32, nodes: u32| {
        let side = RankSide::new(256_000_000 / u64::from(ranks), [8, 8]);
        RepartitionedJoin::new(side.clone(), side, ranks, nodes)
    };
    let shuffled = |ranks: u32| {
        let advice = machine.advise_shuffle(&join(ranks, 1)).unwrap();
        assert_eq!(advice.choice, Shuffle { levels: Levels::One, compressed: false });
        advice.chosen().clone()
    };
    for ranks in 2..=8 {
        let found = shuffled(ranks);
        // A rank sends its part of 8 GB but for what it keeps, column by column, to one rank after the other.
        let sent = join(ranks, 1).rank_bytes() * (1.0 - 1.0 / f64::from(ranks));
        let expected = sent / 5e9 + 4.0 * f64::from(ranks - 1) * 3e-6;
        assert!((found.seconds_of("shuffle within") / expected - 1.0).abs() < 1e-9, "{ranks}: {found:?}");
        // The processors do the same work, however many ranks share them.
        let local = |found: &overspill_advisor::ShufflePrediction| found.seconds - found.seconds_of("shuffle within");
        assert!((local(&found) / local(&shuffled(2)) - 1.0).abs() < 0.3, "{ranks}: {found:?}");
    }
    let refusal = machine.advise_shuffle(&join(4, 2)).unwrap_err().to_string();
    assert_eq!(refusal, "the network connects the ranks of one node, and the join would be on 2 nodes");
    // Two nodes on a slow network, with a codec that was measured, and without.
    let slow = Level::measured("Ethernet", 1e8, 5e-5, 5e-6);
    machine.network = Some(network(2, Some(slow)));
    let small = RepartitionedJoin { compression_ratio: Some(4.0), ..join(4, 2) };
    let plain = machine.advise_shuffle(&small).unwrap();
    assert!(!plain.choice.compressed && plain.compression_because.contains("was not measured"), "{plain:?}");
    machine.network.as_mut().unwrap().codec = Some(Codec { compress: 4e9, decompress: 8e9 });
    let compressed = machine.advise_shuffle(&small).unwrap();
    assert!(compressed.choice.compressed, "{compressed:?}");
    assert!(compressed.chosen().seconds < plain.chosen().seconds / 2.0);
}

#[test]
fn answers_are_numbers() {
    let mut random = ChaCha8Rng::seed_from_u64(23);
    let mut possible = 0;
    for drawn in 0..DRAWS {
        let (machine, mut join) = (draw_machine(&mut random), draw_join(&mut random));
        match drawn % 8 {
            0 => join.build.rows = 0,
            1 => join.probe.rows = 0,
            2 => (join.build.rows, join.probe.rows) = (u64::MAX, u64::MAX),
            3 => join.build.columns.clear(),
            4 => join.compression_ratio = Some(0.0),
            5 => (join.ranks, join.nodes) = (1, 1),
            6 => join.ranks += 1,
            _ => {}
        }
        let advice = match machine.advise_shuffle(&join) {
            Ok(advice) => advice,
            Err(refusal) => {
                assert!(refusal.to_string().len() > 20, "{refusal}");
                continue;
            }
        };
        possible += 1;
        assert!(advice.levels_because.len() > 20 && advice.compression_because.len() > 20, "{advice:?}");
        assert_eq!(advice.of(advice.choice).refusal, None);
        for prediction in &advice.shuffles {
            let sum: f64 = prediction.phases.iter().map(|phase| phase.seconds).sum();
            match &prediction.refusal {
                Some(refusal) => {
                    assert!(prediction.seconds.is_infinite() && refusal.to_string().len() > 20, "{prediction:?}");
                    assert_eq!((prediction.tuples_per_second, prediction.bytes_per_second), (0.0, 0.0));
                }
                None => {
                    assert!(
                        prediction.seconds.is_finite() && prediction.phases.iter().all(|phase| phase.seconds >= 0.0)
                    );
                    assert_eq!(prediction.seconds, sum);
                    assert!(advice.chosen().seconds <= prediction.seconds);
                }
            }
        }
    }
    assert!(possible > DRAWS / 2, "{possible}");
}
