//! One attempt to run a query as a job of Ballista.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use ballista_core::client::BallistaClient;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::{
    ExecuteQueryParams, GetJobMetricsParams, GetJobMetricsResult, GetJobStatusResult, KeyValuePair, PartitionLocation,
    job_status,
};
use ballista_core::version::insert_version_header;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status, Streaming};

use super::Cluster;
use crate::error::{LOST, failed, refusal, unsealed};
use crate::network::{Network, is_of_transport};
use crate::settings::{MESSAGE, VERSION_HEADER};
use overspill_distributed::settings::VERSION;

/// Why an attempt has ended without rows.
#[derive(Debug)]
pub enum Ended {
    /// An executor, or rows that it had for others, is lost, for this reason. The query may start again.
    Lost(String),
    Failed(DataFusionError),
}

impl From<DataFusionError> for Ended {
    fn from(error: DataFusionError) -> Self {
        Self::Failed(error)
    }
}

/// A query that can be submitted any number of times.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub cluster: Cluster,
    /// A physical plan.
    pub plan: Arc<[u8]>,
    pub settings: Vec<KeyValuePair>,
    pub session: String,
}

/// The rows of a job that has succeeded. The scheduler keeps them until this is dropped.
pub struct Rows {
    job: String,
    /// The next batch, which is here before the attempt counts as successful.
    first: Option<RecordBatch>,
    current: Option<Part>,
    partitions: VecDeque<PartitionLocation>,
    network: Network,
    _states: Streaming<GetJobStatusResult>,
}

impl Attempt {
    /// Submits the query, and waits until it has succeeded and its first rows are here.
    pub async fn run(&self) -> Result<Rows, Ended> {
        let Cluster { scheduler, network } = &self.cluster;
        let mut client = network.scheduler(scheduler).await?;
        let mut request = Request::new(ExecuteQueryParams {
            session_id: self.session.clone(),
            operation_id: String::new(),
            settings: self.settings.clone(),
            query: Some(Query::PhysicalPlan(self.plan.to_vec())),
        });
        insert_version_header(request.metadata_mut());
        request.metadata_mut().insert(VERSION_HEADER, MetadataValue::from_static(VERSION));
        let submitted = client.execute_query_push(request).await;
        let mut states = submitted
            .map_err(|status| self.refused(&status).unwrap_or_else(|| network.unanswered(scheduler)))?
            .into_inner();
        loop {
            let state =
                states.message().await.map_err(|status| self.refused(&status).unwrap_or_else(|| self.lost()))?;
            let Some(status) = state.ok_or_else(|| self.lost())?.status else { continue };
            match status.status {
                Some(job_status::Status::Failed(failed)) => {
                    return Err(match failed.error.split_once(LOST) {
                        Some((_, reason)) => Ended::Lost(reason.chars().take(200).collect()),
                        None => Ended::Failed(unsealed(&failed.error)),
                    });
                }
                Some(job_status::Status::Successful(successful)) => {
                    let mut rows = Rows {
                        job: status.job_id,
                        first: None,
                        current: None,
                        partitions: successful.partition_location.into(),
                        network: network.clone(),
                        _states: states,
                    };
                    rows.first = rows.arriving().await.map_err(|error| Ended::Lost(error.strip_backtrace()))?;
                    return Ok(rows);
                }
                Some(job_status::Status::Queued(_) | job_status::Status::Running(_)) | None => {}
            }
        }
    }

    fn lost(&self) -> DataFusionError {
        failed(format!(
            "The scheduler at {} is lost: start it again with overspill cluster scheduler, then run the query again",
            self.cluster.scheduler
        ))
    }

    /// What a scheduler's refusal means. `None` if the connection was lost.
    fn refused(&self, status: &Status) -> Option<DataFusionError> {
        if is_of_transport(status) {
            return None;
        }
        let (scheduler, text) = (&self.cluster.scheduler, status.message());
        Some(match status.code() {
            Code::FailedPrecondition => failed(format!("The cluster at {scheduler}: {text}")),
            Code::InvalidArgument => {
                let reason = text.strip_prefix("Could not parse plan: ").unwrap_or(text);
                refusal(format!("This query does not run on a cluster, as its plan cannot be read there: {reason}"))
            }
            Code::Internal | Code::Unimplemented => failed(format!("The scheduler at {scheduler}: {text}")),
            _ => return None,
        })
    }
}

/// What the operators of a finished job have counted.
pub async fn metrics_of(cluster: &Cluster, job: String) -> Result<GetJobMetricsResult> {
    let Cluster { scheduler, network } = cluster;
    let mut client = network.scheduler(scheduler).await?;
    let answer = client.get_job_metrics(GetJobMetricsParams { job_id: job }).await;
    answer
        .map(|answer| answer.into_inner())
        .map_err(|status| failed(format!("The scheduler at {scheduler} has no metrics: {}", status.message())))
}

impl Rows {
    /// The job's name.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The next batch.
    ///
    /// # Errors
    /// An executor is lost. As rows were returned already, the query cannot start again.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        self.arriving().await.map_err(|error| {
            failed(format!(
                "An executor was lost while rows of its result were read, after some of them were returned: run the query \
                 again ({})",
                error.strip_backtrace()
            ))
        })
    }

    /// The next batch with rows from an executor.
    async fn arriving(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(part) = &mut self.current {
                match part.stream.next().await.transpose()? {
                    Some(batch) if batch.num_rows() == 0 => continue,
                    Some(batch) => {
                        part.arrived += batch.num_rows() as i64;
                        return Ok(Some(batch));
                    }
                    None => part.check_complete()?,
                }
                self.current = None;
            }
            let Some(partition) = self.partitions.pop_front() else { return Ok(None) };
            let expected = partition.partition_stats.as_ref().map_or(-1, |stats| stats.num_rows);
            let stream = fetch(partition, &self.network).await?;
            self.current = Some(Part { stream, arrived: 0, expected });
        }
    }
}

/// The rows of one task.
struct Part {
    stream: SendableRecordBatchStream,
    arrived: i64,
    /// As many as were written; negative if that is not known.
    expected: i64,
}

impl Part {
    /// Fails if rows are missing at the end of the stream.
    fn check_complete(&self) -> Result<()> {
        if self.expected >= 0 && self.arrived != self.expected {
            return Err(failed(format!("{} of {} rows of a task have arrived", self.arrived, self.expected)));
        }
        Ok(())
    }
}

/// The rows of a partition, from the executor that has written it.
async fn fetch(partition: PartitionLocation, network: &Network) -> Result<SendableRecordBatchStream> {
    let layout = partition.layout();
    let (Some(executor), Some(id)) = (partition.executor_meta, partition.partition_id) else {
        return Err(failed("a result has no place"));
    };
    let port = u16::try_from(executor.port).map_err(|_| failed(format!("{} is no port", executor.port)))?;
    let fetched = async {
        let mut client = BallistaClient::try_new(
            &executor.host,
            port,
            MESSAGE as usize,
            false,
            Some(network.for_rows()),
            1,
            200,
            0,
            0,
        )
        .await?;
        client.fetch_partition(&executor.id, &id.into(), partition.file_id, layout, false).await
    };
    fetched.await.map_err(|error| failed(format!("{}:{port}: {error}", executor.host)))
}
