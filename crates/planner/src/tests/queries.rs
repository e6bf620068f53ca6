//! Random tables and random trees of joins over them.

use super::{
    implied::add_implied,
    oracle::{COLUMNS, Condition, Data, NULL, Term},
};
use crate::{Join, JoinKind, Node, Predicate, PredicateKind, Region, Relation, RelationSet, search::RandomNumbers};

/// A region, and what it means.
#[derive(Debug)]
pub struct Query {
    pub region: Region,
    pub data: Data,
    /// How many of the last predicates follow from others.
    pub implied: usize,
}

/// Which kinds of joins are drawn: each as often as it is there.
pub const ALL_KINDS: [JoinKind; 14] = [
    JoinKind::Inner,
    JoinKind::Inner,
    JoinKind::Inner,
    JoinKind::Inner,
    JoinKind::LeftOuter,
    JoinKind::LeftOuter,
    JoinKind::RightOuter,
    JoinKind::FullOuter,
    JoinKind::LeftSemi,
    JoinKind::RightSemi,
    JoinKind::LeftAnti,
    JoinKind::RightAnti,
    JoinKind::LeftMark,
    JoinKind::RightMark,
];

/// The same with more inner joins, as equalities follow from those.
pub fn many_inner() -> Vec<JoinKind> {
    [&ALL_KINDS[..], &[JoinKind::Inner; 10]].concat()
}

/// A value that a predicate may use, and the relation by which the predicate names it.
#[derive(Clone, Copy)]
struct Visible {
    term: Term,
    relation: usize,
}

struct Draw<'a> {
    random: RandomNumbers,
    kinds: &'a [JoinKind],
    relations: usize,
    /// Each join has one condition that compares a column of either side, and is not fixed.
    simple: bool,
    predicates: Vec<Predicate>,
    conditions: Vec<Condition>,
    tags: usize,
}

/// A query of 2 to `most` relations, the same for a seed. Half of the queries have equalities that follow from others.
pub fn random_query(seed: u64, kinds: &[JoinKind], most: usize) -> Query {
    let mut query = query(seed, kinds, most, false);
    let mut random = RandomNumbers::new(!seed);
    if random.below(2) == 0 {
        add_implied(&mut query, &mut random);
    }
    query
}

/// A query with one condition for each join, which uses both sides. None follows from others.
pub fn random_simple_query(seed: u64, kinds: &[JoinKind], most: usize) -> Query {
    query(seed, kinds, most, true)
}

fn query(seed: u64, kinds: &[JoinKind], most: usize, simple: bool) -> Query {
    let mut random = RandomNumbers::new(seed);
    let relations = 2 + random.below(most - 1);
    let mut numbers: Vec<usize> = (0..relations).collect();
    for last in (1..relations).rev() {
        numbers.swap(last, random.below(last + 1));
    }
    let mut draw = Draw { random, kinds, relations, simple, predicates: vec![], conditions: vec![], tags: 0 };
    let (root, _) = draw.tree(&numbers);
    let sizes = (0..relations)
        .map(|_| Relation::new(10_f64.powi(draw.random.below(7) as i32), (8 + draw.random.below(92)) as f64))
        .collect();
    let tables = (0..relations).map(|_| draw.table()).collect();
    let region = Region { relations: sizes, predicates: draw.predicates, root };
    Query { region, data: Data { tables, conditions: draw.conditions }, implied: 0 }
}

