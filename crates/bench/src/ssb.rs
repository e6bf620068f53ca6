//! The experiment `overspill bench ssb`: the 13 queries of the Star Schema Benchmark.

use crate::datagen::{generate_ssb, ssb_tables};
use crate::suite::Suite;

pub(crate) const SUITE: Suite = Suite {
    name: "ssb",
    title: "The Star Schema Benchmark",
    texts: || {
        let texts = [
            include_str!("../../../tests/ssb/queries/q01.sql"),
            include_str!("../../../tests/ssb/queries/q02.sql"),
            include_str!("../../../tests/ssb/queries/q03.sql"),
            include_str!("../../../tests/ssb/queries/q04.sql"),
            include_str!("../../../tests/ssb/queries/q05.sql"),
            include_str!("../../../tests/ssb/queries/q06.sql"),
            include_str!("../../../tests/ssb/queries/q07.sql"),
            include_str!("../../../tests/ssb/queries/q08.sql"),
            include_str!("../../../tests/ssb/queries/q09.sql"),
            include_str!("../../../tests/ssb/queries/q10.sql"),
            include_str!("../../../tests/ssb/queries/q11.sql"),
            include_str!("../../../tests/ssb/queries/q12.sql"),
            include_str!("../../../tests/ssb/queries/q13.sql"),
        ];
        texts.map(str::to_owned).to_vec()
    },
    tables: || ssb_tables().collect(),
    of: "ssb",
    generate: generate_ssb,
};
