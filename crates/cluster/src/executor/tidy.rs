//! Removes the files of a job once no client waits for its rows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ballista_core::serde::protobuf::GetJobStatusParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

use super::tasks::Tasks;

/// How often files are looked through.
const ROUND: Duration = Duration::from_secs(4);

/// How long the scheduler may be silent before all its jobs are given up.
const SILENCE: Duration = Duration::from_secs(10);

/// Ballista removes the files of a job when it ends, and a task that is being stopped may still write some. So this asks the
/// scheduler for each job that has files here whether somebody waits for it.
pub async fn tidy(scheduler: Endpoint, work: PathBuf, tasks: Arc<Tasks>) {
    let endpoint = scheduler.connect_timeout(ROUND).timeout(ROUND);
    let mut heard = Instant::now();
    let mut unwanted = HashMap::new();
    loop {
        sleep(ROUND).await;
        let jobs = jobs_in(&work);
        if jobs.is_empty() {
            heard = Instant::now();
            continue;
        }
        let mut client = SchedulerGrpcClient::new(endpoint.connect_lazy());
        for job in jobs {
            match is_wanted(&mut client, &job).await {
                Some(true) => {
                    heard = Instant::now();
                    unwanted.remove(&job);
                }
                Some(false) => {
                    heard = Instant::now();
                    // In the second round: a job's first files may be seen before its client's stream is noted.
                    let rounds = unwanted.entry(job.clone()).or_insert(0);
                    *rounds += 1;
                    if *rounds > 1 {
                        tasks.stop(&job);
                        if !tasks.has(&job) {
                            remove(&work.join(&job)).await;
                        }
                    }
                }
                None if heard.elapsed() > SILENCE => {
                    tasks.stop_all();
                    remove(&work.join(&job)).await;
                }
                None => {}
            }
        }
    }
}

/// Whether a client waits for a job. `None` if the scheduler does not say.
async fn is_wanted(client: &mut SchedulerGrpcClient<Channel>, job: &str) -> Option<bool> {
    let asked = client.get_job_status(GetJobStatusParams { job_id: job.to_owned() }).await;
    asked.ok().map(|answer| answer.into_inner().status.is_some())
}

fn jobs_in(work: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(work).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

async fn remove(path: &Path) {
    // What cannot be removed now is tried again.
    let _ = tokio::fs::remove_dir_all(path).await;
}
