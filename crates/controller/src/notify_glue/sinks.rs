//! What is done with what agents say.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_api::object::Object;
use selvage_notify::{Incoming, Kind, MessageSink, Sink, Stream};

use crate::controller::{Controller, Instances};
use crate::error::{Error, Result};
use crate::keys::KeyText;
use crate::registry::Told;
use crate::row::Kept;

/// Instances of one kind that a certificate may report on.
const MOST_INFOS: usize = 20_000;
/// Processes that may connect with one certificate.
const MOST_NODES: usize = 16;

/// What to do with one type of object.
#[async_trait]
pub(super) trait Handler<M>: Send + Sync + 'static {
    async fn update(&self, controller: &Controller, object: M, stream: &Stream) -> Result<()>;

    /// Only the key of the object means anything.
    async fn delete(&self, controller: &Controller, object: M, stream: &Stream) -> Result<()>;

    /// The agent has reported everything it has.
    async fn reported_all(&self, _: &Controller, _: &Stream) -> Result<()> {
        Ok(())
    }

    /// The connection has ended.
    async fn flush(&self, controller: &Controller, stream: &Stream) -> Result<()>;
}

/// Decodes objects and hands them on.
pub(super) struct ObjectSink<M, H> {
    kind: Arc<Kind>,
    controller: Weak<Controller>,
    handler: H,
    object: PhantomData<fn() -> M>,
}

impl<M: Object, H> ObjectSink<M, H> {
    pub(super) fn new(controller: Weak<Controller>, handler: H) -> Result<Self> {
        let kind = Kind::of::<M>().map_err(Error::Notify)?;
        Ok(Self { kind, controller, handler, object: PhantomData })
    }
}

fn decoded<M: Object>(payload: Bytes) -> Result<M, selvage_notify::Error> {
    M::decode(payload)
        .map_err(|source| selvage_notify::Error::Payload { message: M::full_name(), source })
}

fn alive(controller: &Weak<Controller>) -> Result<Arc<Controller>, selvage_notify::Error> {
    controller.upgrade().ok_or_else(|| selvage_notify::Error::Refused {
        what: "the controller has stopped".to_owned(),
        code: Code::Unavailable,
    })
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
        let controller = alive(&self.controller)?;
        let object = decoded(object.payload)?;
        self.handler.update(&controller, object, stream).await.map_err(refused)
    }

    async fn delete(&self, object: Incoming, stream: &Stream) -> Result<(), selvage_notify::Error> {
        let controller = alive(&self.controller)?;
        let object = decoded(object.payload)?;
        self.handler.delete(&controller, object, stream).await.map_err(refused)
    }

    /// There is nobody above a controller.
    async fn prune(&self, _: &Stream) -> Result<(), selvage_notify::Error> {
        Ok(())
    }

    async fn reported_all(&self, stream: &Stream) -> Result<(), selvage_notify::Error> {
        let controller = alive(&self.controller)?;
        self.handler.reported_all(&controller, stream).await.map_err(refused)
    }

    async fn flush(&self, stream: &Stream) -> Result<(), selvage_notify::Error> {
        // Without a controller there is nothing left to be cleaned up.
        let Some(controller) = self.controller.upgrade() else { return Ok(()) };
        self.handler.flush(&controller, stream).await.map_err(refused)
    }
}

/// Cloudlets come and go with their agents.
pub(super) struct CloudletInfos;

#[async_trait]
impl Handler<wire::CloudletInfo> for CloudletInfos {
    async fn update(
        &self,
        controller: &Controller,
        info: wire::CloudletInfo,
        stream: &Stream,
    ) -> Result<()> {
        controller.receive_cloudlet_info(info, stream.id).await
    }

    async fn delete(
        &self,
        controller: &Controller,
        info: wire::CloudletInfo,
        stream: &Stream,
    ) -> Result<()> {
        let gone = info.key_text();
        controller.forget_speaker(stream.id, |key| key == gone);
        controller.cloudlet_offline(&gone, stream.id).await
    }

