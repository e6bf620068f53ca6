//! The settings of clients, schedulers and executors.

use std::sync::Arc;

use ballista_core::ConfigProducer;
use ballista_core::config::{
    BALLISTA_ADAPTIVE_PLANNER_ENABLED, BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE, BALLISTA_CLIENT_IO_RETRIES_TIMES,
    BALLISTA_CLIENT_IO_RETRY_WAIT_TIME_MS,
};
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::KeyValuePair;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::prelude::SessionConfig;
use overspill::{OverspillConfig, OverspillRuntime};
use overspill_distributed::settings::{self, OF_THE_MACHINE};

use crate::error::refused;

/// The largest message between two processes, in bytes. A message is a plan, or a batch of rows.
pub const MESSAGE: u32 = 256 << 20;

/// The header of a query with the [`VERSION`](overspill_distributed::settings::VERSION) of its client.
pub const VERSION_HEADER: &str = "overspill-version";

/// The settings of Ballista that every query has, whatever its session says. Fetches are hardly retried: the client submits a query again
/// when an executor is lost, and should learn of it soon.
fn of_ballista() -> [(&'static str, String); 4] {
    [
        (BALLISTA_ADAPTIVE_PLANNER_ENABLED, "false".to_owned()),
        (BALLISTA_CLIENT_GRPC_MAX_MESSAGE_SIZE, MESSAGE.to_string()),
        (BALLISTA_CLIENT_IO_RETRIES_TIMES, "1".to_owned()),
        (BALLISTA_CLIENT_IO_RETRY_WAIT_TIME_MS, "200".to_owned()),
    ]
}

/// The configuration that a scheduler and executors start from: settings that they do not know vanish on their way.
pub fn producer(of_the_machine: OverspillConfig, runtime: OverspillRuntime) -> ConfigProducer {
    Arc::new(move || {
        let mut config = SessionConfig::new_with_ballista().with_extension(Arc::new(runtime.clone()));
        let options = config.options_mut();
        options.extensions.insert(of_the_machine.clone());
        for (key, value) in of_ballista() {
            options.set(key, &value).expect("Ballista knows its settings");
        }
        config
    })
}

/// The settings of a session that travel with its query.
///
/// # Errors
/// Refuses settings under which Ballista 55 answers wrongly.
pub fn travelling(options: &ConfigOptions) -> Result<Vec<KeyValuePair>> {
    let mut settings = settings::travelling(options)?;
    if settings.iter().any(|(key, value)| key == BALLISTA_ADAPTIVE_PLANNER_ENABLED && value == "true") {
        return refused(
            "Ballista 55's adaptive planner gives some queries the rows of another stage: SET \
             ballista.planner.adaptive.enabled = false",
        );
    }
    settings.extend(of_ballista().map(|(key, value)| (key.to_owned(), value)));
    Ok(settings.into_iter().map(|(key, value)| KeyValuePair { key, value: Some(value) }).collect())
}

/// The settings of a machine, of names and values: those that do not travel with queries.
///
/// # Errors
/// A setting is not a machine's own, or has no such value.
pub fn machine_settings(settings: &[(String, String)]) -> Result<OverspillConfig> {
    let mut options = ConfigOptions::new();
    options.extensions.insert(OverspillConfig::default());
    for (key, value) in settings {
        if !OF_THE_MACHINE.contains(&key.as_str()) {
            return refused(format!(
                "{key} is no setting of an executor, as it travels with each query: SET it there. An executor has {}",
                OF_THE_MACHINE.join(", ")
            ));
        }
        options.set(key, value)?;
    }
    Ok(options.extensions.get::<OverspillConfig>().cloned().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_is_given_settings_of_its_machine_alone() {
        let set = |key: &str, value: &str| machine_settings(&[(key.to_owned(), value.to_owned())]);
        assert_eq!(set("overspill.gpu_memory_limit", "4096").unwrap().gpu_memory_limit, 4096);
        assert!(set("overspill.gpu_memory_limit", "much").is_err());
        let error = set("overspill.join_memory_limit", "1").unwrap_err().to_string();
        assert!(error.contains("travels with each query") && error.contains("overspill.device"), "{error}");
    }

    #[test]
    fn the_adaptive_planner_is_refused_and_a_machines_settings_stay() {
        let mut config = producer(OverspillConfig::default(), OverspillRuntime::default())();
        let keys = |config: &SessionConfig| -> Vec<String> {
            travelling(config.options()).unwrap().into_iter().map(|setting| setting.key).collect()
        };
        let sent = keys(&config);
        assert!(sent.iter().any(|key| key == "overspill.join_memory_limit"));
        assert!(!sent.iter().any(|key| key == "overspill.device"));
        config.options_mut().set("overspill.enabled", "false").unwrap();
        assert!(travelling(config.options()).unwrap_err().to_string().contains("overspill.enabled = true"));
        config.options_mut().set("overspill.enabled", "true").unwrap();
        config.options_mut().set(BALLISTA_ADAPTIVE_PLANNER_ENABLED, "true").unwrap();
        assert!(travelling(config.options()).unwrap_err().to_string().contains("adaptive"));
    }
}
