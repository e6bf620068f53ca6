//! What a plan needs to travel to another process: Overspill's nodes are made of nodes of DataFusion
//! ([`HybridJoinExec::planned`](crate::HybridJoinExec::planned),
//! [`ThetaJoinExec::planned`](crate::ThetaJoinExec::planned)), and its functions and expressions, which no registry has, become
//! bytes here.
//!
//! Both processes must be of the same version: the bytes have no version of their own.

mod file_kind;
mod text_sink;

use std::io::Cursor;
use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::{AggregateUDF, Operator, ScalarUDF};
use datafusion::physical_expr::PhysicalExpr;

use crate::analyzer::lossy_casts::KeptCast;
use crate::analyzer::set_comparison::SummaryField;
use crate::checked_arithmetic::CheckedArithmetic;
use crate::exact_sum::{ExactAverage, ExactSum};
pub use crate::files::text::{TextKind, TextSink};
use crate::float_extremes::FloatExtreme;
pub use crate::grouping_sets::GroupingSetsInputExec;
use crate::optimizer::Unprunable;
pub use crate::planning::with_session;
pub use file_kind::FileKind;
pub use text_sink::text_sink;

/// The first byte of a scalar function.
const ARITHMETIC: u8 = b'a';
const CAST: u8 = b'c';
const TRY_CAST: u8 = b't';
const SUMMARY_FIELD: u8 = b's';

/// The operators of checked arithmetic, each by a byte.
const OPERATORS: [(u8, Operator); 4] =
    [(b'+', Operator::Plus), (b'-', Operator::Minus), (b'*', Operator::Multiply), (b'/', Operator::Divide)];

/// The bytes of a scalar function of Overspill. `None` for functions that a registry has under their name.
///
/// # Errors
/// Fails if the function cannot be written, which is a bug.
pub fn encode_scalar(function: &ScalarUDF) -> Result<Option<Vec<u8>>> {
    let function = function.inner();
    if let Some(arithmetic) = function.downcast_ref::<CheckedArithmetic>() {
        let bytes = arithmetic.operators().iter().map(|operator| {
            let byte = OPERATORS.iter().find(|(_, known)| known == operator).map(|(byte, _)| *byte);
            byte.ok_or_else(|| internal_datafusion_err!("checked arithmetic with {operator}"))
        });
        return std::iter::once(Ok(ARITHMETIC)).chain(bytes).collect::<Result<_>>().map(Some);
    }
    if let Some(cast) = function.downcast_ref::<KeptCast>() {
        let schema = Schema::new(vec![Arc::clone(cast.to())]);
        let mut bytes = vec![if cast.is_try() { TRY_CAST } else { CAST }];
        StreamWriter::try_new(&mut bytes, &schema)?.finish()?;
        return Ok(Some(bytes));
    }
    if function.is::<SummaryField>() {
        return Ok(Some([&[SUMMARY_FIELD], function.name().as_bytes()].concat()));
    }
    Ok(None)
}

/// The scalar function that [`encode_scalar`] has made the bytes of.
///
/// # Errors
/// Fails if the bytes are of no function.
pub fn decode_scalar(bytes: &[u8]) -> Result<ScalarUDF> {
    let unknown = || internal_datafusion_err!("{} bytes of no function of Overspill", bytes.len());
    let (kind, rest) = bytes.split_first().ok_or_else(unknown)?;
    match *kind {
        ARITHMETIC => {
            let operators = rest.iter().map(|byte| OPERATORS.iter().find(|(known, _)| known == byte));
            let operators: Option<Vec<_>> = operators.map(|found| found.map(|(_, operator)| *operator)).collect();
            let operators = operators.filter(|operators| !operators.is_empty()).ok_or_else(unknown)?;
            Ok(ScalarUDF::from(CheckedArithmetic::with(operators)))
        }
        CAST | TRY_CAST => {
            let schema = StreamReader::try_new(Cursor::new(rest), None)?.schema();
            let to = schema.fields().first().ok_or_else(unknown)?;
            Ok(ScalarUDF::from(KeptCast::new(Arc::clone(to), *kind == TRY_CAST)))
        }
        SUMMARY_FIELD => {
            let name = std::str::from_utf8(rest).map_err(|_| unknown())?;
            SummaryField::named(name).map(ScalarUDF::from).ok_or_else(unknown)
        }
        _ => Err(unknown()),
    }
}

