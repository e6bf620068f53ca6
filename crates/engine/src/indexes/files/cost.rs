//! Whether rows of files are worth finding.

use overspill_index::BLOCK;

/// Nanoseconds of a thread to scan a row, to read one by a selection from a page that is decoded for it, to read a block of the index,
/// and to find a key in it. Only their ratios count.
const SCAN: u64 = 10;
const SELECT: u64 = 150;
const READ: u64 = 1000;
const FIND: u64 = 50;

/// Nanoseconds to sort a row that was found, for each column of the order.
const SORT: u64 = 35;

/// Nanoseconds to open an Arrow file, and more for each batch that its footer lists.
const OPEN: u64 = 100_000;
const OPEN_BATCH: u64 = 60;

/// The assumed number of rows of a page of a Parquet file. It is the default limit of common writers.
pub(super) const PAGE: u64 = 20_000;

/// The most keys of a table with this number of rows that are worth a lookup each.
pub(super) fn most_keys(total: u64) -> u64 {
    let each_in_a_block = total * SCAN / (READ + FIND);
    let in_all_blocks = (total * SCAN).saturating_sub(blocks(total) * READ) / FIND;
    each_in_a_block.max(in_all_blocks)
}

fn blocks(total: u64) -> u64 {
    total.div_ceil(BLOCK as u64)
}

/// The most rows that are worth reading by a selection.
pub(super) fn most_rows(total: u64) -> u64 {
    total * SCAN / SELECT
}

/// Whether reading `found` rows of a table, which are in pages with this share of all rows, takes no more time than a scan, but for a
/// tenth, which is less than the estimate errs by. `more` is the time to open files, or to sort the rows. The time to find the rows has
/// been spent either way.
pub(super) fn is_worth_it(total: u64, share: f64, found: u64, more: u64) -> bool {
    reading(total, share, found) + more <= total * SCAN * 11 / 10
}

/// The time to sort rows that were found by this number of columns.
pub(super) fn sorting(rows: u64, columns: usize) -> u64 {
    rows * SORT * columns as u64
}

/// The time to open an Arrow file with this number of batches for each of `parts` parts. Each time its footer is read.
pub(super) fn opening(parts: usize, batches: usize) -> u64 {
    parts as u64 * (OPEN + OPEN_BATCH * batches as u64)
}

fn reading(total: u64, share: f64, found: u64) -> u64 {
    (total as f64 * share * SCAN as f64) as u64 + found * SELECT
}

/// The time to find keys in order. Those of a block read it once.
fn finding(total: u64, keys: u64) -> u64 {
    keys.min(blocks(total)) * READ + keys * FIND
}

/// Estimates whether finding and reading rows takes less time than a scan, by the rows of one in `step` of `keys` keys.
/// `page` is the number of rows of a page.
pub(super) fn seems_worth_it(total: u64, page: u64, sample: &[u64], step: usize, keys: usize) -> bool {
    let found = (sample.len() * step) as f64;
    let mut pages: Vec<u64> = sample.iter().map(|row| row / page).collect();
    pages.sort_unstable();
    pages.dedup();
    // If rows are spread evenly over `n` pages, `r` rows are in `n (1 - exp(-r / n))` of them. That tells over how many pages those of
    // the sample are spread, and then in how many those of all keys are.
    let in_pages = |rows: f64, spread: f64| spread * -(-rows / spread).exp_m1();
    let all = total.div_ceil(page) as f64;
    let (mut fewest, mut most) = (pages.len() as f64, all);
    for _ in 0..40 {
        let middle = f64::midpoint(fewest, most);
        if in_pages(sample.len() as f64, middle) < pages.len() as f64 { fewest = middle } else { most = middle }
    }
    let share = in_pages(found, most) / all;
    // What is found tells the share exactly.
    finding(total, keys as u64) + reading(total, share, found as u64) <= total * SCAN * 6 / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_tell_scattered_rows_from_rows_that_lie_together() {
        let total = 60_000_000;
        // One in 500 of 500,000 keys.
        let scattered: Vec<u64> = (0..1000).map(|row| row * 37_082_039 % total).collect();
        assert!(!seems_worth_it(total, PAGE, &scattered, 500, 500_000));
        let together: Vec<u64> = (0..1000).map(|row| 7_000_000 + row * 500).collect();
        assert!(seems_worth_it(total, PAGE, &together, 500, 400_000));
        // Few keys are in few pages, wherever they are.
        assert!(seems_worth_it(total, PAGE, &scattered, 1, 1000));
        assert!(seems_worth_it(total, PAGE, &[], 500, 500_000));
    }

    #[test]
    fn a_scan_is_better_than_most_pages() {
        assert!(is_worth_it(20_000_000, 0.1, 100, 0) && !is_worth_it(20_000_000, 0.99, 200_000, 0));
        assert!(is_worth_it(20_000_000, 0.1, 100, opening(100, 2441)));
        assert!(!is_worth_it(20_000_000, 0.1, 100, opening(1000, 2441)));
        assert!(most_rows(1000) < 1000);
    }

    #[test]
    fn keys_are_worth_finding_until_that_takes_as_long_as_a_scan() {
        for total in [1, 10, 200, 1000, 100_000, 60_000_000] {
            let most = most_keys(total);
            assert!(most == 0 || finding(total, most) <= total * SCAN, "{total}");
            assert!(finding(total, most + 1) > total * SCAN, "{total}");
            assert!(most <= total / 5, "{total}");
        }
        // Keys of a block read it once.
        assert!(finding(1_000_000, 100_000) < 100_000 * READ / 10);
    }
}
