//! Columns from folders named `key=value`.

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, plan_err};

use overspill::analyzer::NULL_PARTITION;

use super::listing::Found;

/// The columns of the files' folders: integers or dates if all values are, otherwise text.
///
/// # Errors
///
/// Refuses files whose folders have differing keys.
pub fn columns(name: &str, files: &[Found]) -> Result<Vec<FieldRef>> {
    let Some(first) = files.first() else { return Ok(vec![]) };
    let keys = |file: &Found| file.keys.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    let known = keys(first);
    if let Some(other) = files.iter().find(|file| keys(file) != known) {
        return plan_err!(
            "the folders of '{name}' do not agree on their key=value columns: {} has ({}) and {} has ({})",
            first.path.display(),
            known.join(", "),
            other.path.display(),
            keys(other).join(", ")
        );
    }
    if let Some(twice) = known.iter().enumerate().find(|(position, key)| known[..*position].contains(key)) {
        return plan_err!("the folders of {} give the column '{}' twice", first.path.display(), twice.1);
    }
    let columns = known.into_iter().enumerate().map(|(position, key)| {
        let values: Vec<_> = files.iter().map(|file| decoded(&file.keys[position].1)).collect();
        let all = |fits: fn(&str) -> bool| values.iter().flatten().all(|value| fits(value));
        let data_type = match values.iter().flatten().next() {
            Some(_) if all(|value| value.parse::<i64>().is_ok()) => DataType::Int64,
            Some(_) if all(is_date) => DataType::Date32,
            _ => DataType::Utf8,
        };
        Field::new(key, data_type, true).into()
    });
    Ok(columns.collect())
}

/// The values of a file for the columns of its folders.
pub fn values(file: &Found, columns: &[FieldRef]) -> Result<Vec<ScalarValue>> {
    let value = |column: &FieldRef| {
        let text = file.keys.iter().find(|(key, _)| key == column.name()).and_then(|(_, value)| decoded(value));
        match text {
            None => ScalarValue::try_from(column.data_type()),
            Some(text) => ScalarValue::try_from_string(text, column.data_type()),
        }
    };
    columns.iter().map(value).collect()
}

/// The value encoded in a folder's name; `None` for NULL.
fn decoded(value: &str) -> Option<String> {
    if value == NULL_PARTITION {
        return None;
    }
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    Some(String::from_utf8(bytes).unwrap_or_else(|_| value.to_string()))
}

fn is_date(value: &str) -> bool {
    value.len() == 10 && ScalarValue::try_from_string(value.to_string(), &DataType::Date32).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_null_is_null() {
        assert_eq!(decoded("a%20b%2Fc"), Some("a b/c".to_string()));
        assert_eq!(decoded("100%"), Some("100%".to_string()));
        assert_eq!(decoded(NULL_PARTITION), None);
    }
}
