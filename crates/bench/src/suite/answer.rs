//! Compares the answers of two engines.

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::Result;

/// The relative difference allowed between 64-bit floating-point sums that were added in different orders.
const ROUNDING: f64 = 1e-12;

/// Rows as lines of CSV.
pub(crate) fn lines(batches: &[RecordBatch]) -> Result<Vec<String>> {
    let options = FormatOptions::default();
    let mut lines = vec![];
    for batch in batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let cells: Vec<String> = columns.iter().map(|column| column.value(row).to_string()).collect();
            lines.push(cells.join(","));
        }
    }
    Ok(lines)
}

/// Whether rows, as lines of CSV, are equal except for their order, which the queries do not define among rows with equal
/// sort keys.
pub(crate) fn are_same(one: &[String], other: &[String]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let (moved, mut rest): (Vec<_>, Vec<_>) =
        { one.iter().zip(other) }.filter(|(one, other)| !is_same(one, other)).unzip();
    moved.into_iter().all(|one| match rest.iter().position(|other| is_same(one, other)) {
        Some(place) => {
            rest.swap_remove(place);
            true
        }
        None => false,
    })
}

/// The cells of a line of CSV.
pub(super) fn cells(line: &str) -> Vec<&str> {
    let mut quoted = false;
    let is_end = |letter: char| {
        quoted ^= letter == '"';
        letter == ',' && !quoted
    };
    line.split(is_end).collect()
}

fn is_same(one: &str, other: &str) -> bool {
    one == other || {
        let (one, other) = (cells(one), cells(other));
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same_cell(one, other))
    }
}

/// Compares cells. Engines compute averages and quotients with different numbers of digits; the common digits but the last
/// must agree.
fn is_same_cell(one: &str, other: &str) -> bool {
    let digits = |cell: &str| cell.split_once('.').map(|(_, fraction)| fraction.len() as i32);
    match (one.parse::<f64>(), other.parse::<f64>(), digits(one), digits(other)) {
        (Ok(one), Ok(other), Some(digits), Some(others)) => {
            (one - other).abs() <= 0.1f64.powi(digits.min(others)).max(one.abs() * ROUNDING)
        }
        (Ok(one), Ok(other), ..) => one == other || one.is_nan() && other.is_nan(),
        // Python writes a row of a single null as an empty text in quotes.
        _ => one.trim_matches('"') == other.trim_matches('"'),
    }
}

/// How rows differ from those of another engine.
pub(super) fn difference(theirs: &[String], rows: &[String], engine: &str) -> String {
    format!("{} rows, and {} of {engine}. {}", rows.len(), theirs.len(), first_difference(theirs, rows))
}

/// The first differing rows, in a sentence.
pub(crate) fn first_difference(one: &[String], other: &[String]) -> String {
    let different = one.iter().zip(other).find(|(one, other)| !is_same(one, other));
    different.map_or_else(String::new, |(one, other)| format!("The first that differ are \"{one}\" and \"{other}\"."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_the_order_of_rows_may_differ_and_nothing_else() {
        let rows = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let answer = rows("a,1.5,x\nb,2,y\nb,2.000000,z");
        for (other, same) in [
            ("a,1.50,x\nb,2.0,y\nb,2,z", true),
            ("a,1.4567,x\nb,2,y\nb,2,z", true),
            ("a,1.5,x\nb,2,z\nb,2,y", true),
            ("a,1.5,x\nb,2,y\nb,2,y", false),
            ("a,1.3567,x\nb,2,y\nb,2,z", false),
            ("a,1.5,x\nb,2.00001,y\nb,2,z", false),
            ("a,1.5,x\nb,2,y", false),
            ("a,1.5,x,\nb,2,y\nb,2,z", false),
            ("A,1.5,x\nb,2,y\nb,2,z", false),
            ("\"a\",1.5,x\nb,2,y\nb,2,z", true),
        ] {
            assert_eq!(are_same(&answer, &rows(other)), same, "{other}");
        }
        assert!(is_same("16.647594941615093", "16.647594941615097") && !is_same("16.647594941", "16.647594943"));
        assert!(is_same("a,NaN", "a,nan") && !is_same("a,NaN", "a,0") && is_same("", "\"\"") && !is_same("a,", "a,0"));
        assert_eq!(
            difference(&answer, &rows("a,1.5,x\nc"), "DuckDB"),
            "2 rows, and 3 of DuckDB. The first that differ are \"b,2,y\" and \"c\"."
        );
    }

    #[test]
    fn commas_in_quotes_are_of_a_cell() {
        assert_eq!(cells("a,\"b,\"\"c\",,1"), ["a", "\"b,\"\"c\"", "", "1"]);
    }
}
