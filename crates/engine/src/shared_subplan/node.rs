//! The logical node.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use datafusion::common::{DFSchemaRef, Result, assert_or_internal_err};
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};

use super::subplan::Subplan;

/// A shared part of a query, which is planned before its readers are.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its number in the query, from 1.
    pub id: usize,
    pub subplan: OnceLock<Arc<Subplan>>,
}

impl Slot {
    pub fn new(id: usize) -> Self {
        Self { id, subplan: OnceLock::new() }
    }
}

/// The rows of a shared part of a query.
///
/// It has no inputs, as DataFusion would plan them for each of these nodes.
#[derive(Debug, Clone)]
pub(super) struct SharedSubplan {
    slot: Arc<Slot>,
    schema: DFSchemaRef,
}

impl SharedSubplan {
    pub fn new(slot: Arc<Slot>, schema: DFSchemaRef) -> Self {
        Self { slot, schema }
    }

    /// The planned part; `None` before it is planned.
    pub fn subplan(&self) -> Option<&Arc<Subplan>> {
        self.slot.subplan.get()
    }
}

impl PartialEq for SharedSubplan {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.slot, &other.slot)
    }
}

impl Eq for SharedSubplan {}

impl Hash for SharedSubplan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.slot.id.hash(state);
    }
}

impl PartialOrd for SharedSubplan {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let ordering = self.slot.id.cmp(&other.slot.id);
        Some(ordering).filter(|ordering| *ordering != Ordering::Equal || self == other)
    }
}

impl UserDefinedLogicalNodeCore for SharedSubplan {
    fn name(&self) -> &str {
        "SharedSubplan"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "SharedSubplan: id={}", self.slot.id)
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        assert_or_internal_err!(exprs.is_empty() && inputs.is_empty(), "a shared subplan has no inputs");
        Ok(self.clone())
    }
}
