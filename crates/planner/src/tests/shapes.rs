//! Inner joins whose predicates form a chain, a cycle, a star or a clique.

use crate::{JoinKind, Node, Predicate, PredicateKind, Region, Relation, RelationSet, search::RandomNumbers};

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Chain,
    Cycle,
    Star,
    Clique,
}

pub const SHAPES: [Shape; 4] = [Shape::Chain, Shape::Cycle, Shape::Star, Shape::Clique];

/// A left-deep region of a shape, with random sizes.
pub fn region(shape: Shape, relations: usize, seed: u64) -> Region {
    let mut random = RandomNumbers::new(seed);
    let mut edges: Vec<(usize, usize)> = match shape {
        Shape::Chain | Shape::Cycle => (1..relations).map(|relation| (relation - 1, relation)).collect(),
        Shape::Star => (1..relations).map(|relation| (0, relation)).collect(),
        Shape::Clique => (1..relations).flat_map(|upper| (0..upper).map(move |lower| (lower, upper))).collect(),
    };
    if let Shape::Cycle = shape {
        edges.push((0, relations - 1));
    }
    let sizes: Vec<Relation> = (0..relations)
        .map(|_| Relation::new(10_f64.powf(1.0 + 6.0 * random.share()).round(), (8 + random.below(92)) as f64))
        .collect();
    let predicates: Vec<Predicate> = edges
        .iter()
        .map(|&(one, other)| {
            let rows = sizes[one].rows.max(sizes[other].rows);
            Predicate::equality(one, other, (10.0 * random.share() / rows).min(1.0))
        })
        .collect();
    let root = (1..relations).fold(Node::Leaf(0), |left, relation| {
        let seen = RelationSet::below(relation + 1);
        let here = |number: &usize| {
            predicates[*number].relations.contains(relation) && predicates[*number].relations.is_subset(seen)
        };
        Node::join(JoinKind::Inner, left, Node::Leaf(relation), (0..predicates.len()).filter(here).collect())
    });
    Region { relations: sizes, predicates, root }
}

/// The same with all equalities in one class.
pub fn of_one_class(mut region: Region) -> Region {
    for predicate in &mut region.predicates {
        if let PredicateKind::Equality { class, .. } = &mut predicate.kind {
            *class = Some(0);
        }
    }
    region
}
