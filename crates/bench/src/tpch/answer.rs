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

fn is_same(one: &str, other: &str) -> bool {
    one == other || {
        let (one, other): (Vec<_>, Vec<_>) = (one.split(',').collect(), other.split(',').collect());
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
        (Ok(one), Ok(other), ..) => one == other,
        _ => one == other,
    }
}

/// The number of rows, in words.
pub(super) fn count(rows: &[String]) -> String {
    format!("{} rows", rows.len())
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
        ] {
            assert_eq!(are_same(&answer, &rows(other)), same, "{other}");
        }
        assert!(is_same("16.647594941615093", "16.647594941615097") && !is_same("16.647594941", "16.647594943"));
        assert_eq!(count(&answer), "3 rows");
        assert_eq!(first_difference(&answer, &rows("a,1.5,x\nc")), "The first that differ are \"b,2,y\" and \"c\".");
    }
}
