//! The queries.

/// The queries by number, starting from 1.
const TEXTS: [&str; 22] = [
    include_str!("../../../../tests/tpch/queries/q01.sql"),
    include_str!("../../../../tests/tpch/queries/q02.sql"),
    include_str!("../../../../tests/tpch/queries/q03.sql"),
    include_str!("../../../../tests/tpch/queries/q04.sql"),
    include_str!("../../../../tests/tpch/queries/q05.sql"),
    include_str!("../../../../tests/tpch/queries/q06.sql"),
    include_str!("../../../../tests/tpch/queries/q07.sql"),
    include_str!("../../../../tests/tpch/queries/q08.sql"),
    include_str!("../../../../tests/tpch/queries/q09.sql"),
    include_str!("../../../../tests/tpch/queries/q10.sql"),
    include_str!("../../../../tests/tpch/queries/q11.sql"),
    include_str!("../../../../tests/tpch/queries/q12.sql"),
    include_str!("../../../../tests/tpch/queries/q13.sql"),
    include_str!("../../../../tests/tpch/queries/q14.sql"),
    include_str!("../../../../tests/tpch/queries/q15.sql"),
    include_str!("../../../../tests/tpch/queries/q16.sql"),
    include_str!("../../../../tests/tpch/queries/q17.sql"),
    include_str!("../../../../tests/tpch/queries/q18.sql"),
    include_str!("../../../../tests/tpch/queries/q19.sql"),
    include_str!("../../../../tests/tpch/queries/q20.sql"),
    include_str!("../../../../tests/tpch/queries/q21.sql"),
    include_str!("../../../../tests/tpch/queries/q22.sql"),
];

/// A query of TPC-H.
#[derive(Debug, Clone)]
pub struct Query {
    pub(crate) number: usize,
    /// The text on one line.
    pub(crate) sql: String,
}

impl Query {
    fn new(number: usize, text: &str) -> Self {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("--")).collect();
        Self { number, sql: lines.join(" ").trim().trim_end_matches(';').to_owned() }
    }
}

pub(crate) fn all() -> Vec<Query> {
    (1..).zip(TEXTS).map(|(number, text)| Query::new(number, text)).collect()
}

/// The query with a number given on the command line.
pub(super) fn by_number(text: &str) -> Result<Query, String> {
    let query = text.parse().ok().and_then(|number: usize| all().into_iter().find(|query| query.number == number));
    query.ok_or_else(|| format!("the queries have the numbers 1 to {}", TEXTS.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_statements_on_one_line() {
        for query in all() {
            assert!(query.sql.starts_with("select ") || query.sql.starts_with("with "), "{}", query.sql);
            assert!(!query.sql.contains(['\n', ';']), "{}", query.sql);
        }
        assert_eq!(by_number("22").unwrap().number, 22);
        for other in ["0", "23", "six", ""] {
            assert!(by_number(other).is_err_and(|error| error.contains("1 to 22")), "{other}");
        }
    }
}
