//! What is looked up.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExprRef;

use crate::index_scan::IndexedScan;

/// What is looked up, and where.
#[derive(Debug)]
pub(super) struct Lookup {
    pub scan: Arc<IndexedScan>,
    /// The key of the other side.
    pub key: PhysicalExprRef,
    /// Whether nothing may be looked up if a key is null.
    pub refuses_nulls: bool,
}
