//! Which settings travel with a query, and which are a machine's own.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, not_impl_err};
use datafusion::execution::TaskContext;
use datafusion::prelude::SessionConfig;
use overspill::OverspillConfig;

/// What all processes that run a query must agree on.
pub const VERSION: &str = concat!("overspill-", env!("CARGO_PKG_VERSION"));

/// Settings of the machine that runs a join, which do not travel.
pub const OF_THE_MACHINE: [&str; 5] = [
    "overspill.device",
    "overspill.gpus",
    "overspill.gpu_memory_limit",
    "overspill.gpu_pinned_memory",
    "overspill.index_dir",
];

/// The settings of a session that travel with its query.
///
/// # Errors
/// Refuses a session without Overspill's joins.
pub fn travelling(options: &ConfigOptions) -> Result<Vec<(String, String)>> {
    let mut settings = Vec::new();
    for entry in options.entries() {
        let Some(value) = entry.value else { continue };
        if entry.key == "overspill.enabled" && value == "false" {
            return not_impl_err!(
                "The joins of several processes are those of Overspill: SET overspill.enabled = true"
            );
        }
        let stays = OF_THE_MACHINE.contains(&entry.key.as_str())
            || entry.key.starts_with("datafusion.runtime.")
            || entry.key.starts_with("datafusion.sql_parser.");
        if !stays {
            settings.push((entry.key, value));
        }
    }
    Ok(settings)
}

/// The settings of a query here: its own, and those of this machine.
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
}
