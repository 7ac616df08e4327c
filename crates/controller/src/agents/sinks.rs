//! Handlers of the messages that agents send.

use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use selvage_api::edgeproto as wire;
use selvage_api::object::Object;
use selvage_notify::{Incoming, Kind, MessageSink, Sink, Stream};

use crate::controller::Instances;
use crate::error::{Error, Result};
use crate::keys::KeyText;
use crate::registry::AgentReport;
use crate::row::StoredObject;
use crate::state::ControllerState;

/// Instances of one kind that a certificate may report on.
const MOST_INFOS: usize = 20_000;
/// Processes that may connect with one certificate.
const MOST_NODES: usize = 16;

/// State that received objects are applied to.
#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) state: Arc<ControllerState>,
    pub(super) instances: Arc<dyn Instances>,
}

/// Handler of one type of object.
#[async_trait]
pub(super) trait Handler<M>: Send + Sync + 'static {
    async fn update(&self, receiver: &Receiver, object: M, stream: &Stream) -> Result<()>;

    /// Only the key of the object means anything.
    async fn delete(&self, receiver: &Receiver, object: M, stream: &Stream) -> Result<()>;

    /// The agent has reported everything it has.
    async fn reported_all(&self, _: &Receiver, _: &Stream) -> Result<()> {
        Ok(())
    }

    /// The connection has ended.
    async fn flush(&self, receiver: &Receiver, stream: &Stream) -> Result<()>;
}

/// Decodes objects and hands them on.
pub(super) struct ObjectSink<M, H> {
    kind: Arc<Kind>,
    receiver: Receiver,
    handler: H,
    object: PhantomData<fn() -> M>,
}

impl<M: Object, H> ObjectSink<M, H> {
    pub(super) fn new(receiver: Receiver, handler: H) -> Result<Self> {
        let kind = Kind::of::<M>().map_err(Error::Notify)?;
        Ok(Self { kind, receiver, handler, object: PhantomData })
    }
}

fn decoded<M: Object>(payload: Bytes) -> Result<M, selvage_notify::Error> {
    M::decode(payload)
        .map_err(|source| selvage_notify::Error::Payload { message: M::full_name(), source })
}

fn refused(error: Error) -> selvage_notify::Error {
    selvage_notify::Error::Refused { what: error.to_string(), code: error.code() }
}

#[async_trait]
impl<M: Object + 'static, H: Handler<M>> Sink for ObjectSink<M, H> {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn update(&self, object: Incoming, stream: &Stream) -> Result<(), selvage_notify::Error> {
        let object = decoded(object.payload)?;
        self.handler.update(&self.receiver, object, stream).await.map_err(refused)
    }

    async fn delete(&self, object: Incoming, stream: &Stream) -> Result<(), selvage_notify::Error> {
        let object = decoded(object.payload)?;
        self.handler.delete(&self.receiver, object, stream).await.map_err(refused)
    }

    /// There is nobody above a controller.
    async fn prune(&self, _: &Stream) -> Result<(), selvage_notify::Error> {
        Ok(())
    }

    async fn reported_all(&self, stream: &Stream) -> Result<(), selvage_notify::Error> {
        self.handler.reported_all(&self.receiver, stream).await.map_err(refused)
    }

    async fn flush(&self, stream: &Stream) -> Result<(), selvage_notify::Error> {
        self.handler.flush(&self.receiver, stream).await.map_err(refused)
    }
}

/// Cloudlets come and go with their agents.
pub(super) struct CloudletInfos;

#[async_trait]
impl Handler<wire::CloudletInfo> for CloudletInfos {
    async fn update(
        &self,
        receiver: &Receiver,
        info: wire::CloudletInfo,
        stream: &Stream,
    ) -> Result<()> {
        receiver.state.receive_cloudlet_info(info, stream).await
    }

    async fn delete(
        &self,
        receiver: &Receiver,
        info: wire::CloudletInfo,
        stream: &Stream,
    ) -> Result<()> {
        let gone = info.key_text();
        receiver.state.forget_speaker(stream.id, |key| key == gone);
        receiver.state.cloudlet_offline(&gone, stream.id).await
    }

    async fn reported_all(&self, receiver: &Receiver, stream: &Stream) -> Result<()> {
        let cloudlets: Vec<wire::CloudletKey> = {
            let own = receiver.state.memory.own_infos.lock();
            let of_stream = own.values().filter(|info| info.notify_id == stream.id);
            of_stream.filter_map(|info| info.key.clone()).collect()
        };
        receiver.instances.resume_deletions(&cloudlets).await
    }