    async fn reported_all(&self, controller: &Controller, stream: &Stream) -> Result<()> {
        let cloudlets: Vec<wire::CloudletKey> = {
            let own = controller.memory.own_infos.lock();
            let of_stream = own.values().filter(|info| info.notify_id == stream.id);
            of_stream.filter_map(|info| info.key.clone()).collect()
        };
        controller.instances()?.resume_deletions(&cloudlets).await
    }

    async fn flush(&self, controller: &Controller, stream: &Stream) -> Result<()> {
        controller.forget_speaker(stream.id, |_| true);
        let owned: Vec<String> = {
            let own = controller.memory.own_infos.lock();
            let of_stream = own.iter().filter(|(_, info)| info.notify_id == stream.id);
            of_stream.map(|(key, _)| key.clone()).collect()
        };
        let mut result = Ok(());
        for key in owned {
            // One that cannot be written must not keep the others online.
            let written = controller.cloudlet_offline(&key, stream.id).await;
            controller.ask_other_speakers(&key, stream.id);
            result = result.and(written);
        }
        result
    }
}

/// The last words on an instance, and what its operation waits for.
#[async_trait]
pub(super) trait InstanceInfo: Told {
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
    async fn update(&self, controller: &Controller, info: M, stream: &Stream) -> Result<()> {
        let owner = &stream.peer.identity;
        M::held(&controller.memory).put(info.told_key(), info.clone(), owner, MOST_INFOS)?;
        info.reported(&**controller.instances()?, false).await;
        Ok(())
    }

    async fn delete(&self, controller: &Controller, info: M, _: &Stream) -> Result<()> {
        M::held(&controller.memory).remove(info.told_key());
        info.reported(&**controller.instances()?, true).await;
        Ok(())
    }

    async fn flush(&self, controller: &Controller, stream: &Stream) -> Result<()> {
        M::held(&controller.memory).remove_all(|info| info.connection() == stream.id);
        Ok(())
    }
}

/// Who is connected.
pub(super) struct Nodes;

#[async_trait]
impl Handler<wire::Node> for Nodes {
    async fn update(
        &self,
        controller: &Controller,
        node: wire::Node,
        stream: &Stream,
    ) -> Result<()> {
        let key = node.key.clone().unwrap_or_default();
        key.check()?;
        controller.memory.nodes.put(&key, node, &stream.peer.identity, MOST_NODES)
    }

    async fn delete(&self, controller: &Controller, node: wire::Node, _: &Stream) -> Result<()> {
        controller.memory.nodes.remove(&node.key.unwrap_or_default());
        Ok(())
    }

    async fn flush(&self, controller: &Controller, stream: &Stream) -> Result<()> {
        controller.memory.nodes.remove_all(|node| node.notify_id == stream.id);
        Ok(())
    }
}

/// Samples of metrics.
pub(super) struct Metrics {
    kind: Arc<Kind>,
    controller: Weak<Controller>,
}

impl Metrics {
    pub(super) fn new(controller: Weak<Controller>) -> Result<Self> {
        Ok(Self { kind: Kind::of::<wire::Metric>().map_err(Error::Notify)?, controller })
    }
}

#[async_trait]
impl MessageSink for Metrics {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn receive(&self, payload: Bytes, stream: &Stream) -> Result<(), selvage_notify::Error> {
        alive(&self.controller)?.receive_sample(decoded(payload)?, stream);
        Ok(())
    }
}

/// Answers to commands.
pub(super) struct ExecAnswers {
    kind: Arc<Kind>,
    controller: Weak<Controller>,
}

impl ExecAnswers {
    pub(super) fn new(controller: Weak<Controller>) -> Result<Self> {
        Ok(Self { kind: Kind::of::<wire::ExecRequest>().map_err(Error::Notify)?, controller })
    }
}

#[async_trait]
impl MessageSink for ExecAnswers {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn receive(&self, payload: Bytes, stream: &Stream) -> Result<(), selvage_notify::Error> {
        let reply = decoded(payload)?;
        alive(&self.controller)?.memory.waiting.answer(reply, &stream.peer.identity);
        Ok(())
    }
}
