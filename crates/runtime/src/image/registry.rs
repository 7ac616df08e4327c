//! Images from a registry, by the OCI distribution protocol.

use base64::{Engine, engine::general_purpose::STANDARD};
use selvage_api::Code;
use selvage_fetch::{
    Failure, Fetcher, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE},
    read,
};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{Blobs, Descriptor, INDEX, Index, LARGEST_DOCUMENT, MANIFEST, Manifest, Named};
use crate::{Credentials, Error, Pull, Result};

/// More than any registry has to say about what is wrong.
const MOST_WORDS: usize = 64 * 1024;
/// Larger tokens fit into no header.
const MAX_TOKEN_REPLY: usize = 64 * 1024;

/// Address of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub host: String,
    pub repository: String,
    /// A tag, or a digest.
    pub version: String,
    /// The whole of it, with what was left out filled in.
    pub name: String,
}

impl Reference {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |reason: &str| Error::invalid("reference", format!("{text:?} {reason}"));
        let fine = |c: char| c.is_ascii_alphanumeric() || "._-/:@[]".contains(c);
        if text.is_empty() || text.len() > 512 || !text.chars().all(fine) {
            return Err(bad("is no name of an image"));
        }
        let (host, rest) = match text.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
            _ => ("docker.io", text),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        let is_host = || url::Url::parse(&format!("https://{host}/")).is_ok();
        if !host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
            || !host.chars().all(plain)
            || !is_host()
        {
            return Err(bad("names no registry"));
        }
        let (repository, version) = match rest.split_once('@') {
            Some((repository, digest)) => {
                super::hex_of(digest)?;
                (repository.split(':').next().unwrap_or_default(), digest)
            }
            None => rest.rsplit_once(':').unwrap_or((rest, "latest")),
        };
        let word = |part: &str| {
            !part.is_empty()
                && part
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c))
                && !part.starts_with('.')
        };
        if !repository.split('/').all(word) || version.contains('/') || version.is_empty() {
            return Err(bad("is no name of an image"));
        }
        let library = host == "docker.io" && !repository.contains('/');
        let repository =
            if library { format!("library/{repository}") } else { repository.to_owned() };
        let mark = if version.starts_with("sha256:") { '@' } else { ':' };
        let name = format!("{host}/{repository}{mark}{version}");
        Ok(Self { host: host.to_owned(), repository, version: version.to_owned(), name })
    }

    fn base(&self, plain_http: bool) -> String {
        let scheme = if plain_http { "http" } else { "https" };
        let host = if self.host == "docker.io" { "registry-1.docker.io" } else { &self.host };
        format!("{scheme}://{host}/v2/{}", self.repository)
    }
}

