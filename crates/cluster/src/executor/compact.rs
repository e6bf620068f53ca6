//! The plan node that lets batches hold what they show.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StructArray};
use arrow::datatypes::{BinaryViewType, ByteViewType, DataType, StringViewType};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow_select::dictionary::garbage_collect_any_dictionary;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;

/// Bytes that a view array may hold beyond twice what it shows.
const SLACK: usize = 4096;

/// Copies what view arrays show of their buffers, and dictionaries of their values, where that is little of them: an IPC message holds
/// both whole.
///
/// It has no metrics, as those of a task go by the positions of nodes that do.
#[derive(Debug)]
pub struct CompactExec {
    input: Arc<dyn ExecutionPlan>,
}

impl CompactExec {
    /// The node above `input`, or `input` if none of its columns can hold more than it shows.
    pub fn above(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        match input.schema().fields().iter().any(|field| may_hold_more(field.data_type())) {
            true => Arc::new(Self { input }),
            false => input,
        }
    }
}

fn may_hold_more(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView | DataType::Dictionary(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| may_hold_more(field.data_type())),
        _ => false,
    }
}

fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(compact_column).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

fn compact_column(column: &ArrayRef) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Utf8View => Ok(compact_views::<StringViewType>(column)),
        DataType::BinaryView => Ok(compact_views::<BinaryViewType>(column)),
        DataType::Dictionary(..) if column.as_any_dictionary().values().len() > column.len() => {
            Ok(garbage_collect_any_dictionary(column.as_any_dictionary())?)
        }
        DataType::Struct(fields) if may_hold_more(column.data_type()) => {
            let children = column.as_struct().columns().iter().map(compact_column).collect::<Result<_>>()?;
            let nulls = column.nulls().cloned();
            Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), children, nulls, column.len())?))
        }
        _ => Ok(Arc::clone(column)),
    }
}

fn compact_views<T: ByteViewType>(column: &ArrayRef) -> ArrayRef {
    let views = column.as_byte_view::<T>();
    let held: usize = views.data_buffers().iter().map(|buffer| buffer.len()).sum();
    match held > 2 * views.total_buffer_bytes_used() + SLACK {
        true => Arc::new(views.gc()),
        false => Arc::clone(column),
    }
}

impl DisplayAs for CompactExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "CompactExec"),
            DisplayFormatType::TreeRender => Ok(()),
        }
    }
}

impl ExecutionPlan for CompactExec {
    fn name(&self) -> &str {
        "CompactExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
            Ok([input]) => Ok(Arc::new(Self { input })),
            Err(children) => internal_err!("CompactExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batches = self.input.execute(partition, context)?;
        let compacted = batches.map(|batch| compact(&batch?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), compacted)))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int32Array, StringArray, StringViewArray};

    use super::*;

    #[test]
    fn a_few_rows_of_many_hold_little() {
        let texts = || (0..1000).map(|number| format!("a text of many letters, {number}"));
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1000));
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts()));
        let keys = Int32Array::from_iter_values(0..1000);
        let dictionary: ArrayRef =
            Arc::new(DictionaryArray::new(keys, Arc::new(StringArray::from_iter_values(texts()))));
        let nested = StructArray::try_from(vec![("views", Arc::clone(&views)), ("n", Arc::clone(&numbers))]).unwrap();
        let columns = [("n", numbers), ("views", views), ("dictionary", dictionary), ("nested", Arc::new(nested))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let few = batch.slice(500, 3);
        let compacted = compact(&few).unwrap();
        assert_eq!(compacted, few);
        assert!(compacted.column(1).as_string_view().total_buffer_bytes_used() < 200);
        assert!(compacted.column(1).get_buffer_memory_size() < 1000);
        assert_eq!(compacted.column(2).as_any_dictionary().values().len(), 3);
        assert!(compacted.column(3).as_struct().column(0).get_buffer_memory_size() < 1000);
        // What is shown whole is not copied.
        let whole = compact(&batch).unwrap();
        let buffers = |batch: &RecordBatch| batch.column(1).as_string_view().data_buffers()[0].as_ptr();
        assert_eq!(buffers(&whole), buffers(&batch));
    }
}
