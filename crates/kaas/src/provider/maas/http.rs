//! Requests to MaaS.
//!
//! The address is the operator's own, so it is asked as it was configured and
//! no redirect is followed. Nothing waits in here: what MaaS wants to be asked
//! again later (`Retry-After`) is not sent before that time, and whoever asks
//! is told so.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use reqwest::{Certificate, Client, Method, Response, StatusCode, Url, header, redirect};
use selvage_store::clock::{Clock, Millis};

use super::{oauth::ApiKey, options::MaasOptions};
use crate::provider::Error;

const CONNECT: Duration = Duration::from_secs(5);
/// Thousands of machines with all their disks and interfaces.
const LARGEST: usize = 64 << 20;
/// Characters of an answer that are quoted.
const LONGEST_QUOTE: usize = 300;
/// Longest that a request is held back, whatever MaaS asks for.
const LONGEST_HOLD: u64 = 300;

/// Why a request was not answered with what was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// 409: not in this state, or no machine fits.
    Conflict(String),
    /// 400: a field is wrong.
    Invalid(String),
    /// 403.
    Denied(String),
    /// 404.
    NotFound(String),
    /// Trying again later may help. Whether anything was done is not known.
    Later(String),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflict(text) | Failure::Later(text) => Self::Unavailable(text),
            Failure::Invalid(text) | Failure::Denied(text) | Failure::NotFound(text) => {
                Self::Refused(text)
            }
        }
    }
}

