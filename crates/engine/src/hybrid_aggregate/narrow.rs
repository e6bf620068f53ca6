//! Expressions that are computed in words of 64 bits where values allow it.

use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, Int64Array, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use overspill_join::narrow::{self, Arithmetic, NarrowColumn, Step, Values};

use crate::checked_arithmetic::{CheckedArithmetic, result_type};

/// Expressions of a batch, as steps over some of them that are evaluated as ever.
#[derive(Debug, Default)]
pub(super) struct NarrowExpressions {
    arithmetic: Arithmetic,
    /// The expressions that give the columns of the arithmetic.
    leaves: Vec<Arc<dyn PhysicalExpr>>,
}

/// A step and the type of its values.
struct Typed {
    step: Step,
    data_type: DataType,
}

/// The scale of a type of numbers.
fn scale(data_type: &DataType) -> i8 {
    match data_type {
        DataType::Decimal128(_, scale) => *scale,
        _ => 0,
    }
}

/// The greatest absolute value that results of a type may have; `None` for types of other results.
fn most(data_type: &DataType) -> Option<u64> {
    match data_type {
        DataType::Decimal128(precision, _) => {
            let most = 10_u64.checked_pow(u32::from(*precision)).map_or(i64::MAX as u64, |over| over - 1);
            Some(most.min(i64::MAX as u64))
        }
        DataType::Int64 => Some(i64::MAX as u64),
        DataType::Int32 => Some(i32::MAX as u64),
        DataType::Int16 => Some(i16::MAX as u64),
        _ => None,
    }
}

/// Operations from left to right, and their operands.
struct Chain<'a> {
    operators: Vec<Operator>,
    operands: Vec<&'a Arc<dyn PhysicalExpr>>,
}

/// The operations of a sum, difference or product; `None` for other expressions.
fn operations(expression: &dyn PhysicalExpr) -> Option<Chain<'_>> {
    let (operators, operands) = if let Some(binary) = expression.downcast_ref::<BinaryExpr>() {
        (vec![*binary.op()], vec![binary.left(), binary.right()])
    } else {
        let function = expression.downcast_ref::<ScalarFunctionExpr>()?;
        let arithmetic = function.fun().inner().downcast_ref::<CheckedArithmetic>()?;
        (arithmetic.operators().to_vec(), function.args().iter().collect())
    };
    let are_computed = operators.iter().all(|of| matches!(of, Operator::Plus | Operator::Minus | Operator::Multiply));
    are_computed.then_some(Chain { operators, operands })
}

/// Whether an expression is a sum, difference or product of columns, constants and others like it.
pub(super) fn is_arithmetic(expression: &Arc<dyn PhysicalExpr>) -> bool {
    let is_operand = |of: &&Arc<dyn PhysicalExpr>| of.is::<Column>() || of.is::<Literal>() || is_arithmetic(of);
    operations(expression.as_ref()).is_some_and(|chain| chain.operands.iter().all(is_operand))
}

