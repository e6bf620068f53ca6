//! The experiment `overspill bench aggregate`: aggregates of TPC-H's tables by keys with few and many values.

use crate::datagen::generate_tpch;
use crate::suite::Suite;

pub(crate) const SUITE: Suite = Suite {
    name: "aggregate",
    title: "Aggregates by groups",
    texts: || {
        let texts = [
            include_str!("../../../tests/aggregate/queries/q01.sql"),
            include_str!("../../../tests/aggregate/queries/q02.sql"),
            include_str!("../../../tests/aggregate/queries/q03.sql"),
            include_str!("../../../tests/aggregate/queries/q04.sql"),
            include_str!("../../../tests/aggregate/queries/q05.sql"),
            include_str!("../../../tests/aggregate/queries/q06.sql"),
            include_str!("../../../tests/aggregate/queries/q07.sql"),
            include_str!("../../../tests/aggregate/queries/q08.sql"),
        ];
        texts.map(str::to_owned).to_vec()
    },
    tables: || vec!["lineitem".to_owned(), "orders".to_owned()],
    of: "tpch",
    generate: generate_tpch,
};