    async fn flush(&self, receiver: &Receiver, stream: &Stream) -> Result<()> {
        receiver.state.forget_speaker(stream.id, |_| true);
        let owned: Vec<String> = {
            let own = receiver.state.memory.own_infos.lock();
            let of_stream = own.iter().filter(|(_, info)| info.notify_id == stream.id);
            of_stream.map(|(key, _)| key.clone()).collect()
        };
        let mut result = Ok(());
        for key in owned {
            // One that cannot be written must not keep the others online.
            let written = receiver.state.cloudlet_offline(&key, stream.id).await;
            receiver.state.ask_other_speakers(&key, stream.id);
            result = result.and(written);
        }
        result
    }
}

/// The last words on an instance, and what its operation waits for.
#[async_trait]
pub(super) trait InstanceInfo: AgentReport {
    async fn reported(self, instances: &dyn Instances, gone: bool);
}

#[async_trait]
impl InstanceInfo for wire::AppInstInfo {
    async fn reported(self, instances: &dyn Instances, gone: bool) {
        instances.app_inst_info(self, gone).await;
    }
}

#[async_trait]
impl InstanceInfo for wire::ClusterInstInfo {
    async fn reported(self, instances: &dyn Instances, gone: bool) {
        instances.cluster_inst_info(self, gone).await;
    }
}

pub(super) struct InstanceInfos;

#[async_trait]
impl<M: InstanceInfo> Handler<M> for InstanceInfos {
    async fn update(&self, receiver: &Receiver, info: M, stream: &Stream) -> Result<()> {
        let owner = &stream.peer.identity;
        M::held(&receiver.state.memory).put(
            info.reported_key(),
            info.clone(),
            owner,
            MOST_INFOS,
        )?;
        info.reported(&*receiver.instances, false).await;
        Ok(())
    }

    async fn delete(&self, receiver: &Receiver, info: M, _: &Stream) -> Result<()> {
        M::held(&receiver.state.memory).remove(info.reported_key());
        info.reported(&*receiver.instances, true).await;
        Ok(())
    }

    async fn flush(&self, receiver: &Receiver, stream: &Stream) -> Result<()> {
        M::held(&receiver.state.memory).remove_all(|info| info.connection() == stream.id);
        Ok(())
    }
}

/// Handler of the list of connected agents.
pub(super) struct Nodes;

#[async_trait]
impl Handler<wire::Node> for Nodes {
    async fn update(&self, receiver: &Receiver, node: wire::Node, stream: &Stream) -> Result<()> {
        let key = node.key.clone().unwrap_or_default();
        key.check()?;
        receiver.state.memory.nodes.put(&key, node, &stream.peer.identity, MOST_NODES)
    }

    async fn delete(&self, receiver: &Receiver, node: wire::Node, _: &Stream) -> Result<()> {
        receiver.state.memory.nodes.remove(&node.key.unwrap_or_default());
        Ok(())
    }

    async fn flush(&self, receiver: &Receiver, stream: &Stream) -> Result<()> {
        receiver.state.memory.nodes.remove_all(|node| node.notify_id == stream.id);
        Ok(())
    }
}

/// Samples of metrics.
pub(super) struct Metrics {
    kind: Arc<Kind>,
    state: Arc<ControllerState>,
}

impl Metrics {
    pub(super) fn new(state: Arc<ControllerState>) -> Result<Self> {
        Ok(Self { kind: Kind::of::<wire::Metric>().map_err(Error::Notify)?, state })
    }
}

#[async_trait]
impl MessageSink for Metrics {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn receive(&self, payload: Bytes, stream: &Stream) -> Result<(), selvage_notify::Error> {
        self.state.receive_sample(decoded(payload)?, stream);
        Ok(())
    }
}

/// Answers to commands.
pub(super) struct ExecAnswers {
    kind: Arc<Kind>,
    state: Arc<ControllerState>,
}

impl ExecAnswers {
    pub(super) fn new(state: Arc<ControllerState>) -> Result<Self> {
        Ok(Self { kind: Kind::of::<wire::ExecRequest>().map_err(Error::Notify)?, state })
    }
}

#[async_trait]
impl MessageSink for ExecAnswers {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn receive(&self, payload: Bytes, stream: &Stream) -> Result<(), selvage_notify::Error> {
        let reply = decoded(payload)?;
        self.state.memory.waiting.answer(reply, &stream.peer.identity);
        Ok(())
    }
}
