//! A function that takes a field out of the summary of a subquery.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{is_null, nullif};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// The field of a summary with the least value.
pub(super) const LEAST: &str = "least";
/// The field with the greatest value.
pub(super) const GREATEST: &str = "greatest";
/// The field with the number of rows.
pub(super) const ROWS: &str = "rows";
/// The field with the number of values that are not NULL.
pub(super) const VALUES: &str = "values";

/// The field of a structure, and NULL if the structure is NULL.
///
/// DataFusion's `get_field` does the same. However, the optimizer of DataFusion 55 moves `get_field` towards the scans, past
/// columns of the same expression, and refuses plans in which two of its generated names collide.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct SummaryField {
    field: &'static str,
    signature: Signature,
}

/// The expression of a field of the structure `summary`.
pub(super) fn summary_field(summary: Expr, field: &'static str) -> Expr {
    ScalarUDF::from(SummaryField::new(field)).call(vec![summary])
}

impl ScalarUDFImpl for SummaryField {
    fn name(&self) -> &str {
        self.field
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [DataType::Struct(fields)] => match fields.find(self.field) {
                Some((_, field)) => Ok(field.data_type().clone()),
                None => internal_err!("the summary of a subquery has no field {}", self.field),
            },
            other => internal_err!("the summary of a subquery is a structure, not {other:?}"),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = arguments.number_rows;
        let [summary] = <[ColumnarValue; 1]>::try_from(arguments.args).expect("the signature has one argument");
        match summary {
            ColumnarValue::Array(summaries) => Ok(ColumnarValue::Array(self.of(&summaries)?)),
            // A single value for all rows.
            ColumnarValue::Scalar(summary) if rows > 0 => {
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&self.of(&summary.to_array()?)?, 0)?))
            }
            ColumnarValue::Scalar(summary) => Ok(ColumnarValue::Array(self.of(&summary.to_array_of_size(0)?)?)),
        }
    }
}

impl SummaryField {
    fn new(field: &'static str) -> Self {
        Self { field, signature: Signature::any(1, Volatility::Immutable) }
    }

    /// The function for the field of this name, if summaries have one.
    pub fn named(name: &str) -> Option<Self> {
        [LEAST, GREATEST, ROWS, VALUES].into_iter().find(|field| *field == name).map(Self::new)
    }

    fn of(&self, summaries: &ArrayRef) -> Result<ArrayRef> {
        let fields = summaries.as_struct();
        let Some(field) = fields.column_by_name(self.field) else {
            return internal_err!("the summary of a subquery has no field {}", self.field);
        };
        Ok(if fields.null_count() == 0 { Arc::clone(field) } else { nullif(field, &is_null(fields)?)? })
    }
}
