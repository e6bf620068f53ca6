//! The common schema of the files of a table.

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::type_coercion::binary::type_union_coercion;

use super::listing::Found;

/// The columns of all files by name, each with a type that can hold the values of every file.
///
/// # Errors
///
/// Refuses a column with incompatible types in two files, such as a number and a text.
pub fn common(files: &[(Found, SchemaRef)]) -> Result<Schema> {
    let Some((first, schema)) = files.first() else { return Ok(Schema::empty()) };
    // For each column, the file that determined its type.
    let mut columns: Vec<(Field, &Found)> =
        schema.fields().iter().map(|field| (field.as_ref().clone(), first)).collect();
    for (file, schema) in &files[1..] {
        for field in schema.fields() {
            let Some((known, from)) = columns.iter_mut().find(|(known, _)| known.name() == field.name()) else {
                columns.push((field.as_ref().clone().with_nullable(true), file));
                continue;
            };
            let Some(data_type) = common_type(known.data_type(), field.data_type()) else {
                return plan_err!(
                    "the column '{}' is {} in {} and {} in {}: read the files one by one, and CAST it",
                    field.name(),
                    known.data_type(),
                    from.path.display(),
                    field.data_type(),
                    file.path.display()
                );
            };
            if data_type != *known.data_type() {
                *from = file;
            }
            let is_nullable = known.is_nullable() || field.is_nullable();
            *known = known.clone().with_data_type(data_type).with_nullable(is_nullable);
        }
    }
    // A column that a file lacks is NULL for that file.
    let everywhere = |field: &Field| files.iter().all(|(_, schema)| schema.field_with_name(field.name()).is_ok());
    let fields = columns.into_iter().map(|(field, _)| {
        let is_nullable = field.is_nullable() || !everywhere(&field);
        field.with_nullable(is_nullable)
    });
    Ok(Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone()))
}

/// Refuses files whose columns or column order differ, for formats that are read by position.
pub fn identical(files: &[(Found, SchemaRef)]) -> Result<Schema> {
    let Some((first, schema)) = files.first() else { return Ok(Schema::empty()) };
    let alike = |other: &SchemaRef| {
        let [ours, others] = [schema, other].map(|schema| schema.fields().iter());
        others.map(|field| (field.name(), field.data_type())).eq(ours.map(|field| (field.name(), field.data_type())))
    };
    if let Some((other, _)) = files.iter().find(|(_, other)| !alike(other)) {
        return plan_err!(
            "{} and {} do not have the same columns in the same order: read them one by one, and bring them together \
             with UNION ALL BY NAME",
            first.path.display(),
            other.path.display()
        );
    }
    let nullable = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Ok(Schema::new_with_metadata(nullable.collect::<Fields>(), schema.metadata().clone()))
}

fn common_type(one: &DataType, other: &DataType) -> Option<DataType> {
    if one == other {
        return Some(one.clone());
    }
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_time =
        |data_type: &DataType| matches!(data_type, DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _));
    let is_null = |data_type: &DataType| *data_type == DataType::Null;
    let go_together = (one.is_numeric() && other.is_numeric())
        || (is_text(one) && is_text(other))
        || (is_time(one) && is_time(other))
        || is_null(one)
        || is_null(other);
    if go_together { type_union_coercion(one, other) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_widen_and_kinds_do_not_mix() {
        assert_eq!(common_type(&DataType::Int32, &DataType::Int64), Some(DataType::Int64));
        assert_eq!(common_type(&DataType::Int32, &DataType::Float64), Some(DataType::Float64));
        assert_eq!(common_type(&DataType::Null, &DataType::Utf8), Some(DataType::Utf8));
        assert_eq!(common_type(&DataType::Int32, &DataType::Utf8), None);
        assert_eq!(common_type(&DataType::Int32, &DataType::Date32), None);
    }
}
