//! Equalities that follow from others, and how much they count in estimates.
//!
//! The equalities of a class are the edges of a graph between the relations that they name. Of the edges within a set of relations, those
//! of a spanning forest imply the others, so the forest alone counts. It is the forest of the least selective equalities (Kruskal): where the
//! values of a smaller domain are among those of larger ones, three tables with 10, 10 and 1,000 values meet in 1 of 10 times 1,000 cases (rule
//! LS of Swami, Schiefer, On the Estimation of Join Result Sizes, EDBT 1994).
//!
//! An estimate replays the written joins, from below. Each join adds its equalities to the forests, and counts what they select more than
//! before. So the joins of a set count the forest of the set, and those below a join the forest of their own relations.

use std::{cmp::Ordering, collections::BTreeMap, ops::Range};

use crate::{PredicateKind, RelationSet, hypergraph::Hypergraph};

/// An edge of a class.
#[derive(Clone, Copy)]
struct Equality {
    predicate: usize,
    ends: RelationSet,
    /// Whether its ends are on different sides of the written join.
    straddles: bool,
    /// The relations that its operator needs.
    needed: RelationSet,
    /// The logarithm of its selectivity. Products of many selectivities would leave the range of numbers.
    weight: f64,
}

impl Equality {
    /// The least selective first. Equal ones are in the order of their numbers, so that a forest depends on the set alone.
    fn order(&self, other: &Self) -> Ordering {
        other.weight.total_cmp(&self.weight).then(self.predicate.cmp(&other.predicate))
    }
}

/// The equalities of one class at one written join.
#[derive(Clone)]
struct Group {
    class: usize,
    equalities: Range<usize>,
}

/// The classes of a region that have a redundant equality: one that the others of its class imply. A class without one needs no forest, as all of its
/// equalities count.
#[derive(Clone)]
pub struct Classes {
    count: usize,
    /// By written join, and for each by class, the least selective first.
    equalities: Vec<Equality>,
    groups: Vec<Group>,
    /// By written join: its groups.
    joins: Vec<Range<usize>>,
}

/// The forests of an estimate, as far as its joins are replayed. Those of parts that are not yet joined lie side by side.
#[derive(Default)]
pub struct Forests {
    /// By class: equalities, the least selective first.
    classes: Vec<Vec<Equality>>,
    next: Vec<Equality>,
}

/// Connected components of a graph of relations. Relations without an edge are left out, so there are at most half as many as relations.
struct Components {
    sets: [RelationSet; RelationSet::CAPACITY / 2],
    count: usize,
}

impl Components {
    fn new() -> Self {
        Self { sets: [RelationSet::EMPTY; RelationSet::CAPACITY / 2], count: 0 }
    }

    /// Adds an edge between two relations. Says whether it connects what was not connected.
    fn connect(&mut self, ends: RelationSet) -> bool {
        let (mut connected, mut kept) = (ends, 0);
        for number in 0..self.count {
            let set = self.sets[number];
            if ends.is_subset(set) {
                return false;
            }
            if set.intersects(ends) {
                connected |= set;
            } else {
                self.sets[kept] = set;
                kept += 1;
            }
        }
        self.sets[kept] = connected;
        self.count = kept + 1;
        true
    }
}

/// Whether an equality of the class follows from others. Each has the written join that it belongs to.
fn has_cycle(class: &[(usize, Equality)]) -> bool {
    let mut components = Components::new();
    class.iter().any(|(_, equality)| !components.connect(equality.ends))
}

impl Forests {
    /// Begins an estimate.
    pub fn clear(&mut self, classes: &Classes) {
        self.classes.resize_with(classes.count, Vec::new);
        self.classes.iter_mut().for_each(Vec::clear);
    }

    /// Adds equalities to the forest of a class, the least selective first. Gives what the weight of the forest grows by.
    fn grow<'a>(&mut self, class: usize, added: impl Iterator<Item = &'a Equality>) -> f64 {
        let mut added = added.peekable();
        let Some(first) = added.next() else { return 0.0 };
        if first.straddles && added.peek().is_none() {
            // No other path connects both sides.
            let place = self.classes[class].partition_point(|known| known.order(first).is_lt());
            self.classes[class].insert(place, *first);
            return first.weight;
        }
        let mut added = std::iter::once(first).chain(added).peekable();
        let (mut components, mut growth) = (Components::new(), 0.0);
        let mut known = self.classes[class].iter().peekable();
        self.next.clear();
        loop {
            let is_known = match (known.peek(), added.peek()) {
                (Some(known), Some(added)) => known.order(added).is_lt(),
                (known, _) => known.is_some(),
            };
            let Some(equality) = (if is_known { known.next() } else { added.next() }) else { break };
            let counts = components.connect(equality.ends);
            if counts {
                self.next.push(*equality);
            }
            match (is_known, counts) {
                (false, true) => growth += equality.weight,
                (true, false) => growth -= equality.weight,
                _ => {}
            }
        }
        std::mem::swap(&mut self.classes[class], &mut self.next);
        growth
    }
}