/// The bytes of an aggregate function of Overspill. `None` for functions that a registry has under their name.
pub fn encode_aggregate(function: &AggregateUDF) -> Option<&'static [u8]> {
    let function = function.inner();
    if function.is::<ExactSum>() {
        Some(b"sum")
    } else if function.is::<ExactAverage>() {
        Some(b"avg")
    } else if function.is::<FloatExtreme<Min>>() {
        Some(b"min")
    } else if function.is::<FloatExtreme<Max>>() {
        Some(b"max")
    } else {
        None
    }
}

/// The aggregate function that [`encode_aggregate`] has made the bytes of.
///
/// # Errors
/// Fails if the bytes are of no function.
pub fn decode_aggregate(bytes: &[u8]) -> Result<AggregateUDF> {
    match bytes {
        b"sum" => Ok(AggregateUDF::from(ExactSum::default())),
        b"avg" => Ok(AggregateUDF::from(ExactAverage::default())),
        b"min" => Ok(AggregateUDF::from(FloatExtreme::<Min>::default())),
        b"max" => Ok(AggregateUDF::from(FloatExtreme::<Max>::default())),
        _ => internal_err!("{} bytes of no aggregate function of Overspill", bytes.len()),
    }
}

/// The operand, if this is the expression of a filter that Overspill hides from the statistics of files.
pub fn hidden_from_statistics(expr: &Arc<dyn PhysicalExpr>) -> Option<&Arc<dyn PhysicalExpr>> {
    expr.downcast_ref::<Unprunable>().map(|hidden| &hidden.0)
}

/// Hides a condition from the statistics of files, which ignore NaN.
pub fn hide_from_statistics(operand: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    Arc::new(Unprunable(operand))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use datafusion::logical_expr::AggregateUDFImpl;

    use super::*;

    fn travelled(function: ScalarUDF) {
        let bytes = encode_scalar(&function).unwrap().unwrap();
        assert_eq!(decode_scalar(&bytes).unwrap(), function);
    }

    #[test]
    fn functions_arrive_as_they_left() {
        travelled(ScalarUDF::from(CheckedArithmetic::with(vec![Operator::Plus, Operator::Minus])));
        travelled(ScalarUDF::from(CheckedArithmetic::with(vec![Operator::Multiply, Operator::Divide])));
        let to = Arc::new(Field::new("x", DataType::Decimal128(12, 2), true));
        travelled(ScalarUDF::from(KeptCast::new(Arc::clone(&to), true)));
        travelled(ScalarUDF::from(KeptCast::new(to, false)));
        travelled(ScalarUDF::from(SummaryField::named("least").unwrap()));
        for name in ["sum", "avg", "min", "max"] {
            let function = decode_aggregate(name.as_bytes()).unwrap();
            assert_eq!(encode_aggregate(&function), Some(name.as_bytes()));
            assert_eq!(function.name(), name);
        }
        assert_eq!(ExactSum::default().name(), "sum");
    }

    #[test]
    fn other_functions_have_no_bytes_and_other_bytes_no_function() {
        assert_eq!(encode_scalar(&datafusion::functions::math::abs()).unwrap(), None);
        assert_eq!(encode_aggregate(&datafusion::functions_aggregate::count::count_udaf()), None);
        for bytes in [&b""[..], b"a", b"a%", b"c", b"cxyz", b"snone", b"zzz"] {
            assert!(decode_scalar(bytes).is_err(), "{bytes:?}");
        }
        assert!(decode_aggregate(b"median").is_err());
    }
}
