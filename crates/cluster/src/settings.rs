//! Which settings travel, and which are a machine's own.

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
use datafusion::execution::TaskContext;
use datafusion::prelude::SessionConfig;
use overspill::{OverspillConfig, OverspillRuntime};

use crate::error::refused;

/// The largest message between two processes, in bytes. A message is a plan, or a batch of rows.
pub const MESSAGE: u32 = 256 << 20;

/// What all processes of a cluster must agree on.
pub const VERSION: &str = concat!("overspill-", env!("CARGO_PKG_VERSION"));

/// The header of a query with the [`VERSION`] of its client.
pub const VERSION_HEADER: &str = "overspill-version";

/// Settings of the machine that runs a join, which do not travel.
const OF_THE_MACHINE: [&str; 5] = [
    "overspill.device",
    "overspill.gpus",
    "overspill.gpu_memory_limit",
    "overspill.gpu_pinned_memory",
    "overspill.index_dir",
];

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
    let mut settings = Vec::new();
    for entry in options.entries() {
        let Some(value) = entry.value else { continue };
        if entry.key == BALLISTA_ADAPTIVE_PLANNER_ENABLED && value == "true" {
            return refused(
                "Ballista 55's adaptive planner gives some queries the rows of another stage: SET \
                 ballista.planner.adaptive.enabled = false",
            );
        }
        if entry.key == "overspill.enabled" && value == "false" {
            return refused("The joins of a cluster are those of Overspill: SET overspill.enabled = true");
        }
        let stays = OF_THE_MACHINE.contains(&entry.key.as_str())
            || entry.key.starts_with("datafusion.runtime.")
            || entry.key.starts_with("datafusion.sql_parser.");
        if !stays {
            settings.push(KeyValuePair { key: entry.key, value: Some(value) });
        }
    }
    for (key, value) in of_ballista() {
        settings.push(KeyValuePair { key: key.to_owned(), value: Some(value) });
    }
    Ok(settings)
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

/// The settings of a task: those of its query, and those of this machine.
pub fn on_this_machine(of_the_query: &SessionConfig, of_the_machine: &OverspillConfig) -> SessionConfig {
    let mut config = of_the_query.clone();
    let options = config.options_mut();
    let query = options.extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
    options.extensions.insert(OverspillConfig {
        device: of_the_machine.device,
        gpus: of_the_machine.gpus,
        gpu_memory_limit: of_the_machine.gpu_memory_limit,
        gpu_pinned_memory: of_the_machine.gpu_pinned_memory,
        index_dir: of_the_machine.index_dir.clone(),
        ..query
    });
    config
}

/// A context with other settings.
pub fn with_settings(context: &TaskContext, settings: SessionConfig) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        settings,
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    ))
}

#[cfg(test)]
mod tests {
    use overspill::DeviceKind;

    use super::*;

    #[test]
    fn a_tasks_device_is_the_machines_and_its_limit_the_querys() {
        let machine = OverspillConfig { device: DeviceKind::Emulated.into(), ..OverspillConfig::default() };
        let mut query = SessionConfig::new();
        query.options_mut().extensions.insert(OverspillConfig {
            device: DeviceKind::Gpu.into(),
            join_memory_limit: 7,
            ..OverspillConfig::default()
        });
        let task = on_this_machine(&query, &machine);
        let task = task.options().extensions.get::<OverspillConfig>().unwrap();
        assert_eq!(task.device, DeviceKind::Emulated.into());
        assert_eq!(task.join_memory_limit, 7);
    }

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
