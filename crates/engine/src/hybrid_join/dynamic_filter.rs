//! Bounds of the build keys, passed to the scans of the probe side.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{MaxAccumulator, MinAccumulator};
use datafusion::logical_expr::{Accumulator, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, IsNullExpr, lit};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

/// Collects the bounds of all build sides of a join, and updates the filter when the last has reported.
///
/// Scans do not wait for the bounds: until then, and if a stream is dropped before it has read its build side, the filter
/// passes every row.
#[derive(Debug)]
pub(super) struct BoundsFilter {
    filter: Arc<DynamicFilterPhysicalExpr>,
    probe_keys: Vec<PhysicalExprRef>,
    /// Whether a null among the probe keys matters to the join.
    keeps_null: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    missing: usize,
    /// For each key the least and the greatest value so far.
    bounds: Option<Vec<(ScalarValue, ScalarValue)>>,
}

impl BoundsFilter {
    /// A filter that waits for `reports` build sides.
    pub fn new(
        filter: Arc<DynamicFilterPhysicalExpr>,
        probe_keys: Vec<PhysicalExprRef>,
        keeps_null: bool,
        reports: usize,
    ) -> Self {
        Self { filter, probe_keys, keeps_null, state: Mutex::new(State { missing: reports, bounds: None }) }
    }

    /// Adds the bounds of one build side; `None` if it has no rows.
    pub fn report(&self, bounds: Option<Vec<(ScalarValue, ScalarValue)>>) -> Result<()> {
        let mut state = self.state.lock();
        state.bounds = match (state.bounds.take(), bounds) {
            (Some(ours), Some(theirs)) => Some(
                ours.into_iter()
                    .zip(theirs)
                    .map(|(ours, theirs)| Ok((least(ours.0, theirs.0)?, greatest(ours.1, theirs.1)?)))
                    .collect::<Result<_>>()?,
            ),
            (ours, theirs) => ours.or(theirs),
        };
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0 {
            self.filter.update(self.predicate(state.bounds.as_deref()))?;
            self.filter.mark_complete();
        }
        Ok(())
    }

    fn predicate(&self, bounds: Option<&[(ScalarValue, ScalarValue)]>) -> PhysicalExprRef {
        let Some(bounds) = bounds else { return self.or_null(lit(false)) };
        let within = self
            .probe_keys
            .iter()
            .zip(bounds)
            // A key that is null in every build row has no bounds; if there are other keys, no predicate can be derived for
            // it.
            .filter(|(_, (least, greatest))| !least.is_null() && !greatest.is_null())
            .map(|(key, (least, greatest))| {
                let from = binary(Arc::clone(key), Operator::GtEq, lit(least.clone()));
                let to = binary(Arc::clone(key), Operator::LtEq, lit(greatest.clone()));
                binary(from, Operator::And, to)
            })
            .reduce(|all, one| binary(all, Operator::And, one));
        within.map_or_else(|| lit(true), |within| self.or_null(within))
    }

    fn or_null(&self, predicate: PhysicalExprRef) -> PhysicalExprRef {
        if !self.keeps_null {
            return predicate;
        }
        self.probe_keys
            .iter()
            .fold(predicate, |any, key| binary(any, Operator::Or, Arc::new(IsNullExpr::new(Arc::clone(key)))))
    }
}

impl Drop for BoundsFilter {
    fn drop(&mut self) {
        // Consumers that wait for the filter must not wait for a dropped join.
        self.filter.mark_complete();
    }
}

/// Whether a node of the plan has the filter among its expressions. If no scan has taken the filter (tables in memory do
/// not), collecting bounds of every build key is not worthwhile.
pub(super) fn is_read(filter: &DynamicFilterPhysicalExpr, plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let id = filter.expression_id();
    let mut is_read = false;
    plan.apply(|node| {
        node.apply_expressions(&mut |root| {
            is_read |= root.exists(|expression| Ok(expression.expression_id() == id))?;
            Ok(if is_read { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    Ok(is_read)
}

fn binary(left: PhysicalExprRef, operator: Operator, right: PhysicalExprRef) -> PhysicalExprRef {
    Arc::new(BinaryExpr::new(left, operator, right))
}

fn least(a: ScalarValue, b: ScalarValue) -> Result<ScalarValue> {
    Ok(if a.is_null() || (!b.is_null() && b.try_cmp(&a)?.is_lt()) { b } else { a })
}

fn greatest(a: ScalarValue, b: ScalarValue) -> Result<ScalarValue> {
    Ok(if a.is_null() || (!b.is_null() && b.try_cmp(&a)?.is_gt()) { b } else { a })
}

/// The bounds of the keys of one build side.
#[derive(Debug)]
pub(super) struct KeyBounds {
    keys: Vec<(PhysicalExprRef, MinAccumulator, MaxAccumulator)>,
    rows: usize,
}

impl KeyBounds {
    /// No bounds yet; `None` if filters do not know an order for the type of a key.
    pub fn new(keys: &[PhysicalExprRef], schema: &Schema) -> Option<Self> {
        let keys = keys.iter().map(|key| {
            let data_type = value_type(key.data_type(schema).ok()?);
            if data_type.is_nested() || data_type.is_null() || data_type.is_floating() {
                return None;
            }
            let (min, max) = (MinAccumulator::try_new(&data_type).ok()?, MaxAccumulator::try_new(&data_type).ok()?);
            Some((Arc::clone(key), min, max))
        });
        Some(Self { keys: keys.collect::<Option<_>>()?, rows: 0 })
    }

    /// Extends the bounds by build rows.
    pub fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows();
        for (key, min, max) in &mut self.keys {
            let values = [key.evaluate(batch)?.into_array(batch.num_rows())?];
            min.update_batch(&values)?;
            max.update_batch(&values)?;
        }
        Ok(())
    }

    /// The least and greatest value of each key; `None` if there were no rows.
    pub fn finish(self) -> Result<Option<Vec<(ScalarValue, ScalarValue)>>> {
        if self.rows == 0 {
            return Ok(None);
        }
        self.keys
            .into_iter()
            .map(|(_, mut min, mut max)| Ok((min.evaluate()?, max.evaluate()?)))
            .collect::<Result<_>>()
            .map(Some)
    }
}

/// The type of the values of a dictionary, or the type itself.
fn value_type(data_type: DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => value_type(*values),
        other => other,
    }
}
