//! What is scheduled.

/// The number of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// The number of a user, whose queries queue up behind each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u64);

/// What a query does on the GPU. Aggregates of several queries slow each other there more than joins do (paper 5, section 2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Scans and joins.
    Join,
    /// Aggregates.
    Aggregate,
    /// Both.
    Both,
}

/// Where a query runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// On the CPU alone.
    Cpu,
    /// With a share of the GPU.
    Gpu,
}

/// A query, as it is predicted to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Its number, which no other query has.
    pub id: QueryId,
    /// Who asks for it.
    pub user: UserId,
    /// How much the time of its user counts, beside 1 of others.
    pub weight: f64,
    /// What it does on the GPU.
    pub class: Class,
    /// Seconds on the CPU.
    pub cpu: f64,
    /// Seconds with the GPU; `None` if it cannot use one.
    pub gpu: Option<f64>,
    /// Bytes of GPU memory that it takes there.
    pub gpu_memory: u64,
}

/// The least and the most seconds that a prediction may say.
const SECONDS: (f64, f64) = (1e-6, 1e9);

/// The least and the greatest weight.
const WEIGHTS: (f64, f64) = (1e-3, 1e3);

/// A number in bounds; `other` in place of one that is none.
fn bounded(number: f64, (least, most): (f64, f64), other: f64) -> f64 {
    if number.is_nan() { other } else { number.clamp(least, most) }
}

impl Demand {
    /// The demand with numbers that can be computed with: a prediction may be zero, infinite or no number at all.
    pub fn sound(self) -> Self {
        let (_, most) = SECONDS;
        Self {
            weight: bounded(self.weight, WEIGHTS, 1.0),
            cpu: bounded(self.cpu, SECONDS, most),
            gpu: self.gpu.map(|gpu| bounded(gpu, SECONDS, most)),
            ..self
        }
    }

    /// Seconds at a place; infinite where it cannot run.
    pub fn seconds(&self, place: Place) -> f64 {
        match place {
            Place::Cpu => self.cpu,
            Place::Gpu => self.gpu.unwrap_or(f64::INFINITY),
        }
    }
}
