//! The relations and operators of a region as a hypergraph, and which two sets of relations may be joined.

use crate::{
    Join, JoinKind, Node, Region, RelationSet,
    conflict::{Conflicts, Properties, detect},
    operator::{Operator, OperatorKind, Written, WrittenJoin},
};

/// Operators are edges between the relations that they need on either side.
pub struct Hypergraph<'a> {
    pub region: &'a Region,
    pub joins: Vec<WrittenJoin>,
    pub operators: Vec<Operator>,
    pub conflicts: Vec<Conflicts>,
    pub all: RelationSet,
    /// By relation: the operators that need it.
    needing: Vec<Vec<usize>>,
}

/// How two sets of relations are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The kind of the join whose left side is the first set.
    pub kind: JoinKind,
    /// Whether the first set must remain the left side.
    pub fixed: bool,
    /// Whether a hash table finds the pairs.
    pub hashed: bool,
}

impl<'a> Hypergraph<'a> {
    /// Takes a region that passed its check.
    pub fn new(region: &'a Region, properties: &Properties) -> Self {
        let written = Written::new(region);
        let conflicts = detect(&written.operators, properties);
        Self::of(region, written, conflicts)
    }

    /// Takes the joins of the region and the conflicts of their operators.
    pub fn of(region: &'a Region, written: Written, conflicts: Vec<Conflicts>) -> Self {
        let mut needing = vec![vec![]; region.relations.len()];
        for (number, conflicts) in conflicts.iter().enumerate() {
            conflicts.needed().iter().for_each(|relation| needing[relation].push(number));
        }
        let Written { joins, operators } = written;
        Self { region, joins, operators, conflicts, all: RelationSet::below(region.relations.len()), needing }
    }

    /// The operators whose relations these sets bring together, in no certain order.
    fn completed(&self, first: RelationSet, second: RelationSet) -> impl Iterator<Item = (&Operator, &Conflicts)> {
        let (small, large) = if first.len() < second.len() { (first, second) } else { (second, first) };
        let candidates =
            small.iter().flat_map(|relation| self.needing[relation].iter().map(move |&number| (relation, number)));
        candidates.filter_map(move |(relation, number)| {
            let conflicts = &self.conflicts[number];
            let needed = conflicts.needed();
            let completed = needed.is_subset(first | second) && needed.intersects(large);
            // One that needs several relations of the small set is taken once.
            (completed && (needed & small).first() == Some(relation)).then(|| (&self.operators[number], conflicts))
        })
    }

    /// How two separate sets of relations are joined, whose own joins are done; none if they may not be.
    ///
    /// Each operator is applied where its relations come together. Predicates of inner joins may be applied together. An operator of
    /// any other kind is applied alone: a predicate beside it would be a part of its condition, not a filter above it. One operator at
    /// least must have all that it needs of one side in one set, or the join would be a cross product.
    pub fn meeting(&self, first: RelationSet, second: RelationSet) -> Option<Meeting> {
        let both = first | second;
        let (mut alone, mut inner, mut connected, mut hashed) = (None, false, false, false);
        for (operator, conflicts) in self.completed(first, second) {
            if !conflicts.allows(both) || alone.is_some() {
                return None;
            }
            let (forward, backward) = (conflicts.spans(first, second), conflicts.spans(second, first));
            hashed |= operator.predicates.iter().any(|&number| self.region.predicates[number].hashes(first, second));
            if operator.kind == OperatorKind::Inner && !operator.fixed {
                inner = true;
                connected |= forward || backward;
            } else if inner || !(forward || backward) {
                return None;
            } else {
                let fits = !operator.fixed || forward != operator.swapped;
                alone = Some((operator, backward));
                if !fits {
                    return None;
                }
            }
        }
        match alone {
            Some((operator, swapped)) => {
                Some(Meeting { kind: operator.kind.join_kind(swapped), fixed: operator.fixed, hashed })
            }
            None => connected.then_some(Meeting { kind: JoinKind::Inner, fixed: false, hashed }),
        }
    }

    /// The join of two trees, whose relations are these sets, if they may be joined with the first on the left.
    pub fn join(&self, left: (Node, RelationSet), right: (Node, RelationSet)) -> Option<Node> {
        let meeting = self.meeting(left.1, right.1)?;
        let mut predicates = vec![];
        let (mut tag, mut fixed) = (None, false);
        for (operator, _) in self.completed(left.1, right.1) {
            predicates.extend_from_slice(&operator.predicates);
            if operator.kind != OperatorKind::Inner || operator.fixed {
                (tag, fixed) = (operator.tag, operator.fixed);
            }
        }
        predicates.sort_unstable();
        Some(Node::Join(Box::new(Join { kind: meeting.kind, fixed, tag, left: left.0, right: right.0, predicates })))
    }
}
