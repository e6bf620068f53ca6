//! UNION, INTERSECT and EXCEPT, with and without ALL, nested.

use rand::Rng;

use super::Generator;

impl<R: Rng> Generator<'_, R> {
    pub(super) fn set_operations(&mut self) -> String {
        let keys = self.keys_of_one_type();
        // Small numbers repeat; keys may be of any type.
        let mut columns = vec![match self.rng.random_range(0..3) {
            0 => "_v".to_owned(),
            1 => "_id % 5".to_owned(),
            _ if keys > 0 => "_k0".to_owned(),
            _ => "_v".to_owned(),
        }];
        if self.rng.random_bool(0.4) {
            columns.push("_v + 1".to_owned());
        }
        if keys > 1 && self.rng.random_bool(0.4) {
            columns.push("_k1".to_owned());
        }
        let nested = self.set_operation(&columns, 2);
        match self.rng.random_range(0..10) {
            0..7 => nested,
            7..9 => format!("SELECT c0, count(*) FROM ({nested}) t GROUP BY c0"),
            _ => format!("SELECT a_id FROM a WHERE EXISTS ({nested})"),
        }
    }

    /// An operation on queries of these columns, each the end of an expression that a table's name begins.
    fn set_operation(&mut self, columns: &[String], depth: usize) -> String {
        let word = self.choose(&["EXCEPT", "EXCEPT", "INTERSECT", "INTERSECT", "UNION"]);
        let all = if self.rng.random_bool(0.7) { " ALL" } else { "" };
        let [left, right] = std::array::from_fn(|_| {
            if depth > 1 && self.rng.random_bool(0.35) {
                self.set_operation(columns, depth - 1)
            } else {
                self.set_operand(columns)
            }
        });
        format!("({left}) {word}{all} ({right})")
    }

    fn set_operand(&mut self, columns: &[String]) -> String {
        let table = self.any_table().name;
        let columns: Vec<String> =
            columns.iter().enumerate().map(|(number, column)| format!("{table}{column} AS c{number}")).collect();
        let condition = match self.rng.random_range(0..10) {
            0..4 => format!(" WHERE {}", self.filter(&table.to_string(), table)),
            _ => String::new(),
        };
        format!("SELECT {} FROM {table}{condition}", columns.join(", "))
    }
}
