//! Errors that travel: as sentences, through texts in which Ballista has escaped and wrapped them.

use ballista_core::error::BallistaError;
use datafusion::common::Result;
use datafusion::error::DataFusionError;

/// The status of a failed job begins with this where the client may submit the query again: an executor, or rows between tasks, were lost.
pub const LOST: &str = "overspill-lost:";

/// The first words of the error that a scheduler sends to a process of another version.
pub const OTHER_VERSION: &str = "another version of Overspill";

/// Encloses a sentence of a task, written in hexadecimal digits: the text around it is escaped once or more on its way.
const MARK: &str = "overspill-error-";

/// A query that is refused.
pub fn refused<T>(sentence: impl Into<String>) -> Result<T> {
    Err(refusal(sentence))
}

/// The error of a query that is refused.
pub fn refusal(sentence: impl Into<String>) -> DataFusionError {
    DataFusionError::NotImplemented(sentence.into())
}

/// A failure, in a sentence.
pub fn failed(sentence: impl Into<String>) -> DataFusionError {
    DataFusionError::Execution(sentence.into())
}

/// The error of a task as one that arrives at the client as it is.
pub fn sealed(error: &DataFusionError) -> DataFusionError {
    let (kind, text) = match root_of(error) {
        DataFusionError::ResourcesExhausted(text) => ('r', text.clone()),
        DataFusionError::Execution(text) => ('x', text.clone()),
        root => ('x', root.strip_backtrace()),
    };
    let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    failed(format!("{MARK}{kind}{digits}."))
}

/// The first cause of an error, also through layers of Ballista.
pub fn root_of(error: &DataFusionError) -> &DataFusionError {
    let root = error.find_root();
    let DataFusionError::External(external) = root else { return root };
    match external.downcast_ref() {
        Some(BallistaError::DataFusionError(inner)) => root_of(inner),
        _ => root,
    }
}

/// The error in the status of a job. One that no task has sealed is shown as Ballista worded it.
pub fn unsealed(status: &str) -> DataFusionError {
    let sealed = status.split_once(MARK).and_then(|(_, rest)| rest.split_once('.')).map(|(sealed, _)| sealed);
    let opened = sealed.and_then(|sealed| {
        let kind = sealed.chars().next()?;
        let digits = sealed.get(1..)?.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes = digits.chunks(2).map(byte).collect::<Option<Vec<_>>>()?;
        Some((kind, String::from_utf8(bytes).ok()?))
    });
    match opened {
        Some(('r', text)) => DataFusionError::ResourcesExhausted(text),
        Some((_, text)) => failed(in_words(text)),
        None => failed(plain(status)),
    }
}

/// A task's error in words that fit a cluster.
fn in_words(text: String) -> String {
    let missing = text.contains("No such file or directory") || text.contains("not found: No such");
    if !missing {
        return text;
    }
    let path = text.split_whitespace().find(|word| word.starts_with('/')).unwrap_or_default();
    let path = path.trim_end_matches([':', ',', '.']);
    format!(
        "An executor cannot read {path}: there is no such file on its machine. Files must have the same path for the client and \
         every executor, as on a shared file system"
    )
}

/// What an error of Ballista says, without the layers around it.
fn plain(status: &str) -> String {
    let text = status.rsplit_once("message: \"").map_or(status, |(_, message)| {
        message.split_once("\", details").or_else(|| message.split_once('"')).map_or(message, |(text, _)| text)
    });
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_error_arrives_as_it_was() {
        let error = DataFusionError::ResourcesExhausted("64.0 MB \"exhausted\"\nfor good".to_owned());
        let status = format!("Job 1 failed: {:?}", format!("{:?}", sealed(&error)));
        let arrived = unsealed(&status);
        assert!(matches!(&arrived, DataFusionError::ResourcesExhausted(text) if text.contains("\"exhausted\"\nfor")));
        let error = DataFusionError::Execution("a sum is beyond the range".to_owned()).context("in a join");
        let error = DataFusionError::External(Box::new(BallistaError::DataFusionError(Box::new(error))));
        assert!(unsealed(&sealed(&error).to_string()).to_string().ends_with("a sum is beyond the range"));
    }

    #[test]
    fn an_error_of_ballista_is_shown_without_its_layers() {
        let status = "Job x failed: Status { code: Internal, message: \"no such stage\", details: [] }";
        assert!(unsealed(status).to_string().ends_with("no such stage"), "{}", unsealed(status));
    }

    #[test]
    fn a_file_that_an_executor_lacks_is_named() {
        let error = DataFusionError::Execution(
            "Object at location /data/a.parquet not found: No such file or directory".into(),
        );
        let text = unsealed(&sealed(&error).to_string()).to_string();
        assert!(text.contains("cannot read /data/a.parquet:"), "{text}");
    }
}