/// Fetches an image with all that this machine needs of it, unless it has more
/// bytes than it may. Blobs that are here are used if they are `own`.
pub(crate) async fn pull(
    blobs: &Blobs,
    pull: &Pull,
    limit: u64,
    own: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Named> {
    let reference = Reference::parse(&pull.reference)?;
    let host = reference.host.clone();
    fetch(blobs, pull, reference, limit, own).await.map_err(|error| said_by(&host, error))
}

/// The error with the registry's name, if that is not in it.
fn said_by(host: &str, error: Error) -> Error {
    match error {
        Error::Registry { code, reason } if !reason.contains(host) => {
            Error::Registry { code, reason: format!("{host}: {reason}") }
        }
        other => other,
    }
}

async fn fetch(
    blobs: &Blobs,
    pull: &Pull,
    reference: Reference,
    limit: u64,
    own: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Named> {
    let mut session = Session {
        fetcher: Fetcher::new(pull.policy.clone()),
        own,
        base: reference.base(pull.plain_http),
        credentials: pull.credentials.clone(),
        authorization: Authorization::None,
    };
    let bytes = session.manifest(&reference.version).await?;
    let mut target = keep(blobs, &bytes, None)?;
    if reference.version.starts_with("sha256:") && target.digest != reference.version {
        return Err(Error::Damaged {
            what: reference.version,
            reason: format!("the registry sent {}", target.digest),
        });
    }
    if let Ok(index) = serde_json::from_slice::<Index>(&bytes) {
        let chosen = super::ours(index.manifests, &reference.name)?;
        let bytes = session.manifest(&chosen.digest).await?;
        target = keep(blobs, &bytes, Some(&chosen.digest))?;
    }
    let bytes = std::fs::read(blobs.path(&target.digest)?)
        .map_err(|error| Error::Io { doing: "reading a manifest", error })?;
    let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|error| Error::Damaged {
        what: target.digest.clone(),
        reason: error.to_string(),
    })?;
    let sizes = manifest.layers.iter().map(|layer| layer.size);
    let size = sizes.fold(manifest.config.size, u64::saturating_add);
    if size > limit {
        return Err(super::too_large(limit));
    }
    for part in [&manifest.config].into_iter().chain(&manifest.layers) {
        session.blob(blobs, part).await?;
    }
    Ok(Named { name: reference.name, target })
}

fn keep(blobs: &Blobs, bytes: &[u8], expected: Option<&str>) -> Result<Descriptor> {
    let digest = super::digest_of(bytes);
    blobs.add(expected.unwrap_or(&digest), bytes)?;
    let media_type = serde_json::from_slice::<Typed>(bytes).map(|t| t.media_type).ok().flatten();
    Ok(Descriptor {
        media_type: media_type.unwrap_or_else(|| MANIFEST[0].to_owned()),
        digest,
        size: bytes.len() as u64,
        ..Descriptor::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Typed {
    media_type: Option<String>,
}

enum Authorization {
    None,
    Basic,
    Bearer(Zeroizing<String>),
}

struct Session<'a> {
    fetcher: Fetcher,
    own: &'a (dyn Fn(&str) -> bool + Sync),
    base: String,
    credentials: Option<Credentials>,
    authorization: Authorization,
}

impl Session<'_> {
    async fn manifest(&mut self, version: &str) -> Result<Vec<u8>> {
        let accept = [MANIFEST, INDEX].concat().join(", ");
        let url = format!("{}/manifests/{version}", self.base);
        let response = self.get(&url, &accept).await?;
        let limit = usize::try_from(LARGEST_DOCUMENT).unwrap_or(usize::MAX);
        read(response, limit).await.map_err(|failure| match failure {
            Failure::Unusable(_) => Error::Registry {
                code: Code::ResourceExhausted,
                reason: "the manifest is larger than 4 MiB".into(),
            },
            other => failed(&other),
        })
    }

    async fn blob(&mut self, blobs: &Blobs, descriptor: &Descriptor) -> Result<()> {
        if blobs.has(&descriptor.digest)? && (self.own)(&descriptor.digest) {
            return Ok(());
        }
        let url = format!("{}/blobs/{}", self.base, descriptor.digest);
        let mut response = self.get(&url, "*/*").await?;
        let mut room = blobs.room();
        room.check(descriptor.size)?;
        let mut writer = blobs.writer(&descriptor.digest)?;
        let mut left = descriptor.size;
        let cut = |error| Error::Registry { code: Code::Unavailable, reason: root_cause(&error) };
        while let Some(piece) = response.chunk().await.map_err(|error| cut(error.without_url()))? {
            left = left.checked_sub(piece.len() as u64).ok_or_else(|| Error::Damaged {
                what: descriptor.digest.clone(),
                reason: format!("it is larger than the {} bytes promised", descriptor.size),
            })?;
            room.wrote(piece.len() as u64)?;
            writer = tokio::task::spawn_blocking(move || {
                writer.write(&piece)?;
                Ok::<_, Error>(writer)
            })
            .await
            .map_err(|error| Error::state(error.to_string()))??;
        }
        writer.finish()
    }

    /// Asks, and once more with what the registry wants to see first.
    async fn get(&mut self, url: &str, accept: &str) -> Result<Response> {
        let response = self.send(url, accept).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return checked(response).await;
        }
        let challenge = response
            .headers()
            .get(WWW_AUTHENTICATE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        self.authorization = self.authorize(&challenge).await?;
        checked(self.send(url, accept).await?).await
    }

    async fn send(&self, url: &str, accept: &str) -> Result<Response> {
        let accept = HeaderValue::from_str(accept).map_err(|_| bad_header())?;
        let request = Request::get(url).header(ACCEPT, accept);
        let request = match &self.authorization {
            Authorization::None => request,
            Authorization::Basic => self.basic(request)?,
            Authorization::Bearer(token) => {
                authorized(request, &Zeroizing::new(format!("Bearer {}", token.as_str())))?
            }
        };
        self.fetcher.send(request).await.map_err(|failure| failed(&failure))
    }

    fn basic(&self, request: Request) -> Result<Request> {
        let Some(own) = &self.credentials else { return Ok(request) };
        let pair = Zeroizing::new(format!("{}:{}", own.user, own.password.as_str()));
        authorized(request, &Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes()))))
    }

    async fn authorize(&self, challenge: &str) -> Result<Authorization> {
        let denied = || Error::Registry {
            code: Code::Unauthenticated,
            reason: "it wants credentials that were not given".into(),
        };
        let (scheme, parameters) = challenge.split_once(' ').unwrap_or((challenge, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return if self.credentials.is_some() {
                Ok(Authorization::Basic)
            } else {
                Err(denied())
            };
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(denied());
        }
        let realm = parameter(parameters, "realm").ok_or_else(denied)?;
        let mut realm = url::Url::parse(realm).map_err(|_| denied())?;
        // A registry that is asked over TLS does not get the password by way of
        // somebody who is not.
        if self.base.starts_with("https://") && realm.scheme() != "https" {
            return Err(denied());
        }
        for name in ["service", "scope"] {
            if let Some(value) = parameter(parameters, name) {
                realm.query_pairs_mut().append_pair(name, value);
            }
        }
        let request = self.basic(Request::get(realm.as_str()))?;
        let response = self.fetcher.send(request).await.map_err(|failure| failed(&failure))?;
        let reply = read(checked(response).await?, MAX_TOKEN_REPLY).await;
        let reply = Zeroizing::new(reply.map_err(|failure| failed(&failure))?);
        let token: Token = serde_json::from_slice(&reply).map_err(|_| denied())?;
        let token = token.token.or(token.access_token).ok_or_else(denied)?;
        Ok(Authorization::Bearer(Zeroizing::new(token)))
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// The value of `name="value"` in a challenge.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = parameters;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"')?;
        if key.trim_matches([' ', ',']).eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after;
    }
    None
}

