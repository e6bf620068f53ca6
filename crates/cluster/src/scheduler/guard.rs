//! What stands between Ballista's scheduler and the rest of the cluster.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::serde::protobuf::execute_query_failure_result::Failure;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::failed_task::FailedReason;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{
    CancelJobParams, CancelJobResult, CleanJobDataParams, CleanJobDataResult, CreateUpdateSessionParams,
    CreateUpdateSessionResult, ExecuteQueryParams, ExecuteQueryResult, ExecutionError, ExecutorRegistration,
    ExecutorStoppedParams, ExecutorStoppedResult, FailedJob, GetJobMetricsParams, GetJobMetricsResult,
    GetJobStatusParams, GetJobStatusResult, HeartBeatParams, HeartBeatResult, JobStatus, PollWorkParams,
    PollWorkResult, RegisterExecutorParams, RegisterExecutorResult, RemoveSessionParams, RemoveSessionResult,
    TaskStatus, UpdateTaskStatusParams, UpdateTaskStatusResult, execute_query_result, executor_status, job_status,
    task_status,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::Server;
use super::members::{Members, Moment, address_of};
use crate::error::{LOST, OTHER_VERSION};
use crate::settings::VERSION_HEADER;
use overspill_distributed::settings::VERSION;

/// How often executors are looked after.
const LOOK: Duration = Duration::from_millis(500);

/// How often the state of a job is asked for.
const GLANCE: Duration = Duration::from_millis(30);

/// How long a query waits for an executor.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ballista's scheduler, with two promises more:
///
/// - A job that any executor was lost under never succeeds. Its status says so, and begins with [`LOST`].
/// - A job lives as long as its client reads the stream of its states. Its tasks and files go when the client does.
#[derive(Clone)]
pub struct Guard {
    server: Server,
    members: Arc<Members>,
    /// The jobs whose clients are there.
    open: Arc<Mutex<HashSet<String>>>,
}

impl Guard {
    /// Starts to look after the executors of a scheduler.
    pub fn start(server: Server) -> Self {
        let guard = Self { server, members: Arc::default(), open: Arc::default() };
        let looking = guard.clone();
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                looking.members.look(&looking.server).await;
            }
        });
        guard
    }

    /// The moment from which executors must not be lost, once there is one.
    async fn moment(&self) -> Result<Moment, Status> {
        let start = Instant::now();
        loop {
            if let Some(moment) = self.members.now() {
                return Ok(moment);
            }
            if start.elapsed() > PATIENCE {
                return Err(Status::failed_precondition(
                    "no executor is connected to the scheduler: start one with overspill cluster executor --scheduler",
                ));
            }
            sleep(GLANCE).await;
        }
    }

    fn notice(&self, registration: Option<&ExecutorRegistration>) {
        if let Some(registration) = registration {
            let host = registration.host.clone().unwrap_or_default();
            self.members.register(&registration.id, address_of(&host, registration.grpc_port));
        }
    }

    /// Sends the states of a job until it is over, and cleans up once its client is gone.
    async fn follow(self, job: String, began: Moment, client: mpsc::Sender<Result<GetJobStatusResult, Status>>) {
        let mut is_over = false;
        let mut sent = None;
        while !is_over {
            tokio::select! {
                () = client.closed() => break,
                () = sleep(GLANCE) => {}
            }
            let status = self.status_of(&job, began).await;
            let state = status.as_ref().ok().and_then(state);
            is_over = status.is_err() || state.is_some_and(is_final);
            let kind = Some(state.map(std::mem::discriminant));
            if is_over || sent != kind {
                sent = kind;
                if client.send(status).await.is_err() {
                    break;
                }
            }
        }
        // The client reads the results, and closes the stream.
        client.closed().await;
        self.open.lock().remove(&job);
        if !is_over {
            let _ = self.server.cancel_job(job.clone().into()).await;
        }
        let _ = SchedulerGrpc::clean_job_data(
            &self.server,
            Request::new(CleanJobDataParams { job_id: job, remove_stage_ids: vec![] }),
        )
        .await;
    }

    /// The state of a job. One that an executor was lost under is stopped, and has failed.
    async fn status_of(&self, job: &str, began: Moment) -> Result<GetJobStatusResult, Status> {
        let asked = Request::new(GetJobStatusParams { job_id: job.to_owned() });
        let mut result = SchedulerGrpc::get_job_status(&self.server, asked).await?.into_inner();
        if state(&result).is_some_and(is_final) {
            // The failure may be the first sign of an executor that is gone, and a result may already be gone with it.
            self.members.look(&self.server).await;
        }
        if let Some(lost) = self.members.lost_since(began) {
            let _ = self.server.cancel_job(job.to_owned().into()).await;
            let failed = FailedJob {
                error: format!("{LOST}the executor at {lost} is gone"),
                queued_at: 0,
                started_at: 0,
                ended_at: 0,
            };
            result.status = Some(JobStatus {
                job_id: job.to_owned(),
                job_name: String::new(),
                status: Some(job_status::Status::Failed(failed)),
            });
        }
        Ok(result)
    }
}

