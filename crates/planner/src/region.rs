//! A join region: relations, predicates, and the joins over them as a query has them.

use std::fmt;

use crate::RelationSet;

/// Joins that may be ordered anew, with what is known of their inputs.
///
/// A region ends where rows are aggregated, limited or computed, and at joins whose one side depends on rows of the other (lateral
/// ones): what lies below is a relation of the region.
#[derive(Clone, Debug)]
pub struct Region {
    /// The inputs. The leaves of `root` are their numbers. At most 64.
    pub relations: Vec<Relation>,
    /// What joins ask of their rows. Each belongs to one join of `root`.
    pub predicates: Vec<Predicate>,
    /// The joins as they were written.
    pub root: Node,
}

/// An input of a region, after its own filters.
#[derive(Clone, Copy, Debug)]
pub struct Relation {
    /// Estimated rows.
    pub rows: f64,
    /// The fewest and the most rows that it can have. No estimate is doubted beyond them.
    pub bounds: [f64; 2],
    /// Estimated rows before its own filters; infinite if not known. A key of several columns has no more values than these.
    pub unfiltered: f64,
    /// Bytes of a row.
    pub width: f64,
}

impl Relation {
    /// A relation that may have any number of rows, of any table.
    pub fn new(rows: f64, width: f64) -> Self {
        Self { rows, bounds: [0.0, f64::INFINITY], unfiltered: f64::INFINITY, width }
    }
}

/// A part of a join's condition. A join takes the rows for which all of its predicates are true.
///
/// Predicates of an inner join move one by one if each uses both sides of the written join, and together if one does not. Filters of a
/// single relation therefore belong below the region.
#[derive(Clone, Debug)]
pub struct Predicate {
    /// The relations whose columns it uses.
    ///
    /// The right side of a mark join is not visible above it. A predicate above that names a relation of that side uses the mark.
    pub relations: RelationSet,
    /// The share of the pairs of rows for which it is true, from 0 to 1.
    pub selectivity: f64,
    /// Whether a hash table can find the pairs.
    pub kind: PredicateKind,
    /// The relations such that it is never true where all their columns, taken one relation at a time, are NULL. A relation too few
    /// forbids orders; one too many gives wrong answers. A relation that stands for a mark is here if a NULL mark is rejected.
    pub rejects_nulls: RelationSet,
}

/// Whether a hash table can find the pairs of a predicate.
#[derive(Clone, Copy, Debug)]
pub enum PredicateKind {
    /// An equality of two expressions.
    Equality {
        /// The relations of one expression.
        left: RelationSet,
        /// The relations of the other.
        right: RelationSet,
        /// Estimated distinct values of the two expressions, if they are known. They make estimates of semi, anti and outer joins better.
        distinct: Option<[f64; 2]>,
        /// The number of the class of the equality, if it follows from others or others from it: with a = b and b = c, a = c. The
        /// equalities of a class say that all of their expressions have one value.
        ///
        /// An equality that follows is a predicate of the written inner join that has one of its sides in either input. Its relations
        /// may then be joined directly. Estimates of a set of relations count as many equalities of a class as connect the relations
        /// that they name, the least selective ones. Every order applies all of them. Each side is a single relation.
        class: Option<usize>,
    },
    /// Any other condition.
    Residual,
}

/// A tree of joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// The relation of this number.
    Leaf(usize),
    /// A join of two trees.
    Join(Box<Join>),
}

/// A join of two trees. A hash table is built of the rows of `left`, and those of `right` are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// What it gives.
    pub kind: JoinKind,
    /// Whether the join must keep its inputs and its sides: no other join moves into it, and nothing of it moves out. So it is with
    /// null-aware anti joins.
    pub fixed: bool,
    /// A number of the caller's, by which it finds this join again. Inner joins lose it, as their predicates move one by one.
    pub tag: Option<usize>,
    /// The build side.
    pub left: Node,
    /// The probe side.
    pub right: Node,
    /// Numbers of the predicates that are applied here.
    pub predicates: Vec<usize>,
}

