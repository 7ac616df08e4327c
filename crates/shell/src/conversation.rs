//! The two directions of a conversation, whoever carries them.

use std::time::Duration;

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::Frame;

/// Words on their way in either direction.
pub(crate) const CHANNEL_CAPACITY: usize = 16;
/// Timeout for the last frames to be sent.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// A conversation with the other end.
///
/// `incoming` ends when the other end has said everything or is gone. Once
/// `outgoing` and all its clones are dropped the other end is told that this
/// one has said everything; once `incoming` is dropped too, it is over.
#[derive(Debug)]
pub struct Conversation {
    pub incoming: mpsc::Receiver<Frame>,
    pub outgoing: mpsc::Sender<Frame>,
    /// True if the other end understands more than bytes: sizes, ends and exits.
    pub understood: bool,
    pub(crate) open: watch::Receiver<bool>,
    pub(crate) carrier: Carrier,
}

/// Task that carries a conversation.
#[derive(Debug)]
pub struct Carrier(pub(crate) JoinHandle<()>);

impl Conversation {
    /// Waits until the other end is there. False: it never will be.
    pub async fn opened(&mut self) -> bool {
        self.open.wait_for(|open| *open).await.is_ok()
    }

    /// The two directions, and what carries them.
    pub fn split(self) -> (mpsc::Receiver<Frame>, mpsc::Sender<Frame>, Carrier) {
        (self.incoming, self.outgoing, self.carrier)
    }

    /// Says goodbye, and waits a moment for that to have been sent.
    pub async fn close(self) {
        let Self { incoming, outgoing, carrier, .. } = self;
        drop((incoming, outgoing));
        carrier.finish().await;
    }
}

impl Carrier {
    /// Waits until the other end has taken everything, however long it takes, or
    /// is gone.
    pub async fn delivered(&mut self) {
        // Fails where the task was aborted or panicked: nothing more will be sent.
        let _ = (&mut self.0).await;
    }

    /// Ends the conversation at once, whatever is still to be sent.
    pub fn cut_off(self) {
        self.0.abort();
    }

    /// Waits a moment for the last frames to get out.
    pub async fn finish(mut self) {
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}
