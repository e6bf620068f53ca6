//! Which operators may pass each other: the conflict detector CD-C of Moerkotte, Fender and Eich, "On the correct and complete
//! enumeration of the core search space", SIGMOD 2013, section 5.
//!
//! Of each operator it computes the relations that must be below it (TES), and rules "if one of these relations is below, then all of
//! those are". Both are sets of relations, so that an order is checked without looking at trees.
//!
//! Most rules always apply and become part of the TES. Of 20,000 random queries of inner and outer joins over up to 9 relations, the rules
//! that remain forbade a pair of sets in 177, and no order with such a pair gave other rows. They stay because the paper's proof needs them.

mod properties;

pub use properties::Properties;
#[cfg(test)]
pub use properties::{Holds, Table};

use crate::{RelationSet, operator::Operator};

/// If a relation of `having` is below an operator, all of `needs` must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    having: RelationSet,
    needs: RelationSet,
}

/// Where an operator may be applied.
#[derive(Clone, Debug)]
pub struct Conflicts {
    /// Relations that must be below its left side, and below its right side (L-TES and R-TES).
    pub left: RelationSet,
    pub right: RelationSet,
    rules: Vec<Rule>,
}

impl Conflicts {
    /// All relations that must be below the operator (TES).
    pub fn needed(&self) -> RelationSet {
        self.left | self.right
    }

    /// Whether these two sets of relations may be its left and its right side, rules apart.
    pub fn spans(&self, left: RelationSet, right: RelationSet) -> bool {
        self.left.is_subset(left) && self.right.is_subset(right)
    }

    /// Whether its rules hold above these relations.
    pub fn allows(&self, relations: RelationSet) -> bool {
        self.rules.iter().all(|rule| !rule.having.intersects(relations) || rule.needs.is_subset(relations))
    }
}

#[cfg(test)]
impl Conflicts {
    /// A planted bug: what the condition needs, and no rules.
    pub fn without_rules(operator: &Operator) -> Self {
        Self { left: operator.needed & operator.left, right: operator.needed & operator.right, rules: vec![] }
    }
}

/// The conflicts of each operator. Takes time quadratic in the operators.
pub fn detect(operators: &[Operator], properties: &Properties) -> Vec<Conflicts> {
    operators.iter().map(|operator| of_operator(operator, operators, properties)).collect()
}

fn of_operator(upper: &Operator, operators: &[Operator], properties: &Properties) -> Conflicts {
    let mut rules = vec![];
    for lower in &operators[upper.below_left.clone()] {
        if !properties.associative(lower, upper, lower.right) {
            rules.push(Rule { having: lower.right, needs: needed_of(lower, lower.left) });
        }
        if !properties.left_asscom(lower, upper, lower.left) {
            rules.push(Rule { having: lower.left, needs: needed_of(lower, lower.right) });
        }
    }
    for lower in &operators[upper.below_right.clone()] {
        if !properties.associative(upper, lower, lower.left) {
            rules.push(Rule { having: lower.left, needs: needed_of(lower, lower.right) });
        }
        if !properties.right_asscom(upper, lower, lower.right) {
            rules.push(Rule { having: lower.right, needs: needed_of(lower, lower.left) });
        }
    }
    let mut needed = upper.needed;
    // A rule that always applies becomes part of the set; so may others, then.
    loop {
        let before = needed;
        rules.retain(|rule| {
            if rule.having.intersects(needed) {
                needed |= rule.needs;
            }
            !rule.needs.is_subset(needed)
        });
        if needed == before {
            break;
        }
    }
    rules.sort_unstable_by_key(|rule| (rule.having, rule.needs));
    rules.dedup();
    Conflicts { left: needed & upper.left, right: needed & upper.right, rules }
}

/// The relations of one side of an operator that its condition needs. Each side has one.
fn needed_of(operator: &Operator, side: RelationSet) -> RelationSet {
    operator.needed & side
}
