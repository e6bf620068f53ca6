//! Errors between ranks, which travel as sentences.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::physical_plan::ExecutionPlan;
use overspill::files::files_in_doubt;
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

/// The same of an error of a plan, with the files that it reads if one of them may be the cause.
pub fn cause_in(error: &DataFusionError, plan: &Arc<dyn ExecutionPlan>) -> String {
    match files_in_doubt(error, plan) {
        Some(files) => format!("{}, {files}", cause_of(error)),
        None => cause_of(error),
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
