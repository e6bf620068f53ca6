//! The best that can be done, by trying everything.

use super::mix::Mix;
use crate::processors::Processors;

/// The least mean turnaround of a mix whose queries all arrive at once, if each runs at one place until it ends, and those at a place
/// that would slow each other one after the other, shortest first: nothing is better for given places. It is a lower bound for
/// [`Cpu::Overlapping`](crate::Cpu::Overlapping). `O(2^n n)`.
pub fn least_mean_turnaround(mix: &Mix, processors: &Processors) -> f64 {
    let count = mix.queries.len();
    let (cores, speed) = processors.cpu_machines();
    let total = |places: u32| {
        let on_gpu = |number: usize| places >> number & 1 == 1;
        let of = |gpu: bool| {
            let queries = mix.queries.iter().enumerate().filter(move |(number, _)| on_gpu(*number) == gpu);
            let mut seconds: Vec<f64> =
                queries.map(|(_, query)| if gpu { query.gpu } else { query.cpu / speed }).collect();
            seconds.sort_by(f64::total_cmp);
            seconds
        };
        // The shortest-first order on equal cores deals the queries out to the cores in turn.
        let in_turn = |seconds: Vec<f64>, cores: usize| {
            let mut ends = vec![0.0; cores];
            seconds.iter().enumerate().fold(0.0, |sum, (number, seconds)| {
                ends[number % cores] += seconds;
                sum + ends[number % cores]
            })
        };
        in_turn(of(false), cores) + in_turn(of(true), 1)
    };
    let least = (0..1_u32 << count.min(20)).map(total).fold(f64::INFINITY, f64::min);
    least / count.max(1) as f64
}
