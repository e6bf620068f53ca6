//! The plan nodes of statements that write files on all ranks.

use std::fmt::{self, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::cast::{as_string_array, as_uint64_array};
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures::stream::{self, select_all};
use futures::{StreamExt, TryStreamExt};
use overspill::write_aside::{Destination, Staged, StagedFile};
use overspill_distributed::settings::with_settings;

use super::properties;
use crate::job::RankJob;
use crate::message::FIRST;

/// Runs a rank's sink, whose files wait next to their destination until the first rank has [put them in place](RankCommitExec).
///
/// It returns a row with the number of rows written, and one for each file.
#[derive(Debug)]
pub struct RankStageExec {
    sink: Arc<dyn ExecutionPlan>,
    destination: Destination,
    properties: Arc<PlanProperties>,
}

impl RankStageExec {
    /// Runs a sink for a destination that all ranks have in common.
    pub fn new(sink: Arc<dyn ExecutionPlan>, destination: Destination) -> Self {
        let properties = properties(schema_of_files(), Partitioning::UnknownPartitioning(1));
        Self { sink, destination, properties }
    }

    /// Where the files are to be.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }
}

impl DisplayAs for RankStageExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "{}", self.destination),
            _ => write!(f, "RankStageExec: {}", self.destination),
        }
    }
}

impl ExecutionPlan for RankStageExec {
    fn name(&self) -> &str {
        "RankStageExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.sink]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([sink]) => Ok(Arc::new(Self::new(sink, self.destination.clone()))),
            Err(children) => internal_err!("RankStageExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let job = RankJob::of(&context)?;
        let (sink, destination) = (Arc::clone(&self.sink), self.destination.clone());
        let mut config = context.session_config().clone();
        // The files of all ranks are enough.
        config.options_mut().execution.minimum_parallel_output_files = ConfigNonZeroUsize::try_new(1)?;
        let context = with_settings(&context, config);
        let files = async move {
            let staged = Staged::write(sink, partition, destination, &context).await?;
            let files = listed(&staged)?;
            job.keep(staged);
            Ok(files)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream::once(files))))
    }
}

/// Puts the files of all ranks in place when all are written, on the first rank. It returns the number of rows in them, as a sink does.
///
/// The other ranks keep their files until then. If one fails before, or the query is cancelled, each rank removes its own.
#[derive(Debug)]
pub struct RankCommitExec {
    /// The files of each rank, in a partition of its own.
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl RankCommitExec {
    /// Puts in place what the input, which has a partition for each rank, says. `schema` is that of the sink's result.
    pub fn new(input: Arc<dyn ExecutionPlan>, schema: SchemaRef) -> Self {
        Self { input, properties: properties(schema, Partitioning::UnknownPartitioning(1)) }
    }
}

impl DisplayAs for RankCommitExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "RankCommitExec"),
        }
    }
}

impl ExecutionPlan for RankCommitExec {
    fn name(&self) -> &str {
        "RankCommitExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self::new(input, self.schema()))),
            Err(children) => internal_err!("RankCommitExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let job = RankJob::of(&context)?;
        let ranks = 0..self.input.output_partitioning().partition_count();
        let files = ranks.map(|rank| {
            let files = self.input.execute(rank, Arc::clone(&context))?;
            Ok(files.map_ok(move |batch| (rank, batch)).boxed())
        });
        let mut files = select_all(files.collect::<Result<Vec<_>>>()?);
        let schema = self.schema();
        let committed = async move {
            let (mut rows, mut others) = (0, vec![]);
            while let Some((rank, batch)) = files.try_next().await? {
                rows += rows_of(&batch)?;
                // The first rank has its own at hand.
                if rank != FIRST {
                    others.extend(files_of(&batch)?);
                }
            }
            job.commit(others, context).await?;
            Ok(RecordBatch::try_new(schema, vec![Arc::new(UInt64Array::from(vec![rows]))])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream::once(committed))))
    }
}

/// How a rank lists its files: where each is, and where it is to be. The first row has the number of rows of all, and no file.
fn schema_of_files() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("written", DataType::Utf8, true),
        Field::new("place", DataType::Utf8, true),
        Field::new("rows", DataType::UInt64, true),
    ]))
}

fn listed(staged: &Staged) -> Result<RecordBatch> {
    let mut rows = 0;
    for batch in staged.result() {
        rows += as_uint64_array(batch.column(0))?.iter().flatten().sum::<u64>();
    }
    let (mut written, mut places) = (vec![None], vec![None]);
    for file in staged.files() {
        written.push(Some(text(&file.written)?));
        places.push(Some(text(&file.place)?));
    }
    let rows = UInt64Array::from_iter((0..written.len()).map(|row| (row == 0).then_some(rows)));
    let (written, places) = (StringArray::from(written), StringArray::from(places));
    Ok(RecordBatch::try_new(schema_of_files(), vec![Arc::new(written), Arc::new(places), Arc::new(rows)])?)
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| exec_datafusion_err!("'{}' cannot be told to other ranks: it is not UTF-8", path.display()))
}

fn rows_of(files: &RecordBatch) -> Result<u64> {
    Ok(as_uint64_array(files.column(2))?.iter().flatten().sum())
}

fn files_of(files: &RecordBatch) -> Result<Vec<StagedFile>> {
    let (written, places) = (as_string_array(files.column(0))?, as_string_array(files.column(1))?);
    let files = (0..files.num_rows())
        .filter(|row| written.is_valid(*row))
        .map(|row| StagedFile { written: PathBuf::from(written.value(row)), place: PathBuf::from(places.value(row)) });
    Ok(files.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_files_are_read_as_they_were() {
        let written = StringArray::from(vec![None, Some("/a/0.part"), Some("/a/1.part")]);
        let places = StringArray::from(vec![None, Some("/out/x=1/b.csv"), Some("/out/c.csv")]);
        let rows = UInt64Array::from(vec![Some(7), None, None]);
        let batch =
            RecordBatch::try_new(schema_of_files(), vec![Arc::new(written), Arc::new(places), Arc::new(rows)]).unwrap();
        assert_eq!(rows_of(&batch).unwrap(), 7);
        let file = |written: &str, place: &str| StagedFile { written: written.into(), place: place.into() };
        assert_eq!(files_of(&batch).unwrap(), [file("/a/0.part", "/out/x=1/b.csv"), file("/a/1.part", "/out/c.csv")]);
    }
}
