//! The model of repartitioned joins beside the figures of paper 4, *Scaling Joins to a Thousand GPUs*.
//!
//! The profile's constants are from data sheets, from figure 9's times, and from the crossover of figure 7. What is predicted
//! is figures 6 and 8.

use overspill_advisor::{
    Levels, Machine, Messages, RankSide, RepartitionedJoin, Shuffle, ShuffleAdvice, ShufflePrediction,
};

const MILLION: f64 = 1e6;

const ONE_PLAIN: Shuffle = Shuffle { levels: Levels::One, compressed: false };
const ONE_COMPRESSED: Shuffle = Shuffle { levels: Levels::One, compressed: true };
const TWO_PLAIN: Shuffle = Shuffle { levels: Levels::Two, compressed: false };

/// Figure 9: 648 ms of the plain all-to-all and 167 ms of the compressed one. What messages cost beside their bytes is small.
const RATIO: f64 = 648.0 / 167.0;

fn superpod(join: &RepartitionedJoin) -> ShuffleAdvice {
    Machine::named("dgx-superpod").unwrap().advise_shuffle(join).unwrap()
}

/// Section 6.2: unique keys and row numbers of 8 bytes; 30 % of right rows match.
fn random_keys(million_rows: f64, gpus: u32) -> RepartitionedJoin {
    let side = RankSide::new((million_rows * MILLION) as u64, [8, 8]);
    RepartitionedJoin { match_share: 0.3, ..RepartitionedJoin::new(side.clone(), side, gpus, gpus / 8) }
}

/// Section 6.4: the key and priority of orders, and the key of lineitem, of scale factor 100,000 on 1,024 GPUs.
fn tpch(gpus: u32) -> RepartitionedJoin {
    let orders = RankSide::new(146_480_000, [8, 4]);
    let lineitem = RankSide::new(585_940_000, [8]);
    RepartitionedJoin { compression_ratio: Some(RATIO), ..RepartitionedJoin::new(orders, lineitem, gpus, gpus / 8) }
}

#[track_caller]
fn assert_near(found: f64, expected: f64, tolerance: f64) {
    let off = found / expected - 1.0;
    assert!(off.abs() <= tolerance, "{found} is {:+.1} % off {expected}", off * 100.0);
}

/// Milliseconds of the all-to-all.
fn all_to_all(prediction: &ShufflePrediction) -> f64 {
    (prediction.seconds_of("shuffle across") + prediction.seconds_of("shuffle within")) * 1e3
}

#[test]
fn figure_6_random_keys_on_1024_gpus() {
    let advice = superpod(&random_keys(500.0, 1024));
    assert_eq!(advice.choice, ONE_PLAIN);
    // The input is 16,384 GB; 667 billion tuples a second (section 6.2; section 7 says 547).
    assert_near(advice.chosen().bytes_per_second, 10_677e9, 0.2);
    assert_near(advice.chosen().tuples_per_second, 667e9, 0.2);
    assert_near(advice.chosen().bytes_per_second * advice.chosen().seconds, 16_384e9, 1e-9);
}

#[test]
fn figure_8_keys_of_tpch_on_1024_gpus() {
    let advice = superpod(&tpch(1024));
    assert_eq!(advice.choice, ONE_COMPRESSED);
    assert_near(advice.chosen().tuples_per_second, 1_793e9, 0.2);
    // The best plain run takes 739 ms, and is another than figure 9's of 831.
    let plain = [ONE_PLAIN, TWO_PLAIN].map(|shuffle| advice.of(shuffle).tuples_per_second);
    assert_near(plain[0].max(plain[1]), 1_015e9, 0.2);
    assert_near(advice.chosen().tuples_per_second / plain[0].max(plain[1]), 1.77, 0.2);
}

/// Sections 6.2 and 6.4: both scale, and one level is faster for tables as large as these, the less the more GPUs there are.
#[test]
fn figures_6_and_8_from_64_to_1024_gpus() {
    for join in [random_keys(500.0, 64), tpch(64)] {
        let on = |gpus| superpod(&RepartitionedJoin { ranks: gpus, nodes: gpus / 8, ..join.clone() });
        let advices = [64, 128, 256, 512, 1024].map(on);
        let rate_of_gpu = |at: usize| advices[at].of(ONE_PLAIN).tuples_per_second / [64.0, 1024.0][at / 4];
        assert!(rate_of_gpu(4) > 0.85 * rate_of_gpu(0), "{} {}", rate_of_gpu(0), rate_of_gpu(4));
        let gaps = advices.map(|advice| advice.of(TWO_PLAIN).seconds / advice.of(ONE_PLAIN).seconds);
        assert!(gaps.windows(2).all(|pair| pair[1] < pair[0]) && gaps[4] > 1.0, "{gaps:?}");
    }
}

#[test]
fn figure_7_two_levels_are_for_small_tables() {
    let advices: Vec<_> = (2..=400).map(|half| superpod(&random_keys(f64::from(half) / 2.0, 512))).collect();
    let two_levels = advices.iter().take_while(|advice| advice.choice == TWO_PLAIN).count();
    assert!(advices[two_levels..].iter().all(|advice| advice.choice == ONE_PLAIN), "they cross once");
    // The crossover is around 25 M rows, which the cost of a message is fitted to.
    let crossover = 1.0 + two_levels as f64 / 2.0;
    assert_near(crossover, 25.0, 0.1);
    let gains = [0, 398].map(|at: usize| advices[at].of(ONE_PLAIN).seconds / advices[at].of(TWO_PLAIN).seconds);
    assert!(gains[0] > 1.5 && gains[1] < 0.98, "{gains:?}");
    // Small tables wait for messages, large ones for bytes.
    let bounds = [0, 398].map(|at: usize| {
        let shuffle = advices[at].of(ONE_PLAIN).phases.iter().find(|phase| phase.name == "shuffle across");
        shuffle.unwrap().bound.to_string()
    });
    assert_eq!(bounds, ["messages", "the network"]);
}

