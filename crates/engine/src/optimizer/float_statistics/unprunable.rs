//! An expression that statistics cannot evaluate.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use datafusion::common::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

/// Has the value of its operand. Pruning by statistics does not know this expression, and assumes that it may be true for any
/// rows.
#[derive(Debug, Eq)]
pub(crate) struct Unprunable(pub Arc<dyn PhysicalExpr>);

// With a derived implementation, `==` would move the operand (https://github.com/rust-lang/rust/issues/78808).
impl PartialEq for Unprunable {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq(&other.0)
    }
}

impl Hash for Unprunable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Display for Unprunable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "unprunable({})", self.0)
    }
}

impl PhysicalExpr for Unprunable {
    fn return_field(&self, input_schema: &Schema) -> Result<FieldRef> {
        self.0.return_field(input_schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.0.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.0]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self(Arc::clone(&children[0]))))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}
