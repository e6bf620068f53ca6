//! The experiment `overspill bench tpch`: the 22 queries of TPC-H.

use crate::datagen::{generate_tpch, tpch_tables};
use crate::suite::Suite;

pub(crate) const SUITE: Suite = Suite {
    name: "tpch",
    title: "TPC-H",
    texts: || {
        let texts = [
            include_str!("../../../tests/tpch/queries/q01.sql"),
            include_str!("../../../tests/tpch/queries/q02.sql"),
            include_str!("../../../tests/tpch/queries/q03.sql"),
            include_str!("../../../tests/tpch/queries/q04.sql"),
            include_str!("../../../tests/tpch/queries/q05.sql"),
            include_str!("../../../tests/tpch/queries/q06.sql"),
            include_str!("../../../tests/tpch/queries/q07.sql"),
            include_str!("../../../tests/tpch/queries/q08.sql"),
            include_str!("../../../tests/tpch/queries/q09.sql"),
            include_str!("../../../tests/tpch/queries/q10.sql"),
            include_str!("../../../tests/tpch/queries/q11.sql"),
            include_str!("../../../tests/tpch/queries/q12.sql"),
            include_str!("../../../tests/tpch/queries/q13.sql"),
            include_str!("../../../tests/tpch/queries/q14.sql"),
            include_str!("../../../tests/tpch/queries/q15.sql"),
            include_str!("../../../tests/tpch/queries/q16.sql"),
            include_str!("../../../tests/tpch/queries/q17.sql"),
            include_str!("../../../tests/tpch/queries/q18.sql"),
            include_str!("../../../tests/tpch/queries/q19.sql"),
            include_str!("../../../tests/tpch/queries/q20.sql"),
            include_str!("../../../tests/tpch/queries/q21.sql"),
            include_str!("../../../tests/tpch/queries/q22.sql"),
        ];
        texts.map(str::to_owned).to_vec()
    },
    tables: || tpch_tables().collect(),
    of: "tpch",
    generate: generate_tpch,
};
