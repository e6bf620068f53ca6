//! The process that runs tasks.

mod compact;
mod connections;
mod front;
mod shuffle;
mod stage;
mod tasks;
mod tidy;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::ids::new_instance_id;
use ballista_core::serde::protobuf::GetJobStatusParams;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use overspill::memory::HeadroomPool;
use overspill::spill::SpillDirectory;
use overspill::{LocalStore, OverspillConfig, OverspillRuntime};
use overspill_distributed::settings::VERSION;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::ClusterCodec;
use crate::error::{OTHER_VERSION, failed};
use crate::network::{Network, is_of_transport};
use crate::settings::{MESSAGE, producer};
use stage::StageEngine;
use tasks::Tasks;

/// Seconds between two signs of life.
const HEARTBEAT: u64 = 1;

/// What an executor is given of its machine.
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// The host and the port of the scheduler.
    pub scheduler: (String, u16),
    /// How it connects to the scheduler and to other executors, and they and clients to it.
    pub network: Network,
    /// The address that other executors, clients and the scheduler connect to.
    pub bind: IpAddr,
    /// The port for rows; 0 for one that the system chooses. Tasks arrive at another one, which the system chooses.
    pub port: u16,
    /// Memory for all tasks together, in bytes.
    pub memory: usize,
    /// The number of partitions that run at a time.
    pub threads: usize,
    /// The directory for spilled state and for rows on their way to other tasks; by default the system's.
    pub temp_dir: Option<PathBuf>,
    /// The limit on spilled state, in bytes.
    pub temp: Option<usize>,
    /// Settings of this machine: of its GPU, and of indexes. Others come with each query.
    pub machine: OverspillConfig,
}

/// Runs tasks of a scheduler until `stopped` resolves. There can be one in a
/// process. `started` is called before it registers.
///
/// # Errors
/// There is no scheduler, or none that it can connect to; a port is taken; or the temporary directory cannot be used.
pub async fn serve_executor(
    options: ExecutorOptions,
    runtime: OverspillRuntime,
    started: impl FnOnce(),
    stopped: impl Future<Output = ()>,
) -> Result<()> {
    let root = options.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
    // It removes what killed processes have left there.
    let directory = SpillDirectory::open(&root)?;
    let work = directory.path().join("shuffle");
    std::fs::create_dir(&work).map_err(|error| failed(format!("cannot create {}: {error}", work.display())))?;
    let environment = environment(&options, &directory)?;
    let (scheduler_host, scheduler_port) = options.scheduler.clone();
    let scheduler = format!("{scheduler_host}:{scheduler_port}");
    answers(&scheduler, &options.network).await?;
    let Doors { services, port, grpc_port, fronts } = Doors::open(&options)?;
    let tasks = Arc::new(Tasks::default());
    // Joins have the rest.
    let share = options.memory / (4 * options.threads.max(1));
    let engine = StageEngine::new(options.machine.clone(), share, Arc::clone(&tasks), options.network.clone());
    let config = ExecutorProcessConfig {
        executor_id: format!("{VERSION}-{}", new_instance_id()),
        bind_host: services.to_string(),
        external_host: Some(options.bind.to_string()),
        port,
        grpc_port,
        scheduler_host,
        scheduler_port,
        vcores: options.threads,
        task_scheduling_policy: TaskSchedulingPolicy::PushStaged,
        work_dir: Some(work.to_string_lossy().into_owned()),
        grpc_max_decoding_message_size: MESSAGE,
        grpc_max_encoding_message_size: MESSAGE,
        executor_heartbeat_interval_seconds: HEARTBEAT,
        // One pool for all tasks, not a share for each.
        memory_pool_size: Some(0),
        override_execution_engine: Some(Arc::new(engine)),
        override_runtime_producer: Some(Arc::new(move |_| Ok(Arc::clone(&environment)))),
        override_config_producer: Some(producer(options.machine.clone(), runtime)),
        override_physical_codec: Some(Arc::new(ClusterCodec::default())),
        override_create_grpc_client_endpoint: options.network.of_ballista(),
        // Ballista's own lacks functions of lists and maps.
        override_function_registry: Some(Arc::new((&SessionStateBuilder::new_with_default_features().build()).into())),
        ..ExecutorProcessConfig::default()
    };
    started();
    let tidying = tokio::spawn(tidy::tidy(options.network.to_scheduler(&scheduler)?, work, Arc::clone(&tasks)));
    let ended = tokio::select! {
        ended = start_executor_process(Arc::new(config)) => ended,
        () = stopped => Ok(()),
    };
    // They must not write into the directory while it is removed.
    tasks.stop_all();
    tasks.ended().await;
    tidying.abort();
    drop(fronts);
    ended.map_err(|error| failed(in_words(&error.to_string(), &scheduler)))
}