impl NarrowExpressions {
    /// The step of an expression over columns of `schema`. `None` if its type is not one of narrow values.
    ///
    /// # Errors
    /// If an expression has no type.
    pub fn step(&mut self, expression: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<Step>> {
        Ok(self.typed(expression, schema)?.map(|typed| typed.step))
    }

    fn typed(&mut self, expression: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<Typed>> {
        let data_type = expression.data_type(schema)?;
        if !narrow::takes_type(&data_type) {
            return Ok(None);
        }
        if let Some(step) = self.computed(expression, &data_type, schema)? {
            return Ok(Some(Typed { step, data_type }));
        }
        let equal = self.leaves.iter().position(|leaf| leaf == expression && !is_volatile(expression));
        let number = equal.unwrap_or_else(|| {
            self.leaves.push(Arc::clone(expression));
            self.leaves.len() - 1
        });
        Ok(Some(Typed { step: self.arithmetic.column(number), data_type }))
    }

    /// The step of a constant, a conversion, or an operation.
    fn computed(
        &mut self,
        expression: &Arc<dyn PhysicalExpr>,
        data_type: &DataType,
        schema: &Schema,
    ) -> Result<Option<Step>> {
        if let Some(literal) = expression.downcast_ref::<Literal>() {
            return Ok(constant(literal.value()).map(|value| self.arithmetic.constant(value)));
        }
        let Some(most) = most(data_type) else { return Ok(None) };
        if let Some(cast) = expression.downcast_ref::<CastExpr>() {
            let Some(of) = self.typed(cast.expr(), schema)? else { return Ok(None) };
            return Ok(self.rescaled(&of, scale(data_type), most));
        }
        let Some(Chain { operators, operands }) = operations(expression.as_ref()) else { return Ok(None) };
        let mut typed = vec![];
        for operand in operands {
            let Some(operand) = self.typed(operand, schema)? else { return Ok(None) };
            typed.push(operand);
        }
        let mut typed = typed.into_iter();
        let Some(mut left) = typed.next() else { return Ok(None) };
        for (operator, right) in operators.iter().zip(typed) {
            let Some(result) = self.result(&left, *operator, &right)? else { return Ok(None) };
            left = result;
        }
        Ok((left.data_type == *data_type).then_some(left.step))
    }

    fn result(&mut self, left: &Typed, operator: Operator, right: &Typed) -> Result<Option<Typed>> {
        let data_type = result_type(&left.data_type, operator, &right.data_type)?;
        let Some(most) = most(&data_type) else { return Ok(None) };
        let (left_scale, right_scale, scale) = (scale(&left.data_type), scale(&right.data_type), scale(&data_type));
        let (operator, is_exact) = match operator {
            Operator::Plus => (narrow::Operator::Plus, scale == left_scale.max(right_scale)),
            Operator::Minus => (narrow::Operator::Minus, scale == left_scale.max(right_scale)),
            _ => (narrow::Operator::Times, left_scale.checked_add(right_scale) == Some(scale)),
        };
        if !is_exact {
            return Ok(None);
        }
        let operands = match operator {
            narrow::Operator::Times => Some((left.step, right.step)),
            _ => self.rescaled(left, scale, i64::MAX as u64).zip(self.rescaled(right, scale, i64::MAX as u64)),
        };
        let Some((left, right)) = operands else { return Ok(None) };
        Ok(Some(Typed { step: self.arithmetic.apply(left, operator, right, most), data_type }))
    }

    /// Values with as many or more digits behind the point.
    fn rescaled(&mut self, of: &Typed, scale: i8, most: u64) -> Option<Step> {
        let digits = u32::try_from(scale.checked_sub(self::scale(&of.data_type))?).ok()?;
        if digits == 0 && most == i64::MAX as u64 {
            return Some(of.step);
        }
        let factor = self.arithmetic.constant(10_i64.checked_pow(digits)?);
        Some(self.arithmetic.apply(of.step, narrow::Operator::Times, factor, most))
    }

    /// The values of all steps for a batch; `None` if some may not fit.
    ///
    /// # Errors
    /// Those of the expressions that are evaluated as ever.
    pub fn over(&self, batch: &RecordBatch) -> Result<Option<Values<'_>>> {
        let mut columns = Vec::with_capacity(self.leaves.len());
        for leaf in &self.leaves {
            let column = leaf.evaluate(batch)?.into_array(batch.num_rows())?;
            let Some(column) = NarrowColumn::of(&column) else { return Ok(None) };
            columns.push(column);
        }
        Ok(self.arithmetic.over(columns))
    }
}

/// A constant of 64 bits.
fn constant(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Decimal128(Some(value), ..) => i64::try_from(*value).ok(),
        ScalarValue::Int64(value) => *value,
        ScalarValue::Int32(value) => value.map(i64::from),
        ScalarValue::Int16(value) => value.map(i64::from),
        _ => None,
    }
}

/// Words as a column of a type that sums have; `None` for other types.
pub(super) fn column(words: Vec<i64>, nulls: Option<NullBuffer>, data_type: &DataType) -> Result<Option<ArrayRef>> {
    Ok(match data_type {
        DataType::Int64 => Some(Arc::new(Int64Array::new(words.into(), nulls))),
        DataType::Decimal128(precision, scale) => {
            let values: Vec<i128> = words.into_iter().map(i128::from).collect();
            let column = Decimal128Array::new(values.into(), nulls);
            Some(Arc::new(column.with_precision_and_scale(*precision, *scale)?))
        }
        _ => None,
    })
}