#[test]
fn figure_9_where_the_time_goes() {
    let advice = superpod(&tpch(1024));
    let (plain, compressed) = (advice.of(ONE_PLAIN), advice.of(ONE_COMPRESSED));
    assert_near(all_to_all(plain), 648.0, 0.02);
    assert_near(all_to_all(plain) / (plain.seconds * 1e3), 0.78, 0.02);
    assert_near(all_to_all(compressed), 167.0, 0.06);
    let codec =
        |prediction: &ShufflePrediction| ["compress", "decompress"].map(|name| prediction.seconds_of(name) * 1e3);
    assert_near(codec(compressed)[0], 46.0, 0.02);
    assert_near(codec(compressed)[1], 20.0, 0.02);
    assert_eq!(codec(plain), [0.0, 0.0]);
    // Both do the same beside the all-to-all and the codec, in 831 - 648 ms.
    let local = |prediction: &ShufflePrediction| {
        prediction.seconds * 1e3 - all_to_all(prediction) - codec(prediction).iter().sum::<f64>()
    };
    assert_near(local(plain), 183.0, 0.02);
    assert_near(local(compressed), local(plain), 1e-9);
    // It stays nearly so from 64 GPUs on. The paper compresses what stays on the node, too.
    for gpus in [64, 256] {
        let fewer = superpod(&tpch(gpus));
        assert_near(codec(fewer.of(ONE_COMPRESSED))[0], 46.0, 0.15);
        assert_near(local(fewer.of(ONE_COMPRESSED)), 183.0, 0.05);
    }
}

#[test]
fn section_6_3_messages() {
    // One rail of 64 nodes has 64 * 63 = 4,032, and there are 8 rails.
    assert_eq!(Levels::Two.messages(512, 64), Messages { across: 8 * 4032, within: 512 * 7 });
    let one = Levels::One.messages(512, 64);
    assert_eq!(one.across + one.within, 261_632);
    let advice = superpod(&random_keys(1.0, 512));
    // Of four columns.
    assert_eq!(advice.of(TWO_PLAIN).messages, Messages { across: 4 * 32_256, within: 4 * 3584 });
}

#[test]
fn advice_has_reasons() {
    let large = superpod(&tpch(1024));
    assert!(large.levels_because.starts_with("two levels would take 1"), "{}", large.levels_because);
    assert!(
        large.levels_because.contains("390144 messages across nodes in place of 3121152"),
        "{}",
        large.levels_because
    );
    assert!(large.compression_because.starts_with("plain it would take 9"), "{}", large.compression_because);
    let small = superpod(&random_keys(1.0, 512));
    assert!(small.levels_because.starts_with("one level would take 1"), "{}", small.levels_because);
    assert_eq!(small.compression_because, "how much smaller the columns become compressed was not said");
    let incompressible = superpod(&RepartitionedJoin { compression_ratio: Some(1.0), ..random_keys(500.0, 1024) });
    assert_eq!(incompressible.choice, ONE_PLAIN);
    assert!(incompressible.compression_because.starts_with("compressed it would take 9"), "{incompressible:?}");
    let node = superpod(&RepartitionedJoin { ranks: 8, nodes: 1, ..tpch(8) });
    assert_eq!(node.choice, ONE_PLAIN);
    assert_eq!(node.levels_because, "two levels need several nodes with several ranks each");
    assert_eq!(node.compression_because, "all ranks are on one node, and only what crosses nodes is compressed");
}

#[test]
fn what_cannot_be_shuffled_is_refused() {
    let refusal = |machine: &str, join: &RepartitionedJoin| {
        Machine::named(machine).unwrap().advise_shuffle(join).unwrap_err().to_string()
    };
    assert_eq!(refusal("ac922", &tpch(8)), "the figures of ac922 are those of one machine, without a network");
    let uneven = RepartitionedJoin { ranks: 12, nodes: 5, ..tpch(8) };
    assert!(refusal("dgx-superpod", &uneven).starts_with("12 ranks do not fill nodes of 2"), "{uneven:?}");
    // 500 M rows are what memory allows (section 6.2); twice as many are not.
    assert_eq!(
        refusal("dgx-superpod", &random_keys(1000.0, 1024)),
        "both sides before and after the shuffle, with a hash table and the result, need at least 83.4 GiB of GPU memory, \
         and the limit is 69.3 GiB"
    );
    let network = Machine::named("dgx-superpod").unwrap().network.unwrap();
    assert_eq!([1, 4, 8, 16, 1024].map(|gpus| network.nodes(gpus).unwrap()), [1, 1, 1, 2, 128]);
    assert_eq!(
        network.nodes(12).unwrap_err().to_string(),
        "12 ranks do not fill nodes of 8: some nodes would have more work than others"
    );
    assert_eq!(network.nodes(0).unwrap_err().to_string(), "a join needs at least one rank");
}

#[test]
fn advice_as_json() {
    let json = serde_json::to_value(superpod(&random_keys(500.0, 1024))).unwrap();
    assert_eq!(json["choice"], serde_json::json!({"levels": "one", "compressed": false}));
    let shuffles = json["shuffles"].as_array().unwrap();
    assert_eq!(shuffles.len(), Shuffle::ALL.len());
    assert_eq!(shuffles[2]["levels"], "two");
    assert_eq!(shuffles[2]["phases"][2]["name"], "partition again");
    assert_eq!(shuffles[2]["phases"][1]["bound"], "network");
    assert!(shuffles[1]["seconds"].is_null() && shuffles[1]["refusal"].is_string(), "{json}");
}
