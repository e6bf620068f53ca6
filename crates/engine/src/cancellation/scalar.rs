//! Text functions that can be cancelled between the rows of a batch.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arrow::array::ArrayRef;
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::functions::{crypto, encoding, regex, string, unicode};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::check;

/// Batches with smaller arguments (in bytes) are not split: functions process them in no time.
const SMALL_BYTES: usize = 256 << 10;

/// The maximum growth of a part relative to the previous one. The time of the previous part determines the rows of the next;
/// the first part is one row.
const GROWTH: usize = 16;

/// The time that a part should take.
const PART_TIME: Duration = Duration::from_millis(50);

/// The names of functions that take longer for longer texts.
static TEXT_FUNCTIONS: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions =
        [crypto::functions(), encoding::functions(), regex::functions(), string::functions(), unicode::functions()];
    functions.into_iter().flatten().map(|function| function.name().to_string()).collect()
});

/// A text function that is called for some rows of a batch at a time.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct InterruptibleScalar {
    function: Arc<ScalarUDF>,
}

impl InterruptibleScalar {
    /// None for functions that need no cancellation, that already support it, or that have rows that depend on one another.
    pub(super) fn of(function: &Arc<ScalarUDF>) -> Option<Self> {
        let suits = TEXT_FUNCTIONS.contains(function.name())
            && function.signature().volatility == Volatility::Immutable
            && !function.short_circuits()
            && !function.inner().is::<Self>();
        suits.then(|| Self { function: Arc::clone(function) })
    }

    fn call(&self, args: &ScalarFunctionArgs, start: usize, rows: usize) -> Result<ColumnarValue> {
        let part = args.args.iter().map(|argument| match argument {
            ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(start, rows)),
            ColumnarValue::Scalar(value) => ColumnarValue::Scalar(value.clone()),
        });
        self.function.invoke_with_args(ScalarFunctionArgs {
            args: part.collect(),
            arg_fields: args.arg_fields.clone(),
            number_rows: rows,
            return_field: Arc::clone(&args.return_field),
            config_options: Arc::clone(&args.config_options),
        })
    }
}

impl ScalarUDFImpl for InterruptibleScalar {
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        check()?;
        let bytes: usize = args
            .args
            .iter()
            .map(|argument| match argument {
                ColumnarValue::Array(array) => array.get_array_memory_size(),
                ColumnarValue::Scalar(_) => 0,
            })
            .sum();
        if bytes < SMALL_BYTES || args.number_rows <= 1 {
            return self.function.invoke_with_args(args);
        }
        let mut parts: Vec<ArrayRef> = Vec::new();
        let mut start = 0;
        let mut rows = 1;
        while start < args.number_rows {
            check()?;
            let count = rows.min(args.number_rows - start);
            let begin = Instant::now();
            parts.push(self.call(&args, start, count)?.into_array(count)?);
            start += count;
            let times = PART_TIME.as_nanos() / begin.elapsed().as_nanos().max(1);
            let suits = usize::try_from(count as u128 * times).unwrap_or(usize::MAX);
            rows = suits.clamp(1, count * GROWTH);
        }
        let parts: Vec<_> = parts.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&parts)?))
    }

    fn name(&self) -> &str {
        self.function.name()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.function.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.function.return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(args)
    }

    fn is_strict(&self) -> bool {
        self.function.inner().is_strict()
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.function.output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.function.preserves_lex_ordering(inputs)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(arg_types)
    }
}
