//! Statements that write files, on all ranks.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::{ParquetEncryptionOptions, TableParquetOptions};
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use overspill::travel::TextSink;
use overspill::write_aside::{Destination, WriteAsideExec};

use super::{Part, Plan, Ranks, merged, one_partition, replaced};
use crate::exec::{RankCommitExec, RankStageExec};

impl Ranks {
    /// The plan of each rank, which writes its own rows; `None` if the first rank must write all.
    ///
    /// # Errors
    /// DataFusion cannot put a node above its new inputs.
    pub fn distribute_write(mut self, write: &WriteAsideExec) -> Result<Option<Vec<Plan>>> {
        let Some(sink) = write.sink().downcast_ref::<DataSinkExec>() else { return Ok(None) };
        let is_one_file = matches!(write.destination(), Destination::File(_));
        if is_one_file || !travels(sink.sink()) {
            return Ok(None);
        }
        // Rows may have the order of their files, which no one has asked for. Those of each rank keep it.
        let merge = sink.input().downcast_ref::<SortPreservingMergeExec>();
        let merge = merge.filter(|merge| merge.fetch().is_none() && !is_sorted_here(merge.input()));
        if sink.sort_order().is_some() && merge.is_none() {
            return Ok(None);
        }
        let inputs = match self.node(merge.map_or(sink.input(), SortPreservingMergeExec::input), false)? {
            Part { is_spread: true, plans, .. } | Part { gathers: Some(plans), .. } => plans,
            _ => return Ok(None),
        };
        let writing = inputs.iter().map(|input| {
            let input = match merge {
                Some(merge) => merged(merge, input),
                None => one_partition(input, None),
            };
            let sink = replaced(write.sink(), vec![input])?;
            Ok(Arc::new(RankStageExec::new(sink, write.destination().clone())) as Plan)
        });
        let writing = Part { is_spread: true, plans: writing.collect::<Result<_>>()?, gathers: None };
        let mut plans = self.gather(writing, Arc::clone).plans;
        plans[0] = Arc::new(RankCommitExec::new(Arc::clone(&plans[0]), sink.schema()));
        Ok(Some(plans))
    }
}

/// Whether rows have their order by a sort of this plan, as `ORDER BY` makes one.
fn is_sorted_here(plan: &Plan) -> bool {
    let keeps_order = plan.maintains_input_order();
    let inputs = plan.children().into_iter().zip(keeps_order);
    plan.is::<SortExec>() || inputs.filter(|(_, keeps)| *keeps).any(|(input, _)| is_sorted_here(input))
}

/// Whether a message holds all that a sink is. DataFusion's has neither the metadata of a Parquet file nor what it is encrypted with.
fn travels(sink: &dyn DataSink) -> bool {
    let parquet = sink.downcast_ref::<ParquetSink>().map(ParquetSink::parquet_options);
    let travels = |options: &TableParquetOptions| {
        options.key_value_metadata.is_empty() && options.crypto == ParquetEncryptionOptions::default()
    };
    parquet.is_some_and(travels) || sink.is::<TextSink>()
}