/// Any bytes as a reply of a registry, or as the name of an image.
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = serde_json::from_slice::<Token>(bytes);
    let _ = serde_json::from_slice::<Typed>(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for name in ["realm", "service", "scope"] {
        assert!(parameter(text, name).is_none_or(|value| text.contains(value)));
    }
    if let Ok(reference) = Reference::parse(text) {
        let url = url::Url::parse(&reference.base(false));
        assert!(url.is_ok_and(|url| url.path().starts_with("/v2/")), "{text}");
        // What it is called is the same image.
        assert_eq!(Reference::parse(&reference.name).ok().as_ref(), Some(&reference), "{text}");
    }
}

async fn checked(response: Response) -> Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        status if status.is_server_error() => Code::Unavailable,
        _ => Code::FailedPrecondition,
    };
    // Whoever gives tokens, or keeps layers, may be another host.
    let url = response.url();
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let mut reason = format!("{host}{}: {status}", url.path());
    for word in own_words(response).await {
        reason += &format!(": {word}");
    }
    Err(Error::Registry { code, reason })
}

/// Errors that a registry names, as the protocol has them.
async fn own_words(mut response: Response) -> Vec<String> {
    #[derive(Deserialize)]
    struct Said {
        errors: Vec<Wrong>,
    }
    #[derive(Deserialize)]
    struct Wrong {
        message: String,
    }
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() > MOST_WORDS {
            return Vec::new();
        }
    }
    let said =
        serde_json::from_slice::<Said>(&body).map_or_else(|_| Vec::new(), |said| said.errors);
    said.into_iter().map(|wrong| wrong.message).collect()
}

fn authorized(request: Request, value: &str) -> Result<Request> {
    let mut value = HeaderValue::from_str(value).map_err(|_| bad_header())?;
    value.set_sensitive(true);
    Ok(request.header(AUTHORIZATION, value))
}

fn bad_header() -> Error {
    let reason = "a token or password has letters that no header can have".into();
    Error::Registry { code: Code::FailedPrecondition, reason }
}

fn failed(failure: &Failure) -> Error {
    Error::Registry { code: failure.code(), reason: failure.to_string() }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn references_are_filled_in() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, name) in [
            ("busybox", "docker.io/library/busybox:latest".to_owned()),
            ("a/b:1", "docker.io/a/b:1".to_owned()),
            ("localhost/busybox:1", "localhost/busybox:1".to_owned()),
            ("localhost:5000/x/y", "localhost:5000/x/y:latest".to_owned()),
            (&format!("quay.io/x@{digest}"), format!("quay.io/x@{digest}")),
            (&format!("quay.io/x:tag@{digest}"), format!("quay.io/x@{digest}")),
        ] {
            assert_eq!(Reference::parse(text).unwrap().name, name, "{text}");
        }
    }

    #[test]
    fn bad_references_are_refused() {
        for text in [
            "",
            "a b",
            "../x",
            "host.io/../x",
            "x:",
            "UPPER",
            "x@sha256:12",
            "a\nb",
            "x//y",
            "h.io/",
            "[:5000/x",
            "h.io:99999/x",
        ] {
            assert_eq!(
                Reference::parse(text).unwrap_err().code(),
                Code::InvalidArgument,
                "{text:?}"
            );
        }
    }

    #[test]
    fn challenges() {
        let text = r#"realm="https://auth/x",service="reg",scope="repository:a/b:pull""#;
        assert_eq!(parameter(text, "realm"), Some("https://auth/x"));
        assert_eq!(parameter(text, "scope"), Some("repository:a/b:pull"));
        assert_eq!(parameter(text, "error"), None);
        assert_eq!(parameter("realm=\"unclosed", "realm"), None);
    }
}
