//! Adds to a query the equalities that follow from those of its inner joins.

use std::collections::BTreeMap;

use super::{
    oracle::{Condition, Term},
    queries::Query,
};
use crate::{Join, JoinKind, Node, Predicate, PredicateKind, search::RandomNumbers};

/// A relation, and its column.
type Column = (usize, usize);

struct Adder<'a> {
    predicates: &'a mut Vec<Predicate>,
    conditions: &'a mut Vec<Condition>,
    random: &'a mut RandomNumbers,
    classes: usize,
}

/// Gives classes to equalities of columns, and adds some that follow, each to the inner join of the tree that has one of its columns on
/// either side.
pub fn add_implied(query: &mut Query, random: &mut RandomNumbers) {
    let given = query.region.predicates.len();
    let (predicates, conditions) = (&mut query.region.predicates, &mut query.data.conditions);
    let mut adder = Adder { predicates, conditions, random, classes: 0 };
    adder.holding(&mut query.region.root);
    query.implied = query.region.predicates.len() - given;
}

/// The inner join of the top of a tree that has one relation on either side.
fn place(node: &mut Node, one: usize, other: usize) -> Option<&mut Join> {
    let Node::Join(join) = node else { return None };
    if join.kind != JoinKind::Inner {
        return None;
    }
    let left = join.left.relations();
    match (left.contains(one), left.contains(other)) {
        (true, true) => place(&mut join.left, one, other),
        (false, false) => place(&mut join.right, one, other),
        _ => Some(join),
    }
}

impl Adder<'_> {
    /// The equalities that hold for each row of a tree in which one of their columns is not NULL. An inner join above that names such a
    /// column takes no other rows.
    fn holding(&mut self, node: &mut Node) -> Vec<usize> {
        let Node::Join(join) = node else { return vec![] };
        if join.kind == JoinKind::Inner {
            let holding = self.holding_at_top(node);
            let added = self.imply(node, &holding);
            return [holding, added].concat();
        }
        let (left, right) = (self.holding(&mut join.left), self.holding(&mut join.right));
        match join.kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark => left,
            JoinKind::RightSemi | JoinKind::RightAnti | JoinKind::RightMark => right,
            _ => [left, right].concat(),
        }
    }

    /// The equalities of the inner joins at the top of a tree, and those that hold in their inputs.
    fn holding_at_top(&mut self, node: &mut Node) -> Vec<usize> {
        match node {
            Node::Join(join) if join.kind == JoinKind::Inner => {
                let mut holding = self.holding_at_top(&mut join.left);
                holding.extend(self.holding_at_top(&mut join.right));
                holding.extend(join.predicates.iter().filter(|&&number| self.columns(number).is_some()));
                holding
            }
            _ => self.holding(node),
        }
    }

    fn columns(&self, predicate: usize) -> Option<[Column; 2]> {
        match self.conditions[predicate] {
            Condition::Equal(Term::Column(one, column), Term::Column(other, other_column)) => {
                Some([(one, column), (other, other_column)])
            }
            _ => None,
        }
    }

    /// Gives classes to equalities that hold, and adds some that follow to inner joins at the top of the tree.
    fn imply(&mut self, node: &mut Node, holding: &[usize]) -> Vec<usize> {
        let mut added = vec![];
        for columns in self.equal_columns(holding) {
            // Numbers of classes need not be dense.
            self.classes += 1 + self.random.below(100);
            let pair = |number: &usize| self.columns(*number).filter(|[one, _]| columns.contains(one));
            let known: Vec<(usize, [Column; 2])> =
                holding.iter().filter_map(|number| Some((*number, pair(number)?))).collect();
            for (number, _) in &known {
                if let PredicateKind::Equality { class, .. } = &mut self.predicates[*number].kind {
                    *class = Some(self.classes);
                }
            }
            for (place_of_other, &other) in columns.iter().enumerate() {
                for &one in &columns[..place_of_other] {
                    let is_known = known.iter().any(|(_, pair)| *pair == [one, other] || *pair == [other, one]);
                    if one.0 == other.0 || is_known || self.random.below(4) == 0 {
                        continue;
                    }
                    if let Some(join) = place(node, one.0, other.0) {
                        join.predicates.push(self.conditions.len());
                        added.push(self.conditions.len());
                        self.add(one, other);
                    }
                }
            }
        }
        added
    }

    /// Sets of columns that equalities connect.
    fn equal_columns(&self, equalities: &[usize]) -> Vec<Vec<Column>> {
        let mut names: BTreeMap<Column, Column> = BTreeMap::new();
        for [one, other] in equalities.iter().filter_map(|&number| self.columns(number)) {
            let (one, other) = (*names.entry(one).or_insert(one), *names.entry(other).or_insert(other));
            names.values_mut().filter(|name| **name == other).for_each(|name| *name = one);
        }
        let mut sets: BTreeMap<Column, Vec<Column>> = BTreeMap::new();
        names.into_iter().for_each(|(column, name)| sets.entry(name).or_default().push(column));
        sets.into_values().collect()
    }

    fn add(&mut self, one: Column, other: Column) {
        let keys = (self.random.below(2) == 0).then(|| [0, 1].map(|_| 10_f64.powi(self.random.below(5) as i32)));
        let mut predicate = Predicate::equality(one.0, other.0, 10_f64.powi(-(self.random.below(6) as i32)));
        if let PredicateKind::Equality { distinct, class, .. } = &mut predicate.kind {
            (*distinct, *class) = (keys, Some(self.classes));
        }
        self.predicates.push(predicate);
        self.conditions.push(Condition::Equal(Term::Column(one.0, one.1), Term::Column(other.0, other.1)));
    }
}
