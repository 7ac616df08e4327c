//! Watching an operation from outside.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use selvage_api::selvage::operations as wire;
use tokio::sync::watch;

use crate::engine::Inner;
use crate::live::{LinePosition, Live};
use crate::{Engine, Error, Failure, Interrupt};

/// Event that followers of an operation see.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Progress message; empty if only the operation changed.
    pub message: String,
    /// The operation, at least as it was then.
    pub operation: wire::Operation,
}

/// The stream that [`Handle::follow`] gives. An error is its last item.
pub type Follow = BoxStream<'static, Result<Event, Failure>>;

/// An operation that was started, here or elsewhere. Dropping it changes
/// nothing.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inner: Arc<Inner>,
    pub(crate) live: Arc<Live>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.live.record().fmt(f)
    }
}

impl Handle {
    /// The operation's id.
    pub fn id(&self) -> &str {
        &self.live.id
    }

    /// The operation as it is now.
    pub fn operation(&self) -> wire::Operation {
        self.live.record().to_wire()
    }

    /// Streams the messages so far, then new messages and changes of the
    /// operation until it ends; then its error, if it failed. A slow caller
    /// misses lines and is told how many; it never holds the operation up. When
    /// this process stops before, the last item is [`Interrupt::Stopping`] and
    /// the operation goes on elsewhere.
    pub fn follow(&self) -> Follow {
        follow(Arc::clone(&self.live))
    }

    /// Streams the messages, without the changes in between.
    pub fn lines(&self) -> BoxStream<'static, Result<String, Failure>> {
        self.follow()
            .filter_map(async |event| match event {
                Ok(event) if event.message.is_empty() => None,
                Ok(event) => Some(Ok(event.message)),
                Err(failure) => Some(Err(failure)),
            })
            .boxed()
    }

    /// Waits for the end and returns its result; [`Interrupt::Stopping`] if this
    /// process stops before.
    pub async fn ended(&self) -> Result<(), Failure> {
        self.live.ended().await
    }

    /// Asks for the operation to be undone.
    pub async fn cancel(&self, who: &str) -> Result<wire::Operation, Error> {
        Engine::unguarded(Arc::clone(&self.inner)).cancel(&self.live.id, who).await
    }
}

struct Follower {
    live: Arc<Live>,
    changes: watch::Receiver<u64>,
    seen: LinePosition,
    ready: VecDeque<Result<Event, Failure>>,
    shown: Option<wire::Operation>,
    over: bool,
}

fn follow(live: Arc<Live>) -> Follow {
    let changes = live.subscribe();
    let follower =
        Follower { live, changes, seen: (0, 0), ready: VecDeque::new(), shown: None, over: false };
    stream::unfold(follower, |mut follower| async move {
        let item = follower.next().await?;
        Some((item, follower))
    })
    .boxed()
}

impl Follower {
    async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            if self.over {
                return None;
            }
            self.collect();
            if self.ready.is_empty()
                && !self.over
                && !self.live.next_change(&mut self.changes).await
            {
                self.over = true;
                return Some(Err(Interrupt::Stopping.into()));
            }
        }
    }

    fn collect(&mut self) {
        self.changes.mark_unchanged();
        let progress = self.live.progress(self.seen);
        let mut tell = |message| {
            self.ready.push_back(Ok(Event { message, operation: progress.operation.clone() }));
        };
        if progress.skipped > 0 {
            tell(format!("… {} lines skipped", progress.skipped));
        }
        let said = !progress.lines.is_empty();
        for line in progress.lines {
            self.seen = (line.generation, line.number);
            tell(line.text);
        }
        if !said && self.shown.as_ref() != Some(&progress.operation) {
            tell(String::new());
        }
        self.shown = Some(progress.operation);
        if let Some(outcome) = progress.outcome {
            self.over = true;
            self.ready.extend(outcome.err().map(Err));
        }
    }
}

/// A follower is a stream that can be sent between threads.
const _: fn() = || {
    fn is<T: Stream + Send>() {}
    is::<Follow>();
};
