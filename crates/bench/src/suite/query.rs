//! The queries of a benchmark, and which of them to run.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// A query.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) number: usize,
    /// The text on one line.
    pub(crate) sql: String,
}

impl Query {
    pub(super) fn new(number: usize, text: &str) -> Self {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
        Self { number, sql: lines.join(" ").trim().trim_end_matches(';').to_owned() }
    }

    /// The query with all of its `columns` as last sort keys, so that its limit leaves the same rows in all engines. `None` if
    /// it has no limit.
    pub(super) fn in_total_order(&self, columns: usize) -> Option<String> {
        let words = self.sql.to_ascii_lowercase();
        let (body, rows) = words.rsplit_once(" limit ")?;
        let rows: usize = rows.trim().parse().ok()?;
        let keys: Vec<String> = (1..=columns).map(|column| column.to_string()).collect();
        let before = if is_ordered(body) { ", " } else { " order by " };
        Some(format!("{}{before}{} limit {rows}", &self.sql[..body.len()], keys.join(", ")))
    }
}

/// Whether a query in lower case ends with an ORDER BY that is not in parentheses.
fn is_ordered(query: &str) -> bool {
    let Some((_, keys)) = query.rsplit_once("order by ") else { return false };
    keys.matches('(').count() == keys.matches(')').count()
}

/// Numbers of queries, as in `3` or `1-10`.
#[derive(Debug, Clone)]
pub struct Numbers(RangeInclusive<usize>);

impl Numbers {
    pub(super) fn contain(&self, number: usize) -> bool {
        self.0.contains(&number)
    }

    /// One of the numbers that is not from 1 to `last`.
    pub(super) fn outside(&self, last: usize) -> Option<usize> {
        let (first, end) = (*self.0.start(), *self.0.end());
        if first == 0 { Some(0) } else { (end > last).then_some(end) }
    }
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok(Self(first..=last)),
            _ => Err("queries are given by their numbers, such as 3 or 1-10".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_statements_on_one_line() {
        for suite in [
            &crate::tpch::SUITE,
            &crate::tpcds::SUITE,
            &crate::ssb::SUITE,
            &crate::aggregate::SUITE,
            &crate::correlated::SUITE,
        ] {
            for query in suite.queries() {
                let start = query.sql.to_ascii_lowercase();
                assert!(start.starts_with("select ") || start.starts_with("with "), "{}", query.sql);
                assert!(!query.sql.contains(['\n', ';']) && !query.sql.contains("--"), "{}", query.sql);
            }
        }
    }

    #[test]
    fn limits_get_a_total_order() {
        let ordered = |sql: &str, columns| Query::new(1, sql).in_total_order(columns);
        for (sql, expected) in [
            ("SELECT a, B FROM t ORDER BY a DESC\nLIMIT 100;", "SELECT a, B FROM t ORDER BY a DESC, 1, 2 limit 100"),
            ("select a from t order by sum(a) limit 5", "select a from t order by sum(a), 1 limit 5"),
            ("select a from t limit 5", "select a from t order by 1 limit 5"),
            (
                "select rank() over (order by a) from t limit 5",
                "select rank() over (order by a) from t order by 1 limit 5",
            ),
        ] {
            assert_eq!(ordered(sql, sql.matches(", B").count() + 1).as_deref(), Some(expected));
        }
        for sql in ["select a from t order by a", "select a from (select a from t limit 5) order by a"] {
            assert_eq!(ordered(sql, 1), None, "{sql}");
        }
    }

    #[test]
    fn numbers_are_alone_or_in_ranges() {
        let numbers: Numbers = "3-5".parse().unwrap();
        assert!([3, 4, 5].iter().all(|number| numbers.contain(*number)) && !numbers.contain(2) && !numbers.contain(6));
        assert_eq!((numbers.outside(5), numbers.outside(4)), (None, Some(5)));
        assert_eq!("0".parse::<Numbers>().unwrap().outside(22), Some(0));
        for text in ["six", "", "5-3", "-", "1-", "1-2-3"] {
            assert!(text.parse::<Numbers>().is_err_and(|error| error.contains("such as 3 or 1-10")), "{text}");
        }
    }
}
