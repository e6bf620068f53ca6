//! The experiment `overspill bench correlated`: 100 queries of 4 to 12 joins over tables whose columns depend on each other.

use crate::datagen::{correlated_queries, correlated_tables, generate_correlated};
use crate::suite::Suite;

pub(crate) const SUITE: Suite = Suite {
    name: "correlated",
    title: "Correlated joins",
    texts: correlated_queries,
    tables: || correlated_tables().collect(),
    of: "correlated",
    generate: generate_correlated,
};