/// The state of a job, if Ballista knows it.
fn state(result: &GetJobStatusResult) -> Option<&job_status::Status> {
    result.status.as_ref()?.status.as_ref()
}

fn is_final(state: &job_status::Status) -> bool {
    matches!(state, job_status::Status::Failed(_) | job_status::Status::Successful(_))
}

/// Refuses a process of another version: plans would mean something else to it.
fn check_version(version: &str) -> Result<(), Status> {
    let is_ours = version.strip_prefix(VERSION).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    if is_ours {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "{OTHER_VERSION}: the scheduler is {VERSION}; use the same version everywhere"
    )))
}

/// The state of a task, as one after which Ballista runs nothing again: it fails the job in place of that.
fn final_status(mut status: TaskStatus) -> TaskStatus {
    if let Some(task_status::Status::Failed(failed)) = &mut status.status
        && !matches!(failed.failed_reason, Some(FailedReason::ExecutionError(_)))
    {
        failed.error = format!("{LOST}{}", failed.error);
        failed.retryable = false;
        failed.count_to_failures = false;
        failed.failed_reason = Some(FailedReason::ExecutionError(ExecutionError {}));
    }
    status
}

#[tonic::async_trait]
impl SchedulerGrpc for Guard {
    type ExecuteQueryPushStream = ReceiverStream<Result<GetJobStatusResult, Status>>;

    async fn execute_query_push(
        &self,
        request: Request<ExecuteQueryParams>,
    ) -> Result<Response<Self::ExecuteQueryPushStream>, Status> {
        let client = request.metadata().get(VERSION_HEADER).and_then(|version| version.to_str().ok());
        check_version(client.unwrap_or_default())?;
        if !matches!(request.get_ref().query, Some(Query::PhysicalPlan(_))) {
            return Err(Status::unimplemented("this scheduler takes queries of overspill --cluster"));
        }
        let began = self.moment().await?;
        let response = SchedulerGrpc::execute_query(&self.server, request).await?;
        let (metadata, result, extensions) = response.into_parts();
        let job = match result.result {
            Some(execute_query_result::Result::Success(success)) => success.job_id,
            Some(execute_query_result::Result::Failure(failure)) => {
                let text = match failure.failure {
                    Some(
                        Failure::PlanParsingFailure(text)
                        | Failure::SessionNotFound(text)
                        | Failure::SqlParsingFailure(text),
                    ) => text,
                    None => "the query was not accepted".to_owned(),
                };
                return Err(Status::invalid_argument(text));
            }
            None => return Err(Status::internal("the query was not accepted")),
        };
        self.open.lock().insert(job.clone());
        let (client, states) = mpsc::channel(4);
        tokio::spawn(self.clone().follow(job, began, client));
        Ok(Response::from_parts(metadata, ReceiverStream::new(states), extensions))
    }

    async fn execute_query(&self, _: Request<ExecuteQueryParams>) -> Result<Response<ExecuteQueryResult>, Status> {
        Err(Status::unimplemented("this scheduler takes queries of overspill --cluster"))
    }

