//! IN, EXISTS, ANY and ALL in every position, correlated or not.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::{Generator, MOST_COMPARED_PAIRS};
use crate::differential::queries::MOST_ROWS;
use crate::differential::tables::Table;

/// What predicates may refer to where they stand.
pub(super) struct Scope {
    /// Expressions of the type of the first key.
    keys: Vec<String>,
    /// Expressions that are small numbers.
    small: Vec<String>,
    /// Columns that subqueries may refer to, of keys and of small numbers.
    outer_keys: Vec<String>,
    outer_small: Vec<String>,
    rows: usize,
}

impl Scope {
    fn of(table: &Table, alias: &str) -> Self {
        let column = |column: &str| format!("{alias}.{}_{column}", table.name);
        Self {
            keys: vec![column("k0")],
            small: vec![column("v"), format!("{} % 7", column("id")), column("v")],
            outer_keys: vec![column("k0")],
            outer_small: vec![column("v")],
            rows: table.rows(),
        }
    }

    /// Of groups of rows with one `a_v`.
    fn of_groups(rows: usize) -> Self {
        Self {
            keys: vec!["max(a.a_k0)".to_owned()],
            small: vec!["a.a_v".to_owned(), "max(a.a_v)".to_owned(), "count(*) % 7".to_owned()],
            outer_keys: vec![],
            outer_small: vec!["a.a_v".to_owned()],
            rows,
        }
    }
}

impl<R: Rng> Generator<'_, R> {
    /// A query with one or two of them.
    pub(super) fn with_subqueries(&mut self) -> String {
        let a = self.table('a');
        let scope = Scope::of(a, "a");
        let many = a.rows() > MOST_ROWS;
        match self.rng.random_range(0..100) {
            0..28 => {
                let columns = if many {
                    "count(*), sum(a_id)"
                } else {
                    self.choose(&["a_id", "a_id, a_k0, a_v", "count(*), sum(a_id)"])
                };
                format!("SELECT {columns} FROM a WHERE {}", self.predicate(&scope, 1))
            }
            // In a SELECT list, false and unknown differ.
            28..60 => {
                let second = if self.rng.random_bool(0.3) {
                    format!(", {} AS q", self.predicate(&scope, 0))
                } else {
                    String::new()
                };
                format!("SELECT a_id, {} AS p{second} FROM a", self.predicate(&scope, 1))
            }
            60..68 => {
                format!("SELECT p, count(*) FROM (SELECT {} AS p FROM a) t GROUP BY p", self.predicate(&scope, 1))
            }
            68..76 => {
                format!("SELECT count(*), sum(CASE WHEN {} THEN 1 ELSE 0 END) FROM a", self.predicate(&scope, 0))
            }
            76..88 => {
                let groups = Scope::of_groups(a.rows());
                format!("SELECT a_v, count(*) FROM a GROUP BY a_v HAVING {}", self.predicate(&groups, 1))
            }
            _ => {
                let word = self.choose(&["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
                let side = self.choose(&["a", "b"]);
                let scope = Scope::of(self.table(side.chars().next().expect("a name")), side);
                let condition = self.predicate(&scope, 0);
                format!(
                    "SELECT count(*), sum(a_id), sum(b_id) FROM a {word} b ON a.a_k0 = b.b_k0 AND a.a_v = b.b_v AND {condition}"
                )
            }
        }
    }

    /// A condition with a subquery, perhaps under other operators, up to `depth` of them nested.
    pub(super) fn predicate(&mut self, scope: &Scope, depth: usize) -> String {
        let plain = self.subquery_predicate(scope);
        if depth == 0 && self.rng.random_bool(0.6) {
            return plain;
        }
        match self.rng.random_range(0..100) {
            0..30 => plain,
            30..42 => format!("NOT ({plain})"),
            42..54 => format!("({plain}) IS NULL"),
            54..60 => format!("({plain}) IS NOT TRUE"),
            60..66 => format!("({plain}) IS FALSE"),
            66..84 => {
                let other = if depth > 0 && self.rng.random_bool(0.5) {
                    self.predicate(scope, depth - 1)
                } else {
                    format!("{} > {}", scope.small.choose(self.rng).expect("an operand"), self.rng.random_range(0..9))
                };
                format!("(({plain}) {} ({other}))", self.choose(&["OR", "OR", "AND"]))
            }
            _ => {
                let values = self.choose(&["true ELSE false", "false ELSE true", "false ELSE NULL", "NULL ELSE true"]);
                format!("CASE WHEN {plain} THEN {values} END")
            }
        }
    }

    fn subquery_predicate(&mut self, scope: &Scope) -> String {
        let of_keys = !scope.keys.is_empty() && self.rng.random_bool(0.5);
        let operands = if of_keys { &scope.keys } else { &scope.small };
        let operand = operands.choose(self.rng).expect("an operand").clone();
        let operand = if !of_keys && self.rng.random_bool(0.04) { "NULL".to_owned() } else { operand };
        match self.rng.random_range(0..100) {
            0..20 => format!("{operand} IN {}", self.subquery(scope, of_keys, true)),
            20..45 => format!("{operand} NOT IN {}", self.subquery(scope, of_keys, true)),
            45..55 => format!("EXISTS {}", self.subquery(scope, of_keys, true)),
            55..65 => format!("NOT EXISTS {}", self.subquery(scope, of_keys, true)),
            _ => {
                let comparison = self.choose(&["=", "<>", "<", "<=", ">", ">="]);
                let quantifier = self.choose(&["ANY", "ALL"]);
                format!("{operand} {comparison} {quantifier} {}", self.subquery(scope, of_keys, false))
            }
        }
    }

    /// A subquery of one column, a key or a small number. Where `any_condition`, it may be correlated by more than
    /// equalities.
    fn subquery(&mut self, scope: &Scope, of_keys: bool, any_condition: bool) -> String {
        let table = self.any_table();
        self.subqueries += 1;
        let alias = format!("s{}", self.subqueries);
        let name = table.name;
        let mut conditions = vec![];
        if self.rng.random_bool(0.55) {
            let compared = scope.rows * table.rows() <= MOST_COMPARED_PAIRS;
            conditions.push(match self.rng.random_range(0..10) {
                0..2 if any_condition && compared => {
                    format!("{alias}.{name}_v < {}", scope.outer_small.choose(self.rng).expect("a column"))
                }
                2..3 if any_condition && compared => {
                    format!("{alias}.{name}_v <> {}", scope.outer_small.choose(self.rng).expect("a column"))
                }
                0..6 => format!("{alias}.{name}_v = {}", scope.outer_small.choose(self.rng).expect("a column")),
                _ => match scope.outer_keys.choose(self.rng) {
                    Some(key) => format!("{alias}.{name}_k0 = {key}"),
                    None => format!("{alias}.{name}_v = {}", scope.outer_small[0]),
                },
            });
        }
        if self.rng.random_bool(0.45) {
            conditions.push(self.filter(&alias, name));
        }
        if self.subqueries < 3 && self.rng.random_bool(0.06) {
            let inner = Scope::of(table, &alias);
            conditions.push(self.predicate(&inner, 0));
        }
        let condition =
            if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
        let column = match of_keys {
            true => format!("{alias}.{name}_k0"),
            false if self.rng.random_bool(0.7) => format!("{alias}.{name}_v"),
            false => format!("{alias}.{name}_id % 5"),
        };
        let distinct = if self.rng.random_bool(0.1) { "DISTINCT " } else { "" };
        format!("(SELECT {distinct}{column} FROM {name} {alias}{condition})")
    }
}
