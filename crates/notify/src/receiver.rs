//! The incoming half of a stream. Whatever a peer sends, the stream lives:
//! what makes no sense is counted and skipped. Only saying what it may not
//! say costs a peer its stream.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use tonic::{Status, Streaming};

use crate::{
    Checkpoint, Claim, Error, Gate, Incoming, Kind, MessageSink, Reach, Role, Sink,
    exchange::Receiving,
    frame::{Action, Frame},
    hub::{Hub, Peer},
    stats::{count, count_bytes},
};

/// Peers with a filter say by this which cloudlets they have.
const ANNOUNCEMENT: &str = "edgeproto.CloudletInfo";

pub(crate) struct Receiver {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    gate: Option<Arc<dyn Gate>>,
    /// The history that the peer's revisions count; 0 when it has none.
    epoch: u64,
    /// Types of which something could not be taken: they are not complete.
    incomplete: Vec<bool>,
}

impl Receiver {
    pub(crate) fn new(
        hub: Arc<Hub>,
        peer: Arc<Peer>,
        gate: Option<Arc<dyn Gate>>,
        epoch: u64,
    ) -> Self {
        let incomplete = vec![false; hub.exchange.receives.len()];
        Self { hub, peer, gate, epoch, incomplete }
    }

    /// Receives until the stream ends, and says how it did.
    pub(crate) async fn run(&mut self, mut notices: Streaming<Frame>) -> Result<(), Status> {
        let outcome = loop {
            let notice = tokio::select! {
                notice = notices.message() => notice,
                () = self.peer.ended().cancelled() => break Ok(()),
                () = self.silence() => break Err(Status::unavailable("no heartbeat came in time")),
            };
            match notice {
                Ok(Some(frame)) => {
                    if let Err(status) = self.handle(frame).await {
                        break Err(status);
                    }
                }
                Ok(None) => break Ok(()),
                Err(status) => break Err(status),
            }
        };
        self.hub.remove(&self.peer);
        self.peer.end(outcome.as_ref().err().cloned());
        if self.peer.stream.role == Role::Downstream {
            self.flush().await;
        }
        outcome
    }

    /// Returns when the peer has said nothing for too long.
    async fn silence(&self) {
        match self.peer.liveness.silence {
            Some(silence) => tokio::time::sleep(silence).await,
            None => std::future::pending().await,
        }
    }

    async fn flush(&self) {
        for receiving in &self.hub.exchange.receives {
            if let Receiving::Objects(sink) = receiving
                && let Err(error) = sink.flush(&self.peer.stream).await
            {
                let kind = sink.kind().short_name();
                tracing::warn!(
                    kind,
                    error = selvage_api::chain(&error),
                    "the objects of a peer that left were not removed"
                );
            }
        }
    }

    async fn handle(&mut self, mut frame: Frame) -> Result<(), Status> {
        count_bytes(&self.peer.stats.recv_bytes, &frame);
        let payload = frame.take_payload();
        let action = frame.action();
        if payload.is_empty() {
            match action {
                Action::SendAllEnd => self.sent_all(&frame).await,
                // A heartbeat: that it came is all that it says.
                Action::None if self.peer.liveness.silence.is_some() => {}
                _ => count(&self.peer.stats.recv_errors),
            }
            return Ok(());
        }
        let Some(name) = payload.type_name() else {
            count(&self.peer.stats.recv_errors);
            tracing::debug!(peer = ?self.peer.stream.peer, "notice without a type");
            return Ok(());
        };
        let hub = Arc::clone(&self.hub);
        let Some(index) = hub.receive_index.get(name).copied() else {
            count(&self.peer.stats.unknown_types);
            tracing::debug!(name, peer = ?self.peer.stream.peer, "notice of a type not wanted");
            return Ok(());
        };
        match &hub.exchange.receives[index] {
            // The original sends messages with whatever action was last used.
            Receiving::Messages(sink) => self.message(index, sink, payload.value).await,
            Receiving::Objects(sink) => match action {
                Action::Update | Action::Delete => {
                    self.object(index, sink, action, payload.value).await?;
                    self.checkpoint(index, &frame);
                    Ok(())
                }
                Action::None if frame.revision > 0 => {
                    self.checkpoint(index, &frame);
                    Ok(())
                }
                Action::SendAllEnd if !self.has_all() => {
                    self.sent_all(&frame).await;
                    Ok(())
                }
                _ => {
                    count(&self.peer.stats.recv_errors);
                    Ok(())
                }
            },
        }
    }

    async fn message(
        &self,
        index: usize,
        sink: &Arc<dyn MessageSink>,
        payload: Bytes,
    ) -> Result<(), Status> {
        let stats = &self.peer.stats;
        if let Err(error) = self.check(sink.kind(), None, &payload)? {
            count(&stats.unmarshal_errors);
            tracing::debug!(error = selvage_api::chain(&error), "message that cannot be read");
            return Ok(());
        }
        stats.received(index);
        if let Err(error) = sink.receive(payload, &self.peer.stream).await {
            self.note(sink.kind(), &error);
        }
        Ok(())
    }