    /// Executors ask whether the files of a job are still wanted: those of a job without a client are not.
    async fn get_job_status(
        &self,
        request: Request<GetJobStatusParams>,
    ) -> Result<Response<GetJobStatusResult>, Status> {
        // Ballista forgets a job that has succeeded, also while its client reads the rows.
        let job_id = request.into_inner().job_id;
        let is_open = self.open.lock().contains(&job_id);
        let status = is_open.then(|| JobStatus { job_id, job_name: String::new(), status: None });
        Ok(Response::new(GetJobStatusResult { status, flight_proxy: None }))
    }

    async fn register_executor(
        &self,
        request: Request<RegisterExecutorParams>,
    ) -> Result<Response<RegisterExecutorResult>, Status> {
        let metadata = request.get_ref().metadata.clone();
        check_version(metadata.as_ref().map_or("", |registration| &registration.id))?;
        let response = SchedulerGrpc::register_executor(&self.server, request).await?;
        self.notice(metadata.as_ref());
        Ok(response)
    }

    async fn heart_beat_from_executor(
        &self,
        request: Request<HeartBeatParams>,
    ) -> Result<Response<HeartBeatResult>, Status> {
        let beat = request.get_ref();
        if let Some(registration) = &beat.metadata {
            check_version(&registration.id)?;
        }
        let status = beat.status.as_ref().and_then(|status| status.status.as_ref());
        if !matches!(status, Some(executor_status::Status::Active(_))) {
            // Ballista would register an executor again that is about to end.
            return Ok(Response::new(HeartBeatResult { reregister: false }));
        }
        let known = self.server.state.executor_manager.get_executor_metadata(&beat.executor_id).await.is_ok();
        if !known {
            // The heartbeat registers it again, as another one.
            self.members.remove(&beat.executor_id);
        }
        let metadata = beat.metadata.clone();
        let response = SchedulerGrpc::heart_beat_from_executor(&self.server, request).await?;
        self.notice(metadata.as_ref());
        Ok(response)
    }

    async fn executor_stopped(
        &self,
        request: Request<ExecutorStoppedParams>,
    ) -> Result<Response<ExecutorStoppedResult>, Status> {
        let ExecutorStoppedParams { executor_id, reason } = request.into_inner();
        self.members.remove(&executor_id);
        let _ = self.server.state.executor_manager.remove_executor(&executor_id, Some(reason)).await;
        Ok(Response::new(ExecutorStoppedResult {}))
    }

    async fn update_task_status(
        &self,
        request: Request<UpdateTaskStatusParams>,
    ) -> Result<Response<UpdateTaskStatusResult>, Status> {
        let request = request.map(|mut update| {
            update.task_status = update.task_status.into_iter().map(final_status).collect();
            update
        });
        SchedulerGrpc::update_task_status(&self.server, request).await
    }

    async fn poll_work(&self, request: Request<PollWorkParams>) -> Result<Response<PollWorkResult>, Status> {
        SchedulerGrpc::poll_work(&self.server, request).await
    }

    async fn create_update_session(
        &self,
        request: Request<CreateUpdateSessionParams>,
    ) -> Result<Response<CreateUpdateSessionResult>, Status> {
        SchedulerGrpc::create_update_session(&self.server, request).await
    }

    async fn remove_session(
        &self,
        request: Request<RemoveSessionParams>,
    ) -> Result<Response<RemoveSessionResult>, Status> {
        SchedulerGrpc::remove_session(&self.server, request).await
    }

    async fn get_job_metrics(
        &self,
        request: Request<GetJobMetricsParams>,
    ) -> Result<Response<GetJobMetricsResult>, Status> {
        SchedulerGrpc::get_job_metrics(&self.server, request).await
    }

    async fn cancel_job(&self, request: Request<CancelJobParams>) -> Result<Response<CancelJobResult>, Status> {
        SchedulerGrpc::cancel_job(&self.server, request).await
    }

    async fn clean_job_data(
        &self,
        request: Request<CleanJobDataParams>,
    ) -> Result<Response<CleanJobDataResult>, Status> {
        SchedulerGrpc::clean_job_data(&self.server, request).await
    }
}
