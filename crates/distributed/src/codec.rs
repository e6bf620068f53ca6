//! How plans travel: what Overspill adds to plans, beside the codec of who runs them.
//!
//! A node of Overspill is a magic word, a byte for its kind, and the node of DataFusion that it replaces, over empty inputs; the
//! inputs travel beside it. A function or expression of Overspill is a byte and what [`overspill::travel`] makes of it.

use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};
use datafusion_proto::physical_plan::{
    AsExecutionPlan, PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalPlanNode;
use overspill::travel::{
    self, GroupingSetsInputExec, decode_aggregate, decode_scalar, encode_aggregate, encode_scalar,
};
use overspill::{EstimatedRows, HybridJoinExec, ThetaJoinExec};

use crate::gather::GatherExec;
use crate::{scan, sink};

/// What a node of Overspill begins with. No protobuf message does: its first byte is a field's tag.
const MAGIC: &[u8] = b"\xffOverspill";

const HYBRID_JOIN: u8 = 1;
const NULL_AWARE_MARK_JOIN: u8 = 2;
const THETA_JOIN: u8 = 3;
const GATHER: u8 = 4;
const GROUPING_SETS_INPUT: u8 = 5;
const SCAN: u8 = 6;
const SINK: u8 = 7;
/// A hybrid join after the rows that are estimated of it: three floats.
const ESTIMATED_HYBRID_JOIN: u8 = 8;

const UNPRUNABLE: &[u8] = b"\xffunprunable";

/// The codec of all processes that run a plan. What is not of Overspill is left to another one.
#[derive(Debug, Default)]
pub struct PlanCodec<C> {
    other: C,
}

impl<C: PhysicalExtensionCodec> PlanCodec<C> {
    /// Writes what else is to be known of a node, and the node of DataFusion that it replaces, over empty inputs.
    fn encode_planned(&self, kind: u8, other: &[u8], planned: Arc<dyn ExecutionPlan>, buf: &mut Vec<u8>) -> Result<()> {
        let inputs = planned.children().into_iter().map(empty).collect();
        let planned =
            planned.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?;
        buf.extend_from_slice(MAGIC);
        buf.push(kind);
        buf.extend_from_slice(other);
        PhysicalPlanNode::try_from_physical_plan(planned, self)?.try_encode(buf)
    }

    /// Reads a node of DataFusion, and puts it above its inputs.
    fn decode_planned(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = PhysicalPlanNode::try_decode(bytes)?.try_into_physical_plan(context, self)?;
        planned.replace_children(inputs.to_vec(), ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }
}

/// An input without rows in place of a real one.
fn empty(input: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let partitions = input.output_partitioning().partition_count();
    Arc::new(EmptyExec::new(input.schema()).with_partitions(partitions))
}

fn encode_estimate(EstimatedRows { build, probe, output }: EstimatedRows) -> Vec<u8> {
    [build, probe, output].into_iter().flat_map(f64::to_le_bytes).collect()
}

/// The estimate that stands before the bytes that are returned with it.
fn decode_estimate(bytes: &[u8]) -> Result<(EstimatedRows, &[u8])> {
    let Some((floats, rest)) = bytes.split_at_checked(3 * size_of::<f64>()) else {
        return internal_err!("a hybrid join without its estimated rows");
    };
    let (floats, _) = floats.as_chunks();
    let [build, probe, output] = [0, 1, 2].map(|number| f64::from_le_bytes(floats[number]));
    Ok((EstimatedRows { build, probe, output }, rest))
}

fn one(inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
    match inputs {
        [input] => Ok(Arc::clone(input)),
        _ => internal_err!("a node of one input over {}", inputs.len()),
    }
}

fn hash_join(plan: &Arc<dyn ExecutionPlan>) -> Result<&HashJoinExec> {
    plan.downcast_ref().ok_or_else(|| internal_datafusion_err!("{} arrived for a hash join", plan.name()))
}

impl<C: PhysicalExtensionCodec> PhysicalExtensionCodec for PlanCodec<C> {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some([kind, bytes @ ..]) = buf.strip_prefix(MAGIC) else {
            return self.other.try_decode(buf, inputs, context, converter);
        };
        match *kind {
            HYBRID_JOIN => {
                let planned = self.decode_planned(bytes, inputs, context)?;
                Ok(Arc::new(HybridJoinExec::try_new(hash_join(&planned)?)?))
            }
            ESTIMATED_HYBRID_JOIN => {
                let (estimate, bytes) = decode_estimate(bytes)?;
                let planned = self.decode_planned(bytes, inputs, context)?;
                Ok(Arc::new(HybridJoinExec::try_new(hash_join(&planned)?)?.with_estimate(Some(estimate))))
            }
            NULL_AWARE_MARK_JOIN => {
                let planned = self.decode_planned(bytes, inputs, context)?;
                Ok(Arc::new(HybridJoinExec::try_new_null_aware_mark(hash_join(&planned)?)?))
            }
            THETA_JOIN => {
                let planned = self.decode_planned(bytes, inputs, context)?;
                let join = planned.downcast_ref::<NestedLoopJoinExec>();
                let join = join.ok_or_else(|| internal_datafusion_err!("{} for a theta join", planned.name()))?;
                Ok(Arc::new(ThetaJoinExec::try_new(join)?))
            }
            GATHER => Ok(Arc::new(GatherExec::new(one(inputs)?))),
            SCAN => scan::decode(bytes, &PhysicalPlanDecodeContext::new(context, self), converter),
            SINK => sink::decode(bytes, one(inputs)?),
            GROUPING_SETS_INPUT => Ok(Arc::new(GroupingSetsInputExec::new(one(inputs)?))),
            kind => internal_err!("a node of kind {kind}, which this version of Overspill does not know"),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if let Some(join) = node.downcast_ref::<HybridJoinExec>() {
            let (kind, estimate) = match join.estimate() {
                _ if join.has_null_aware_mark() => (NULL_AWARE_MARK_JOIN, vec![]),
                Some(estimate) => (ESTIMATED_HYBRID_JOIN, encode_estimate(estimate)),
                None => (HYBRID_JOIN, vec![]),
            };
            return self.encode_planned(kind, &estimate, Arc::new(join.planned().builder().build()?), buf);
        }
        if let Some(join) = node.downcast_ref::<ThetaJoinExec>() {
            let planned = NestedLoopJoinExecBuilder::from(join.planned()).build()?;
            return self.encode_planned(THETA_JOIN, &[], Arc::new(planned), buf);
        }
        if let Some(scan) = node.downcast_ref::<DataSourceExec>().and_then(|scan| scan.data_source().downcast_ref()) {
            let mut bytes = Vec::new();
            if scan::encode(scan, self, converter, &mut bytes)? {
                buf.extend_from_slice(MAGIC);
                buf.push(SCAN);
                buf.append(&mut bytes);
                return Ok(());
            }
        }
        if let Some(bytes) = node.downcast_ref().map(sink::encode).transpose()?.flatten() {
            buf.extend_from_slice(MAGIC);
            buf.push(SINK);
            buf.extend(bytes);
            return Ok(());
        }
        let kind = if node.is::<GatherExec>() {
            GATHER
        } else if node.is::<GroupingSetsInputExec>() {
            GROUPING_SETS_INPUT
        } else {
            return self.other.try_encode(node, buf, converter);
        };
        buf.extend_from_slice(MAGIC);
        buf.push(kind);
        Ok(())
    }

    fn try_encode_udf(&self, function: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        buf.extend(encode_scalar(function)?.unwrap_or_default());
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        if buf.is_empty() {
            return internal_err!("the function {name} is not known here");
        }
        decode_scalar(buf).map(Arc::new)
    }

    fn try_encode_udaf(&self, function: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        buf.extend_from_slice(encode_aggregate(function).unwrap_or_default());
        Ok(())
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        if buf.is_empty() {
            return internal_err!("the aggregate function {name} is not known here");
        }
        decode_aggregate(buf).map(Arc::new)
    }

    fn try_encode_expr(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        buf: &mut Vec<u8>,
        context: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<()> {
        // The operand travels beside it, as its child.
        match travel::hidden_from_statistics(expr) {
            Some(_) => {
                buf.extend_from_slice(UNPRUNABLE);
                Ok(())
            }
            None => self.other.try_encode_expr(expr, buf, context),
        }
    }

    fn try_decode_expr(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        context: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match (buf, inputs) {
            (UNPRUNABLE, [operand]) => Ok(travel::hide_from_statistics(Arc::clone(operand))),
            _ => self.other.try_decode_expr(buf, inputs, context),
        }
    }
}
