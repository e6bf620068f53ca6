//! Queries that DuckDB judges, because stock DataFusion answers many of them wrongly or not at all.
//!
//! Subqueries stand in every position, set operations count duplicates, joins share columns or have no equality. The
//! reference of budgets and strategies is Overspill's own answer in ample memory, which DuckDB compares with its own.

mod joins;
mod predicates;
mod set_operations;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::queries::{Query, Reference, Source};
use super::tables::Table;

/// Pairs of rows that conditions without an equality are evaluated for.
const MOST_COMPARED_PAIRS: usize = 400_000;

/// Draws queries over tables that DuckDB knows.
pub struct Generator<'a, R> {
    rng: &'a mut R,
    tables: &'a [Table],
    /// Subqueries drawn so far; each gives its table an alias of its own.
    subqueries: usize,
    /// What of the query may be refused.
    refusable: Option<&'static str>,
}

impl<'a, R: Rng> Generator<'a, R> {
    pub fn new(rng: &'a mut R, tables: &'a [Table]) -> Self {
        Self { rng, tables, subqueries: 0, refusable: None }
    }

    pub fn query(&mut self) -> Query {
        let sql = match self.rng.random_range(0..100) {
            0..52 => self.with_subqueries(),
            52..55 => self.large_sums(),
            55..78 => self.set_operations(),
            78..90 => self.sharing_columns(),
            _ => self.without_equality(),
        };
        Query {
            duckdb: Some(as_duckdb(&sql)),
            source: Source::Sql(sql),
            order: vec![],
            any_of: None,
            reference: Reference::AmpleMemory { refusable: self.refusable },
        }
    }

    /// Sums where two of the numbers fit 64 bits and three do not.
    fn large_sums(&mut self) -> String {
        self.refusable = Some("a sum beyond its type");
        let rows = self.rng.random_range(1..6);
        let summands = "SELECT a_v, a_id + 4000000000000000000 AS large FROM a";
        match self.rng.random_bool(0.5) {
            true => format!("SELECT sum(large) FROM ({summands} WHERE a_id < {rows}) t"),
            false => format!("SELECT a_v, sum(large) FROM ({summands} WHERE a_id < {}) t GROUP BY a_v", 3 * rows),
        }
    }

    fn choose<'c>(&mut self, from: &[&'c str]) -> &'c str {
        from.choose(self.rng).expect("a choice")
    }

    fn table(&self, name: char) -> &'a Table {
        self.tables.iter().find(|table| table.name == name).expect("a table of the case")
    }

    fn any_table(&mut self) -> &'a Table {
        self.tables.choose(self.rng).expect("a table")
    }

    /// A condition on one table, whose columns are those of `alias`.
    fn filter(&mut self, alias: &str, table: char) -> String {
        match self.rng.random_range(0..6) {
            0 => format!("{alias}.{table}_v > {}", self.rng.random_range(0..9)),
            1 => format!("{alias}.{table}_v IS NULL"),
            2 => format!("{alias}.{table}_v IS NOT NULL"),
            3 => format!("{alias}.{table}_id % {} = 0", self.rng.random_range(2..9)),
            4 => format!("{alias}.{table}_k0 IS NOT NULL"),
            _ => format!("{alias}.{table}_id < {}", self.rng.random_range(0..20)),
        }
    }

    /// How many keys of `a` have the type of those of the other tables.
    fn keys_of_one_type(&self) -> usize {
        let (left, right) = (&self.tables[0].keys, &self.tables[1].keys);
        left.iter().zip(right).take_while(|(left, right)| left == right).count()
    }
}

/// DuckDB's semi and anti joins keep the left side and do not say so.
fn as_duckdb(sql: &str) -> String {
    sql.replace("LEFT SEMI JOIN", "SEMI JOIN").replace("LEFT ANTI JOIN", "ANTI JOIN")
}
