//! Statements that write files, on all ranks.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::{ParquetEncryptionOptions, TableParquetOptions};
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::physical_plan::ExecutionPlan;
use overspill::travel::TextSink;
use overspill::write_aside::{Destination, WriteAsideExec};

use super::{Part, Plan, Ranks, one_partition, replaced};
use crate::exec::{RankCommitExec, RankStageExec};

impl Ranks {
    /// The plan of each rank, which writes its own rows; `None` if the first rank must write all.
    ///
    /// # Errors
    /// DataFusion cannot put a node above its new inputs.
    pub fn distribute_write(mut self, write: &WriteAsideExec) -> Result<Option<Vec<Plan>>> {
        let Some(sink) = write.sink().downcast_ref::<DataSinkExec>() else { return Ok(None) };
        let is_one_file = matches!(write.destination(), Destination::File(_));
        if is_one_file || sink.sort_order().is_some() || !travels(sink.sink()) {
            return Ok(None);
        }
        let inputs = match self.node(sink.input(), false)? {
            Part { is_spread: true, plans, .. } | Part { gathers: Some(plans), .. } => plans,
            _ => return Ok(None),
        };
        let writing = inputs.iter().map(|input| {
            let sink = replaced(write.sink(), vec![one_partition(input, None)])?;
            Ok(Arc::new(RankStageExec::new(sink, write.destination().clone())) as Plan)
        });
        let writing = Part { is_spread: true, plans: writing.collect::<Result<_>>()?, gathers: None };
        let mut plans = self.gather(writing, Arc::clone).plans;
        plans[0] = Arc::new(RankCommitExec::new(Arc::clone(&plans[0]), sink.schema()));
        Ok(Some(plans))
    }
}

/// Whether a message holds all that a sink is. DataFusion's has neither the metadata of a Parquet file nor what it is encrypted with.
fn travels(sink: &dyn DataSink) -> bool {
    let parquet = sink.downcast_ref::<ParquetSink>().map(ParquetSink::parquet_options);
    let travels = |options: &TableParquetOptions| {
        options.key_value_metadata.is_empty() && options.crypto == ParquetEncryptionOptions::default()
    };
    parquet.is_some_and(travels) || sink.is::<TextSink>()
}
