//! Evaluates a tree of joins over small tables, straight from the definitions of the joins.

use crate::{Join, JoinKind, Node};

/// SQL's NULL, and the value of a column that a join has hidden.
pub const NULL: i8 = -1;
pub const HIDDEN: i8 = -2;
/// Columns of each relation.
pub const COLUMNS: usize = 2;

pub type Row = Vec<i8>;

/// A value in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    Column(usize, usize),
    /// The mark of the join with this tag.
    Mark(usize),
    Constant(i8),
}

/// A condition of three values.
#[derive(Clone, Debug)]
pub enum Condition {
    Equal(Term, Term),
    Less(Term, Term),
    IsNull(Term),
    Not(Box<Condition>),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
}

impl Term {
    pub fn place(self, relations: usize) -> Option<usize> {
        match self {
            Self::Column(relation, column) => Some(relation * COLUMNS + column),
            Self::Mark(tag) => Some(relations * COLUMNS + tag),
            Self::Constant(_) => None,
        }
    }

    fn value(self, row: &Row, relations: usize) -> Option<i8> {
        let value = match (self, self.place(relations)) {
            (Self::Constant(value), _) => value,
            (_, Some(place)) => row[place],
            (_, None) => NULL,
        };
        (value != NULL).then_some(value)
    }
}

