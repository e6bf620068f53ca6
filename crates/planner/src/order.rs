//! Chooses an order.

use crate::{
    Base, CostModel, Estimate, Node, Plan, Reason, Region, RegionError,
    conflict::Properties,
    estimate::Estimates,
    hypergraph::Hypergraph,
    search::{Objective, RandomNumbers, add_intervals, enumerate, greedy, merged, optimum, sampled},
    space::Space,
    steps::{Steps, total},
};

/// Which order is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A cheaper order than the written one, if that is safe.
    #[default]
    Auto,
    /// The written order.
    AsWritten,
    /// A random valid order, the same for a seed.
    Random(u64),
}

/// How to look for an order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Which order is wanted.
    pub mode: Mode,
    /// The most pairs of connected sets that are looked at for all orders. A region with more is searched in part.
    pub most_pairs: usize,
    /// The share of the written order's cost that an order must gain.
    pub least_gain: f64,
    /// The factor by which any one estimate may be wrong, upwards or downwards, so that an order still gains.
    pub doubt: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::Auto, most_pairs: 10_000, least_gain: 0.15, doubt: 10.0 }
    }
}

/// How often an order that one wrong estimate would spoil is replaced by one that is good there too.
const CAUTIOUS_ROUNDS: usize = 3;
/// How often groups are merged at random until one order is complete. Rules rarely stop more than one attempt.
const RANDOM_ATTEMPTS: usize = 64;

/// Orders the joins of a region.
///
/// With [`Mode::Auto`] the written order stays, unless one is found that gains more than `least_gain`, and costs still less than the written
/// one if any one estimate (the rows of a relation, or the selectivity of a predicate) is wrong by the factor `doubt`. If the cheapest order
/// fails that, the estimate that spoils it most is added to what orders are judged by, and the search repeated; at last the greedy order is tried.
///
/// The time is linear in `most_pairs` times the predicates; beyond that budget it is cubic in the relations. The answer is the same in each
/// run. Each order gives the rows of the written one, and the root hides the same relations.
///
/// # Errors
/// As [`Region::check`] says.
pub fn order(region: &Region, options: &Options, model: &dyn CostModel) -> Result<Plan, RegionError> {
    region.check()?;
    let graph = Hypergraph::new(region, &Properties::STANDARD);
    Ok(Ordering::new(&graph, options, model).plan())
}

/// What an order gains over the written one.
struct Verdict {
    gain: f64,
    /// The wrong estimate under which it loses most, if there is one, and the factor by which it is wrong.
    spoiled: Option<(Base, f64)>,
}

/// An estimate that may be wrong.
struct Doubt {
    base: Base,
    factor: f64,
    /// What the written order costs if it is.
    written_cost: f64,
}

/// A region whose order is looked for.
pub(crate) struct Ordering<'a> {
    graph: &'a Hypergraph<'a>,
    options: &'a Options,
    model: &'a dyn CostModel,
    pub estimates: Estimates<'a>,
    written: Steps,
}

impl<'a> Ordering<'a> {
    pub fn new(graph: &'a Hypergraph<'a>, options: &'a Options, model: &'a dyn CostModel) -> Self {
        let written = Steps::of(graph, &graph.region.root);
        Self { graph, options, model, estimates: Estimates::new(graph), written }
    }

    pub fn plan(&self) -> Plan {
        let as_written = || self.graph.region.root.clone();
        let (root, reason) = match self.options.mode {
            Mode::AsWritten => (as_written(), Reason::Asked),
            _ if self.graph.joins.is_empty() => (as_written(), Reason::NoneCheaper),
            Mode::Random(seed) => (self.random(seed), Reason::Random(seed)),
            Mode::Auto => match self.choose() {
                Ok((root, reason)) => (root, reason),
                Err(reason) => (as_written(), reason),
            },
        };
        let steps = Steps::of(self.graph, &root);
        let estimates = steps.estimates(&self.estimates, self.model);
        let written_cost = total(&self.written.estimates(&self.estimates, self.model));
        Plan { cost: total(&estimates), root, estimates, written_cost, reason }
    }

    /// Of all orders each is equally likely. Where they are too many, each can come.
    pub fn random(&self, seed: u64) -> Node {
        let mut random = RandomNumbers::new(seed);
        let found = match enumerate(self.graph, self.options.most_pairs) {
            Some(mut space) => {
                space.sort();
                sampled(&space, &mut random)
            }
            None => (0..RANDOM_ATTEMPTS).find_map(|_| merged(self.graph, &mut random)),
        };
        found.unwrap_or_else(|| self.graph.region.root.clone())
    }

