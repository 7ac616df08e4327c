//! Ways to reach a store by HTTP.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, Proxy, Url};
use selvage_kit::clock::{Clock, SystemClock};

use super::Outage;
use crate::{Error, Limits, Location, Result, Secret};

/// Address of an object store or a REST server, and ways to talk to it.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Its address, `http://…` or `https://…`. Empty is AWS.
    pub endpoint: String,
    /// Bucket, prefix and region; on a REST server, the path of the repository.
    pub location: Location,
    /// Access key, or the user of a REST server. Empty: requests are not signed.
    pub access_key: String,
    /// Secret key or password that belongs to it.
    pub secret_key: Secret,
    /// For keys that end by themselves.
    pub session_token: Option<Secret>,
    /// True if its certificate has to be valid.
    pub verify_tls: bool,
    /// The proxy for `http://…`. If one is given, the environment's count for
    /// nothing.
    pub http_proxy: Option<String>,
    /// The proxy for `https://…`.
    pub https_proxy: Option<String>,
    /// Timeout of connecting.
    pub connect_timeout: Duration,
    /// Timeout of an answer to a small request. Large bodies get time
    /// on top by their size.
    pub timeout: Duration,
    /// Number of attempts, at least, before a request counts as failed.
    pub attempts: u32,
    /// Time for which it is sent again after the first failure, however often.
    pub retry_for: Duration,
    /// Is told that questions are asked again.
    pub outage: Outage,
    /// The longest pause between two attempts.
    pub longest_pause: Duration,
    /// Limits of bytes a second.
    pub limits: Arc<Limits>,
    /// The time in signatures.
    pub clock: Arc<dyn Clock>,
}

impl StoreOptions {
    /// Defaults for a place.
    pub fn new(endpoint: impl Into<String>, location: Location) -> Self {
        Self {
            endpoint: endpoint.into(),
            location,
            access_key: String::new(),
            secret_key: Secret::new(""),
            session_token: None,
            verify_tls: true,
            http_proxy: None,
            https_proxy: None,
            connect_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(60),
            attempts: 6,
            retry_for: Duration::ZERO,
            outage: Outage::default(),
            longest_pause: Duration::from_secs(10),
            limits: Arc::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

pub(super) fn invalid(field: &'static str, reason: impl Into<String>) -> Error {
    Error::Invalid { field, reason: reason.into() }
}

/// Splits an address into the server and the path on it, without a slash behind.
pub(super) fn endpoint(text: &str) -> Result<(Url, String)> {
    let mut url = Url::parse(text)
        .map_err(|error| invalid("endpoint", format!("'{text}' is no address: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(invalid("endpoint", "it has to begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(invalid("endpoint", "it may have a host, a port and a path, nothing else"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path("");
    Ok((url, path))
}

/// Client for the requests.
pub(super) fn client(options: &StoreOptions) -> Result<Client> {
    let mut builder = Client::builder()
        .connect_timeout(options.connect_timeout)
        .redirect(reqwest::redirect::Policy::none())
        .tls_danger_accept_invalid_certs(!options.verify_tls);
    let proxy = |field, text: &str, make: fn(&str) -> reqwest::Result<Proxy>| {
        // The address may hold a password: it is not repeated.
        make(text).map_err(|_| invalid(field, "it is no address of a proxy"))
    };
    let given = |proxy: &Option<String>| proxy.clone().filter(|text| !text.is_empty());
    let (http, https) = (given(&options.http_proxy), given(&options.https_proxy));
    if http.is_some() || https.is_some() {
        builder = builder.no_proxy();
    }
    if let Some(text) = http {
        builder = builder.proxy(proxy("http_proxy", &text, |text| Proxy::http(text))?);
    }
    if let Some(text) = https {
        builder = builder.proxy(proxy("https_proxy", &text, |text| Proxy::https(text))?);
    }
    builder.build().map_err(|error| Error::Internal(error.to_string()))
}
