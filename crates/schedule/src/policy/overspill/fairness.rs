//! How long a query may wait.

use crate::board::{Board, Running, Waiting};
use crate::query::Place;

/// The share of a query's time for which it waits for others to come, so that all are planned together.
const GATHER: f64 = 0.005;

/// The fewest seconds from one tick to the next.
const LEAST_TICK: f64 = 1e-6;

/// Times that differ by this share are equal.
const EQUAL: f64 = 1e-9;

/// Whether a query may wait for the GPU any longer: at most as long as it takes on the CPU.
pub(super) fn may_wait_for_gpu(waiting: &Waiting) -> bool {
    waiting.for_gpu < waiting.demand.cpu * (1.0 - EQUAL)
}

/// Whether any query has waited for others to come, or runs for longer than predicted, so that it is time to plan.
pub(super) fn is_time_to_plan(board: &Board) -> bool {
    let is_overdue = board.in_slots().any(Running::is_overdue);
    is_overdue || board.waiting.iter().any(|waiting| gathers_until(waiting) <= board.now * (1.0 + EQUAL))
}

fn gathers_until(waiting: &Waiting) -> f64 {
    waiting.since + GATHER * waiting.demand.cpu.min(waiting.demand.seconds(Place::Gpu))
}

/// When the next query has waited for the GPU long enough, or for others to come, or runs for longer than predicted.
pub(super) fn next_tick(board: &Board) -> Option<f64> {
    let waits = board.waiting.iter().filter(|waiting| waiting.waits_for_gpu && may_wait_for_gpu(waiting));
    let for_gpu = waits.map(|waiting| board.now + waiting.demand.cpu - waiting.for_gpu);
    let for_others = board.waiting.iter().map(gathers_until).filter(|until| *until > board.now * (1.0 + EQUAL));
    let speeds = board.speeds();
    let overdue = board.in_slots().map(|running| {
        board.now + running.until_overdue() / if running.place == Place::Cpu { speeds.cpu } else { speeds.gpu }
    });
    let next = for_gpu.chain(for_others).chain(overdue).min_by(f64::total_cmp);
    // Differences that the clock cannot tell would bring the same tick again.
    next.map(|tick| tick.max(board.now + LEAST_TICK))
}
