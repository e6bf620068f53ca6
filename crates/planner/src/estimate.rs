//! Estimated rows and widths of a set of relations that are joined.
//!
//! An estimate depends on the set alone and not on the order in which it is joined: the written joins are replayed over the relations of
//! the set, and a join of which one side is missing passes the other. Costs of parts then add up to the least cost of the whole.

use crate::{
    PredicateKind, Region, RelationSet, Size,
    hypergraph::Hypergraph,
    operator::{Input, Operator, OperatorKind, WrittenJoin},
};

/// Estimates stay in a range in which products of two are finite.
const LEAST: f64 = 1e-30;
const MOST: f64 = 1e30;
/// Partners are never certain: this share of an anti join's rows remains.
const LEAST_WITHOUT_PARTNER: f64 = 0.05;
/// Bytes of a mark.
const MARK_WIDTH: f64 = 1.0;

/// An estimate of the region that others are computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The rows of a relation.
    Rows(usize),
    /// The selectivity of a predicate.
    Selectivity(usize),
}

/// The base estimates of a region.
#[derive(Clone)]
pub struct Estimates<'a> {
    graph: &'a Hypergraph<'a>,
    relations: Vec<Size>,
    selectivities: Vec<f64>,
    /// By operator: the relations it needs, and the share of all pairs that its condition takes.
    operators: Vec<(RelationSet, f64)>,
}

fn within(value: f64, least: f64, most: f64) -> f64 {
    // `max` takes the other value where one is not a number.
    value.max(least).min(most)
}

fn rows(rows: f64) -> f64 {
    within(rows, LEAST, MOST)
}

fn selectivity(selectivity: f64) -> f64 {
    if selectivity.is_nan() { 1.0 } else { within(selectivity, LEAST, 1.0) }
}

/// The share of all pairs that the condition of an operator takes.
fn share(operator: &Operator, selectivities: &[f64]) -> f64 {
    within(operator.predicates.iter().map(|&number| selectivities[number]).product(), LEAST, 1.0)
}

impl<'a> Estimates<'a> {
    pub fn new(graph: &'a Hypergraph<'a>) -> Self {
        let region: &Region = graph.region;
        let size = |relation: &crate::Relation| Size {
            rows: within(relation.rows, 1.0, MOST),
            width: within(relation.width, 1.0, MOST),
        };
        let selectivities: Vec<f64> = region.predicates.iter().map(|known| selectivity(known.selectivity)).collect();
        let operators = graph.operators.iter().zip(&graph.conflicts);
        let operators = operators.map(|(operator, conflicts)| (conflicts.needed(), share(operator, &selectivities)));
        Self {
            graph,
            relations: region.relations.iter().map(size).collect(),
            operators: operators.collect(),
            selectivities,
        }
    }

    /// The same with one base estimate multiplied.
    pub fn changed(&self, base: Base, factor: f64) -> Self {
        let mut changed = self.clone();
        match base {
            Base::Rows(relation) => {
                let size = &mut changed.relations[relation];
                size.rows = within(size.rows * factor, 1.0, MOST);
            }
            Base::Selectivity(predicate) => {
                let value = &mut changed.selectivities[predicate];
                *value = selectivity(*value * factor);
                for (operator, (_, known)) in self.graph.operators.iter().zip(&mut changed.operators) {
                    if operator.predicates.contains(&predicate) {
                        *known = share(operator, &changed.selectivities);
                    }
                }
            }
        }
        changed
    }

    /// The relations of all sets whose estimates a base estimate has a part in.
    pub fn concerned(&self, base: Base) -> RelationSet {
        match base {
            Base::Rows(relation) => RelationSet::single(relation),
            Base::Selectivity(predicate) => self.graph.region.predicates[predicate].relations,
        }
    }

    /// All base estimates.
    pub fn bases(&self) -> impl Iterator<Item = Base> {
        let relations = (0..self.relations.len()).map(Base::Rows);
        relations.chain((0..self.selectivities.len()).map(Base::Selectivity))
    }

    /// The size of a relation.
    pub fn relation(&self, relation: usize) -> Size {
        self.relations[relation]
    }

    /// The size of the join of a set. `scratch` is overwritten. Takes time linear in joins and predicates.
    pub fn size(&self, set: RelationSet, scratch: &mut Vec<Size>) -> Size {
        let Some(first) = set.first() else { return Size { rows: 1.0, width: 0.0 } };
        let mut last = self.relations[first];
        scratch.clear();
        for join in &self.graph.joins {
            let of = |input| match input {
                Input::Relation(relation) => self.relations[relation],
                Input::Join(join) => scratch[join],
            };
            let (left, right) = (of(join.left), of(join.right));
            last = match (set.intersects(join.left_relations), set.intersects(join.right_relations)) {
                (true, true) => self.join(join, set, left, right),
                (true, false) => left,
                // What both sides lack is not looked at above.
                (false, _) => right,
            };
            scratch.push(last);
        }
        Size { rows: last.rows.max(1.0), width: last.width }
    }

    fn join(&self, join: &WrittenJoin, set: RelationSet, left: Size, right: Size) -> Size {
        let numbers = join.operators.clone();
        let mut complete =
            numbers.zip(&self.operators[join.operators.clone()]).filter(|(_, (needed, _))| needed.is_subset(set));
        let pairs = Size { rows: rows(left.rows * right.rows), width: left.width + right.width };
        if join.kind == OperatorKind::Inner {
            let share: f64 = complete.map(|(_, (_, share))| share).product();
            return Size { rows: rows(pairs.rows * share), ..pairs };
        }
        // A join whose condition uses other relations than these comes later.
        let Some((number, &(_, share))) = complete.next() else { return pairs };
        let operator = &self.graph.operators[number];
        let partnered = self.partnered(operator, operator.right, right.rows, share);
        let matched = pairs.rows * share;
        let unmatched = left.rows * (1.0 - partnered);
        match join.kind {
            OperatorKind::Inner => pairs,
            OperatorKind::Semi => Size { rows: rows(left.rows * partnered), ..left },
            OperatorKind::Anti => Size { rows: rows(unmatched.max(left.rows * LEAST_WITHOUT_PARTNER)), ..left },
            OperatorKind::Mark => Size { width: left.width + MARK_WIDTH, ..left },
            OperatorKind::Outer => Size { rows: rows((matched + unmatched).max(left.rows)), ..pairs },
            OperatorKind::Full => {
                let other = right.rows * (1.0 - self.partnered(operator, operator.left, left.rows, share));
                Size { rows: rows((matched + unmatched + other).max(left.rows.max(right.rows))), ..pairs }
            }
        }
    }

    /// The share of rows that have a partner among `rows` rows of a side: the number of different ones times the share of pairs.
    fn partnered(&self, operator: &Operator, side: RelationSet, rows: f64, share: f64) -> f64 {
        let mut keys = 1.0;
        for &number in &operator.predicates {
            keys *= match self.graph.region.predicates[number].kind {
                PredicateKind::Equality { left, distinct: Some([of_left, of_right]), .. } => {
                    within(if left.is_subset(side) { of_left } else { of_right }, 1.0, MOST)
                }
                PredicateKind::Equality { distinct: None, .. } | PredicateKind::Residual => MOST,
            };
        }
        // A condition without predicates is true.
        let different = if operator.predicates.is_empty() { rows } else { rows.min(keys) };
        (different * share).min(1.0)
    }
}
