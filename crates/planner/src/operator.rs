//! The joins of a region as a list of operators, each with the side whose rows it keeps on the left.

use std::ops::Range;

use crate::{JoinKind, Node, Region, RelationSet};

/// What an operator does with its sides. Kinds that keep rows of the right side are turned around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorKind {
    Inner,
    Semi,
    Anti,
    Mark,
    Outer,
    Full,
}

impl OperatorKind {
    /// The kind of a join, and whether its sides change places for it.
    fn of(kind: JoinKind) -> (Self, bool) {
        match kind {
            JoinKind::Inner => (Self::Inner, false),
            JoinKind::FullOuter => (Self::Full, false),
            JoinKind::LeftOuter => (Self::Outer, false),
            JoinKind::RightOuter => (Self::Outer, true),
            JoinKind::LeftSemi => (Self::Semi, false),
            JoinKind::RightSemi => (Self::Semi, true),
            JoinKind::LeftAnti => (Self::Anti, false),
            JoinKind::RightAnti => (Self::Anti, true),
            JoinKind::LeftMark => (Self::Mark, false),
            JoinKind::RightMark => (Self::Mark, true),
        }
    }

    /// The kind of a join whose left side is the operator's left side, or its right one.
    pub fn join_kind(self, swapped: bool) -> JoinKind {
        let kind = match self {
            Self::Inner => JoinKind::Inner,
            Self::Full => JoinKind::FullOuter,
            Self::Outer => JoinKind::LeftOuter,
            Self::Semi => JoinKind::LeftSemi,
            Self::Anti => JoinKind::LeftAnti,
            Self::Mark => JoinKind::LeftMark,
        };
        if swapped { kind.swapped() } else { kind }
    }
}

/// What moves as a whole: a join that is not inner, or a predicate of an inner join, or an inner join whose predicates cannot be parted.
#[derive(Clone, Debug)]
pub struct Operator {
    pub kind: OperatorKind,
    pub fixed: bool,
    pub tag: Option<usize>,
    /// Whether the written join has the operator's right side on its left.
    pub swapped: bool,
    pub predicates: Vec<usize>,
    /// All relations below its sides, as written.
    pub left: RelationSet,
    pub right: RelationSet,
    /// The relations that its condition needs (SES in the literature), of both sides at least one.
    pub needed: RelationSet,
    pub rejects_nulls: RelationSet,
    /// The operators below its sides, as written.
    pub below_left: Range<usize>,
    pub below_right: Range<usize>,
}

/// An input of a written join.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    Relation(usize),
    Join(usize),
}

/// A join as written, turned around so that the side whose rows it keeps is on the left.
#[derive(Clone, Debug)]
pub struct WrittenJoin {
    pub kind: OperatorKind,
    pub left: Input,
    pub right: Input,
    pub left_relations: RelationSet,
    pub right_relations: RelationSet,
    /// Its operators: one, or one a predicate.
    pub operators: Range<usize>,
}

/// The joins of a region in post-order.
#[derive(Default)]
pub struct Written {
    pub joins: Vec<WrittenJoin>,
    pub operators: Vec<Operator>,
}

/// A part of the tree that was added: what it is as an input, its relations and its operators.
struct Part {
    input: Input,
    relations: RelationSet,
    operators: Range<usize>,
}

impl Written {
    /// Takes a region that passed its check.
    pub fn new(region: &Region) -> Self {
        let mut written = Self::default();
        written.add(region, &region.root);
        written
    }

    fn add(&mut self, region: &Region, node: &Node) -> Part {
        let start = self.operators.len();
        let join = match node {
            Node::Leaf(relation) => {
                let relations = RelationSet::single(*relation);
                return Part { input: Input::Relation(*relation), relations, operators: start..start };
            }
            Node::Join(join) => join,
        };
        let (kind, swapped) = OperatorKind::of(join.kind);
        let (mut left, mut right) = (self.add(region, &join.left), self.add(region, &join.right));
        if swapped {
            std::mem::swap(&mut left, &mut right);
        }
        let first = self.operators.len();
        // A predicate of one side alone would connect a part of it with the other side, and so be a cross product.
        let straddles = |predicate: &usize| {
            let relations = region.predicates[*predicate].relations;
            relations.intersects(left.relations) && relations.intersects(right.relations)
        };
        let parted = kind == OperatorKind::Inner
            && !join.fixed
            && !join.predicates.is_empty()
            && join.predicates.iter().all(straddles);
        let groups: Vec<&[usize]> =
            if parted { join.predicates.chunks(1).collect() } else { vec![join.predicates.as_slice()] };
        for predicates in groups {
            let used = |of: fn(&crate::Predicate) -> RelationSet| {
                predicates.iter().map(|&number| of(&region.predicates[number])).fold(RelationSet::EMPTY, |a, b| a | b)
            };
            let uses = used(|predicate| predicate.relations);
            // A side that the condition does not use cannot be told from its parts, so all of it is needed.
            let side = |relations: RelationSet| {
                if !uses.intersects(relations) { relations } else { uses & relations }
            };
            self.operators.push(Operator {
                kind,
                fixed: join.fixed,
                tag: join.tag,
                swapped,
                predicates: predicates.to_vec(),
                left: left.relations,
                right: right.relations,
                needed: side(left.relations) | side(right.relations),
                rejects_nulls: used(|predicate| predicate.rejects_nulls),
                below_left: left.operators.clone(),
                below_right: right.operators.clone(),
            });
        }
        self.joins.push(WrittenJoin {
            kind,
            left: left.input,
            right: right.input,
            left_relations: left.relations,
            right_relations: right.relations,
            operators: first..self.operators.len(),
        });
        Part {
            input: Input::Join(self.joins.len() - 1),
            relations: left.relations | right.relations,
            operators: start..self.operators.len(),
        }
    }
}
