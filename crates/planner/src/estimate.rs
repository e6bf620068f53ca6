//! Estimated rows and widths of a set of relations that are joined.
//!
//! An estimate depends on the set alone and not on the order in which it is joined: the written joins are replayed over the relations of
//! the set, and a join of which one side is missing passes the other. Costs of parts then add up to the least cost of the whole.

use std::rc::Rc;

use crate::{
    PredicateKind, Region, RelationSet, Size,
    class::{Classes, Forests},
    correlation::Correlations,
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
    /// By operator: the relations it needs, and the share of all pairs that its condition takes, without what `classes` counts.
    operators: Vec<(RelationSet, f64)>,
    classes: Option<Classes>,
    correlations: Rc<Correlations>,
    /// By operator: the distinct keys of its left and its right side; none if they depend on the set. No change concerns them.
    keys: Rc<[Option<[f64; 2]>]>,
}

/// A side of an operator.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

impl Side {
    fn relations(self, operator: &Operator) -> RelationSet {
        match self {
            Self::Left => operator.left,
            Self::Right => operator.right,
        }
    }
}

/// What an estimate is computed in. One serves for many estimates.
#[derive(Default)]
pub struct Scratch {
    /// By written join.
    sizes: Vec<Size>,
    forests: Forests,
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

/// The share of all pairs that the condition of an operator takes, without what the classes count.
fn share(operator: &Operator, selectivities: &[f64], classes: Option<&Classes>) -> f64 {
    let own = operator.predicates.iter().filter(|&&number| !classes.is_some_and(|classes| classes.counts(number)));
    within(own.map(|&number| selectivities[number]).product(), LEAST, 1.0)
}

/// The distinct values of an equality's expression on a side.
fn distinct(kind: &PredicateKind, side: RelationSet) -> f64 {
    match *kind {
        PredicateKind::Equality { left, distinct: Some([of_left, of_right]), .. } => {
            within(if left.is_subset(side) { of_left } else { of_right }, 1.0, MOST)
        }
        PredicateKind::Equality { distinct: None, .. } | PredicateKind::Residual => MOST,
    }
}

/// The distinct keys of both sides of an operator; none if several of its equalities have a class, which may then be equal in a set.
fn keys(operator: &Operator, region: &Region) -> Option<[f64; 2]> {
    let kinds = || operator.predicates.iter().map(|&number| &region.predicates[number].kind);
    let has_class = |kind: &&PredicateKind| matches!(kind, PredicateKind::Equality { class: Some(_), .. });
    if kinds().filter(has_class).count() > 1 {
        return None;
    }
    // A condition without predicates is true, and has a partner in each row.
    let any = |keys: f64| if operator.predicates.is_empty() { f64::INFINITY } else { keys };
    let side = |side: Side| any(kinds().map(|kind| distinct(kind, side.relations(operator))).product());
    Some([side(Side::Left), side(Side::Right)])
}

impl<'a> Estimates<'a> {
    pub fn new(graph: &'a Hypergraph<'a>) -> Self {
        let region: &Region = graph.region;
        let size = |relation: &crate::Relation| Size {
            rows: within(relation.rows, 1.0, MOST),
            width: within(relation.width, 1.0, MOST),
        };
        let selectivities: Vec<f64> = region.predicates.iter().map(|known| selectivity(known.selectivity)).collect();
        let classes = Classes::of(graph, &selectivities);
        let correlations = Rc::new(Correlations::of(region, &selectivities));
        let operators = graph.operators.iter().zip(&graph.conflicts);
        let operators = operators
            .map(|(operator, conflicts)| (conflicts.needed(), share(operator, &selectivities, classes.as_ref())));
        Self {
            graph,
            relations: region.relations.iter().map(size).collect(),
            operators: operators.collect(),
            selectivities,
            classes,
            correlations,
            keys: graph.operators.iter().map(|operator| keys(operator, region)).collect(),
        }
    }

    /// The same with one base estimate multiplied.
    pub fn changed(&self, base: Base, factor: f64) -> Self {
        let mut changed = self.clone();
        match base {
            Base::Rows(relation) => {
                let size = &mut changed.relations[relation];
                let [fewest, most] = self.graph.region.relations[relation].bounds;
                // Bounds that the estimate itself breaks are no bounds.
                let (fewest, most) = (fewest.min(size.rows), most.max(size.rows));
                size.rows = within(within(size.rows * factor, fewest, most), 1.0, MOST);
            }
            Base::Selectivity(predicate) => {
                let value = &mut changed.selectivities[predicate];
                *value = selectivity(*value * factor);
                if let Some(classes) = &mut changed.classes {
                    classes.change(predicate, *value);
                }
                for (operator, (_, known)) in self.graph.operators.iter().zip(&mut changed.operators) {
                    if operator.predicates.contains(&predicate) {
                        *known = share(operator, &changed.selectivities, changed.classes.as_ref());
                    }
                }
            }
        }
        changed
    }

    /// The relations of all sets whose estimates a base estimate has a part in. An equality has none in the forests of other sets.
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

    /// The size of the join of a set. `scratch` is overwritten. Takes time linear in joins and predicates, and for each class up to cubic
    /// in its relations.
    pub fn size(&self, set: RelationSet, scratch: &mut Scratch) -> Size {
        let Scratch { sizes, forests } = scratch;
        let Some(classes) = &self.classes else {
            // Compiled on its own, as this is the innermost loop of the search, and few regions have classes.
            if self.correlations.is_empty() {
                return self.replay(set, sizes, |_| 1.0);
            }
            return self.replay(set, sizes, |join| self.correlated(join, set));
        };
        forests.clear(classes);
        self.replay(set, sizes, |join| classes.share(join, set, forests) * self.correlated(join, set))
    }

