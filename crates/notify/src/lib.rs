//! State sync between controllers, crms and match engines: the notify
//! protocol of `edgeproto.NotifyApi`, server and client, wire-exact with the
//! original and tolerant of its habits.
//!
//! State is kept in step, not events. Per peer and type there is a
//! set of keys whose value the peer has not seen; the value is read when it
//! is sent, so that many changes are one notice and a slow peer costs no more
//! than its keys. Only messages ([`Exchange::send_messages`]) are queued, up
//! to a limit.
//!
//! * A [`Source`] is a type we send, a [`Sink`] a type we receive;
//!   [`Cache`] is both, in memory. An [`Exchange`] lists them in the order in
//!   which they are sent: what others refer to comes first.
//! * A [`NotifyServer`] has many peers below it, a [`NotifyClient`] one above
//!   it. A node in the middle has both on the same caches.
//! * A peer that reports on cloudlets and asked for a filter gets only what
//!   concerns them.
//! * Between two of ours a connection resumes: only what changed is sent.
//! * A [`Gate`] says what a peer may speak for.
//!
//! The meaning of the objects, and their storage, are not known here.

mod cache;
mod client;
mod codec;
mod dial;
mod error;
mod exchange;
mod frame;
mod gate;
mod history;
mod hub;
mod kind;
mod mailbox;
mod receiver;
mod sender;
mod server;
mod source;
mod stats;

pub use cache::{Cache, Change};
pub use client::{ClientOptions, ClientStatus, NotifyClient};
pub use error::Error;
pub use exchange::Exchange;
pub use frame::{Action, Frame, Payload, VERSION};
pub use gate::{Claim, Gate, IdentityGate, OpenGate};
pub use history::History;
pub use hub::Changes;
pub use kind::{Kind, ObjectKey, Reach, cloudlet_text};
pub use mailbox::{Mailbox, MessageReceiver};
pub use selvage_kit::tasks::Backoff;
pub use server::{NotifyServer, NotifyService, PeerStatus, ServerOptions};
pub use source::{
    Checkpoint, Incoming, Lineage, MessageSink, PeerInfo, Role, Sink, Source, Stream,
};
pub use stats::StatsSnapshot;
