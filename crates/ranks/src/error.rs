//! Errors between ranks, which travel as sentences.

use datafusion::error::DataFusionError;
use overspill_exchange::Error;

/// What other ranks are told of an error.
pub fn cause_of(error: &DataFusionError) -> String {
    match error.find_root() {
        DataFusionError::Execution(text)
        | DataFusionError::ResourcesExhausted(text)
        | DataFusionError::NotImplemented(text) => text.clone(),
        root => root.strip_backtrace(),
    }
}

/// The failure of an exchange as the error of a query.
pub fn of_exchange(error: &Error) -> DataFusionError {
    DataFusionError::Execution(match error {
        // Users know of no other rank than the first.
        Error::Failed { rank: 0, cause } => cause.to_string(),
        Error::Failed { rank, cause } => format!("rank {rank}: {cause}"),
        other => other.to_string(),
    })
}
