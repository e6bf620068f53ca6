//! The experiment `overspill bench aggregate`: aggregates of TPC-H's tables by keys with few and many values.

use crate::datagen::generate_tpch;
use crate::suite::Suite;

/// The keys that `lineitem` is grouped by. docs/benchmarks.md has their numbers of groups.
const KEYS: [&str; 7] = [
    "l_returnflag, l_linestatus",
    "l_shipinstruct, l_shipmode",
    "l_suppkey",
    "l_partkey",
    "l_orderkey",
    "l_partkey, l_suppkey",
    "l_shipmode, l_partkey",
];

/// `orders` by two texts.
const ORDERS: &str = "select count(*) as groups, sum(n) as rows, sum(price) as price, max(last) as last from \
    (select count(*) as n, sum(o_totalprice) as price, max(o_orderdate) as last from orders group by o_clerk, o_orderpriority) as per_group";

/// What is found of the groups of `lineitem` by some keys: one row, as the groups are too many to compare.
fn of_lines(keys: &str) -> String {
    format!(
        "select count(*) as groups, sum(n) as rows, sum(quantity) as quantity, max(price) as price from \
         (select count(*) as n, sum(l_quantity) as quantity, max(l_extendedprice) as price from lineitem group by {keys}) as per_group"
    )
}

pub(crate) const SUITE: Suite = Suite {
    name: "aggregate",
    title: "Aggregates by groups",
    texts: || KEYS.into_iter().map(of_lines).chain([ORDERS.to_owned()]).collect(),
    tables: || vec!["lineitem".to_owned(), "orders".to_owned()],
    of: "tpch",
    generate: generate_tpch,
};
