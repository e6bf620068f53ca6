//! The order in which a stream evaluates conjuncts.

use arrow::buffer::BooleanBuffer;

use super::conjuncts::Conjuncts;

/// Rows of a batch that a measurement evaluates all conjuncts on.
pub(super) const SAMPLE: usize = 2048;

/// Rows with which a measurement is worth its fixed costs.
const LEAST_SAMPLE: usize = 64;

/// Measurements of a stream's first batches.
const FIRST_MEASUREMENTS: usize = 2;

/// Batches between later measurements. With batches of 8192 rows a sample is a hundredth of what is evaluated anyway.
const MEASURED_EVERY: usize = 32;

/// Conjuncts whose pass rates are those among the rows that pass the conjuncts before. Further ones are ranked each by itself: there are
/// few rows left for them, and a filter may have thousands of conjuncts.
const RANKED_TOGETHER: usize = 16;

/// Rows of the whole sample that are mixed with those that pass the conjuncts before. A rate among few rows means little.
const MIXED_IN: f64 = 8.0;

/// Which of the rows of a sample pass a conjunct, and how many nanoseconds a row took.
pub(super) struct Sample {
    pub passing: BooleanBuffer,
    pub nanos: f64,
}

/// The order of a filter's conjuncts in one stream. It begins with the cheapest by guess.
#[derive(Debug)]
pub(super) struct Order {
    groups: Vec<Vec<usize>>,
    /// For each conjunct.
    costs: Vec<Cost>,
    measurements: usize,
    /// Batches since the last measurement.
    batches: usize,
}

/// Nanoseconds that a conjunct takes for a row.
#[derive(Debug)]
struct Cost {
    nanos: f64,
    last: Option<f64>,
}

impl Cost {
    /// Of two measurements in a row the smaller one counts: the thread may have been interrupted in the other.
    fn add(&mut self, measured: f64) {
        self.nanos = self.last.map_or(measured, |last| last.min(measured));
        self.last = Some(measured);
    }
}

impl Order {
    pub fn new(conjuncts: &Conjuncts) -> Self {
        let costs = conjuncts.all.iter().map(|conjunct| Cost { nanos: conjunct.guess, last: None });
        Self { groups: conjuncts.groups.clone(), costs: costs.collect(), measurements: 0, batches: 0 }
    }

    /// Whether the next batch, of this many rows, is measured.
    pub fn measures_next(&mut self, rows: usize) -> bool {
        self.batches += 1;
        let is_due = self.measurements < FIRST_MEASUREMENTS || self.batches >= MEASURED_EVERY;
        if !is_due || rows < LEAST_SAMPLE {
            return false;
        }
        self.measurements += 1;
        self.batches = 0;
        true
    }

    /// The measurements so far.
    pub fn measurements(&self) -> usize {
        self.measurements
    }

    /// Whether a group is worth measuring on this many rows.
    pub fn is_measured(&self, group: usize, rows: usize) -> bool {
        self.groups[group].len() > 1 && rows >= LEAST_SAMPLE
    }

    /// Number of groups of conjuncts. They are evaluated one after the other.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// The conjuncts of a group, in their order.
    pub fn group(&self, group: usize) -> &[usize] {
        &self.groups[group]
    }

    /// Nanoseconds that a conjunct takes for a row, as far as is known.
    pub fn cost(&self, conjunct: usize) -> f64 {
        self.costs[conjunct].nanos
    }

    /// Ranks the conjuncts of a group by samples of the same rows, which are in the order of the group. Returns whether the order has changed.
    pub fn rank(&mut self, group: usize, samples: Vec<Sample>) -> bool {
        let Some(first) = samples.first() else { return false };
        let rows = first.passing.len();
        let mut left: Vec<Candidate> = vec![];
        for (conjunct, sample) in self.groups[group].iter().zip(samples) {
            self.costs[*conjunct].add(sample.nanos);
            let rate = sample.passing.count_set_bits() as f64 / rows.max(1) as f64;
            left.push(Candidate { conjunct: *conjunct, cost: self.cost(*conjunct), rate, passing: sample.passing });
        }
        let mut ranked = vec![];
        let mut passed = BooleanBuffer::new_set(rows);
        while !left.is_empty() && ranked.len() < RANKED_TOGETHER {
            let ranks = left.iter().map(|candidate| candidate.rank_among(&passed)).enumerate();
            let Some((best, _)) = ranks.min_by(|(_, one), (_, other)| one.total_cmp(other)) else { break };
            let best = left.remove(best);
            passed = &passed & &best.passing;
            ranked.push(best.conjunct);
        }
        left.sort_by(|one, other| one.rank(one.rate).total_cmp(&other.rank(other.rate)));
        ranked.extend(left.into_iter().map(|candidate| candidate.conjunct));
        let has_changed = ranked != self.groups[group];
        self.groups[group] = ranked;
        has_changed
    }
}

