//! One client an endpoint, one of them preferred until it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::failure::Failure;
use crate::{Error, Result};

const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

pub(super) struct Pool {
    endpoints: Vec<Endpoint>,
    preferred: AtomicUsize,
    options: ConnectOptions,
    request_timeout: Duration,
    connect_timeout: Duration,
}

struct Endpoint {
    url: String,
    client: OnceCell<Client>,
}

/// Permission to send a call again when it is unknown what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Freely,
    IfWithoutEffect,
}

impl Pool {
    pub(super) fn new(
        urls: &[String],
        options: ConnectOptions,
        connect_timeout: Duration,
        request_timeout: Duration,
    ) -> Self {
        let endpoint = |url: &String| Endpoint { url: url.clone(), client: OnceCell::new() };
        Self {
            endpoints: urls.iter().map(endpoint).collect(),
            preferred: AtomicUsize::new(0),
            options,
            request_timeout,
            connect_timeout,
        }
    }

    fn current(&self) -> usize {
        self.preferred.load(Ordering::Relaxed) % self.endpoints.len()
    }

    /// Prefers the next endpoint, unless somebody else did so already.
    fn leave(&self, index: usize) {
        let next = (index + 1) % self.endpoints.len();
        let swapped =
            self.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        if swapped.is_ok() && next != index {
            let (from, to) = (&self.endpoints[index].url, &self.endpoints[next].url);
            tracing::debug!(from, to, "changing etcd endpoint");
        }
    }

    async fn client(&self, index: usize) -> Result<Client, Failure> {
        let endpoint = &self.endpoints[index];
        let connect = endpoint.client.get_or_try_init(|| async {
            let client = Client::connect([&endpoint.url], Some(self.options.clone())).await?;
            Ok::<_, Failure>(client)
        });
        // Nothing of the caller's has been sent yet.
        match timeout(self.connect_timeout, connect).await {
            Ok(client) => client.cloned(),
            Err(_) => Err(Failure { without_effect: true, ..Failure::timeout("connecting") }),
        }
    }

    /// Makes a call, on other endpoints if one does not answer.
    pub(super) async fn call<T, Fut>(
        &self,
        what: &'static str,
        repeat: Repeat,
        mut call: impl FnMut(Client) -> Fut,
    ) -> Result<T>
    where
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + self.request_timeout;
        let share = self.request_timeout / u32::try_from(self.endpoints.len() + 1).unwrap_or(2);
        let mut pause = MIN_BACKOFF;
        loop {
            let index = self.current();
            let left = deadline.saturating_duration_since(Instant::now());
            // What cannot be repeated gets all the time there is.
            let attempt_timeout = if repeat == Repeat::Freely { share.min(left) } else { left };
            let attempt = self.attempt(index, what, attempt_timeout, &mut call).await;
            let failure = match attempt {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if failure.transient {
                self.leave(index);
            }
            let again = failure.transient && (repeat == Repeat::Freely || failure.without_effect);
            if !again || Instant::now() + pause >= deadline {
                return Err(failure.error);
            }
            tracing::debug!(what, error = %failure.error, "trying etcd again");
            sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
    }

    async fn attempt<T, Fut>(
        &self,
        index: usize,
        what: &'static str,
        attempt_timeout: Duration,
        call: &mut impl FnMut(Client) -> Fut,
    ) -> Result<T, Failure>
    where
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let client = self.client(index).await?;
        match timeout(attempt_timeout, call(client)).await {
            Ok(reply) => reply.map_err(Failure::from),
            Err(_) => Err(Failure::timeout(what)),
        }
    }

    /// A client for something that lasts, and the way to say that it failed.
    pub(super) async fn pick(&self) -> Result<(Client, usize), Error> {
        let index = self.current();
        match self.client(index).await {
            Ok(client) => Ok((client, index)),
            Err(failure) => {
                if failure.transient {
                    self.leave(index);
                }
                Err(failure.error)
            }
        }
    }

    pub(super) fn failed(&self, index: usize) {
        self.leave(index);
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }
}
