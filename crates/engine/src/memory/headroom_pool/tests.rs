use std::sync::Arc;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::HeadroomPool;

const MB: usize = 1 << 20;

fn pool(limit: usize) -> Arc<dyn MemoryPool> {
    Arc::new(HeadroomPool::new(limit))
}

fn join(pool: &Arc<dyn MemoryPool>, number: usize) -> MemoryReservation {
    MemoryConsumer::new(format!("HybridJoin[{number}]")).with_can_spill(true).register(pool)
}

fn sort(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new("ExternalSorter[0]").with_can_spill(true).register(pool)
}

fn repartition(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new("RepartitionExec[0]").with_can_spill(true).register(pool)
}

/// Grows by small steps until refused; returns the size then.
fn fill(reservation: &MemoryReservation, step: usize) -> usize {
    while reservation.try_grow(step).is_ok() {}
    reservation.size()
}

#[test]
fn headroom_is_a_quarter_of_small_limits_and_a_tenth_of_large_ones() {
    assert_eq!(HeadroomPool::headroom(0), 0);
    assert_eq!(HeadroomPool::headroom(1), 0);
    assert_eq!(HeadroomPool::headroom(MB), MB / 4);
    assert_eq!(HeadroomPool::headroom(16 * MB), 4 * MB);
    assert_eq!(HeadroomPool::headroom(64 * MB), 16 * MB);
    assert_eq!(HeadroomPool::headroom(128 * MB), 16 * MB);
    assert_eq!(HeadroomPool::headroom(64 << 30), (64 << 30) / 10);
    let limits: Vec<usize> = (0..48).map(|shift| 1usize << shift).collect();
    assert!(limits.windows(2).all(|pair| HeadroomPool::headroom(pair[0]) <= HeadroomPool::headroom(pair[1])));
}

#[test]
fn a_lone_join_takes_four_fifths_of_what_joins_may_have() {
    for limit in [MB, 16 * MB, 64 * MB, 64 << 30] {
        let pool = pool(limit);
        let join = join(&pool, 0);
        let step = limit / 1024;
        let held = fill(&join, step);
        let share = (limit - HeadroomPool::headroom(limit)) / 5 * 4;
        assert!(held <= share + step && held + 2 * step >= share, "{held} of {share}");
    }
}

#[test]
fn a_second_join_and_a_sort_find_room_beside_a_greedy_join() {
    let pool = pool(64 * MB);
    let first = join(&pool, 0);
    let held = fill(&first, MB / 8);
    let second = join(&pool, 1);
    assert!(fill(&second, MB / 8) > 6 * MB, "the second join got {}", second.size());
    let sort = sort(&pool);
    sort.try_grow(HeadroomPool::headroom(64 * MB)).unwrap();
    assert_eq!(first.size(), held);
}

#[test]
fn others_that_outgrow_the_headroom_take_from_the_joins() {
    let pool = pool(64 * MB);
    let sort = sort(&pool);
    sort.try_grow(60 * MB).unwrap();
    let join = join(&pool, 0);
    join.try_grow(3 * MB).unwrap();
    join.try_grow(MB).unwrap_err();
    sort.try_grow(MB).unwrap();
    sort.try_grow(1).unwrap_err();
    sort.free();
    join.try_grow(32 * MB).unwrap();
}

#[test]
fn all_reservations_of_a_consumer_count_together() {
    let pool = pool(100 * MB);
    let join = join(&pool, 0);
    let mut parts = vec![];
    loop {
        let part = join.new_empty();
        if part.try_grow(MB).is_err() {
            break;
        }
        parts.push(part);
    }
    assert_eq!(parts.len(), 67, "four fifths of 84 MB");
    assert_eq!(pool.reserved(), 67 * MB);
    drop(parts);
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn unspillable_consumers_of_joins_reach_the_limit() {
    let pool = pool(8 * MB);
    let state = join(&pool, 0);
    fill(&state, MB / 16);
    let buffers = MemoryConsumer::new("HybridJoin[0] buffers").register(&pool);
    buffers.try_grow(8 * MB - pool.reserved()).unwrap();
    buffers.try_grow(1).unwrap_err();
}

#[test]
fn grow_never_fails_and_blocks_others_until_given_back() {
    let pool = pool(MB);
    let join = join(&pool, 0);
    join.grow(3 * MB);
    assert_eq!(pool.reserved(), 3 * MB);
    let sort = sort(&pool);
    sort.try_grow(1).unwrap_err();
    sort.try_grow(0).unwrap();
    join.shrink(2 * MB + MB / 2);
    sort.try_grow(1).unwrap();
    join.try_grow(usize::MAX).unwrap_err();
    sort.try_grow(usize::MAX).unwrap_err();
    drop((join, sort));
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn limits_of_nothing_refuse_everything_that_may_be_refused() {
    for limit in [0, 1] {
        let pool = pool(limit);
        let join = join(&pool, 0);
        join.try_grow(2).unwrap_err();
        join.grow(10);
        assert_eq!(pool.reserved(), 10);
    }
}

#[test]
fn an_unlimited_pool_does_not_overflow() {
    let pool = pool(usize::MAX);
    let join = join(&pool, 0);
    join.try_grow(usize::MAX / 2).unwrap();
    join.try_grow(usize::MAX).unwrap_err();
    sort(&pool).try_grow(usize::MAX / 20).unwrap();
}

#[test]
fn the_limit_can_change_while_memory_is_held() {
    let headroom = Arc::new(HeadroomPool::new(64 * MB));
    let pool: Arc<dyn MemoryPool> = Arc::clone(&headroom) as _;
    let sort = sort(&pool);
    sort.try_grow(32 * MB).unwrap();
    headroom.set_limit(16 * MB);
    assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(limit) if limit == 16 * MB));
    sort.try_grow(1).unwrap_err();
    headroom.set_limit(128 * MB);
    sort.try_grow(96 * MB).unwrap();
}