impl Draw<'_> {
    fn one_in(&mut self, chances: usize) -> bool {
        self.random.below(chances) == 0
    }

    fn table(&mut self) -> Vec<Vec<i8>> {
        let rows = if self.one_in(10) { 0 } else { 1 + self.random.below(3) };
        let value = |random: &mut RandomNumbers| if random.below(4) == 0 { NULL } else { random.below(3) as i8 };
        (0..rows).map(|_| (0..COLUMNS).map(|_| value(&mut self.random)).collect()).collect()
    }

    fn tree(&mut self, numbers: &[usize]) -> (Node, Vec<Visible>) {
        if let [relation] = *numbers {
            let columns = (0..COLUMNS).map(|column| Visible { term: Term::Column(relation, column), relation });
            return (Node::Leaf(relation), columns.collect());
        }
        let cut = 1 + self.random.below(numbers.len() - 1);
        let (left, left_terms) = self.tree(&numbers[..cut]);
        let (right, right_terms) = self.tree(&numbers[cut..]);
        let kind = self.kinds[self.random.below(self.kinds.len())];
        let count = match self.random.below(25) {
            _ if self.simple => 1,
            0 => 0,
            draw => 1 + draw % 5 / 3,
        };
        let mut predicates = vec![];
        for _ in 0..count {
            predicates.push(self.conditions.len());
            self.predicate(&left_terms, &right_terms);
        }
        let left_kept = matches!(kind, JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark);
        let right_kept = matches!(kind, JoinKind::RightSemi | JoinKind::RightAnti | JoinKind::RightMark);
        let other = if left_kept { &numbers[cut..] } else { &numbers[..cut] };
        let mut terms = vec![];
        if !right_kept {
            terms.extend(left_terms);
        }
        if !left_kept {
            terms.extend(right_terms);
        }
        let mut tag = None;
        if matches!(kind, JoinKind::LeftMark | JoinKind::RightMark) {
            tag = Some(self.tags);
            terms.push(Visible { term: Term::Mark(self.tags), relation: other[self.random.below(other.len())] });
            self.tags += 1;
        }
        let fixed = !self.simple && self.one_in(if left_kept || right_kept { 12 } else { 50 });
        (Node::Join(Box::new(Join { kind, fixed, tag, left, right, predicates })), terms)
    }

    fn pick(&mut self, terms: &[Visible]) -> Visible {
        terms[self.random.below(terms.len())]
    }

    fn predicate(&mut self, left: &[Visible], right: &[Visible]) {
        let mut used = vec![];
        let both = [left, right].concat();
        let condition = match self.random.below(12) {
            0 | 1 if self.simple => self.equal(left, right, &mut used),
            0 => self.any(&both, 2, &mut used),
            1 => {
                let (one, other) = (self.any(left, 1, &mut used), self.any(right, 1, &mut used));
                Condition::Or(Box::new(one), Box::new(other))
            }
            2 | 3 => {
                let equal = self.equal(left, right, &mut used);
                Condition::Or(Box::new(equal), Box::new(self.any(&both, 0, &mut used)))
            }
            4 => {
                let equal = self.equal(left, right, &mut used);
                Condition::And(Box::new(equal), Box::new(self.any(&both, 1, &mut used)))
            }
            5 => {
                let (one, other) = (self.pick(left), self.pick(right));
                used.extend([one, other]);
                Condition::Less(one.term, other.term)
            }
            _ => self.equal(left, right, &mut used),
        };
        self.add(condition, &used);
    }

    fn equal(&mut self, left: &[Visible], right: &[Visible], used: &mut Vec<Visible>) -> Condition {
        let (one, other) = (self.pick(left), self.pick(right));
        used.extend([one, other]);
        Condition::Equal(one.term, other.term)
    }

    fn any(&mut self, terms: &[Visible], depth: usize, used: &mut Vec<Visible>) -> Condition {
        if depth > 0 && self.one_in(2) {
            let one = Box::new(self.any(terms, depth - 1, used));
            return match self.random.below(3) {
                0 => Condition::Not(one),
                1 => Condition::And(one, Box::new(self.any(terms, depth - 1, used))),
                _ => Condition::Or(one, Box::new(self.any(terms, depth - 1, used))),
            };
        }
        let one = self.pick(terms);
        used.push(one);
        match self.random.below(4) {
            0 => Condition::IsNull(one.term),
            1 => Condition::Equal(one.term, Term::Constant(self.random.below(3) as i8)),
            _ => {
                let other = self.pick(terms);
                used.push(other);
                Condition::Less(one.term, other.term)
            }
        }
    }

    fn add(&mut self, condition: Condition, used: &[Visible]) {
        let relations: RelationSet = used.iter().map(|visible| visible.relation).collect();
        let kind = match condition {
            Condition::Equal(Term::Column(one, _), Term::Column(other, _)) => PredicateKind::Equality {
                left: RelationSet::single(one),
                right: RelationSet::single(other),
                distinct: self.one_in(2).then(|| [0, 1].map(|_| 10_f64.powi(self.random.below(5) as i32))),
                class: None,
            },
            _ => PredicateKind::Residual,
        };
        let rejects_nulls = relations.iter().filter(|&relation| rejects(&condition, used, relation, self.relations));
        let rejects_nulls = rejects_nulls.collect();
        let selectivity = 10_f64.powi(-(self.random.below(6) as i32));
        self.predicates.push(Predicate { relations, selectivity, kind, rejects_nulls });
        self.conditions.push(condition);
    }
}

/// Whether no row satisfies the condition whose values of one relation are all NULL: tries all.
fn rejects(condition: &Condition, used: &[Visible], relation: usize, relations: usize) -> bool {
    let places = |of: &dyn Fn(&Visible) -> bool| -> Vec<usize> {
        let mut places: Vec<usize> =
            used.iter().filter(|visible| of(visible)).filter_map(|visible| visible.term.place(relations)).collect();
        places.sort_unstable();
        places.dedup();
        places
    };
    let free = places(&|visible| visible.relation != relation);
    let mut row = vec![NULL; relations * (COLUMNS + 1)];
    for number in 0..4_usize.pow(free.len() as u32) {
        for (digit, &place) in free.iter().enumerate() {
            row[place] = (number / 4_usize.pow(digit as u32) % 4) as i8 - 1;
        }
        if condition.holds(&row, relations) == Some(true) {
            return false;
        }
    }
    true
}
