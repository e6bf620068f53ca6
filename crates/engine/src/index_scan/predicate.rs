//! Which words of an index a filter lets through.

use std::ops::RangeInclusive;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, InListExpr, Literal};
use overspill_index::{OrderedWords, WordRanges};

/// The words that a column may have in rows for which the predicate is true: a set that has them all, and may have more. `None` if
/// the predicate does not tell. `column` is the number of the column in the rows that the predicate is evaluated on.
pub(crate) fn words_of(predicate: &dyn PhysicalExpr, column: usize, data_type: &DataType) -> Option<WordRanges> {
    if let Some(list) = predicate.downcast_ref::<InListExpr>() {
        if list.negated() || !is_column(list.expr().as_ref(), column) {
            return None;
        }
        let values = list.list().iter().map(|value| Some(value.downcast_ref::<Literal>()?.value()));
        // No value is equal to NULL.
        let words = values.filter(|value| value.is_none_or(|value| !value.is_null()));
        let words: Option<Vec<_>> = words.map(|value| word_of(value?, data_type)).collect();
        return Some(WordRanges::of(words?.into_iter().map(|word| word..=word)));
    }
    let binary = predicate.downcast_ref::<BinaryExpr>()?;
    let of = |side: &dyn PhysicalExpr| words_of(side, column, data_type);
    match binary.op() {
        Operator::And => match (of(binary.left().as_ref()), of(binary.right().as_ref())) {
            (Some(one), Some(other)) => Some(one.intersection(&other)),
            (one, other) => one.or(other),
        },
        Operator::Or => Some(of(binary.left().as_ref())?.union(of(binary.right().as_ref())?)),
        operator => {
            let (operator, value) = match (binary.left().downcast_ref(), binary.right().downcast_ref()) {
                (None, Some(value)) if is_column(binary.left().as_ref(), column) => (*operator, value),
                (Some(value), None) if is_column(binary.right().as_ref(), column) => (operator.swap()?, value),
                _ => return None,
            };
            compared(operator, Literal::value(value), data_type)
        }
    }
}

fn is_column(expression: &dyn PhysicalExpr, column: usize) -> bool {
    expression.downcast_ref::<Column>().is_some_and(|own| own.index() == column)
}

/// The words that a value may have so that comparing it with another is true.
fn compared(operator: Operator, value: &ScalarValue, data_type: &DataType) -> Option<WordRanges> {
    let range = |word: u64| -> Option<RangeInclusive<u64>> {
        // A word may stand for several values: some of those with the same word may be less or greater.
        match operator {
            Operator::Eq => Some(word..=word),
            Operator::Lt | Operator::LtEq => Some(0..=word),
            Operator::Gt | Operator::GtEq => Some(word..=u64::MAX),
            _ => None,
        }
    };
    if value.is_null() {
        // Comparing with NULL is never true, whatever the type is.
        return range(0).map(|_| WordRanges::of([]));
    }
    Some(WordRanges::of([range(word_of(value, data_type)?)?]))
}

/// The word of a value of this type that is not null.
fn word_of(value: &ScalarValue, data_type: &DataType) -> Option<u64> {
    if value.data_type() != *data_type {
        return None;
    }
    let (array, mut word) = (value.to_array().ok()?, None);
    OrderedWords::of(&array)?.for_each(|_, of_value| word = Some(of_value));
    word
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
    use arrow::compute::cast;
    use arrow::datatypes::{Field, Schema};
    use datafusion::physical_expr::PhysicalExprRef;
    use datafusion::physical_plan::ExecutionPlan;
    use datafusion::physical_plan::filter::FilterExec;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// Conditions with numbers, which stand for constants of the type of `k`.
    const CONDITIONS: [&str; 17] = [
        "k = 5",
        "5 = k",
        "k < 5",
        "3 < k",
        "k <= 5 AND k >= 4",
        "k BETWEEN 2 AND 6",
        "k IN ( 1 , 5 , 7 , 9 , 11 )",
        "k IN ( 1 , 5 , 7 , NULL , 11 )",
        "k = 2 OR k > 6",
        "k = 2 AND v IS NOT NULL",
        "( k = 2 AND v IS NULL ) OR k = 3",
        "k = 2 AND k = 3",
        "k = 2 OR v IS NULL",
        "k NOT IN ( 1 , 5 , 7 , 9 , 11 )",
        "k <> 5",
        "NOT k = 5",
        "k IS NULL",
    ];

    /// The predicate of the filter of a plan.
    fn predicate(plan: &Arc<dyn ExecutionPlan>) -> Option<PhysicalExprRef> {
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            return Some(Arc::clone(filter.predicate()));
        }
        plan.children().into_iter().find_map(predicate)
    }

    #[tokio::test]
    async fn no_word_of_a_row_that_passes_is_left_out() {
        let types = [DataType::Int64, DataType::UInt8, DataType::Utf8, DataType::Utf8View, DataType::Decimal128(9, 2)];
        let (mut known, mut excluded) = (0, 0);
        for data_type in types {
            let numbers = Int64Array::from_iter((0..12).chain([100, 255]).map(Some).chain([None]));
            let keys = cast(&numbers, &data_type).unwrap();
            let fields = ["v", "k"].map(|name| Field::new(name, data_type.clone(), true));
            let columns = vec![Arc::clone(&keys), Arc::clone(&keys)];
            let rows = RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns).unwrap();
            let ctx = SessionContext::new();
            ctx.register_batch("t", rows.clone()).unwrap();
            for condition in CONDITIONS {
                let parts = condition.split(' ').map(|part| match part.parse::<u8>() {
                    Ok(number) => format!("arrow_cast('{number}', '{data_type}')"),
                    Err(_) => part.to_owned(),
                });
                let query = format!("SELECT * FROM t WHERE {}", parts.collect::<Vec<_>>().join(" "));
                let plan = ctx.sql(&query).await.unwrap().create_physical_plan().await.unwrap();
                let Some(predicate) = predicate(&plan) else { continue };
                let Some(words) = words_of(predicate.as_ref(), 1, &data_type) else { continue };
                known += 1;
                let passes = predicate.evaluate(&rows).unwrap().into_array(rows.num_rows()).unwrap();
                let passes = passes.as_boolean();
                OrderedWords::of(&keys).unwrap().for_each(|row, word| {
                    let has = words.ranges().iter().any(|range| range.contains(&word));
                    let passes = passes.is_valid(row) && passes.value(row);
                    assert!(has || !passes, "{query}: row {row} is left out of {words:?}");
                    excluded += usize::from(!has);
                });
            }
        }
        assert!(known >= 5 * 11 && excluded > 300, "{known} predicates, {excluded} rows");
    }
}