    /// By how much more pairs a written join takes within a set than if the equalities between two relations were independent.
    fn correlated(&self, join: usize, set: RelationSet) -> f64 {
        if self.correlations.is_empty() {
            return 1.0;
        }
        let WrittenJoin { left_relations, right_relations, .. } = self.graph.joins[join];
        let (left, right) = (set & left_relations, set & right_relations);
        let factor = |set| self.correlations.factor(set);
        factor(left | right) / (factor(left) * factor(right))
    }

    /// The size of the join of a set. `of_classes` gives the share of pairs that equalities with a class take at a written join.
    fn replay(&self, set: RelationSet, sizes: &mut Vec<Size>, mut of_classes: impl FnMut(usize) -> f64) -> Size {
        let Some(first) = set.first() else { return Size { rows: 1.0, width: 0.0 } };
        let mut last = self.relations[first];
        sizes.clear();
        for (number, join) in self.graph.joins.iter().enumerate() {
            let of = |input| match input {
                Input::Relation(relation) => self.relations[relation],
                Input::Join(join) => sizes[join],
            };
            let (left, right) = (of(join.left), of(join.right));
            last = match (set.intersects(join.left_relations), set.intersects(join.right_relations)) {
                (true, true) => self.join(join, set, of_classes(number), left, right),
                (true, false) => left,
                // What both sides lack is not looked at above.
                (false, _) => right,
            };
            sizes.push(last);
        }
        Size { rows: last.rows.max(1.0), width: last.width }
    }

    /// The size of a written join of two sides. `of_classes` is the share of pairs that equalities with a class take.
    // A call would make planning up to a tenth slower.
    #[inline(always)]
    fn join(&self, join: &WrittenJoin, set: RelationSet, of_classes: f64, left: Size, right: Size) -> Size {
        let numbers = join.operators.clone();
        let mut complete =
            numbers.zip(&self.operators[join.operators.clone()]).filter(|(_, (needed, _))| needed.is_subset(set));
        let pairs = Size { rows: rows(left.rows * right.rows), width: left.width + right.width };
        if join.kind == OperatorKind::Inner {
            let share: f64 = complete.map(|(_, (_, share))| share).product();
            return Size { rows: rows(pairs.rows * share * of_classes), ..pairs };
        }
        // A join whose condition uses other relations than these comes later.
        let Some((number, &(_, share))) = complete.next() else { return pairs };
        let share = share * of_classes;
        let partnered = self.partnered(number, Side::Right, set, right.rows, share);
        let matched = pairs.rows * share;
        let unmatched = left.rows * (1.0 - partnered);
        match join.kind {
            OperatorKind::Inner => pairs,
            OperatorKind::Semi => Size { rows: rows(left.rows * partnered), ..left },
            OperatorKind::Anti => Size { rows: rows(unmatched.max(left.rows * LEAST_WITHOUT_PARTNER)), ..left },
            OperatorKind::Mark => Size { width: left.width + MARK_WIDTH, ..left },
            OperatorKind::Outer => Size { rows: rows((matched + unmatched).max(left.rows)), ..pairs },
            OperatorKind::Full => {
                let other = right.rows * (1.0 - self.partnered(number, Side::Left, set, left.rows, share));
                Size { rows: rows((matched + unmatched + other).max(left.rows.max(right.rows))), ..pairs }
            }
        }
    }

    /// The share of rows that have a partner among `rows` rows of a side: the number of different ones times the share of pairs.
    // As above.
    #[inline(always)]
    fn partnered(&self, number: usize, side: Side, set: RelationSet, rows: f64, share: f64) -> f64 {
        let keys = match self.keys[number] {
            Some(keys) => keys[side as usize],
            None => self.keys_within(&self.graph.operators[number], side, set),
        };
        (rows.min(keys) * share).min(1.0)
    }

    /// The distinct keys of a side of an operator in a set. Expressions that are equal in each row of the side are one.
    fn keys_within(&self, operator: &Operator, side: Side, set: RelationSet) -> f64 {
        let relations = side.relations(operator);
        let mut keys = 1.0;
        for (place, &one) in operator.predicates.iter().enumerate() {
            let (before, rest) = operator.predicates.split_at(place);
            let equal = |other: &&usize| **other == one || self.are_equal(one, **other, relations & set);
            if !before.iter().any(|other| equal(&other)) {
                let known = |&other: &usize| distinct(&self.graph.region.predicates[other].kind, relations);
                keys *= rest.iter().filter(equal).map(known).fold(MOST, f64::min);
            }
        }
        keys
    }

    /// Whether the expressions of two predicates on a side have one value in each of its rows.
    fn are_equal(&self, one: usize, other: usize, side: RelationSet) -> bool {
        let of = |predicate: usize| match self.graph.region.predicates[predicate].kind {
            PredicateKind::Equality { left, right, class: Some(class), .. } => Some((class, (left | right) & side)),
            _ => None,
        };
        let (Some((class, end)), Some((other_class, other_end))) = (of(one), of(other)) else { return false };
        let are_connected = |classes: &Classes| classes.connect(one, end | other_end, side);
        class == other_class && (end == other_end || self.classes.as_ref().is_some_and(are_connected))
    }
}