#[test]
fn errors_say_who_asked_the_limit_the_holders_and_the_setting() {
    let pool = pool(64 * MB);
    let others: Vec<MemoryReservation> = (1..=7)
        .map(|number| {
            let other = MemoryConsumer::new(format!("Other[{number}]")).register(&pool);
            other.try_grow(number * MB).unwrap();
            other
        })
        .collect();
    let sort = sort(&pool);
    let message = sort.try_grow(60 * MB).unwrap_err().to_string();
    for part in [
        "ExternalSorter[0] holds 0 B and asked for 60MiB more",
        "only 36MiB of the memory limit of 64MiB is free",
        "Other[7] (7MiB), Other[6] (6MiB), Other[5] (5MiB), Other[4] (4MiB), Other[3] (3MiB).",
        "--memory-limit",
        "datafusion.runtime.memory_limit",
    ] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    drop(others);
    let message = join(&pool, 3).try_grow(48 * MB).unwrap_err().to_string();
    assert!(message.contains("HybridJoin[3] holds 0 B and asked for 48MiB more"), "{message}");
    assert!(message.contains("leave 16MiB to other operators"), "{message}");
    assert!(message.contains("No consumer holds memory yet."), "{message}");
}

#[test]
fn display_shows_use_and_limit() {
    let pool = pool(64 * MB);
    let sort = sort(&pool);
    sort.try_grow(10 * MB).unwrap();
    assert_eq!(pool.to_string(), "headroom(used: 10MiB, limit: 64MiB, kept from joins: 16MiB)");
}

/// Random requests from several consumers; `check` sees the pool after each.
fn random_requests(seed: u64, pool: &Arc<dyn MemoryPool>, limit: usize, check: impl Fn(&[MemoryReservation])) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut reservations: Vec<MemoryReservation> = vec![];
    for step in 0..2000 {
        match random.random_range(0..10) {
            0 if reservations.len() < 12 => {
                let name = if random.random() { "HybridJoin" } else { "Other" };
                let consumer = MemoryConsumer::new(format!("{name}[{step}]")).with_can_spill(random.random());
                reservations.push(consumer.register(pool));
            }
            1 if !reservations.is_empty() => {
                let victim = random.random_range(0..reservations.len());
                reservations.swap_remove(victim);
            }
            2 if !reservations.is_empty() && reservations.len() < 12 => {
                let parent = random.random_range(0..reservations.len());
                let part = random.random_range(0..=reservations[parent].size());
                let part = reservations[parent].split(part);
                reservations.push(part);
            }
            3 | 4 if !reservations.is_empty() => {
                let reservation = &reservations[random.random_range(0..reservations.len())];
                reservation.shrink(random.random_range(0..=reservation.size()));
            }
            _ if !reservations.is_empty() => {
                let reservation = &reservations[random.random_range(0..reservations.len())];
                let before = reservation.size();
                let additional = random.random_range(0..limit / 3);
                let grown = reservation.try_grow(additional).is_ok();
                assert_eq!(reservation.size(), before + if grown { additional } else { 0 });
            }
            _ => {}
        }
        check(&reservations);
    }
}

#[test]
fn random_requests_never_exceed_the_limit_and_leave_nothing() {
    for seed in 0..50 {
        let limit = MB << (seed % 8);
        let pool = pool(limit);
        random_requests(seed, &pool, limit, |reservations| {
            assert_eq!(pool.reserved(), reservations.iter().map(MemoryReservation::size).sum::<usize>());
            assert!(pool.reserved() <= limit);
        });
        assert_eq!(pool.reserved(), 0);
    }
}

