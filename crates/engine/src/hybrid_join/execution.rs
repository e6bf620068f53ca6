//! One execution of a join: what its streams share.

use std::sync::Arc;

use datafusion::execution::SendableRecordBatchStream;

use super::context::{JoinContext, ReadInput};
use super::deferred::HybridProbe;
use crate::join_execution::input::ProbeInputs;
use crate::join_execution::shared_build::SharedBuild;
use crate::join_execution::timeline::LaneName;

pub(super) struct Execution {
    pub context: Arc<JoinContext>,
    /// The one build side that all streams probe (`CollectLeft`).
    pub build: Option<SharedBuild<ReadInput>>,
    /// The probe inputs, if the streams share them.
    pub inputs: Option<Arc<ProbeInputs<HybridProbe>>>,
}

impl Execution {
    /// An execution with `partitions` streams that share the build side read from `input`.
    pub fn collected(
        context: Arc<JoinContext>,
        input: SendableRecordBatchStream,
        partitions: usize,
        inputs: Option<Arc<ProbeInputs<HybridProbe>>>,
    ) -> Self {
        let reader = Arc::clone(&context);
        let build = SharedBuild::new(partitions, async move {
            let memory = reader.memory.unit();
            let lane = reader.timeline.lane(LaneName::BuildSide);
            for early in &reader.early {
                let _reading = lane.phase("read build side below");
                early.read().await?;
            }
            if let Some(ahead) = &reader.keys_ahead {
                let _reading = lane.phase("read probe side first");
                ahead.read(&memory).await?;
            }
            reader.read_input(input, memory, &lane, reader.race.as_ref()).await
        });
        Self { context, build: Some(build), inputs }
    }
}
