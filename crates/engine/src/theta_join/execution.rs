//! One execution of a theta join: the state that its streams share, above all the build side.

use std::sync::Arc;

use datafusion::execution::SendableRecordBatchStream;

use super::context::{Build, ThetaContext};
use super::progress::ThetaProbe;
use crate::join_execution::input::ProbeInputs;
use crate::join_execution::shared_build::SharedBuild;

pub(super) struct Execution {
    pub context: Arc<ThetaContext>,
    pub build: SharedBuild<Build>,
    /// The probe inputs, if the streams share them.
    pub inputs: Option<Arc<ProbeInputs<ThetaProbe>>>,
}

impl Execution {
    pub fn new(
        context: Arc<ThetaContext>,
        input: SendableRecordBatchStream,
        inputs: Option<Arc<ProbeInputs<ThetaProbe>>>,
    ) -> Self {
        let reader = Arc::clone(&context);
        let build = SharedBuild::new(context.partitions, async move { reader.read_build(input).await });
        Self { context, build, inputs }
    }
}
