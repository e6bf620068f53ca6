//! Batches with the types that their plan declares.

use std::sync::Arc;

use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::{Result, internal_err};

/// A batch as the plan declares it. Dictionaries may arrive as plain values; what is as declared is not copied.
pub fn declared(schema: &SchemaRef, batch: RecordBatch) -> Result<RecordBatch> {
    if batch.num_columns() != schema.fields().len() {
        return internal_err!("{} columns arrived for {}", batch.num_columns(), schema.fields().len());
    }
    if batch.schema_ref() == schema {
        return Ok(batch);
    }
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        false => cast(column, field.data_type()),
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns.collect::<Result<_, _>>()?, &options)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, DictionaryArray, StringArray};
    use arrow::datatypes::{DataType, Field, Int32Type, Schema};

    use super::*;

    #[test]
    fn values_become_what_the_plan_declares() {
        let dictionary: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
        let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "a"]));
        let schema = Arc::new(Schema::new(vec![Field::new("t", dictionary_type(), true)]));
        let plain = RecordBatch::try_from_iter([("t", values)]).unwrap();
        let batch = declared(&schema, plain).unwrap();
        assert_eq!(batch.schema(), schema);
        assert_eq!(batch.column(0).as_dictionary::<Int32Type>(), &dictionary);
        let same = declared(&schema, batch.clone()).unwrap();
        assert!(Arc::ptr_eq(same.column(0), batch.column(0)));
        assert!(declared(&Arc::new(Schema::empty()), batch).is_err());
    }

    fn dictionary_type() -> DataType {
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
    }
}
