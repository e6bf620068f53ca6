//! The process that cuts queries into tasks, and gives them to executors.

mod guard;
mod members;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::ConfigProducer;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_core::utils::default_session_builder;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::metrics::default_metrics_collector;
use ballista_scheduler::scheduler_server::SchedulerServer;
use datafusion::common::Result;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use overspill::{OverspillConfig, OverspillRuntime};
use tokio::net::TcpListener;
use tonic::transport::Server as Transport;
use tonic::transport::server::TcpIncoming;

use crate::ClusterCodec;
use crate::error::failed;
use crate::network::Network;
use crate::settings::{MESSAGE, producer};
use guard::Guard;

/// Ballista's scheduler.
type Server = SchedulerServer<LogicalPlanNode, PhysicalPlanNode>;

/// A year, in seconds. Ballista must not find an executor missing by itself: it would run stages again.
const NEVER: u64 = 365 * 24 * 3600;

/// Seconds that Ballista keeps what it knows of finished jobs.
const KEPT_STATE: u64 = 300;

/// Where a scheduler listens.
#[derive(Debug, Clone)]
pub struct SchedulerOptions {
    /// The address that clients and executors connect to. With port 0 the system chooses one.
    pub bind: SocketAddr,
    /// How it connects to executors, and they and clients to it.
    pub network: Network,
}

/// Serves clients and executors until `stopped` resolves. `started` is called with the address once the port is open.
///
/// # Errors
/// The port cannot be opened, or the server fails.
pub async fn serve_scheduler(
    options: SchedulerOptions,
    started: impl FnOnce(SocketAddr),
    stopped: impl Future<Output = ()>,
) -> Result<()> {
    let listener = TcpListener::bind(options.bind).await.map_err(|error| {
        failed(format!("the scheduler cannot listen on {}: {error}; choose another address with --bind", options.bind))
    })?;
    let address = listener.local_addr().map_err(|error| failed(format!("the scheduler has no address: {error}")))?;
    let server = ballista(address, &options.network)
        .await
        .map_err(|error| failed(format!("Ballista's scheduler cannot start: {error}")))?;
    let guard = Guard::start(server);
    let service = SchedulerGrpcServer::new(guard)
        .max_decoding_message_size(MESSAGE as usize)
        .max_encoding_message_size(MESSAGE as usize);
    started(address);
    let transport = match options.network.server() {
        None => Transport::builder(),
        Some(tls) => Transport::builder()
            .tls_config(tls)
            .map_err(|error| failed(format!("the scheduler cannot listen by TLS: {error}")))?,
    };
    // Keep-alive notices clients and executors whose machines are gone.
    let serving = transport
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(service)
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::select! {
        served = serving => served.map_err(|error| failed(format!("the scheduler at {address} failed: {error}"))),
        () = stopped => Ok(()),
    }
}

async fn ballista(address: SocketAddr, network: &Network) -> ballista_core::error::Result<Server> {
    let produced: ConfigProducer = producer(OverspillConfig::default(), OverspillRuntime::default());
    let config = SchedulerConfig {
        external_host: address.ip().to_string(),
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        // The guard removes files, once the client has read its rows.
        finished_job_data_clean_up_interval_seconds: 0,
        finished_job_state_clean_up_interval_seconds: KEPT_STATE,
        grpc_client_max_message_size: MESSAGE,
        executor_timeout_seconds: NEVER,
        no_executors_grace_period_seconds: NEVER,
        override_config_producer: Some(Arc::clone(&produced)),
        override_physical_codec: Some(Arc::new(ClusterCodec::default())),
        override_create_grpc_client_endpoint: network.of_ballista(),
        task_max_failures: 1,
        stage_max_failures: 1,
        ..SchedulerConfig::default()
    };
    let config = Arc::new(config);
    let cluster = BallistaCluster::new_memory(config.scheduler_endpoint(), Arc::new(default_session_builder), produced);
    let codec = BallistaCodec::new(
        Arc::new(ballista_core::serde::BallistaLogicalExtensionCodec::default()),
        Arc::new(ClusterCodec::default()),
    );
    let metrics = default_metrics_collector()?;
    let mut server = Server::new(config.scheduler_endpoint(), cluster, codec, config, metrics);
    server.init().await?;
    Ok(server)
}
