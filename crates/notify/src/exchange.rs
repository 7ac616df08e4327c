//! The list of what is sent and received.

use std::{collections::HashMap, fmt, sync::Arc};

use selvage_api::object::Object;

use crate::{Error, Kind, MessageSink, Sink, Source};

/// Limit of queued messages of a type for one peer, unless set otherwise.
const MESSAGE_LIMIT: usize = 1000;

#[derive(Clone)]
pub(crate) enum Outgoing {
    Objects(Arc<dyn Source>),
    Messages { kind: Arc<Kind>, limit: usize },
}

impl Outgoing {
    pub(crate) fn kind(&self) -> &Arc<Kind> {
        match self {
            Self::Objects(source) => source.kind(),
            Self::Messages { kind, .. } => kind,
        }
    }
}

#[derive(Clone)]
pub(crate) enum Receiving {
    Objects(Arc<dyn Sink>),
    Messages(Arc<dyn MessageSink>),
}

impl Receiving {
    pub(crate) fn kind(&self) -> &Arc<Kind> {
        match self {
            Self::Objects(sink) => sink.kind(),
            Self::Messages(sink) => sink.kind(),
        }
    }
}

/// Types that a server or a client sends, in that order, and those it receives. A
/// type that refers to another is added after it.
#[derive(Clone, Default)]
pub struct Exchange {
    pub(crate) sends: Vec<Outgoing>,
    pub(crate) receives: Vec<Receiving>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sends: Vec<&str> = self.sends.iter().map(|out| out.kind().short_name()).collect();
        let receives: Vec<&str> = self.receives.iter().map(|r| r.kind().short_name()).collect();
        f.debug_struct("Exchange").field("sends", &sends).field("receives", &receives).finish()
    }
}

impl Exchange {
    /// Creates an exchange without types.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the objects of a source.
    #[must_use]
    pub fn send(mut self, source: Arc<dyn Source>) -> Self {
        self.sends.push(Outgoing::Objects(source));
        self
    }

    /// Sends messages of a type, see `post` of server and client.
    pub fn send_messages<M: Object>(self) -> Result<Self, Error> {
        self.send_messages_up_to::<M>(MESSAGE_LIMIT)
    }

    /// Does what [`Exchange::send_messages`] does; if more than `limit` wait
    /// for a peer, the oldest are dropped and counted.
    pub fn send_messages_up_to<M: Object>(mut self, limit: usize) -> Result<Self, Error> {
        self.sends.push(Outgoing::Messages { kind: Kind::of::<M>()?, limit });
        Ok(self)
    }

    /// Receives objects.
    #[must_use]
    pub fn receive(mut self, sink: Arc<dyn Sink>) -> Self {
        self.receives.push(Receiving::Objects(sink));
        self
    }

    /// Receives messages.
    #[must_use]
    pub fn receive_messages(mut self, sink: Arc<dyn MessageSink>) -> Self {
        self.receives.push(Receiving::Messages(sink));
        self
    }

    /// Full names of what we want, in order of registration.
    pub(crate) fn wants(&self) -> Vec<String> {
        self.receives.iter().map(|receiving| receiving.kind().full_name().to_owned()).collect()
    }

    pub(crate) fn receive_index(&self) -> HashMap<String, usize> {
        let names = self.wants().into_iter();
        names.enumerate().map(|(index, name)| (name, index)).collect()
    }
}