    /// The space that is searched, and whether it has all orders.
    pub fn space(&self) -> (Space<'a>, bool) {
        if let Some(space) = enumerate(self.graph, self.options.most_pairs) {
            return (space, true);
        }
        let mut space = Space::new(self.graph);
        add_intervals(&mut space, &self.graph.region.root.leaves());
        if let Some(sequence) = self.greedy().map(|root| root.leaves()) {
            add_intervals(&mut space, &sequence);
        }
        space.sort();
        (space, false)
    }

    /// The greedy order, each join with its cheaper build side.
    pub fn greedy(&self) -> Option<Node> {
        optimum(&greedy(self.graph, &self.estimates)?, &self.objective(&[]))
    }

    /// Costs relative to those of the written order: by the estimates, and by those that are wrong.
    pub fn objective(&self, wrong: &[Estimates<'a>]) -> Objective<'a> {
        let weighted = |estimates: &Estimates<'a>| {
            let cost = total(&self.written.estimates(estimates, self.model));
            (estimates.clone(), 1.0 / cost.max(f64::MIN_POSITIVE))
        };
        let estimates = std::iter::once(&self.estimates).chain(wrong).map(weighted).collect();
        Objective { model: self.model, estimates }
    }

    /// An order that is cheaper and safe, or why the written one stays.
    fn choose(&self) -> Result<(Node, Reason), Reason> {
        let (space, all) = self.space();
        let mut wrong: Vec<Estimates<'a>> = vec![];
        let doubts = self.doubts();
        let mut refusal = Reason::NoneCheaper;
        for round in 0..=CAUTIOUS_ROUNDS {
            // The last resort is an order by another rule.
            let candidate =
                if round < CAUTIOUS_ROUNDS { optimum(&space, &self.objective(&wrong)) } else { self.greedy() };
            let Some(candidate) = candidate else { continue };
            let verdict = self.judge(&candidate, &doubts);
            let gain = verdict.gain;
            match verdict.spoiled {
                // If the cheapest order gains too little, all do.
                _ if gain <= 0.0 && round == 0 => return Err(Reason::NoneCheaper),
                _ if gain <= self.options.least_gain && round == 0 => {
                    return Err(Reason::SmallGain { gain, least: self.options.least_gain });
                }
                _ if gain <= self.options.least_gain => {}
                None => return Ok((candidate, Reason::Cheaper { gain, all })),
                Some((estimate, factor)) => {
                    if round == 0 {
                        refusal = Reason::Fragile { gain, estimate, factor };
                    }
                    wrong.push(self.estimates.changed(estimate, factor));
                }
            }
        }
        Err(refusal)
    }

    /// The base estimates, each wrong in either direction, and what the written order costs then.
    fn doubts(&self) -> Vec<Doubt> {
        let known = self.written.estimates(&self.estimates, self.model);
        let factors = [self.options.doubt, 1.0 / self.options.doubt];
        let wrong = self.estimates.bases().flat_map(|base| factors.map(|factor| (base, factor)));
        wrong
            .map(|(base, factor)| {
                let written_cost = self.doubted_cost(&self.written, &known, base, factor);
                Doubt { base, factor, written_cost }
            })
            .collect()
    }

    /// The cost of an order if a base estimate is wrong by a factor.
    fn doubted_cost(&self, steps: &Steps, known: &[Estimate], base: Base, factor: f64) -> f64 {
        let concerned = self.estimates.concerned(base);
        steps.changed_cost(known, concerned, &self.estimates.changed(base, factor), self.model)
    }

    fn judge(&self, candidate: &Node, doubts: &[Doubt]) -> Verdict {
        let steps = Steps::of(self.graph, candidate);
        let known = steps.estimates(&self.estimates, self.model);
        let share = |cost: f64, written_cost: f64| 1.0 - cost / written_cost.max(f64::MIN_POSITIVE);
        let gain = share(total(&known), total(&self.written.estimates(&self.estimates, self.model)));
        let (mut spoiled, mut least) = (None, 0.0);
        if gain > self.options.least_gain {
            for doubt in doubts {
                let cost = self.doubted_cost(&steps, &known, doubt.base, doubt.factor);
                let gain = share(cost, doubt.written_cost);
                if gain <= least {
                    least = gain;
                    spoiled = Some((doubt.base, doubt.factor));
                }
            }
        }
        Verdict { gain, spoiled }
    }
}