/// Parameters of a request; a name may be repeated.
pub(super) type Form = Vec<(&'static str, String)>;

/// A client of one MaaS.
pub(super) struct Http {
    client: Client,
    base: Url,
    key: ApiKey,
    clock: Arc<dyn Clock>,
    /// Seconds that the clock of MaaS is ahead of ours.
    ahead: AtomicI64,
    /// Requests that MaaS does not want before that time.
    blocked_until: Mutex<HashMap<String, Millis>>,
}

impl Http {
    pub(super) fn new(options: &MaasOptions, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let file = options.api_key_file.as_ref().context("kaas.maas.api_key_file: needed")?;
        let text = file.read().context("kaas.maas.api_key_file")?;
        let key = ApiKey::parse(text.expose());
        let key = key.context("kaas.maas.api_key_file: has to hold consumer:token:secret")?;
        let mut builder = Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(options.timeout.0)
            .user_agent("selvage");
        if let Some(path) = &options.ca {
            let pem = std::fs::read(path).context("kaas.maas.ca")?;
            let known = Certificate::from_pem_bundle(&pem).context("kaas.maas.ca")?;
            builder = builder.tls_certs_merge(known);
        }
        Ok(Self {
            client: builder.build().context("kaas.maas")?,
            base: base(&options.url).context("kaas.maas.url")?,
            key,
            clock,
            ahead: AtomicI64::new(0),
            blocked_until: Mutex::default(),
        })
    }

    pub(super) async fn get(&self, path: &str, query: &Form) -> Result<Vec<u8>, Failure> {
        self.ask(&Method::GET, path, query).await
    }

    /// Does something: `path` ends with `?op=…`.
    pub(super) async fn post(&self, path: &str, form: &Form) -> Result<Vec<u8>, Failure> {
        self.ask(&Method::POST, path, form).await
    }

    async fn ask(&self, method: &Method, path: &str, form: &Form) -> Result<Vec<u8>, Failure> {
        self.check_hold(path)?;
        let first = self.send(method, path, form).await?;
        if first.status() != StatusCode::UNAUTHORIZED {
            return self.answer(path, first).await;
        }
        let theirs = date(&first);
        let text = body(first).await.unwrap_or_default();
        // MaaS refuses requests of clocks that are late; its own time is in
        // its answer. Once: a second refusal is about something else.
        let late = String::from_utf8_lossy(&text).contains("Expired timestamp");
        let Some(theirs) = theirs.filter(|_| late) else { return Err(unauthorized(&text)) };
        self.ahead.store(theirs - self.seconds(), Ordering::Relaxed);
        let second = self.send(method, path, form).await?;
        self.answer(path, second).await
    }

    async fn send(&self, method: &Method, path: &str, form: &Form) -> Result<Response, Failure> {
        let url = self.base.join(path).map_err(|error| Failure::Invalid(error.to_string()))?;
        let timestamp = self.seconds() + self.ahead.load(Ordering::Relaxed);
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let unusable = || Failure::Later("the API key of MaaS cannot be sent".into());
        let authorization = self.key.header(timestamp, &nonce).ok_or_else(unusable)?;
        let request = self.client.request(method.clone(), url);
        let request = match *method {
            Method::GET => request.query(form),
            _ => request.form(form),
        };
        let request = request.header(header::AUTHORIZATION, authorization);
        request.send().await.map_err(|error| failed(&error))
    }

    async fn answer(&self, path: &str, response: Response) -> Result<Vec<u8>, Failure> {
        let status = response.status();
        if status.is_success() {
            return body(response).await;
        }
        let wait = retry_after(&response);
        if let Some(seconds) = wait {
            let until = self.clock.now() + seconds.min(LONGEST_HOLD) * 1000;
            self.blocked_until.lock().insert(path.to_owned(), until);
        }
        let text = body(response).await.unwrap_or_default();
        let said = quote(&text);
        Err(match status {
            // A conflict within MaaS, of two requests at the same time.
            StatusCode::CONFLICT if wait.is_some() => {
                Failure::Later("MaaS is busy with another request".into())
            }
            StatusCode::CONFLICT => Failure::Conflict(format!("MaaS: {said}")),
            StatusCode::BAD_REQUEST => Failure::Invalid(format!("MaaS: {said}")),
            StatusCode::FORBIDDEN => Failure::Denied(format!("MaaS forbids it: {said}")),
            StatusCode::NOT_FOUND => Failure::NotFound(format!("MaaS: {said}")),
            StatusCode::UNAUTHORIZED => unauthorized(&text),
            status => Failure::Later(format!("MaaS answered {}: {said}", status.as_u16())),
        })
    }

    /// Refuses what MaaS asked not to be asked yet.
    fn check_hold(&self, path: &str) -> Result<(), Failure> {
        let now = self.clock.now();
        let mut blocked_until = self.blocked_until.lock();
        blocked_until.retain(|_, until| *until > now);
        match blocked_until.get(path) {
            None => Ok(()),
            Some(until) => {
                let seconds = (until - now).div_ceil(1000);
                Err(Failure::Later(format!("MaaS wants to be asked again in {seconds} s")))
            }
        }
    }

    fn seconds(&self) -> i64 {
        i64::try_from(self.clock.now() / 1000).unwrap_or(i64::MAX)
    }
}

/// Returns the address of the API, for `http://host:5240/MAAS` and everything below it.
fn base(url: &str) -> anyhow::Result<Url> {
    let url: Url = url.parse()?;
    let path = url.path().trim_end_matches('/').trim_end_matches("/api/2.0").to_owned();
    Ok(url.join(&format!("{path}/api/2.0/"))?)
}

/// Nothing of the answer is quoted: it names the token.
fn unauthorized(text: &[u8]) -> Failure {
    let text = String::from_utf8_lossy(text);
    let reason = if text.contains("Expired timestamp") {
        "the clocks of MaaS and of this machine differ"
    } else if text.contains("Nonce already used") {
        "it has seen this request before"
    } else {
        "it does not take the API key: see kaas.maas.api_key_file"
    };
    Failure::Later(format!("MaaS answered 401: {reason}"))
}

fn date(response: &Response) -> Option<i64> {
    let text = response.headers().get(header::DATE)?.to_str().ok()?;
    let time = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(time.timestamp().as_second())
}

fn retry_after(response: &Response) -> Option<u64> {
    response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

async fn body(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| failed(&error))? {
        if body.len() + chunk.len() > LARGEST {
            let reason = format!("the answer of MaaS is larger than {} MiB", LARGEST >> 20);
            return Err(Failure::Later(reason));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Answer of MaaS on one line. A form that is wrong comes as JSON.
fn quote(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let fields: Option<HashMap<String, Vec<String>>> = serde_json::from_str(&text).ok();
    let text = match fields {
        Some(fields) => {
            let field =
                |(name, texts): (&String, &Vec<String>)| format!("{name}: {}", texts.join(" "));
            let mut fields: Vec<String> = fields.iter().map(field).collect();
            fields.sort();
            fields.join("; ")
        }
        None if text.trim_start().starts_with('<') => "a page".to_owned(),
        None => text.into_owned(),
    };
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().filter(|c| !c.is_control()).take(LONGEST_QUOTE).collect()
}

fn failed(error: &reqwest::Error) -> Failure {
    if error.is_timeout() {
        return Failure::Later("MaaS gives no answer in time".into());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    Failure::Later(format!("MaaS does not answer: {cause}"))
}
