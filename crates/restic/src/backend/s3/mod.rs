//! A repository in a bucket of an object store that speaks S3.

mod sign;
mod xml;

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::{Method, Url};

use super::{
    Backend, File, Kind, Listed, StoreOptions,
    options::{client, endpoint, invalid},
    send::{Auth, Sender, StoreRequest, StoreResponse, part},
};
use crate::{Error, Location, Result};
use sign::encode_query;

pub(super) use sign::{Signer, Unsigned, encode_path};
pub(super) use xml::{Failure, failure};

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
    pub fn new(options: StoreOptions) -> Result<Self> {
        let Location { bucket, prefix, .. } = options.location.clone();
        let region = region(&options);
        let (endpoint, base) = address(&options, &region)?;
        let auth = match options.access_key.as_str() {
            "" => Auth::None,
            access_key => Auth::Signed(Signer {
                access_key: access_key.to_owned(),
                secret_key: options.secret_key.clone(),
                session_token: options.session_token.clone(),
                region,
            }),
        };
        let sender = Sender::new(client(&options)?, endpoint, auth, options);
        Ok(Self { sender, base, prefix, bucket })
    }

    fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    fn path(&self, file: File) -> String {
        encode_path(&format!("{}/{}", self.base, self.key(&file.path())))
    }

    fn ask(&self, method: Method, file: File) -> StoreRequest {
        StoreRequest::new(method, self.path(file), format!("{}/{file}", self.location()))
    }

    async fn page(&self, kind: Kind, next: Option<&str>) -> Result<xml::Page> {
        let prefix = self.key(&format!("{}/", kind.folder()));
        let mut query = vec![("list-type", "2"), ("prefix", prefix.as_str())];
        if let Some(next) = next {
            query.push(("continuation-token", next));
        }
        let path = if self.base.is_empty() { "/".to_owned() } else { encode_path(&self.base) };
        let mut ask = StoreRequest::new(
            Method::GET,
            path,
            format!("list {}/{}", self.location(), kind.folder()),
        );
        ask.query = encode_query(&query);
        self.sender.send_for(ask, |answer| xml::page(&answer.body)).await
    }
}

/// The region: as it is given, or as the address tells.
fn region(options: &StoreOptions) -> String {
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
fn address(options: &StoreOptions, region: &str) -> Result<(Url, String)> {
    let bucket = &options.location.bucket;
    let given = match options.endpoint.as_str() {
        "" => format!("https://s3.{region}.amazonaws.com"),
        given => given.to_owned(),
    };
    let (mut url, path) = endpoint(&given)?;
    let host = url.host_str().unwrap_or_default().to_owned();
    if host.ends_with(".amazonaws.com") && !bucket.contains('.') && path.is_empty() {
        url.set_host(Some(&format!("{bucket}.{host}")))
            .map_err(|error| invalid("path", error.to_string()))?;
        return Ok((url, String::new()));
    }
    Ok((url, format!("{path}/{bucket}")))
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
        part(self.sender.send(ask).await?, file, offset, length)
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