#[test]
fn joins_alone_never_enter_the_headroom() {
    let mut random = StdRng::seed_from_u64(7);
    let limit = 64 * MB;
    let pool = pool(limit);
    let joins: Vec<MemoryReservation> = (0..8).map(|number| join(&pool, number)).collect();
    for _ in 0..5000 {
        let join = &joins[random.random_range(0..joins.len())];
        if random.random_range(0..4) == 0 {
            join.shrink(random.random_range(0..=join.size()));
        } else {
            _ = join.try_grow(random.random_range(0..4 * MB));
        }
        assert!(pool.reserved() <= limit - HeadroomPool::headroom(limit));
    }
}

#[test]
fn threads_share_the_pool() {
    let limit = 8 * MB;
    let pool = pool(limit);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                random_requests(thread, pool, limit, |_| assert!(pool.reserved() <= limit));
            });
        }
    });
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn a_repartition_leaves_room_for_joins_that_begin_to_spill() {
    let pool = pool(64 * MB);
    let repartition = repartition(&pool);
    assert_eq!(fill(&repartition, MB), 56 * MB);
    let error = repartition.try_grow(MB).unwrap_err().to_string();
    assert!(error.contains("repartitions must leave 8MiB to joins that begin to spill"), "{error}");
    // A join may take its share of the rest as state, and another one still finds the buffers that it spills with.
    let state = join(&pool, 0);
    assert_eq!(fill(&state, MB), 6 * MB);
    let floors = MemoryConsumer::new("HybridJoin[1] working buffers").register(&pool);
    floors.try_grow(MB / 2).unwrap();
    // Others may take the rest.
    assert_eq!(fill(&sort(&pool), MB / 2), MB + MB / 2);
}

fn aggregate(pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new("FinalHashAggregateStream[0]").with_can_spill(true).register(pool)
}

#[test]
fn sorts_and_aggregates_leave_room_for_each_other() {
    let pool = pool(64 * MB);
    let step = MB / 16;
    let shared = 64 * MB - HeadroomPool::headroom(64 * MB);
    let first = MemoryConsumer::new("SpillingSort[0]").with_can_spill(true).register(&pool);
    let held = fill(&first, step);
    assert!(held <= shared / 2 && held + 2 * step > shared / 2, "{held} of {shared}");
    let second = aggregate(&pool);
    assert!(fill(&second, step) > shared / 7, "the second got {}", second.size());
    // Memory that is moved to disk makes room for the others.
    first.free();
    assert!(fill(&second, step) > shared * 3 / 10, "the second alone got {}", second.size());
    let error = second.try_grow(MB).unwrap_err().to_string();
    assert!(error.contains("operators that can spill must leave 16MiB to others"), "{error}");
}

#[test]
fn ten_aggregates_that_grow_together_get_equal_shares_and_leave_as_much_again() {
    let pool = pool(64 * MB);
    let all: Vec<MemoryReservation> = (0..10).map(|_| aggregate(&pool)).collect();
    for _ in 0..1000 {
        for aggregate in &all {
            let _ = aggregate.try_grow(MB / 64);
        }
    }
    let share = (64 * MB - HeadroomPool::headroom(64 * MB)) / 21;
    for aggregate in &all {
        assert!(aggregate.size().abs_diff(share) <= MB / 16, "{} of {share}", aggregate.size());
    }
    let merge = MemoryConsumer::new("SortPreservingMergeExec[0]").register(&pool);
    merge.try_grow(HeadroomPool::headroom(64 * MB) + 10 * share).unwrap();
}

#[test]
fn an_aggregate_that_merges_finds_room_for_its_groups() {
    let pool = pool(64 * MB);
    let merge = aggregate(&pool);
    fill(&merge, MB);
    merge.try_grow(MB).unwrap_err();
    // Another reservation of the same consumer cannot spill, so that only the limit bounds it.
    let groups = merge.new_empty();
    groups.try_grow(4 * MB).unwrap();
    groups.try_grow(4 * MB).unwrap();
    groups.try_grow(64 * MB).unwrap_err();
}

#[test]
fn what_a_sort_begins_with_is_bounded_by_the_limit_alone() {
    let pool = pool(8 * MB);
    let others = sort(&pool);
    others.try_grow(6 * MB).unwrap();
    let batch = aggregate(&pool);
    batch.try_grow(MB).unwrap();
    batch.try_grow(MB / 2).unwrap_err();
}

#[test]
fn a_repartition_leaves_room_for_sorts_that_have_not_begun() {
    let pool = pool(64 * MB);
    let sort = MemoryConsumer::new("SpillingSort[0]").with_can_spill(true).register(&pool);
    let repartition = repartition(&pool);
    let held = fill(&repartition, MB);
    assert!((22 * MB..=24 * MB).contains(&held), "a repartition got {held}");
    drop(sort);
    assert_eq!(fill(&repartition, MB), 56 * MB);
}
