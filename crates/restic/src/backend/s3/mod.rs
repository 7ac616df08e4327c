//! A repository in a bucket of an object store that speaks S3.

mod outage;
mod send;
mod sign;
mod xml;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::{Client, Method, Proxy, Url};
use selvage_kit::clock::{Clock, SystemClock};

use super::{Backend, File, Kind, Listed};
use crate::{Error, Limits, Location, Result, Secret};
pub use outage::Outage;
use send::{Sender, StoreRequest, StoreResponse};
use sign::{Signer, encode_path, encode_query};

/// Address of the object store and ways to talk to it.
#[derive(Debug, Clone)]
pub struct S3Options {
    /// Its address, `http://…` or `https://…`. Empty is AWS.
    pub endpoint: String,
    /// Bucket, prefix and region.
    pub location: Location,
    /// Access key. Empty with an empty secret: requests are not signed.
    pub access_key: String,
    /// The secret that belongs to it.
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

impl S3Options {
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

/// A bucket.
pub struct S3 {
    sender: Sender,
    /// `/bucket` or nothing, as it stands in front of every path.
    base: String,
    prefix: String,
    bucket: String,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3").field("location", &self.location()).finish()
    }
}

impl S3 {
    /// Checks the options. Nothing is asked yet.
    pub fn new(options: S3Options) -> Result<Self> {
        let Location { bucket, prefix, .. } = options.location.clone();
        let region = region(&options);
        let (endpoint, base) = address(&options, &region)?;
        let signer = (!options.access_key.is_empty()).then(|| Signer {
            access_key: options.access_key.clone(),
            secret_key: options.secret_key.clone(),
            session_token: options.session_token.clone(),
            region,
        });
        let client = client(&options)?;
        let sender = Sender::new(client, endpoint, signer, options);
        Ok(Self { sender, base, prefix, bucket })
    }

    fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    fn path(&self, file: File) -> String {
        encode_path(&format!("{}/{}", self.base, self.key(&file.path())))
    }

    fn ask(&self, method: Method, file: File) -> StoreRequest {
        StoreRequest::new(method, self.path(file), format!("{}", file))
    }

    async fn page(&self, kind: Kind, next: Option<&str>) -> Result<xml::Page> {
        let prefix = self.key(&format!("{}/", kind.folder()));
        let mut query = vec![("list-type", "2"), ("prefix", prefix.as_str())];
        if let Some(next) = next {
            query.push(("continuation-token", next));
        }
        let path = if self.base.is_empty() { "/".to_owned() } else { encode_path(&self.base) };
        let mut ask = StoreRequest::new(Method::GET, path, format!("list {}", kind.folder()));
        ask.query = encode_query(&query);
        self.sender.send_for(ask, |answer| xml::page(&answer.body)).await
    }
}

fn invalid(field: &'static str, reason: impl Into<String>) -> Error {
    Error::Invalid { field, reason: reason.into() }
}

/// The region: as it is given, or as the address tells.
fn region(options: &S3Options) -> String {
    let host = options.endpoint.rsplit("://").next().unwrap_or_default();
    let from_host = host
        .split(['/', ':'])
        .next()
        .and_then(|host| host.strip_suffix(".amazonaws.com"))
        .and_then(|host| host.strip_prefix("s3.").or_else(|| host.strip_prefix("s3-")));
    let region = options.location.region.as_deref().or(from_host);
    region.unwrap_or("us-east-1").to_owned()
}

/// Returns the address to connect to, and what goes in front of every path. AWS wants the
/// bucket in the host's name, all others have it in the path.
fn address(options: &S3Options, region: &str) -> Result<(Url, String)> {
    let bucket = &options.location.bucket;
    let endpoint = match options.endpoint.as_str() {
        "" => format!("https://s3.{region}.amazonaws.com"),
        endpoint => endpoint.trim_end_matches('/').to_owned(),
    };
    let mut url = Url::parse(&endpoint)
        .map_err(|error| invalid("endpoint", format!("'{endpoint}' is no address: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(invalid("endpoint", "it has to begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(invalid("endpoint", "it may have a host, a port and a path, nothing else"));
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path("");
    let host = url.host_str().unwrap_or_default().to_owned();
    if host.ends_with(".amazonaws.com") && !bucket.contains('.') && path.is_empty() {
        url.set_host(Some(&format!("{bucket}.{host}")))
            .map_err(|error| invalid("path", error.to_string()))?;
        return Ok((url, String::new()));
    }
    Ok((url, format!("{path}/{bucket}")))
}

fn client(options: &S3Options) -> Result<Client> {
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

#[async_trait]
impl Backend for S3 {
    fn location(&self) -> String {
        let prefix = if self.prefix.is_empty() { "" } else { "/" };
        format!("{}/{}{prefix}{}", self.sender.endpoint(), self.bucket, self.prefix)
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut next = None;
        loop {
            let page = self.page(kind, next.as_deref()).await?;
            for (key, size) in page.objects {
                let name = key.rsplit('/').next().unwrap_or_default();
                if let Ok(id) = name.parse() {
                    found.push(Listed { id, size });
                }
            }
            next = page.next;
            if next.is_none() {
                return Ok(found);
            }
        }
    }

    async fn size(&self, file: File) -> Result<Option<u64>> {
        let mut ask = self.ask(Method::HEAD, file);
        ask.missing_is_fine = true;
        let answer = self.sender.send(ask).await?;
        Ok((answer.status != 404).then_some(answer.length.unwrap_or(0)))
    }

    async fn read(&self, file: File) -> Result<Bytes> {
        let mut ask = self.ask(Method::GET, file);
        ask.missing_is_fine = true;
        let answer = self.sender.send(ask).await?;
        present(answer, file).map(|answer| answer.body)
    }

    async fn read_range(&self, file: File, offset: u64, length: u64) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let mut ask = self.ask(Method::GET, file);
        ask.range = Some((offset, length));
        ask.missing_is_fine = true;
        let answer = present(self.sender.send(ask).await?, file)?;
        let short = || Error::damaged(file, "it is too short");
        match answer.status {
            416 => Err(short()),
            _ if answer.partial && answer.body.len() as u64 == length => Ok(answer.body),
            // A server that knows no ranges sends all of it.
            200 if !answer.partial && answer.body.len() as u64 >= offset + length => {
                Ok(answer.body.slice(offset as usize..(offset + length) as usize))
            }
            _ => Err(short()),
        }
    }

    async fn write(&self, file: File, content: Bytes) -> Result<bool> {
        let mut ask = self.ask(Method::PUT, file);
        // A pack's name is the hash of what is in it, which the signature
        // needs: hashed once for both.
        ask.payload = match file {
            File::Named(_, id) => id,
            File::Config => crate::Id::of(&content),
        };
        ask.only_if_new = !matches!(file, File::Named(Kind::Pack, _));
        ask.body = content;
        let answer = self.sender.send(ask).await?;
        Ok(answer.status != 412)
    }

    async fn remove(&self, file: File) -> Result<()> {
        let mut ask = self.ask(Method::DELETE, file);
        ask.missing_is_fine = true;
        self.sender.send(ask).await.map(|_| ())
    }
}

fn present(answer: StoreResponse, file: File) -> Result<StoreResponse> {
    if answer.status == 404 { Err(Error::MissingFile(file)) } else { Ok(answer) }
}