impl Classes {
    /// The classes of a region, if it has any. Takes the selectivities of all predicates, from above 0 to 1.
    pub fn of(graph: &Hypergraph, selectivities: &[f64]) -> Option<Self> {
        let mut classes: BTreeMap<usize, Vec<(usize, Equality)>> = BTreeMap::new();
        for (join, written) in graph.joins.iter().enumerate() {
            for number in written.operators.clone() {
                let needed = graph.conflicts[number].needed();
                for &predicate in &graph.operators[number].predicates {
                    let kind = graph.region.predicates[predicate].kind;
                    if let PredicateKind::Equality { left, right, class: Some(class), .. } = kind {
                        let (ends, weight) = (left | right, selectivities[predicate].ln());
                        let straddles =
                            ends.intersects(written.left_relations) && ends.intersects(written.right_relations);
                        let equality = Equality { predicate, ends, straddles, needed, weight };
                        classes.entry(class).or_default().push((join, equality));
                    }
                }
            }
        }
        classes.retain(|_, class| has_cycle(class));
        if classes.is_empty() {
            return None;
        }
        let mut found = Self { count: classes.len(), equalities: vec![], groups: vec![], joins: vec![] };
        for join in 0..graph.joins.len() {
            let first_group = found.groups.len();
            for (class, equalities) in classes.values().enumerate() {
                let first = found.equalities.len();
                let here = equalities.iter().filter(|(place, _)| *place == join);
                found.equalities.extend(here.map(|(_, equality)| equality));
                if found.equalities.len() > first {
                    found.equalities[first..].sort_by(Equality::order);
                    found.groups.push(Group { class, equalities: first..found.equalities.len() });
                }
            }
            found.joins.push(first_group..found.groups.len());
        }
        Some(found)
    }

    fn group_of(&self, predicate: usize) -> Option<&Group> {
        let place = self.equalities.iter().position(|equality| equality.predicate == predicate)?;
        self.groups.iter().find(|group| group.equalities.contains(&place))
    }

    /// Changes the selectivity of a predicate, if it is in a class.
    pub fn change(&mut self, predicate: usize, selectivity: f64) {
        let Some(place) = self.group_of(predicate).map(|group| group.equalities.clone()) else { return };
        let group = &mut self.equalities[place];
        group.iter_mut().filter(|equality| equality.predicate == predicate).for_each(|equality| {
            equality.weight = selectivity.ln();
        });
        group.sort_by(Equality::order);
    }

    /// Whether [`Classes::share`] counts a predicate, so that nothing else must.
    pub fn counts(&self, predicate: usize) -> bool {
        self.equalities.iter().any(|equality| equality.predicate == predicate)
    }

    /// What the equalities of a written join multiply the pairs of its sides by, in the estimate of a set. The joins come in post-order. More than 1
    /// if the set has less selective equalities than its sides.
    pub fn share(&self, join: usize, set: RelationSet, forests: &mut Forests) -> f64 {
        let mut growth = 0.0;
        for group in &self.groups[self.joins[join].clone()] {
            let complete = self.equalities[group.equalities.clone()].iter();
            growth += forests.grow(group.class, complete.filter(|equality| equality.needed.is_subset(set)));
        }
        growth.exp()
    }

    /// Whether equalities within a set connect two relations, which the class of a predicate names.
    pub fn connect(&self, predicate: usize, ends: RelationSet, set: RelationSet) -> bool {
        let Some(class) = self.group_of(predicate).map(|group| group.class) else { return false };
        let mut components = Components::new();
        for group in self.groups.iter().filter(|group| group.class == class) {
            let equalities = &self.equalities[group.equalities.clone()];
            for equality in equalities.iter().filter(|equality| equality.needed.is_subset(set)) {
                components.connect(equality.ends);
            }
        }
        !components.connect(ends)
    }
}