impl Condition {
    /// True, false, or unknown.
    pub fn holds(&self, row: &Row, relations: usize) -> Option<bool> {
        let both = |one: &Term, other: &Term| Some((one.value(row, relations)?, other.value(row, relations)?));
        match self {
            Self::Equal(one, other) => both(one, other).map(|(one, other)| one == other),
            Self::Less(one, other) => both(one, other).map(|(one, other)| one < other),
            Self::IsNull(term) => Some(term.value(row, relations).is_none()),
            Self::Not(condition) => condition.holds(row, relations).map(|holds| !holds),
            Self::And(one, other) => match (one.holds(row, relations), other.holds(row, relations)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Or(one, other) => match (one.holds(row, relations), other.holds(row, relations)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
        }
    }

    pub fn terms(&self) -> Vec<Term> {
        match self {
            Self::Equal(one, other) | Self::Less(one, other) => vec![*one, *other],
            Self::IsNull(term) => vec![*term],
            Self::Not(condition) => condition.terms(),
            Self::And(one, other) | Self::Or(one, other) => [one.terms(), other.terms()].concat(),
        }
    }
}

/// Tables, and what the predicates of a region mean.
#[derive(Debug)]
pub struct Data {
    /// By relation: its rows, of `COLUMNS` values.
    pub tables: Vec<Vec<Vec<i8>>>,
    /// By predicate.
    pub conditions: Vec<Condition>,
}

/// Rows, and which of their values are visible.
struct Rows {
    rows: Vec<Row>,
    visible: Vec<bool>,
}

impl Data {
    fn width(&self) -> usize {
        // Tags are numbers below the number of relations.
        self.tables.len() * (COLUMNS + 1)
    }

    /// The bag of rows of a tree, sorted. Hidden values are `HIDDEN`. None if a condition uses a value where it is hidden.
    pub fn answer(&self, node: &Node) -> Option<Vec<Row>> {
        let mut rows = self.evaluate(node)?.rows;
        rows.sort_unstable();
        Some(rows)
    }

    fn evaluate(&self, node: &Node) -> Option<Rows> {
        match node {
            Node::Leaf(relation) => {
                let columns = relation * COLUMNS..(relation + 1) * COLUMNS;
                let row = |values: &Vec<i8>| {
                    let mut row = vec![HIDDEN; self.width()];
                    row[columns.clone()].copy_from_slice(values);
                    row
                };
                let rows = self.tables[*relation].iter().map(row).collect();
                Some(Rows { rows, visible: (0..self.width()).map(|place| columns.contains(&place)).collect() })
            }
            Node::Join(join) => {
                let (left, right) = (self.evaluate(&join.left)?, self.evaluate(&join.right)?);
                let mut terms = join.predicates.iter().flat_map(|&number| self.conditions[number].terms());
                let sees = |place: usize| left.visible[place] || right.visible[place];
                terms.all(|term| term.place(self.tables.len()).is_none_or(sees)).then(|| self.join(join, left, right))
            }
        }
    }

    fn holds(&self, join: &Join, row: &Row) -> Option<bool> {
        let mut all = Some(true);
        for &number in &join.predicates {
            match self.conditions[number].holds(row, self.tables.len()) {
                Some(true) => {}
                Some(false) => return Some(false),
                None => all = None,
            }
        }
        all
    }

    fn join(&self, join: &Join, left: Rows, right: Rows) -> Rows {
        // By pair of rows. Fixed joins stand for null-aware ones.
        let pairs: Vec<Vec<Option<bool>>> = left
            .rows
            .iter()
            .map(|one| right.rows.iter().map(|other| self.holds(join, &both(one, other))).collect())
            .collect();
        let of_left = |row: usize| (0..right.rows.len()).map(|other| pairs[row][other]).collect::<Vec<_>>();
        let of_right = |row: usize| (0..left.rows.len()).map(|other| pairs[other][row]).collect::<Vec<_>>();
        match join.kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark => self.one_side(join, &left, of_left),
            JoinKind::RightSemi | JoinKind::RightAnti | JoinKind::RightMark => self.one_side(join, &right, of_right),
            JoinKind::Inner | JoinKind::LeftOuter | JoinKind::RightOuter | JoinKind::FullOuter => {
                let mut rows = vec![];
                for (one, partners) in left.rows.iter().zip(&pairs) {
                    for (other, holds) in right.rows.iter().zip(partners) {
                        if *holds == Some(true) {
                            rows.push(both(one, other));
                        }
                    }
                }
                if matches!(join.kind, JoinKind::LeftOuter | JoinKind::FullOuter) {
                    pad(&mut rows, &left, of_left, &right.visible);
                }
                if matches!(join.kind, JoinKind::RightOuter | JoinKind::FullOuter) {
                    pad(&mut rows, &right, of_right, &left.visible);
                }
                let visible = left.visible.iter().zip(&right.visible).map(|(one, other)| *one || *other).collect();
                Rows { rows, visible }
            }
        }
    }

    fn one_side(&self, join: &Join, side: &Rows, partners: impl Fn(usize) -> Vec<Option<bool>>) -> Rows {
        let (mut rows, mut visible) = (vec![], side.visible.clone());
        for (number, row) in side.rows.iter().enumerate() {
            let partners = partners(number);
            let mut mark = partners.contains(&Some(true)).into();
            if join.fixed && mark == 0 && partners.contains(&None) {
                mark = NULL;
            }
            match join.kind {
                JoinKind::LeftSemi | JoinKind::RightSemi if mark != 1 => {}
                JoinKind::LeftAnti | JoinKind::RightAnti if mark != 0 => {}
                JoinKind::LeftMark | JoinKind::RightMark => {
                    let place = Term::Mark(join.tag.expect("mark joins have tags")).place(self.tables.len()).unwrap();
                    let mut row = row.clone();
                    row[place] = mark;
                    visible[place] = true;
                    rows.push(row);
                }
                _ => rows.push(row.clone()),
            }
        }
        if let (JoinKind::LeftMark | JoinKind::RightMark, Some(tag)) = (join.kind, join.tag) {
            visible[Term::Mark(tag).place(self.tables.len()).unwrap()] = true;
        }
        Rows { rows, visible }
    }
}

fn both(one: &Row, other: &Row) -> Row {
    one.iter().zip(other).map(|(one, other)| if *one == HIDDEN { *other } else { *one }).collect()
}

/// Adds the rows of a side without a partner, with NULL for what is visible of the other side.
fn pad(rows: &mut Vec<Row>, side: &Rows, partners: impl Fn(usize) -> Vec<Option<bool>>, other: &[bool]) {
    for (number, row) in side.rows.iter().enumerate() {
        if !partners(number).contains(&Some(true)) {
            rows.push(row.iter().zip(other).map(|(value, padded)| if *padded { NULL } else { *value }).collect());
        }
    }
}