/// One environment for all tasks: one memory pool, and one directory for what they spill.
fn environment(options: &ExecutorOptions, directory: &SpillDirectory) -> Result<Arc<RuntimeEnv>> {
    let mut disk =
        DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![directory.path().to_path_buf()]));
    if let Some(bytes) = options.temp {
        disk.set_max_temp_directory_size(bytes as u64);
    }
    let environment = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(HeadroomPool::new(options.memory)))
        .with_disk_manager_builder(disk)
        .with_object_list_cache_limit(0)
        .build_arc()?;
    environment.register_object_store(ObjectStoreUrl::local_filesystem().as_ref(), Arc::new(LocalStore::default()));
    Ok(environment)
}

/// Whether there is a scheduler that answers. Ballista does not say why it cannot connect to one.
async fn answers(scheduler: &str, network: &Network) -> Result<()> {
    let mut client = network.scheduler(scheduler).await?;
    let asked = client.get_job_status(GetJobStatusParams::default()).await;
    // One of another version may know other questions.
    match asked {
        Err(status) if is_of_transport(&status) => Err(network.unanswered(scheduler)),
        _ => Ok(()),
    }
}

/// Where the services of an executor listen.
struct Doors {
    /// The address of Ballista's services. They know no TLS: with it they listen on the loopback interface, and others connect to the fronts.
    services: IpAddr,
    /// The port for rows.
    port: u16,
    /// The port for tasks.
    grpc_port: u16,
    /// What passes connections by TLS on to the services, at the same ports of the executor's own address.
    fronts: JoinSet<()>,
}

impl Doors {
    /// Chooses ports that can be opened now, and opens the fronts.
    fn open(options: &ExecutorOptions) -> Result<Self> {
        let mut fronts = JoinSet::new();
        let bind = options.bind;
        let Some(acceptor) = options.network.acceptor() else {
            let ((_rows, port), (_tasks, grpc_port)) = (listen(bind, options.port)?, listen(bind, 0)?);
            return Ok(Self { services: bind, port, grpc_port, fronts });
        };
        // All of 127.0.0.0/8 is this machine's alone.
        let services = IpAddr::from(match bind {
            IpAddr::V4(Ipv4Addr::LOCALHOST) => [127, 0, 0, 2],
            _ => [127, 0, 0, 1],
        });
        let mut open = |port| {
            let (listener, port) = listen(bind, port)?;
            listen(services, port)?;
            fronts.spawn(front::serve(listener, acceptor.clone(), (services, port).into()));
            Ok::<_, DataFusionError>(port)
        };
        let (port, grpc_port) = (open(options.port)?, open(0)?);
        Ok(Self { services, port, grpc_port, fronts })
    }
}

/// Opens a port, and says which; 0 stands for one that the system chooses.
fn listen(bind: IpAddr, port: u16) -> Result<(TcpListener, u16)> {
    let opened = || {
        let listener = std::net::TcpListener::bind((bind, port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok::<_, io::Error>((TcpListener::from_std(listener)?, port))
    };
    opened().map_err(|error| {
        failed(format!("the executor cannot listen on {bind}:{port}: {error}; choose another port with --port"))
    })
}

fn in_words(error: &str, scheduler: &str) -> String {
    if error.contains("protocol version mismatch") || error.contains(OTHER_VERSION) {
        return format!(
            "the scheduler at {scheduler} is of another version: use the same version of Overspill everywhere"
        );
    }
    format!("the executor failed: {error}")
}
