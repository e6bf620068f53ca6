//! Decides which batches are worth a test of their keys.

/// Rows after which the share of those that passed is judged.
const JUDGED_TOGETHER: usize = 64 << 10;

/// Batches that pass untested after the first judgement that tests are not worthwhile.
const FIRST_PAUSE: usize = 32;
/// The longest pause: after each further such judgement it is twice as long as before.
const LONGEST_PAUSE: usize = 1024;

/// Pauses the tests of a stream where more than two of three rows pass: what is saved above is then less than what tests and
/// copies cost. Tests are tried again after each pause, as tables are often ordered by a column that the key depends on.
#[derive(Debug)]
pub(super) struct Pace {
    rows: usize,
    passed: usize,
    /// The share of rows that passed when it was last judged.
    share: f64,
    /// Batches until tests are tried again.
    pausing: usize,
    /// The length of the last pause; 0 if tests have been worthwhile since.
    last_pause: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rows: 0, passed: 0, share: 1.0, pausing: 0, last_pause: 0 }
    }
}

impl Pace {
    /// Whether the next batch is tested.
    pub fn tests_next(&mut self) -> bool {
        let is_pausing = self.pausing > 0;
        self.pausing = self.pausing.saturating_sub(1);
        !is_pausing
    }

    /// Records that `passed` of `rows` tested rows passed. Returns whether the stream has judged the share of such rows anew.
    pub fn note(&mut self, rows: usize, passed: usize) -> bool {
        self.rows += rows;
        self.passed += passed;
        if self.rows < JUDGED_TOGETHER {
            return false;
        }
        self.share = self.passed as f64 / self.rows as f64;
        if self.passed * 3 > self.rows * 2 {
            self.last_pause = (self.last_pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.pausing = self.last_pause;
        } else {
            self.last_pause = 0;
        }
        (self.rows, self.passed) = (0, 0);
        true
    }

    /// The share of rows that passed when it was last judged; 1 before.
    pub fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the next batches are tested, if this many of their 8192 rows pass.
    fn tested(pace: &mut Pace, batches: usize, passed: usize) -> usize {
        let is_tested = |_: &usize| {
            let tests = pace.tests_next();
            if tests {
                pace.note(8192, passed);
            }
            tests
        };
        (0..batches).filter(is_tested).count()
    }

    #[test]
    fn tests_pause_while_most_rows_pass_and_go_on_when_few_do() {
        let mut pace = Pace::default();
        // Eight batches are judged together, then 32, 64, 128 pass untested.
        assert_eq!(tested(&mut pace, 8 + 32 + 8 + 64 + 8 + 128, 8192), 24);
        assert_eq!(tested(&mut pace, 800, 100), 800, "the pause was over");
        assert!((pace.share() - 100.0 / 8192.0).abs() < 1e-9);
        assert_eq!(tested(&mut pace, 8 + 32, 8192), 8, "pauses are short again");
        let tests = tested(&mut pace, 20_000, 8192);
        assert!(tests < 300, "{tests} of 20000: pauses become long");
    }

    #[test]
    fn two_of_three_rows_may_pass() {
        let mut pace = Pace::default();
        assert_eq!(tested(&mut pace, 96, 8192 * 2 / 3), 96);
        assert_eq!(tested(&mut pace, 40, 8192 * 2 / 3 + 1), 8);
    }
}
