//! The stream of events, and what follows from each.
//!
//! containerd answers a subscription only with its first event, so one cannot
//! see that one has been subscribed. We publish an event of our own until it
//! comes back: from then on nothing is missed, and only from then on is the
//! inventory trusted.

use std::{
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use containerd_client::{
    events as wire,
    services::v1::{
        ImageCreate, ImageDelete, ImageUpdate, PublishRequest, SubscribeRequest,
        events_client::EventsClient, version_client::VersionClient,
    },
    types::Envelope,
};
use futures::{StreamExt, stream::BoxStream};
use prost::Message;
use tokio::sync::broadcast;
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tonic::Status;
use tracing::{debug, info, warn};

use super::{Inner, connection};
use crate::{Error, Event, EventKind};

/// The topic of the event that we send to ourselves.
const HELLO: &str = "/selvage/hello";
const HELLO_NAMESPACE: &str = "selvage";
const HELLO_EVERY: Duration = Duration::from_millis(100);

/// Interval of asking whether containerd still answers, while it tells nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Events that a slow listener may be behind before it has to list again.
const BACKLOG: usize = 1024;

pub(crate) struct Hub {
    sender: broadcast::Sender<Event>,
    live: AtomicBool,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self { sender: broadcast::channel(BACKLOG).0, live: AtomicBool::new(false) }
    }

    /// Returns whether no event can be missed now.
    pub(crate) fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn send(&self, event: Event) {
        // Nobody listening is no failure.
        let _ = self.sender.send(event);
    }

    pub(crate) fn stream(&self) -> BoxStream<'static, Event> {
        let events = BroadcastStream::new(self.sender.subscribe());
        Box::pin(events.map(|event| match event {
            Ok(event) => event,
            Err(BroadcastStreamRecvError::Lagged(_)) => of_runtime(EventKind::Resync),
        }))
    }
}

fn of_runtime(kind: EventKind) -> Event {
    Event { namespace: String::new(), runtime_id: String::new(), kind }
}

/// Subscribes for as long as the runtime is in use, again and again.
pub(super) async fn subscribe(inner: Weak<Inner>) {
    let mut pause = FIRST_PAUSE;
    let (mut lost_sent, mut warned) = (false, false);
    loop {
        let Some(strong) = inner.upgrade() else { return };
        let ended = listen(&strong, &mut lost_sent).await;
        let was_live = strong.hub.live.swap(false, Ordering::AcqRel);
        strong.inventory.all_changed();
        if was_live {
            pause = FIRST_PAUSE;
        }
        let socket = strong.options.socket.display();
        if was_live || (strong.connection.is_known() && !warned) {
            warned = true;
            warn!(%socket, reason = ended, "containerd does not answer");
        } else if !lost_sent {
            // Another runtime may serve here, and containerd never have.
            debug!(%socket, reason = ended, "there is no containerd");
        }
        if was_live || !lost_sent {
            lost_sent = true;
            strong.hub.send(of_runtime(EventKind::Lost));
        }
        drop(strong);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the stream ends, and says why it did.
async fn listen(inner: &Inner, lost_sent: &mut bool) -> String {
    let mut client = EventsClient::new(inner.connection.channel());
    let filters =
        ["tasks", "containers", "images", "selvage"].map(|kind| format!("topic~=\"^/{kind}/\""));
    let request = SubscribeRequest { filters: filters.to_vec() };
    let mut publisher = client.clone();
    let greeting = greet(&mut publisher);
    let subscribing = client.subscribe(request);
    let silence = until_silent(inner);
    tokio::pin!(greeting, subscribing, silence);
    let mut stream = tokio::select! {
        biased;
        answer = &mut subscribing => match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => return connection::reason(&status),
        },
        status = &mut greeting => return connection::reason(&status),
    };
    loop {
        let next = tokio::select! {
            biased;
            next = stream.next() => next,
            status = &mut greeting, if !inner.hub.is_live() => return connection::reason(&status),
            reason = &mut silence => return reason,
        };
        match next {
            Some(Ok(envelope)) if envelope.topic == HELLO => {
                if !inner.hub.live.swap(true, Ordering::AcqRel) {
                    inner.inventory.all_changed();
                    *lost_sent = false;
                    info!(socket = %inner.options.socket.display(), "listening to containerd");
                    inner.hub.send(of_runtime(EventKind::Resync));
                }
            }
            Some(Ok(envelope)) => take(inner, envelope),
            Some(Err(status)) => return connection::reason(&status),
            None => return "the stream of events ended".to_owned(),
        }
    }
}

/// Returns when containerd does not answer any more, and why: one that hangs ends
/// no stream, and what it told before must not be taken for what is.
async fn until_silent(inner: &Inner) -> String {
    let mut client = VersionClient::new(inner.connection.channel());
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        match inner.connection.ask(crate::REPLY_TIMEOUT, client.version(())).await {
            Ok(_) => {}
            Err(Error::Unreachable { reason, .. }) => return reason,
            Err(error) => return error.to_string(),
        }
    }
}

