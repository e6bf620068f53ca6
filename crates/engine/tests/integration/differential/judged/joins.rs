//! Joins that share columns by USING or NATURAL, and joins without an equality.

use rand::Rng;

use super::{Generator, MOST_COMPARED_PAIRS};
use crate::differential::queries::{MOST_ROWS, pairs};

const OUTER: [&str; 4] = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"];

impl<R: Rng> Generator<'_, R> {
    pub(super) fn sharing_columns(&mut self) -> String {
        if self.keys_of_one_type() == 0 {
            return self.without_equality();
        }
        let word = self.choose(&OUTER);
        let two = self.rng.random_bool(0.4);
        let shared = if two { "k, v" } else { "k" };
        // Only shared columns may have one name where the join is natural.
        let other = if two { "v" } else { "w" };
        let left = "(SELECT a_k0 AS k, a_v AS v, a_id FROM a) l";
        let right = format!("(SELECT b_k0 AS k, b_v AS {other}, b_id FROM b) r");
        let from = match self.rng.random_bool(0.3) {
            true => format!("{left} NATURAL {word} {right}"),
            false => format!("{left} {word} {right} USING ({shared})"),
        };
        let rows = pairs(self.tables, 1, false);
        // DataFusion 55 finds a shared column ambiguous in WHERE, and behind a second join.
        let condition = match self.rng.random_range(0..10) {
            0..2 => " WHERE a_id IS NULL",
            2..4 => " WHERE b_id IS NOT NULL",
            _ => "",
        };
        let columns = if rows > MOST_ROWS {
            "count(*), count(k), min(k), max(k), sum(a_id), sum(b_id)"
        } else {
            self.choose(&["*", "k, a_id, b_id", "k", "count(*), count(k), count(v), sum(a_id), sum(b_id)"])
        };
        match self.rng.random_bool(0.2) {
            true => format!("SELECT k, count(*), sum(b_id) FROM {from}{condition} GROUP BY k"),
            false => format!("SELECT {columns} FROM {from}{condition}"),
        }
    }

    pub(super) fn without_equality(&mut self) -> String {
        let rows = self.table('a').rows() * self.table('b').rows();
        if rows > MOST_COMPARED_PAIRS {
            return self.set_operations();
        }
        let word = self.choose(&["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]);
        let condition = match self.rng.random_range(0..7) {
            0 => "a_v < b_v",
            1 => "a_id >= b_id AND a_v <= b_v",
            2 => "a_id BETWEEN b_id - 2 AND b_id + 1",
            3 => "a_v <> b_v",
            4 => "a_v < b_v OR a_id = b_id",
            5 => "a_v + b_v > 9 AND a_id > b_id",
            _ => "a_k0 <= b_k0",
        };
        let semi = word.contains("SEMI") || word.contains("ANTI");
        let columns = match (rows > MOST_ROWS || self.rng.random_bool(0.3), semi) {
            (true, true) => "count(*), sum(a_id)",
            (true, false) => "count(*), sum(a_id), sum(b_id)",
            (false, true) => "a_id, a_v, a_k0",
            (false, false) => "a_id, a_v, b_id, b_k0",
        };
        format!("SELECT {columns} FROM a {word} b ON {condition}")
    }
}
