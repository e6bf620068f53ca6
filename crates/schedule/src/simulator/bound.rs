//! What no schedule can do better: bounds of linear programs on unrelated machines.

use super::mix::{Mix, SimulatedQuery};
use crate::processors::Processors;

/// A lower bound of the seconds from the first arrival to the last end.
///
/// It is the linear program in which a query may run in parts, on the CPU and on the GPU at the same time: for each arrival, what comes from
/// then on must be done after it. The program has the answer that the queries which gain most by the GPU run there, and one of them in part. `O(n^2 log n)`.
pub fn least_overall(mix: &Mix, processors: &Processors) -> f64 {
    let (cores, speed) = processors.cpu_machines();
    let first = mix.queries.iter().map(|query| query.arrival).fold(f64::INFINITY, f64::min);
    let from = |arrival: f64| {
        let mut rest: Vec<&SimulatedQuery> = mix.queries.iter().filter(|query| query.arrival >= arrival).collect();
        let gain = |query: &SimulatedQuery| query.cpu / query.gpu;
        rest.sort_by(|one, other| gain(other).total_cmp(&gain(one)));
        let longest = rest.iter().map(|query| (query.cpu / speed).min(query.gpu)).fold(0.0, f64::max);
        let capacity = cores as f64 * speed;
        // All on the CPU. Then one after the other goes to the GPU, until both take as long.
        let (mut on_cpu, mut on_gpu) = (rest.iter().map(|query| query.cpu).sum::<f64>() / capacity, 0.0);
        for query in rest {
            let (off_cpu, onto_gpu) = (query.cpu / capacity, query.gpu);
            let part = ((on_cpu - on_gpu) / (off_cpu + onto_gpu)).clamp(0.0, 1.0);
            (on_cpu, on_gpu) = (on_cpu - part * off_cpu, on_gpu + part * onto_gpu);
        }
        arrival - first + on_cpu.max(on_gpu).max(longest)
    };
    mix.queries.iter().map(|query| from(query.arrival)).fold(0.0, f64::max)
}

/// A lower bound of the mean turnaround.
///
/// If all queries arrive at once and each runs at one place until it ends, it is the least: the linear program that assigns queries to
/// places in the order of ends, where the query that is the `k`th from the last of its place adds `k` times its seconds to the sum, has
/// whole numbers as its answer. With other arrivals it is the mean over queries of the shorter of their times. `O(n^3)` times the number of cores.
pub fn least_mean(mix: &Mix, processors: &Processors) -> f64 {
    let (cores, speed) = processors.cpu_machines();
    let count = mix.queries.len();
    let shorter = |query: &SimulatedQuery| (query.cpu / speed).min(query.gpu);
    let are_at_once = mix.queries.iter().all(|query| query.arrival == mix.queries[0].arrival);
    if !are_at_once || count == 0 {
        return mix.queries.iter().map(shorter).sum::<f64>() / count.max(1) as f64;
    }
    // A core has no more than its part of the queries in the best order, which deals them out in turn.
    let of_core = count.div_ceil(cores);
    let place = |query: &SimulatedQuery, number: usize| match number.checked_sub(cores * of_core) {
        Some(from_last) => (from_last + 1) as f64 * query.gpu,
        None => (number / cores + 1) as f64 * query.cpu / speed,
    };
    let places = cores * of_core + count;
    let cost = |query: usize, number: usize| place(&mix.queries[query], number);
    least_assignment(count, places, cost) / count as f64
}

/// The least sum of costs if each row gets a column of its own. There are at least as many columns as rows. Augments along shortest paths
/// (Kuhn, Munkres; Jonker and Volgenant), `O(rows^2 columns)`.
fn least_assignment(rows: usize, columns: usize, cost: impl Fn(usize, usize) -> f64) -> f64 {
    let (mut of_row, mut of_column) = (vec![0.0; rows], vec![0.0; columns]);
    // The row of each column.
    let mut taken: Vec<Option<usize>> = vec![None; columns];
    for row in 0..rows {
        let mut distance = vec![f64::INFINITY; columns];
        let mut before: Vec<Option<usize>> = vec![None; columns];
        let mut is_done = vec![false; columns];
        let (mut current, mut last, mut length) = (row, None, 0.0);
        let end = loop {
            for column in (0..columns).filter(|column| !is_done[*column]) {
                let reached = length + cost(current, column) - of_row[current] - of_column[column];
                if reached < distance[column] {
                    (distance[column], before[column]) = (reached, last);
                }
            }
            let open = (0..columns).filter(|column| !is_done[*column]);
            let Some(nearest) = open.min_by(|one, other| distance[*one].total_cmp(&distance[*other])) else {
                return f64::INFINITY;
            };
            (is_done[nearest], length) = (true, distance[nearest]);
            match taken[nearest] {
                Some(next) => (current, last) = (next, Some(nearest)),
                None => break nearest,
            }
        };
        // Potentials keep all reduced costs of taken columns at zero.
        of_row[row] += length;
        for column in (0..columns).filter(|column| is_done[*column] && *column != end) {
            of_column[column] -= length - distance[column];
            if let Some(taken) = taken[column] {
                of_row[taken] += length - distance[column];
            }
        }
        let mut column = end;
        while let Some(previous) = before[column] {
            taken[column] = taken[previous];
            column = previous;
        }
        taken[column] = Some(row);
    }
    taken.iter().enumerate().filter_map(|(column, row)| row.map(|row| cost(row, column))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processors::{CoRun, Cpu};
    use crate::query::Class;
    use crate::simulator::{MixConfig, least_mean_turnaround};

    fn processors(cpu: Cpu) -> Processors {
        Processors { cpu, co_run: CoRun::default() }
    }

    #[test]
    fn the_least_mean_is_that_of_trying_everything() {
        for seed in 0..200 {
            for cpu in [Cpu::Shared, Cpu::CoreEach(6), Cpu::CoreEach(2), Cpu::Overlapping(1.3)] {
                let config = MixConfig { queries: (1, 9), ..MixConfig::default() };
                let mix = Mix::random(&config, cpu, seed);
                let (bound, least) =
                    (least_mean(&mix, &processors(cpu)), least_mean_turnaround(&mix, &processors(cpu)));
                assert!((bound / least - 1.0).abs() < 1e-9, "seed {seed}, {cpu:?}: {bound}, {least}");
            }
        }
    }

    #[test]
    fn the_least_overall_time_divides_the_work() {
        let shared = processors(Cpu::Shared);
        // The second is as fast at both places: half of the first's time is left for it on the GPU.
        let mix = Mix::of(&[(0.0, Class::Join, 8.0, 2.0), (0.0, Class::Join, 4.0, 4.0)]);
        assert!((least_overall(&mix, &shared) - 4.0).abs() < 1e-9);
        let mix = Mix::of(&[(0.0, Class::Join, 6.0, 6.0), (10.0, Class::Join, 3.0, 1.0)]);
        assert!((least_overall(&mix, &shared) - 11.0).abs() < 1e-9);
        // No query is faster than at its better place.
        let mix = Mix::of(&[(0.0, Class::Join, 6.0, 6.0)]);
        assert!((least_overall(&mix, &processors(Cpu::CoreEach(6))) - 6.0).abs() < 1e-9);
    }
}