/// A conjunct that is being ranked.
struct Candidate {
    conjunct: usize,
    cost: f64,
    /// The share of the sample that passes.
    rate: f64,
    passing: BooleanBuffer,
}

impl Candidate {
    /// Its cost for each row that it drops. Of conjuncts that drop nothing the cheapest comes first.
    fn rank(&self, rate: f64) -> f64 {
        const LEAST_DROPPED: f64 = 1e-4;
        self.cost / (1.0 - rate).max(LEAST_DROPPED)
    }

    /// Its rank after conjuncts that these rows have passed.
    fn rank_among(&self, passed: &BooleanBuffer) -> f64 {
        let (rows, passing) = (passed.count_set_bits() as f64, (passed & &self.passing).count_set_bits() as f64);
        self.rank((passing + self.rate * MIXED_IN) / (rows + MIXED_IN))
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::PhysicalExprRef;
    use datafusion::physical_expr::expressions::{binary, col, lit};

    use super::*;

    /// The order of conjuncts `c0 < 0 AND c1 < 0 …`, which are equally cheap by guess.
    fn order(conjuncts: usize) -> Order {
        let fields = (0..conjuncts).map(|number| Field::new(format!("c{number}"), DataType::Int64, true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let condition =
            |number: usize| binary(col(&format!("c{number}"), &schema).unwrap(), Operator::Lt, lit(0i64), &schema);
        let and = |left: PhysicalExprRef, right| binary(left, Operator::And, right, &schema).unwrap();
        let predicate = (0..conjuncts).map(|number| condition(number).unwrap()).reduce(and).unwrap();
        Order::new(&Conjuncts::of(&predicate, &schema).unwrap().unwrap())
    }

    fn sample(nanos: f64, passes: impl Fn(usize) -> bool) -> Sample {
        Sample { passing: BooleanBuffer::collect_bool(1000, passes), nanos }
    }

    #[test]
    fn conjuncts_are_ranked_by_cost_for_each_dropped_row() {
        let mut order = order(4);
        assert_eq!(order.group(0), [0, 1, 2, 3]);
        // Costs for each dropped row: 20, 2.2, 5, and nothing dropped.
        let samples = vec![
            sample(10.0, |row| row / 10 % 2 == 0),
            sample(2.0, |row| row % 10 == 3),
            sample(1.0, |row| row / 20 % 5 != 0),
            sample(0.5, |_| true),
        ];
        assert!(order.rank(0, samples));
        assert_eq!(order.group(0), [1, 2, 0, 3]);
    }

    #[test]
    fn pass_rates_are_those_after_the_conjuncts_before() {
        let mut order = order(3);
        // What passes the first passes the second, too, which alone looks better than the third.
        let samples = vec![
            sample(1.0, |row| row % 10 == 0),
            sample(1.0, |row| row % 5 == 0),
            sample(1.0, |row| row / 10 % 2 == 0),
        ];
        assert!(order.rank(0, samples));
        assert_eq!(order.group(0), [0, 2, 1]);
    }

    #[test]
    fn an_interrupted_measurement_does_not_count() {
        let mut order = order(2);
        let samples = |first| vec![sample(first, |row| row % 2 == 0), sample(3.0, |row| row % 2 == 0)];
        assert!(!order.rank(0, samples(1.0)));
        assert!(!order.rank(0, samples(1e6)), "the thread did something else");
        assert!(order.rank(0, samples(1e6)), "twice in a row it is true");
        assert_eq!(order.group(0), [1, 0]);
    }

    #[test]
    fn many_conjuncts_are_all_ranked() {
        let mut order = order(100);
        let samples = (0..100).map(|number| sample(100.0 - number as f64, |row| row % 2 == 0));
        assert!(order.rank(0, samples.collect()));
        assert_eq!(order.group(0)[0], 99);
        let mut sorted = order.group(0).to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert!(order.group(0)[RANKED_TOGETHER..].is_sorted_by(|one, other| one > other));
    }

    #[test]
    fn the_first_batches_and_then_some_are_measured() {
        let mut order = order(2);
        let mut measured = |rows: usize, batches: usize| (0..batches).filter(|_| order.measures_next(rows)).count();
        assert_eq!(measured(LEAST_SAMPLE - 1, 100), 0);
        assert_eq!(measured(8192, 2 + MEASURED_EVERY - 1), 2);
        assert_eq!(measured(8192, 10 * MEASURED_EVERY), 10);
        assert_eq!(order.measurements(), 12);
    }
}
