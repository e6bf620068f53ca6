//! `overspill cluster`: the processes of a cluster.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;

use clap::{Args, Subcommand};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use overspill_cluster::{ExecutorOptions, SchedulerOptions, machine_settings, serve_executor, serve_scheduler};
use overspill_session::{Error, Limits};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::allocator;
use crate::args::{parse_setting, parse_size};
use crate::failure::{Failure, Outcome, tell};
use crate::interrupt::Interrupts;
use crate::machine;
use crate::tls::TlsArgs;

/// The scheduler's port, unless another is named.
const PORT: u16 = 50050;

/// The processes of a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterTool {
    /// Cut queries into tasks, and give them to executors
    Scheduler(SchedulerArgs),
    /// Run tasks of a scheduler
    Executor(ExecutorArgs),
    /// Start a scheduler and executors on this machine, each a process of its own
    Local(LocalArgs),
}

#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// The address that clients and executors connect to
    #[arg(long, value_name = "IP:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT))]
    bind: SocketAddr,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub struct ExecutorArgs {
    /// The scheduler
    #[arg(long, value_name = "HOST:PORT", default_value_t = format!("localhost:{PORT}"))]
    scheduler: String,

    /// The address that the scheduler, clients and other executors connect to
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,

    /// The port for rows; by default the system chooses it, as it does one for tasks
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,

    #[command(flatten)]
    limits: TaskLimits,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
pub struct LocalArgs {
    /// The number of executors
    #[arg(long, value_name = "N", default_value_t = 3)]
    executors: usize,

    /// The port of the scheduler
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    #[command(flatten)]
    limits: TaskLimits,
}

/// What each executor may use.
#[derive(Debug, Clone, Args)]
struct TaskLimits {
    /// The memory limit of all tasks of an executor together [default: 80 % of the machine's memory; of local executors together]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory_limit: Option<usize>,

    /// The directory for spilled state and for rows between tasks [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    temp_dir: Option<PathBuf>,

    /// The limit on the size of spilled state [default: 100GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    temp_limit: Option<usize>,

    /// The number of partitions that an executor runs at a time [default: one per processor; of local executors together]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,

    /// A setting of the machine, such as overspill.device=gpu; others travel with each query
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
}

#[derive(Debug, Args)]
struct Common {
    /// Let other machines connect without TLS. Connections are not encrypted, and whoever connects is trusted
    #[arg(long, conflicts_with = "tls_cert")]
    insecure: bool,

    #[command(flatten)]
    tls: TlsArgs,

    /// End when standard input ends, which the parent process holds open
    #[arg(long, hide = true)]
    until_input_ends: bool,
}

/// Runs a process of a cluster until a signal ends it.
pub async fn run(tool: ClusterTool, interrupts: &Interrupts) -> Outcome<()> {
    match tool {
        ClusterTool::Scheduler(arguments) => scheduler(arguments, interrupts).await,
        ClusterTool::Executor(arguments) => executor(arguments, interrupts).await,
        ClusterTool::Local(arguments) => local(arguments, interrupts).await,
    }
}

async fn scheduler(arguments: SchedulerArgs, interrupts: &Interrupts) -> Outcome<()> {
    let SchedulerArgs { bind, common } = arguments;
    check_address(bind.ip(), &common)?;
    let started = |address| println!("scheduler {address}");
    let options = SchedulerOptions { bind, network: common.tls.network()? };
    serve_scheduler(options, started, told_to_end(interrupts, &common))
        .await
        .map_err(|error| Failure::from(Error::from(error)))
}

async fn executor(arguments: ExecutorArgs, interrupts: &Interrupts) -> Outcome<()> {
    let ExecutorArgs { scheduler, bind, port, limits, common } = arguments;
    check_address(bind, &common)?;
    let address = scheduler.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
    let address =
        address.ok_or_else(|| Failure::message(format!("--scheduler {scheduler} is not written HOST:PORT")))?;
    let machine = Limits::of_this_machine();
    let memory = limits.memory_limit.unwrap_or(machine.memory);
    allocator::keep_to(memory);
    let options = ExecutorOptions {
        scheduler: address,
        network: common.tls.network()?,
        bind,
        port,
        memory,
        threads: limits.threads.unwrap_or(machine.threads).max(1),
        temp_dir: limits.temp_dir,
        temp: limits.temp_limit,
        machine: machine_settings(&limits.settings).map_err(|error| Failure::from(Error::from(error)))?,
    };
    let started = || println!("executor of {scheduler}");
    serve_executor(options, machine::runtime(), started, told_to_end(interrupts, &common))
        .await
        .map_err(|error| Failure::from(Error::from(error)))
}

/// Refuses an address that other machines reach, unless there is TLS, or the user has said that only trusted ones reach it: whoever connects
/// can do what the user of this process can.
fn check_address(address: IpAddr, common: &Common) -> Outcome<()> {
    if address.is_unspecified() || address.is_ipv6() {
        return Err(Failure::message(format!(
            "{address} is no address that the other processes can be given: name the IPv4 address of this machine with --bind"
        )));
    }
    if address.is_loopback() || common.insecure || common.tls.is_given() {
        return Ok(());
    }
    Err(Failure::message(format!(
        "{address} can be reached from other machines: add --tls-cert, --tls-key and --tls-ca, or --insecure if only trusted \
         machines reach it"
    )))
}

/// Resolves at a signal, or when standard input ends if `--until-input-ends` was given.
async fn told_to_end(interrupts: &Interrupts, common: &Common) {
    let input_ends = async {
        if !common.until_input_ends {
            return std::future::pending().await;
        }
        let mut input = tokio::io::stdin();
        while input.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        _ = interrupts.raised() => {}
        () = input_ends => {}
    }
}

async fn local(arguments: LocalArgs, interrupts: &Interrupts) -> Outcome<()> {
    let LocalArgs { executors, port, limits } = arguments;
    if executors == 0 {
        return Err(Failure::message("a cluster needs an executor: --executors 1 or more"));
    }
    let bind = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let (scheduler, line) = child(&["scheduler".into(), "--bind".into(), bind.to_string()]).await?;
    let address = line.strip_prefix("scheduler ").unwrap_or_default().to_owned();
    let machine = Limits::of_this_machine();
    let memory = limits.memory_limit.unwrap_or(machine.memory / executors);
    let threads = limits.threads.unwrap_or(machine.threads / executors).max(1);
    let mut arguments: Vec<String> = ["executor", "--scheduler", &address].map(str::to_owned).into();
    arguments.extend(["--memory-limit".to_owned(), memory.to_string(), "--threads".to_owned(), threads.to_string()]);
    if let Some(directory) = &limits.temp_dir {
        arguments.extend(["--temp-dir".to_owned(), directory.to_string_lossy().into_owned()]);
    }
    if let Some(limit) = limits.temp_limit {
        arguments.extend(["--temp-limit".to_owned(), limit.to_string()]);
    }
    for (key, value) in &limits.settings {
        arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    let mut children = vec![scheduler];
    for _ in 0..executors {
        children.push(child(&arguments).await?.0);
    }
    // To wait for a process closes its standard input, unless that is elsewhere.
    let inputs: Vec<_> = children.iter_mut().map(|child| child.stdin.take()).collect();
    println!("cluster {address}");
    // The scheduler is the first of them.
    let mut ending: FuturesUnordered<_> =
        (0..).zip(&mut children).map(async |(number, child)| (number, child.wait().await)).collect();
    let scheduler_ended = loop {
        tokio::select! {
            _ = interrupts.raised() => break false,
            Some((number, _)) = ending.next() => {
                if number == 0 {
                    break true;
                }
                tell("an executor has ended; the others go on");
            }
        }
    };
    // They end with their standard inputs.
    drop(inputs);
    while ending.next().await.is_some() {}
    if scheduler_ended { Err(Failure::message("the scheduler has ended")) } else { Ok(()) }
}

/// Starts a process of the cluster, and waits for the line that says that it listens.
async fn child(arguments: &[String]) -> Outcome<(Child, String)> {
    let program =
        std::env::current_exe().map_err(|error| Failure::message(format!("cannot find overspill: {error}")))?;
    let mut child = Command::new(program)
        .arg("cluster")
        .args(arguments)
        .arg("--until-input-ends")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Ctrl-C of a terminal goes to its foreground group. It is for the parent alone.
        .process_group(0)
        .spawn()
        .map_err(|error| Failure::message(format!("cannot start overspill cluster: {error}")))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = BufReader::new(output).read_line(&mut line).await;
    }
    if line.is_empty() {
        return Err(Failure::Stopped);
    }
    Ok((child, line.trim().to_owned()))
}
