//! Samples handed on to a database that takes InfluxDB's line protocol.
//!
//! They are sent once a second, or earlier when many wait. A database that is
//! away costs no more than the samples of its absence: so many are kept, the
//! rest is dropped and counted, as is a batch that it does not take.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::{RequestBuilder, StatusCode};
use selvage_api::edgeproto as wire;
use selvage_kit::identity::Secret;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::{Error, line};

/// Most samples that wait.
const MAX_WAITING: usize = 5000;
/// Maximum number of samples in a request.
const BATCH: usize = 50;
const SEND_INTERVAL: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters of an answer that go into an error.
const MAX_QUOTED: usize = 200;

/// A database that takes InfluxDB's line protocol.
#[derive(Debug, Clone)]
pub struct Influx {
    /// Such as `http://127.0.0.1:8086`.
    pub url: String,
    /// Made if it is not there.
    pub database: String,
    /// Our credentials there.
    pub login: InfluxLogin,
}

/// Login at a database.
#[derive(Debug, Clone)]
pub enum InfluxLogin {
    /// None.
    Nobody,
    /// Name and password of a user.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: Secret,
    },
    /// Token.
    Token(Secret),
}

/// Hands samples on to a database.
pub struct Sink {
    settings: Influx,
    write: Url,
    query: Url,
    client: reqwest::Client,
    waiting: Mutex<VecDeque<Arc<wire::Metric>>>,
    many: Notify,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    invalid: AtomicU64,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Sink {
    /// A sink for this database; nothing is sent before it runs.
    pub fn new(settings: Influx) -> Result<Arc<Self>, Error> {
        let wrong = Error::Url;
        let mut base = Url::parse(&settings.url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(wrong("is neither http nor https".into()));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("must not have a password in it".into()));
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let place = |name: &str| base.join(name).map_err(|error| wrong(error.to_string()));
        let (mut write, query) = (place("write")?, place("query")?);
        write.query_pairs_mut().append_pair("db", &settings.database).append_pair("precision", "u");
        let client = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).build();
        let client = client.map_err(|error| wrong(error.to_string()))?;
        Ok(Arc::new(Self {
            settings,
            write,
            query,
            client,
            waiting: Mutex::default(),
            many: Notify::new(),
            counts: Counts::default(),
        }))
    }

    /// Takes a sample, or drops it where too many wait.
    pub fn put(&self, sample: Arc<wire::Metric>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MAX_WAITING {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push_back(sample);
        if waiting.len() > BATCH {
            self.many.notify_one();
        }
    }

    /// Counts of the samples so far by their outcome.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        let counts = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("written", of(&counts.written)),
            ("dropped", of(&counts.dropped)),
            ("refused", of(&counts.refused)),
            ("invalid", of(&counts.invalid)),
        ]
    }

    /// Sends what comes until told to stop, and then what still waits.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut there = false;
        let mut told = false;
        loop {
            if !there && stop.run_until_cancelled(self.make_database()).await == Some(true) {
                (there, told) = (true, false);
            } else if !there && !told {
                told = true;
                tracing::warn!(url = self.query.as_str(), "the database of samples is away");
            }
            let rest = async {
                tokio::select! {
                    () = tokio::time::sleep(SEND_INTERVAL) => {}
                    () = self.many.notified(), if there => {}
                }
            };
            let stopped = stop.run_until_cancelled(rest).await.is_none();
            if there {
                there = self.flush().await;
            }
            if stopped {
                return;
            }
        }
    }

    fn signed(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.settings.login {
            InfluxLogin::Nobody => request,
            InfluxLogin::Password { user, password } => {
                request.basic_auth(user, Some(password.expose()))
            }
            InfluxLogin::Token(token) => {
                request.header("authorization", format!("Token {}", token.expose()))
            }
        }
    }

    /// Makes the database. Returns true if it answers and has one for samples.
    async fn make_database(&self) -> bool {
        // Newer ones have no such statement; there, places are made by hand.
        let name = self.settings.database.replace('\\', "\\\\").replace('"', "\\\"");
        let statement = format!("CREATE DATABASE \"{name}\"");
        let request = self.client.post(self.query.clone()).form(&[("q", statement.as_str())]);
        match self.signed(request).send().await {
            Ok(answer) if answer.status().is_success() => true,
            Ok(answer)
                if answer.status() == StatusCode::NOT_FOUND
                    || answer.status() == StatusCode::METHOD_NOT_ALLOWED =>
            {
                true
            }
            Ok(answer) => {
                tracing::debug!(status = %answer.status(), "the place for samples was not made");
                false
            }
            Err(error) => {
                let error = error.without_url();
                tracing::debug!(%error, "the database of samples does not answer");
                false
            }
        }
    }

    /// Sends what waits; false when the database does not take it.
    async fn flush(&self) -> bool {
        let batch = std::mem::take(&mut *self.waiting.lock());
        let (mut body, mut lines) = (String::new(), 0);
        for sample in &batch {
            if line::append(&mut body, sample) {
                lines += 1;
            } else {
                self.counts.invalid.fetch_add(1, Ordering::Relaxed);
            }
        }
        if lines == 0 {
            return true;
        }
        let request = self.client.post(self.write.clone()).body(body);
        let reason = match self.signed(request).send().await {
            Ok(answer) if answer.status().is_success() => {
                self.counts.written.fetch_add(lines, Ordering::Relaxed);
                return true;
            }
            Ok(answer) => {
                let status = answer.status();
                let text = answer.text().await.unwrap_or_default();
                let text: String = text.chars().take(MAX_QUOTED).collect();
                format!("{status}: {text}")
            }
            Err(error) => error.without_url().to_string(),
        };
        self.counts.refused.fetch_add(lines, Ordering::Relaxed);
        tracing::warn!(samples = lines, reason, "the database did not take samples");
        false
    }
}

#[cfg(test)]
mod tests;
