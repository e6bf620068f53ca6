//! Mixes of queries.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp, Normal};

use crate::processors::Cpu;
use crate::query::{Class, Demand, QueryId, UserId};

/// A query and what it takes in truth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedQuery {
    /// The demand that the schedule sees, with predicted times.
    pub demand: Demand,
    /// When it arrives.
    pub arrival: f64,
    /// Seconds that it takes alone on the CPU.
    pub cpu: f64,
    /// Seconds that it takes alone with the GPU.
    pub gpu: f64,
}

/// Queries, in the order of arrival. The number of each is its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// The queries.
    pub queries: Vec<SimulatedQuery>,
    /// The share of a query's work that is lost when it leaves the GPU.
    pub move_cost: f64,
}

/// When queries arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ArrivalPattern {
    /// All at the beginning.
    AtOnce,
    /// At random. At a load of 1 as many queries arrive as the CPU and the GPU together can do, if either takes queries as they come.
    Poisson {
        /// The load.
        load: f64,
    },
}

/// The standard deviation of the logarithm of predicted by true times, which is normally distributed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PredictionError {
    /// A query is as much larger or smaller as predicted on the CPU as on the GPU: the number of its rows is wrong.
    OfSize(f64),
    /// The times on the CPU and on the GPU are wrong independently: so is which of them is less.
    OfEach(f64),
}

/// What random mixes are like.
#[derive(Debug, Clone, PartialEq)]
pub struct MixConfig {
    /// The least and the most queries.
    pub queries: (usize, usize),
    /// The least and the most seconds on the CPU, evenly distributed by their logarithm.
    pub cpu: (f64, f64),
    /// The least and the most times that the GPU is as fast.
    pub speed_up: (f64, f64),
    /// When they arrive.
    pub arrivals: ArrivalPattern,
    /// How wrong predictions are.
    pub error: PredictionError,
    /// The share of a query's work that is lost when it leaves the GPU.
    pub move_cost: f64,
}

impl Default for MixConfig {
    fn default() -> Self {
        Self {
            queries: (4, 16),
            cpu: (1.0, 30.0),
            speed_up: (0.3, 6.0),
            arrivals: ArrivalPattern::AtOnce,
            error: PredictionError::OfSize(0.0),
            move_cost: Mix::MOVE_COST,
        }
    }
}

impl Mix {
    /// The share of a query's work that is supposed to be lost when it leaves the GPU.
    pub const MOVE_COST: f64 = 0.02;

    /// A mix of queries that are predicted exactly, each of a user of its own: arrival, class, seconds on the CPU and with the GPU.
    pub fn of(queries: &[(f64, Class, f64, f64)]) -> Self {
        let query = |(number, (arrival, class, cpu, gpu)): (usize, &(f64, Class, f64, f64))| SimulatedQuery {
            demand: Demand {
                id: QueryId(number as u64),
                user: UserId(number as u64),
                weight: 1.0,
                class: *class,
                cpu: *cpu,
                gpu: Some(*gpu),
                gpu_memory: 0,
            },
            arrival: *arrival,
            cpu: *cpu,
            gpu: *gpu,
        };
        Self { queries: queries.iter().enumerate().map(query).collect(), move_cost: Self::MOVE_COST }
    }

    /// A random mix for a machine with this CPU.
    pub fn random(config: &MixConfig, cpu: Cpu, seed: u64) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let count = random.random_range(config.queries.0..=config.queries.1);
        let log = |(least, most): (f64, f64)| least.ln()..=most.ln();
        let mut arrival = 0.0;
        let capacity = match cpu {
            Cpu::CoreEach(cores) => cores as f64,
            Cpu::Shared => 1.0,
            Cpu::Overlapping(gain) => gain.max(1.0),
        };
        // The means of seconds on the CPU, and of the inverse of the speed-up.
        let ((least, most), (slowest, fastest)) = (config.cpu, config.speed_up);
        let on_cpu = (most - least) / (most / least).ln();
        let on_gpu = on_cpu * (fastest / slowest).ln() / (fastest - slowest);
        let rate = capacity / on_cpu + 1.0 / on_gpu;
        let mut queries = vec![];
        for _ in 0..count {
            let cpu = random.random_range(log(config.cpu)).exp();
            let gpu = cpu / random.random_range(config.speed_up.0..=config.speed_up.1);
            let class = *[Class::Join, Class::Aggregate, Class::Both].choose(random).unwrap_or(&Class::Join);
            queries.push((arrival, class, cpu, gpu));
            if let ArrivalPattern::Poisson { load } = config.arrivals {
                arrival += Exp::new(load * rate).map_or(0.0, |gaps| gaps.sample(random));
            }
        }
        let mut mix = Self::of(&queries);
        mix.move_cost = config.move_cost;
        let (PredictionError::OfSize(deviation) | PredictionError::OfEach(deviation)) = config.error;
        let error = Normal::new(0.0, deviation);
        for query in &mut mix.queries {
            let [one, other] = [(); 2].map(|()| error.map_or(1.0, |error| error.sample(random).exp()));
            let of_gpu = if matches!(config.error, PredictionError::OfSize(_)) { one } else { other };
            (query.demand.cpu, query.demand.gpu) = (query.cpu * one, Some(query.gpu * of_gpu));
        }
        mix
    }
}
