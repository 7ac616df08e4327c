//! One client an endpoint, one of them preferred until it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::failure::Failure;
use super::files::Files;
use super::options::EtcdOptions;
use crate::{Error, Result};

const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

pub(super) struct Pool {
    endpoints: Vec<Endpoint>,
    preferred: AtomicUsize,
    options: EtcdOptions,
    files: Files,
}

struct Endpoint {
    url: String,
    client: Mutex<Option<PooledClient>>,
}

/// A client, and the state of the files with which it was made.
struct PooledClient {
    client: Client,
    made_with: u64,
}

/// Permission to send a call again when it is unknown what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Freely,
    IfWithoutEffect,
}

impl Pool {
    pub(super) fn new(options: EtcdOptions) -> Result<Self> {
        // Invalid options are reported at once.
        options.connect_options()?;
        let endpoint = |url: &String| Endpoint { url: url.clone(), client: Mutex::default() };
        Ok(Self {
            endpoints: options.endpoints.iter().map(endpoint).collect(),
            preferred: AtomicUsize::new(0),
            files: Files::of(options.tls.as_ref()),
            options,
        })
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

    /// The client of an endpoint. One that was made with files that have changed
    /// since is replaced, as soon as another can be made with those.
    async fn client(&self, index: usize) -> Result<Client, Failure> {
        let endpoint = &self.endpoints[index];
        let files = self.files.state();
        let mut kept = endpoint.client.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| kept.made_with == files) {
            return Ok(kept.client.clone());
        }
        // Connecting has sent nothing of the request yet.
        let connecting =
            timeout(self.options.connect_timeout, self.connect(endpoint, kept.is_some()));
        let connected = connecting.await.unwrap_or_else(|_| {
            Err(Failure { without_effect: true, ..Failure::timeout("connecting") })
        });
        match (connected, kept.as_mut()) {
            (Ok(client), _) => {
                *kept = Some(PooledClient { client: client.clone(), made_with: files });
                Ok(client)
            }
            (Err(failure), Some(old)) => {
                let (error, endpoint) = (&failure.error, &endpoint.url);
                tracing::warn!(%error, endpoint, "the changed files of etcd are no good yet");
                old.made_with = files;
                self.files.look_again();
                Ok(old.client.clone())
            }
            (Err(failure), None) => Err(failure),
        }
    }

    /// Connects with the files as they are now. What replaces a client has to
    /// have shown that it works.
    async fn connect(&self, endpoint: &Endpoint, replaces: bool) -> Result<Client, Failure> {
        let lasting = |error| Failure { error, transient: false, without_effect: true };
        let options = self.options.connect_options().map_err(lasting)?;
        let mut client = Client::connect([&endpoint.url], Some(options)).await?;
        if replaces {
            client.status().await?;
        }
        Ok(client)
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
        let deadline = Instant::now() + self.options.request_timeout;
        let attempts = u32::try_from(self.endpoints.len() + 1).unwrap_or(2);
        let share = self.options.request_timeout / attempts;
        let mut pause = MIN_BACKOFF;
        loop {
            let index = self.current();
            let left = deadline.saturating_duration_since(Instant::now());
            // A request that must not be repeated gets all the remaining time.
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
        self.options.connect_timeout
    }
}