/// What a join gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and rows of the left side without a partner.
    LeftOuter,
    /// Pairs, and rows of the right side without a partner.
    RightOuter,
    /// Pairs, and rows of both sides without a partner.
    FullOuter,
    /// Rows of the left side with a partner.
    LeftSemi,
    /// Rows of the right side with a partner.
    RightSemi,
    /// Rows of the left side without a partner.
    LeftAnti,
    /// Rows of the right side without a partner.
    RightAnti,
    /// Rows of the left side, and whether they have a partner.
    LeftMark,
    /// Rows of the right side, and whether they have a partner.
    RightMark,
}

impl JoinKind {
    /// The kind that gives the same rows once the sides have changed places.
    pub fn swapped(self) -> Self {
        match self {
            Self::Inner => Self::Inner,
            Self::FullOuter => Self::FullOuter,
            Self::LeftOuter => Self::RightOuter,
            Self::RightOuter => Self::LeftOuter,
            Self::LeftSemi => Self::RightSemi,
            Self::RightSemi => Self::LeftSemi,
            Self::LeftAnti => Self::RightAnti,
            Self::RightAnti => Self::LeftAnti,
            Self::LeftMark => Self::RightMark,
            Self::RightMark => Self::LeftMark,
        }
    }
}

impl Node {
    /// A join that may move, without a tag.
    pub fn join(kind: JoinKind, left: Node, right: Node, predicates: Vec<usize>) -> Self {
        Self::Join(Box::new(Join { kind, fixed: false, tag: None, left, right, predicates }))
    }

    /// The relations below the node. Takes time linear in the nodes.
    pub fn relations(&self) -> RelationSet {
        self.leaves().into_iter().collect()
    }

    /// The relations from left to right.
    pub fn leaves(&self) -> Vec<usize> {
        fn add(node: &Node, leaves: &mut Vec<usize>) {
            match node {
                Node::Leaf(relation) => leaves.push(*relation),
                Node::Join(join) => {
                    add(&join.left, leaves);
                    add(&join.right, leaves);
                }
            }
        }
        let mut leaves = vec![];
        add(self, &mut leaves);
        leaves
    }
}

impl Predicate {
    /// A predicate that no hash table can evaluate.
    pub fn residual(relations: RelationSet, selectivity: f64) -> Self {
        Self { relations, selectivity, kind: PredicateKind::Residual, rejects_nulls: RelationSet::EMPTY }
    }

    /// An equality of a column of one relation with a column of another, which rejects nulls of both and has no class.
    pub fn equality(left: usize, right: usize, selectivity: f64) -> Self {
        let (left, right) = (RelationSet::single(left), RelationSet::single(right));
        let kind = PredicateKind::Equality { left, right, distinct: None, class: None };
        Self { relations: left | right, selectivity, kind, rejects_nulls: left | right }
    }

    /// Whether a hash table of the rows of one of these sets can be searched with rows of the other.
    pub(crate) fn hashes(&self, one: RelationSet, other: RelationSet) -> bool {
        match self.kind {
            PredicateKind::Residual => false,
            PredicateKind::Equality { left, right, .. } => {
                (left.is_subset(one) && right.is_subset(other)) || (left.is_subset(other) && right.is_subset(one))
            }
        }
    }
}

/// Why a region cannot be ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// The region has more relations than a set can hold.
    TooManyRelations(usize),
    /// The tree of joins is deeper than 64 relations allow.
    TooDeep,
    /// A leaf names a relation that there is not.
    UnknownRelation(usize),
    /// A relation is not exactly one leaf.
    NotOneLeaf(usize),
    /// A join names a predicate that there is not.
    UnknownPredicate(usize),
    /// A predicate does not belong to exactly one join.
    NotOneJoin(usize),
    /// A predicate uses relations that its join does not see.
    Invisible {
        /// The predicate.
        predicate: usize,
        /// The relations.
        relations: RelationSet,
    },
    /// The sides of an equality are empty, share a relation, or have one that the predicate does not.
    BadSides(usize),
    /// A side of an equality that has a class is not a single relation.
    BadClass(usize),
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyRelations(count) => {
                write!(f, "the joins have {count} inputs, and at most {} can be ordered", RelationSet::CAPACITY)
            }
            Self::TooDeep => write!(f, "the joins lie more than {} deep", RelationSet::CAPACITY),
            Self::UnknownRelation(relation) => write!(f, "a leaf names relation {relation}, which there is not"),
            Self::NotOneLeaf(relation) => write!(f, "relation {relation} is not exactly one leaf of the joins"),
            Self::UnknownPredicate(predicate) => write!(f, "a join names predicate {predicate}, which there is not"),
            Self::NotOneJoin(predicate) => write!(f, "predicate {predicate} does not belong to exactly one join"),
            Self::Invisible { predicate, relations } => {
                write!(f, "predicate {predicate} uses relations {relations:?}, which its join does not see")
            }
            Self::BadSides(predicate) => {
                write!(f, "the sides of equality {predicate} are not two separate sets of the relations that it uses")
            }
            Self::BadClass(predicate) => {
                write!(f, "equality {predicate} has a class, but a side of it is not a single relation")
            }
        }
    }
}