/// Says hello until that fails.
async fn greet(client: &mut EventsClient<tonic::transport::Channel>) -> Status {
    loop {
        let hello = wire::NamespaceUpdate { name: HELLO_NAMESPACE.into(), ..Default::default() };
        let request =
            PublishRequest { topic: HELLO.into(), event: Some(containerd_client::to_any(&hello)) };
        let Ok(request) = connection::within(HELLO_NAMESPACE, request) else {
            return Status::internal("the namespace of the greeting cannot be sent");
        };
        match tokio::time::timeout(crate::REPLY_TIMEOUT, client.publish(request)).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => return status,
            Err(_) => return Status::unavailable("no answer within 2 s"),
        }
        tokio::time::sleep(HELLO_EVERY).await;
    }
}

fn take(inner: &Inner, envelope: Envelope) {
    inner.inventory.changed(&envelope.namespace);
    let body = envelope.event.as_ref().map_or(&[][..], |any| any.value.as_slice());
    let Some((runtime_id, kind)) = meaning(&envelope.topic, body) else { return };
    debug!(namespace = envelope.namespace, id = runtime_id, ?kind, "containerd event");
    inner.hub.send(Event { namespace: envelope.namespace, runtime_id, kind });
}

/// Meaning of an event; nothing for those about an exec or unknown to us.
fn meaning(topic: &str, body: &[u8]) -> Option<(String, EventKind)> {
    let code = |status: u32| EventKind::Exited { code: i32::try_from(status).ok() };
    Some(match topic {
        "/containers/create" => (wire::ContainerCreate::decode(body).ok()?.id, EventKind::Created),
        "/containers/update" => (wire::ContainerUpdate::decode(body).ok()?.id, EventKind::Updated),
        "/containers/delete" => (wire::ContainerDelete::decode(body).ok()?.id, EventKind::Deleted),
        "/tasks/start" => {
            let event = wire::TaskStart::decode(body).ok()?;
            (event.container_id, EventKind::Started { pid: event.pid })
        }
        "/tasks/exit" => {
            let event = wire::TaskExit::decode(body).ok()?;
            // An exec has an id of its own.
            (event.id == event.container_id).then_some(())?;
            (event.container_id, code(event.exit_status))
        }
        "/tasks/delete" => {
            let event = wire::TaskDelete::decode(body).ok()?;
            (event.container_id, EventKind::Updated)
        }
        "/tasks/paused" => (wire::TaskPaused::decode(body).ok()?.container_id, EventKind::Paused),
        "/tasks/resumed" => {
            (wire::TaskResumed::decode(body).ok()?.container_id, EventKind::Resumed)
        }
        "/tasks/oom" => (wire::TaskOom::decode(body).ok()?.container_id, EventKind::OutOfMemory),
        "/images/create" => (ImageCreate::decode(body).ok()?.name, EventKind::ImageChanged),
        "/images/update" => (ImageUpdate::decode(body).ok()?.name, EventKind::ImageChanged),
        "/images/delete" => (ImageDelete::decode(body).ok()?.name, EventKind::ImageRemoved),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn exits_of_execs_are_not_those_of_containers() {
        let exit = |id: &str| {
            let event = wire::TaskExit {
                container_id: "c1".into(),
                id: id.into(),
                exit_status: 137,
                ..Default::default()
            };
            meaning("/tasks/exit", &event.encode_to_vec())
        };
        assert_eq!(exit("c1"), Some(("c1".into(), EventKind::Exited { code: Some(137) })));
        assert_eq!(exit("an-exec"), None);
    }

    #[test]
    fn unknown_and_damaged_events_mean_nothing() {
        assert_eq!(meaning("/snapshot/prepare", b""), None);
        assert_eq!(meaning("/tasks/start", b"\xff\xff"), None);
    }
}
