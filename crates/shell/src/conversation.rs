//! The two directions of a conversation, whoever carries them.

use std::time::Duration;

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use crate::Word;

/// Words on their way in either direction.
pub(crate) const UNDER_WAY: usize = 16;
/// How long the last words may take to get out.
const FAREWELL: Duration = Duration::from_secs(3);

/// A conversation with the other end.
///
/// `incoming` ends when the other end has said everything or is gone. Once
/// `outgoing` and all its clones are dropped the other end is told that this
/// one has said everything; once `incoming` is dropped too, it is over.
#[derive(Debug)]
pub struct Conversation {
    pub incoming: mpsc::Receiver<Word>,
    pub outgoing: mpsc::Sender<Word>,
    /// Whether the other end hears more than bytes: sizes, ends and exits.
    pub understood: bool,
    pub(crate) open: watch::Receiver<bool>,
    pub(crate) carrier: Carrier,
}

/// What carries a conversation.
#[derive(Debug)]
pub struct Carrier(pub(crate) JoinHandle<()>);

impl Conversation {
    /// Waits until the other end is there. False: it never will be.
    pub async fn opened(&mut self) -> bool {
        self.open.wait_for(|open| *open).await.is_ok()
    }

    /// The two directions, and what carries them.
    pub fn split(self) -> (mpsc::Receiver<Word>, mpsc::Sender<Word>, Carrier) {
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
    /// Waits a moment for the last words to get out.
    pub async fn finish(mut self) {
        if tokio::time::timeout(FAREWELL, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}
