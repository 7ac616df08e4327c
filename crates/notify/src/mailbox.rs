//! Queue in which messages of a type arrive.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use selvage_api::object::Object;
use tokio::sync::mpsc;

use crate::{Error, Kind, MessageSink, Stream};

/// The end of a mailbox that messages come out of, with the stream of each.
pub type MessageReceiver<M> = mpsc::Receiver<(M, Stream)>;

/// Hands messages to a task. When it is too slow, messages are dropped and
/// counted rather than the stream held up.
#[derive(Debug)]
pub struct Mailbox<M> {
    kind: Arc<Kind>,
    messages: mpsc::Sender<(M, Stream)>,
    dropped: AtomicU64,
}

impl<M: Object + Send + 'static> Mailbox<M> {
    /// A mailbox for so many messages, and the end they come out of.
    pub fn new(limit: usize) -> Result<(Arc<Self>, MessageReceiver<M>), Error> {
        let (messages, receiver) = mpsc::channel(limit.max(1));
        let kind = Kind::of::<M>()?;
        Ok((Arc::new(Self { kind, messages, dropped: AtomicU64::new(0) }), receiver))
    }

    /// Returns the number of dropped messages.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

#[async_trait::async_trait]
impl<M: Object + Send + 'static> MessageSink for Mailbox<M> {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    async fn receive(&self, payload: Bytes, stream: &Stream) -> Result<(), Error> {
        let message = M::decode(payload)
            .map_err(|source| Error::Payload { message: M::full_name(), source })?;
        if self.messages.try_send((message, stream.clone())).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
        Ok(())
    }
}
