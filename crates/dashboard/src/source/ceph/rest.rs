//! The REST API of the manager's dashboard.
//!
//! A wrong password is tried once: Ceph disables an account after ten. A
//! standby manager redirects to the active one, which is followed only to
//! addresses that were configured; for a while after a failover it answers a
//! page of HTML with 200, which is no answer.

use std::{path::PathBuf, time::Duration};

use reqwest::{Client, Response, StatusCode, Url, header};
use selvage_kit::identity::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    source::{
        Failure,
        http::{self, BadOptions},
    },
    text,
};

/// Health of thousands of OSDs takes a few megabytes.
const LARGEST: usize = 32 << 20;
const LONGEST_REASON: usize = 64 << 10;
/// After a password that is wrong.
const LOCKOUT: Duration = Duration::from_secs(900);

/// Addresses of managers' dashboards and our credentials there.
#[derive(Debug, Clone)]
pub struct RestOptions {
    /// Addresses of all managers, such as `https://10.0.0.1:8443`.
    pub urls: Vec<String>,
    pub username: String,
    pub password: Secret,
    /// PEM file of the CA that signed their certificates.
    pub ca: Option<PathBuf>,
    /// Take any certificate, as Ceph makes its own.
    pub skip_tls_verify: bool,
}

/// A client that logs in by itself and goes to whichever manager is active.
pub(super) struct Rest {
    client: Client,
    urls: Vec<Url>,
    /// The manager that answered last.
    active: usize,
    username: String,
    password: Secret,
    token: Option<Secret>,
}

/// Reason why one request failed.
enum Refusal {
    /// The token has ended.
    Token,
    /// Another manager is active.
    Elsewhere(usize),
    Other(Failure),
}

impl Rest {
    pub(super) fn new(options: RestOptions) -> Result<Self, BadOptions> {
        let urls: Result<Vec<Url>, BadOptions> =
            options.urls.iter().map(|text| http::address("urls", text)).collect();
        let urls = urls?;
        if urls.is_empty() {
            let reason = "name at least one manager".into();
            return Err(BadOptions { field: "urls", reason });
        }
        let client = http::client(options.ca.as_deref(), options.skip_tls_verify)?;
        let RestOptions { username, password, .. } = options;
        Ok(Self { client, urls, active: 0, username, password, token: None })
    }

    /// Asks whichever manager is active; logs in first where that is needed.
    pub(super) async fn get(&mut self, path: &str, version: &str) -> Result<Vec<u8>, Failure> {
        let mut last = Failure::Failed("no manager answers".into());
        // Every manager once, and one more for a token that has ended.
        for _ in 0..=self.urls.len() {
            match self.try_get(path, version).await {
                Ok(body) => return Ok(body),
                Err(Refusal::Token) => self.token = None,
                Err(Refusal::Elsewhere(at)) => self.active = at,
                Err(Refusal::Other(failure @ Failure::Refused { .. })) => return Err(failure),
                Err(Refusal::Other(failure)) => {
                    self.active = (self.active + 1) % self.urls.len();
                    last = failure;
                }
            }
        }
        Err(last)
    }

    async fn try_get(&mut self, path: &str, version: &str) -> Result<Vec<u8>, Refusal> {
        if self.token.is_none() {
            self.token = Some(self.log_in().await?);
        }
        let url = self.url(path)?;
        let token = self.token.as_ref().map_or("", Secret::expose);
        let request =
            self.client.get(url).bearer_auth(token).header(header::ACCEPT, accept(version));
        let response = request.send().await.map_err(|error| failed(&error))?;
        self.body(response).await
    }

    async fn log_in(&self) -> Result<Secret, Refusal> {
        #[derive(Deserialize)]
        struct Token {
            token: String,
        }
        let body = json!({"username": self.username, "password": self.password.expose()});
        let request = self.client.post(self.url("auth")?).header(header::ACCEPT, accept("1.0"));
        let response = request.json(&body).send().await.map_err(|error| failed(&error))?;
        if response.status() == StatusCode::BAD_REQUEST {
            let reason = "Ceph does not take the username and password: asked again in 15 minutes, \
                          because it disables an account after ten attempts";
            let refused = Failure::Refused { reason: reason.into(), retry: LOCKOUT };
            return Err(Refusal::Other(refused));
        }
        let body = self.body(response).await?;
        // Nothing of the answer is quoted: it holds the token.
        let token: Token = serde_json::from_slice(&body).map_err(|_| {
            Refusal::Other(Failure::Failed("the login's answer has no token".into()))
        })?;
        Ok(Secret::new(token.token))
    }

    fn url(&self, path: &str) -> Result<Url, Refusal> {
        let base = &self.urls[self.active];
        let given = base.path().trim_end_matches('/').trim_end_matches("/api");
        base.join(&format!("{given}/api/{path}"))
            .map_err(|error| Refusal::Other(Failure::Failed(error.to_string())))
    }

    /// The body of an answer that is one.
    async fn body(&self, response: Response) -> Result<Vec<u8>, Refusal> {
        let status = response.status();
        let fail = |reason: String| Err(Refusal::Other(Failure::Failed(reason)));
        if status == StatusCode::UNAUTHORIZED {
            return Err(Refusal::Token);
        }
        if status.is_redirection() {
            return Err(self.redirected(&response));
        }
        if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            return fail(format!("Ceph answered {status}: {}", detail(response).await));
        }
        if !status.is_success() {
            return fail(format!("Ceph answered {status}"));
        }
        http::json(response, "Ceph", LARGEST).await.map_err(Refusal::Other)
    }

    fn redirected(&self, response: &Response) -> Refusal {
        let place = response.headers().get(header::LOCATION);
        let place = place.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let target = response.url().join(place).ok();
        let same = |url: &Url, target: &Url| {
            url.host_str() == target.host_str()
                && url.port_or_known_default() == target.port_or_known_default()
        };
        let known = target.as_ref().and_then(|t| self.urls.iter().position(|url| same(url, t)));
        match known {
            Some(at) if at != self.active => Refusal::Elsewhere(at),
            _ => {
                let host = target.and_then(|target| target.host_str().map(str::to_owned));
                let host = host.unwrap_or_else(|| "nowhere".into());
                Refusal::Other(Failure::Failed(format!(
                    "the active manager is at {host}, which is not among the configured addresses"
                )))
            }
        }
    }
}

/// Reason for which Ceph refuses: of a version of its API it names the one it has.
async fn detail(response: Response) -> String {
    let body = http::json(response, "Ceph", LONGEST_REASON).await.unwrap_or_default();
    let reason = document(&body).and_then(|body| Some(body.get("detail")?.as_str()?.to_owned()));
    text::outside(&reason.unwrap_or_else(|| "without a reason".into()), 200)
}

fn accept(version: &str) -> String {
    format!("application/vnd.ceph.api.v{version}+json")
}

fn failed(error: &reqwest::Error) -> Refusal {
    Refusal::Other(http::failed(error))
}

/// A JSON document of Ceph's; what cannot be read is none.
pub(super) fn document(body: &[u8]) -> Option<Value> {
    serde_json::from_slice(body).ok()
}