    async fn object(
        &mut self,
        index: usize,
        sink: &Arc<dyn Sink>,
        action: Action,
        payload: Bytes,
    ) -> Result<(), Status> {
        let kind = sink.kind();
        let key = match kind.key_of(&payload) {
            Ok(key) => key,
            Err(error) => return self.not_taken(index, kind, &error),
        };
        if let Err(error) = self.check(kind, Some(&key), &payload)? {
            return self.not_taken(index, kind, &error);
        }
        self.peer.stats.received(index);
        let stream = &self.peer.stream;
        let payload = match stream.role {
            Role::Downstream => kind.stamped(&payload, stream.id),
            Role::Upstream => payload,
        };
        let object = Incoming { key: key.clone(), payload };
        let outcome = match action {
            Action::Delete => sink.delete(object, stream).await,
            _ => sink.update(object, stream).await,
        };
        if let Err(error) = outcome {
            return self.not_taken(index, kind, &error);
        }
        if kind.full_name() == ANNOUNCEMENT && stream.role == Role::Downstream {
            match action {
                Action::Delete => self.hub.renounce(&self.peer, key.text()),
                _ => {
                    // A peer that has nothing more to send says so even before
                    // it has a cloudlet.
                    if self.hub.announce(&self.peer, key.text()) && self.has_all() {
                        self.reported_all().await;
                    }
                }
            }
        }
        Ok(())
    }

    fn not_taken(&mut self, index: usize, kind: &Kind, error: &Error) -> Result<(), Status> {
        self.note(kind, error);
        if error.passes() {
            return Err(Status::new(error.code().grpc(), error.to_string()));
        }
        self.incomplete[index] = true;
        if let Receiving::Objects(sink) = &self.hub.exchange.receives[index] {
            sink.set_checkpoint(None);
        }
        Ok(())
    }

    /// Checks that the peer may say this; the inner error when it cannot be read.
    fn check(
        &self,
        kind: &Kind,
        key: Option<&crate::ObjectKey>,
        payload: &Bytes,
    ) -> Result<Result<(), Error>, Status> {
        let Some(gate) = &self.gate else { return Ok(Ok(())) };
        let cloudlet = match kind.cloudlet_of(payload) {
            Ok(cloudlet) => cloudlet,
            Err(error) => return Ok(Err(error)),
        };
        let claim = Claim { type_name: kind.full_name(), key, cloudlet: cloudlet.as_ref() };
        let peer = &self.peer.stream.peer;
        gate.allow(&peer.identity, &claim).map(Ok).map_err(|reason| {
            tracing::warn!(?peer, reason, "an object of a peer was refused");
            Status::permission_denied(reason)
        })
    }

    fn note(&self, kind: &Kind, error: &Error) {
        let unreadable = matches!(error, Error::Payload { .. } | Error::Key { .. });
        let stats = &self.peer.stats;
        count(if unreadable { &stats.unmarshal_errors } else { &stats.recv_errors });
        let (kind, peer) = (kind.short_name(), &self.peer.stream.peer);
        tracing::warn!(
            kind,
            ?peer,
            error = selvage_api::chain(error),
            "an object of a peer was not accepted"
        );
    }

    /// Records the revision up to which a type has come. Deletions are not known
    /// before everything has come.
    fn checkpoint(&self, index: usize, frame: &Frame) {
        if !self.has_all() || self.incomplete[index] {
            return;
        }
        if let Receiving::Objects(sink) = &self.hub.exchange.receives[index]
            && let Some(checkpoint) = self.reached(frame.revision, frame.scope)
        {
            sink.set_checkpoint(Some(checkpoint));
        }
    }

    fn reached(&self, revision: i64, scope: u64) -> Option<Checkpoint> {
        (revision > 0 && self.epoch != 0).then_some(Checkpoint {
            epoch: self.epoch,
            revision,
            scope,
        })
    }

    async fn sent_all(&mut self, frame: &Frame) {
        if self.has_all() {
            count(&self.peer.stats.recv_errors);
            return;
        }
        if self.peer.stream.role == Role::Downstream {
            self.hub.peer_sent_all(&self.peer);
            self.reported_all().await;
        } else {
            self.complete(frame).await;
        }
        self.peer.received_all.store(true, Relaxed);
        count(&self.peer.stats.recv_all);
    }

    async fn reported_all(&self) {
        for receiving in &self.hub.exchange.receives {
            if let Receiving::Objects(sink) = receiving
                && let Err(error) = sink.reported_all(&self.peer.stream).await
            {
                self.note(sink.kind(), &error);
            }
        }
    }

    fn has_all(&self) -> bool {
        self.peer.received_all.load(Relaxed)
    }

    /// Ends the initial synchronisation: objects that were not sent are gone.
    async fn complete(&mut self, frame: &Frame) {
        if !frame.resumed.is_empty() {
            count(&self.peer.stats.resumed);
        }
        for (index, receiving) in self.hub.exchange.receives.iter().enumerate() {
            let Receiving::Objects(sink) = receiving else { continue };
            let resumed = frame.resumed.iter().any(|at| usize::try_from(*at) == Ok(index));
            if !resumed && let Err(error) = sink.prune(&self.peer.stream).await {
                self.note(sink.kind(), &error);
                self.incomplete[index] = true;
            }
            let revision = frame.last_revision.get(index).copied().unwrap_or(0);
            let everybody = sink.kind().reach() == Reach::Everybody;
            let checkpoint = self.reached(revision, if everybody { 0 } else { frame.scope });
            sink.set_checkpoint(checkpoint.filter(|_| !self.incomplete[index]));
        }
    }
}
