//! How exchanges travel in plans.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalExprNode;
use datafusion_proto_common::protobuf_common::Schema as SchemaMessage;
use overspill::write_aside::Destination;
use overspill_distributed::PlanCodec;
use overspill_exchange::{Levels, Side};
use prost::Message;

use crate::exec::{AwayExec, RankBroadcastExec, RankGatherExec, RankShuffleExec, RankStageExec, Way};
use crate::job::HeavyJoin;

/// The codec of plans among ranks.
pub type RanksCodec = PlanCodec<ExchangeCodec>;

/// The codec of exchanges.
#[derive(Debug, Default)]
pub struct ExchangeCodec;

#[derive(Clone, PartialEq, Message)]
struct WayMessage {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(bool, tag = "2")]
    is_two_levels: bool,
    #[prost(bool, tag = "3")]
    is_compressed: bool,
    #[prost(uint64, tag = "4")]
    round_bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ShuffleMessage {
    #[prost(message, required, tag = "1")]
    way: WayMessage,
    #[prost(uint64, tag = "2")]
    lanes: u64,
    #[prost(message, repeated, tag = "3")]
    keys: Vec<PhysicalExprNode>,
    #[prost(message, optional, tag = "4")]
    heavy: Option<HeavyMessage>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct HeavyMessage {
    #[prost(uint64, tag = "1")]
    join: u64,
    #[prost(bool, tag = "2")]
    is_right: bool,
    #[prost(bool, tag = "3")]
    left_may_go_everywhere: bool,
    #[prost(bool, tag = "4")]
    right_may_go_everywhere: bool,
}

impl From<(HeavyJoin, Side)> for HeavyMessage {
    fn from((join, side): (HeavyJoin, Side)) -> Self {
        let [left_may_go_everywhere, right_may_go_everywhere] = join.may_go_everywhere;
        Self { join: join.number, is_right: side == Side::Right, left_may_go_everywhere, right_may_go_everywhere }
    }
}

impl From<HeavyMessage> for (HeavyJoin, Side) {
    fn from(message: HeavyMessage) -> Self {
        let may_go_everywhere = [message.left_may_go_everywhere, message.right_may_go_everywhere];
        let side = if message.is_right { Side::Right } else { Side::Left };
        (HeavyJoin { number: message.join, may_go_everywhere }, side)
    }
}

#[derive(Clone, PartialEq, Message)]
struct GatherMessage {
    #[prost(message, required, tag = "1")]
    way: WayMessage,
    #[prost(uint64, tag = "2")]
    here: u64,
    #[prost(uint64, tag = "3")]
    ranks: u64,
}

/// Files that ranks write for a folder, or for a table.
#[derive(Clone, PartialEq, Message)]
struct StageMessage {
    #[prost(string, tag = "1")]
    path: String,
    /// Of a folder: the extension of the files.
    #[prost(string, optional, tag = "2")]
    extension: Option<String>,
    #[prost(bool, tag = "3")]
    overwrites: bool,
}

impl TryFrom<&Destination> for StageMessage {
    type Error = DataFusionError;

    fn try_from(destination: &Destination) -> Result<Self> {
        let path = destination.path().to_str().map(str::to_owned);
        let path = path.ok_or_else(|| internal_datafusion_err!("{destination} is no UTF-8"))?;
        match destination {
            Destination::File(_) => internal_err!("ranks do not write one file"),
            Destination::Folder { extension, overwrites, .. } => {
                Ok(Self { path, extension: Some(extension.clone()), overwrites: *overwrites })
            }
            Destination::Table(_) => Ok(Self { path, extension: None, overwrites: false }),
        }
    }
}

impl From<StageMessage> for Destination {
    fn from(StageMessage { path, extension, overwrites }: StageMessage) -> Self {
        match extension {
            Some(extension) => Self::Folder { path: path.into(), extension, overwrites },
            None => Self::Table(path.into()),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct ExchangeMessage {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Shuffle(ShuffleMessage),
    #[prost(message, tag = "2")]
    Gather(GatherMessage),
    #[prost(message, tag = "3")]
    Broadcast(WayMessage),
    #[prost(message, tag = "4")]
    Away(SchemaMessage),
    #[prost(message, tag = "5")]
    Stage(StageMessage),
}

impl From<&Way> for WayMessage {
    fn from(way: &Way) -> Self {
        let Way { number, levels, is_compressed, round_bytes } = *way;
        Self { number, is_two_levels: levels == Levels::Two, is_compressed, round_bytes: round_bytes as u64 }
    }
}

impl WayMessage {
    fn way(&self) -> Result<Way> {
        let levels = if self.is_two_levels { Levels::Two } else { Levels::One };
        Ok(Way { number: self.number, levels, is_compressed: self.is_compressed, round_bytes: size(self.round_bytes)? })
    }
}

fn size(size: u64) -> Result<usize> {
    usize::try_from(size).map_err(|_| internal_datafusion_err!("{size} is beyond the sizes of this machine"))
}

fn one(inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
    match inputs {
        [input] => Ok(Arc::clone(input)),
        _ => internal_err!("an exchange of one input over {}", inputs.len()),
    }
}

impl PhysicalExtensionCodec for ExchangeCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let message = ExchangeMessage::decode(buf)
            .map_err(|error| internal_datafusion_err!("the bytes of an exchange are of none: {error}"))?;
        match message.kind {
            Some(Kind::Shuffle(shuffle)) => {
                let input = one(inputs)?;
                let codec = RanksCodec::default();
                let decoding = PhysicalPlanDecodeContext::new(context, &codec);
                let schema = input.schema();
                let keys = shuffle.keys.iter().map(|key| converter.proto_to_physical_expr(key, &schema, &decoding));
                let keys = keys.collect::<Result<_>>()?;
                let (lanes, way) = (size(shuffle.lanes)?, shuffle.way.way()?);
                let heavy = shuffle.heavy.map(Into::into);
                Ok(Arc::new(RankShuffleExec::new(input, keys, lanes, way).with_heavy_keys(heavy)))
            }
            Some(Kind::Gather(GatherMessage { way, here, ranks })) => {
                Ok(Arc::new(RankGatherExec::new(one(inputs)?, size(here)?, size(ranks)?, way.way()?)))
            }
            Some(Kind::Broadcast(way)) => Ok(Arc::new(RankBroadcastExec::new(one(inputs)?, way.way()?))),
            Some(Kind::Away(schema)) => {
                Ok(Arc::new(AwayExec::new(Arc::new(Schema::try_from(&schema)?), inputs.to_vec())))
            }
            Some(Kind::Stage(stage)) => Ok(Arc::new(RankStageExec::new(one(inputs)?, stage.into()))),
            None => internal_err!("an exchange that this version of Overspill does not know"),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let kind = if let Some(shuffle) = node.downcast_ref::<RankShuffleExec>() {
            let codec = RanksCodec::default();
            let keys = shuffle.keys().iter().map(|key| converter.physical_expr_to_proto(key, &codec));
            let (way, lanes) = (shuffle.way().into(), shuffle.lanes() as u64);
            let heavy = shuffle.heavy_keys().map(Into::into);
            Kind::Shuffle(ShuffleMessage { way, lanes, keys: keys.collect::<Result<_>>()?, heavy })
        } else if let Some(gather) = node.downcast_ref::<RankGatherExec>() {
            let (here, ranks) = gather.place();
            Kind::Gather(GatherMessage { way: gather.way().into(), here: here as u64, ranks: ranks as u64 })
        } else if let Some(broadcast) = node.downcast_ref::<RankBroadcastExec>() {
            Kind::Broadcast(broadcast.way().into())
        } else if let Some(stage) = node.downcast_ref::<RankStageExec>() {
            Kind::Stage(stage.destination().try_into()?)
        } else if node.is::<AwayExec>() {
            Kind::Away(node.schema().as_ref().try_into()?)
        } else {
            return internal_err!("{} does not travel", node.name());
        };
        buf.extend(ExchangeMessage { kind: Some(kind) }.encode_to_vec());
        Ok(())
    }
}
