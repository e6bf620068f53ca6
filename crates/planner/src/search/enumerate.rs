//! All pairs of connected sets that may be joined: DPhyp, of Moerkotte and Neumann, "Dynamic programming strikes back", SIGMOD 2008.

use crate::{RelationSet, hypergraph::Hypergraph, space::Space};

/// Sets that are looked at for each pair of the budget. In a hypergraph many are not connected and give no pair.
const STEPS_PER_PAIR: usize = 8;

/// An edge between relations on one side and relations on the other, of which one side has several.
struct Edge(RelationSet, RelationSet);

struct Enumerator<'a, 'b> {
    space: &'b mut Space<'a>,
    /// By relation: the relations that an edge connects with it alone.
    neighbours: Vec<RelationSet>,
    edges: Vec<Edge>,
    most_pairs: usize,
    steps: usize,
}

/// The search passed its budget.
struct Exhausted;

/// All pairs that may be joined, each once, sets before their supersets; none if there are more than `most_pairs`.
pub fn enumerate<'a>(graph: &'a Hypergraph<'a>, most_pairs: usize) -> Option<Space<'a>> {
    let mut space = Space::new(graph);
    let mut neighbours = vec![RelationSet::EMPTY; graph.region.relations.len()];
    let mut edges = vec![];
    for conflicts in &graph.conflicts {
        if conflicts.left.len() == 1 && conflicts.right.len() == 1 {
            for (one, other) in [(conflicts.left, conflicts.right), (conflicts.right, conflicts.left)] {
                one.iter().for_each(|relation| neighbours[relation] |= other);
            }
        } else {
            edges.push(Edge(conflicts.left, conflicts.right));
            edges.push(Edge(conflicts.right, conflicts.left));
        }
    }
    let steps = most_pairs.saturating_mul(STEPS_PER_PAIR);
    let mut enumerator = Enumerator { space: &mut space, neighbours, edges, most_pairs, steps };
    enumerator.all().ok().map(|()| space)
}

impl Enumerator<'_, '_> {
    fn all(&mut self) -> Result<(), Exhausted> {
        for relation in self.space.graph.all.iter().rev() {
            let single = RelationSet::single(relation);
            self.partners(single)?;
            self.grow(single, RelationSet::below(relation + 1))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Exhausted> {
        self.steps = self.steps.checked_sub(1).ok_or(Exhausted)?;
        Ok(())
    }

    /// The relations by which a set can grow without those excluded. Of several that an edge brings together, the first stands for all.
    fn neighbourhood(&self, set: RelationSet, excluded: RelationSet) -> RelationSet {
        let excluded = excluded | set;
        let mut found = set.iter().fold(RelationSet::EMPTY, |found, relation| found | self.neighbours[relation]);
        found = found - excluded;
        for Edge(one, other) in &self.edges {
            if one.is_subset(set) && !other.intersects(excluded) && !other.intersects(found) {
                found |= other.first().map_or(RelationSet::EMPTY, RelationSet::single);
            }
        }
        found
    }

    fn connected(&self, one: RelationSet, other: RelationSet) -> bool {
        one.iter().any(|relation| self.neighbours[relation].intersects(other))
            || self.edges.iter().any(|edge| edge.0.is_subset(one) && edge.1.is_subset(other))
    }

    fn emit(&mut self, one: RelationSet, other: RelationSet) -> Result<(), Exhausted> {
        self.step()?;
        if self.connected(one, other) && self.space.add(one, other) && self.space.pairs.len() > self.most_pairs {
            return Err(Exhausted);
        }
        Ok(())
    }

    /// All larger sets around `set` that have an order (EnumerateCsgRec).
    fn grow(&mut self, set: RelationSet, excluded: RelationSet) -> Result<(), Exhausted> {
        let around = self.neighbourhood(set, excluded);
        for more in around.subsets() {
            self.step()?;
            if self.space.has(set | more) {
                self.partners(set | more)?;
            }
        }
        for more in around.subsets() {
            self.step()?;
            self.grow(set | more, excluded | around)?;
        }
        Ok(())
    }

    /// All sets that `set` can be joined with and that do not begin before it (EmitCsg).
    fn partners(&mut self, set: RelationSet) -> Result<(), Exhausted> {
        let excluded = set | RelationSet::below(set.first().map_or(0, |first| first + 1));
        let around = self.neighbourhood(set, excluded);
        for relation in around.iter().rev() {
            let single = RelationSet::single(relation);
            self.emit(set, single)?;
            self.grow_partner(set, single, excluded | (around & RelationSet::below(relation + 1)))?;
        }
        Ok(())
    }

    /// All larger sets around `partner` (EnumerateCmpRec).
    fn grow_partner(&mut self, set: RelationSet, partner: RelationSet, excluded: RelationSet) -> Result<(), Exhausted> {
        let around = self.neighbourhood(partner, excluded);
        for more in around.subsets() {
            self.step()?;
            if self.space.has(partner | more) {
                self.emit(set, partner | more)?;
            }
        }
        for more in around.subsets() {
            self.step()?;
            self.grow_partner(set, partner | more, excluded | around)?;
        }
        Ok(())
    }
}