impl std::error::Error for RegionError {}

/// The relations of a tree, and those that a predicate above it may name.
struct Seen {
    relations: RelationSet,
    nameable: RelationSet,
}

impl Region {
    /// Whether the region is well formed. Takes time linear in its size.
    ///
    /// # Errors
    /// The first fault that is found, as each variant of [`RegionError`] says. Rows, widths and selectivities are never an error: what
    /// is not a number, or out of range, is taken as the nearest number that makes sense.
    pub fn check(&self) -> Result<(), RegionError> {
        let count = self.relations.len();
        if count > RelationSet::CAPACITY {
            return Err(RegionError::TooManyRelations(count));
        }
        let mut joins = vec![0_usize; self.predicates.len()];
        let seen = self.check_node(&self.root, RelationSet::CAPACITY, &mut joins)?;
        if let Some(relation) = (RelationSet::below(count) - seen.relations).first() {
            return Err(RegionError::NotOneLeaf(relation));
        }
        match joins.iter().position(|&joins| joins != 1) {
            Some(predicate) => Err(RegionError::NotOneJoin(predicate)),
            None => Ok(()),
        }
    }

    fn check_node(&self, node: &Node, depth: usize, joins: &mut [usize]) -> Result<Seen, RegionError> {
        let join = match node {
            Node::Leaf(relation) if *relation >= self.relations.len() => {
                return Err(RegionError::UnknownRelation(*relation));
            }
            Node::Leaf(relation) => {
                let relations = RelationSet::single(*relation);
                return Ok(Seen { relations, nameable: relations });
            }
            Node::Join(join) => join,
        };
        let depth = depth.checked_sub(1).ok_or(RegionError::TooDeep)?;
        let left = self.check_node(&join.left, depth, joins)?;
        let right = self.check_node(&join.right, depth, joins)?;
        if let Some(relation) = (left.relations & right.relations).first() {
            return Err(RegionError::NotOneLeaf(relation));
        }
        for &number in &join.predicates {
            let predicate = self.predicates.get(number).ok_or(RegionError::UnknownPredicate(number))?;
            joins[number] += 1;
            check_predicate(number, predicate, left.nameable | right.nameable)?;
        }
        let nameable = match join.kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti => left.nameable,
            JoinKind::RightSemi | JoinKind::RightAnti => right.nameable,
            JoinKind::LeftMark => left.nameable | right.relations,
            JoinKind::RightMark => left.relations | right.nameable,
            _ => left.nameable | right.nameable,
        };
        Ok(Seen { relations: left.relations | right.relations, nameable })
    }
}

fn check_predicate(number: usize, predicate: &Predicate, nameable: RelationSet) -> Result<(), RegionError> {
    let invisible = predicate.relations - nameable;
    if !invisible.is_empty() {
        return Err(RegionError::Invisible { predicate: number, relations: invisible });
    }
    if let PredicateKind::Equality { left, right, class, .. } = predicate.kind {
        let separate = !left.is_empty() && !right.is_empty() && !left.intersects(right);
        if !separate || !(left | right).is_subset(predicate.relations) {
            return Err(RegionError::BadSides(number));
        }
        if class.is_some() && (left.len() > 1 || right.len() > 1) {
            return Err(RegionError::BadClass(number));
        }
    }
    Ok(())
}
