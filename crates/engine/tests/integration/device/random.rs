//! The random tables and queries of `differential`, joined by device kernels.

use super::{MIB, leftovers, start};
use crate::differential::case::Tally;
use crate::differential::{run_cases, run_on_device};

/// From the least there may be to ample.
const LIMITS: [usize; 3] = [16 * MIB, 20 * MIB, 200 * MIB];

const QUERIES: usize = 40;

#[test]
fn random_queries_agree() {
    let mut all = Tally::default();
    for (number, limit) in LIMITS.into_iter().enumerate() {
        let emulated = start(limit);
        match number {
            // Most drivers map no pages of CPU memory beside those of the GPU.
            1 => emulated.configure("granularity=0"),
            // The scratchpad of compute capability 7.5.
            2 => emulated.configure("shared=65536"),
            _ => {}
        }
        let tally = run_cases(QUERIES, |case| run_on_device((number * QUERIES) as u64 + case, limit));
        assert_eq!(leftovers(&emulated), None, "{limit} bytes of device memory");
        all.add(tally);
    }
    println!(
        "{} rows on the device, {} left to the CPU, refusals: {:#?}",
        all.device_rows, all.returned_rows, all.refusals
    );
    assert_eq!(all.failures, Vec::<String>::new(), "nothing was made to fail");
    // What the limit allows, the driver gives.
    let over_limit = all.refusals.iter().find(|reason| reason.contains("other programs use it"));
    assert_eq!(over_limit, None);
    assert!(all.device_rows > 10 * all.returned_rows, "{} and {} rows", all.device_rows, all.returned_rows);
    assert!(all.device_rows > 100_000, "only {} rows", all.device_rows);
}
