//! One provider: what it says about itself, its keys, and trading codes for
//! tokens.

use std::{fs, sync::Arc, time::Duration};

use jiff::Timestamp;
use jsonwebtoken::{DecodingKey, jwk::Jwk};
use reqwest::Client;
use selvage_kit::{
    clock::Clock,
    identity::{Grant, Secret},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use url::{Host, Url};

use super::{
    Reason, Refusal, fetch,
    id_token::{self, Claims, Expected, TokenError},
    pending::PendingLogin,
};
use crate::{
    clock,
    error::{Error, Result},
    names,
    options::OidcProvider,
    secrets,
};

/// Time for which a provider's metadata is believed.
const METADATA_MAX_AGE: Duration = Duration::from_secs(60 * 60);
/// Time for which a failure to reach it is remembered rather than repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest interval between fetches of keys because of one that is not known.
const KEYS_REFETCH_INTERVAL: Duration = Duration::from_secs(10);

/// A provider with its settings read and checked.
pub(crate) struct Provider {
    pub(crate) name: String,
    pub(crate) label: String,
    pub(crate) settings: OidcProvider,
    pub(crate) group_grants: Vec<(String, Grant)>,
    pub(crate) default_grants: Vec<Grant>,
    secret: Option<Secret>,
    issuer: Url,
    client: Client,
    clock: Arc<dyn Clock>,
    known: Mutex<ProviderCache>,
}

#[derive(Default)]
struct ProviderCache {
    metadata: Option<(Metadata, Timestamp)>,
    failed: Option<(String, Timestamp)>,
    keys: Option<(Vec<Jwk>, Timestamp)>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Metadata {
    issuer: String,
    authorization_endpoint: Url,
    token_endpoint: Url,
    jwks_uri: Url,
    userinfo_endpoint: Option<Url>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
    #[serde(default)]
    access_token: String,
}

impl Provider {
    pub(crate) fn new(settings: &OidcProvider, clock: Arc<dyn Clock>) -> Result<Self> {
        let name = &settings.name;
        let key = format!("oidc.{name}");
        let sound = (1..=32).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !sound || name == crate::records::PASSWORD_SOURCE {
            let reason = "must be 1 to 32 small letters, digits and -, and not \"password\"";
            return Err(Error::settings(format!("{key}.name"), reason));
        }
        for (field, text) in [("client_id", &settings.client_id), ("issuer", &settings.issuer)] {
            if text.is_empty() {
                return Err(Error::settings(format!("{key}.{field}"), "must not be empty"));
            }
        }
        let (group_grants, default_grants) = read_grants(&key, settings)?;
        Ok(Self {
            name: name.clone(),
            label: if settings.label.is_empty() { name.clone() } else { settings.label.clone() },
            secret: read_secret(&key, settings)?,
            issuer: read_issuer(&key, &settings.issuer)?,
            client: fetch::client(&key, settings.ca_file.as_deref())?,
            settings: settings.clone(),
            group_grants,
            default_grants,
            clock,
            known: Mutex::default(),
        })
    }

    /// Address at which the browser logs in.
    pub(crate) async fn login_url(
        &self,
        state: &str,
        login: &PendingLogin,
    ) -> Result<Url, Refusal> {
        let mut url = self.metadata().await?.authorization_endpoint;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("redirect_uri", &login.redirect_uri)
            .append_pair("scope", &self.settings.scopes.join(" "))
            .append_pair("state", state)
            .append_pair("nonce", &login.nonce)
            .append_pair("code_challenge", &secrets::s256(&login.verifier))
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Trades the code for an ID token and checks it.
    pub(crate) async fn claims(&self, code: &str, login: &PendingLogin) -> Result<Claims, Refusal> {
        let metadata = self.metadata().await?;
        let tokens = self.exchange(&metadata, code, login).await?;
        let expected = Expected {
            issuer: &metadata.issuer,
            client_id: &self.settings.client_id,
            nonce: &login.nonce,
            now: self.clock.now(),
        };
        let mut claims = self.verify(&metadata, &tokens.id_token, &expected).await?;
        if self.needs_more(&claims)
            && let Some(endpoint) = &metadata.userinfo_endpoint
        {
            let request = self.client.get(endpoint.clone()).bearer_auth(&tokens.access_token);
            let more: Claims = fetch::json("user info", request).await?;
            merge(&mut claims, more)?;
        }
        Ok(claims)
    }

    async fn verify(
        &self,
        metadata: &Metadata,
        token: &str,
        expected: &Expected<'_>,
    ) -> Result<Claims, Refusal> {
        let mut outcome = id_token::verify(token, &self.keys(metadata, false).await?, expected);
        if outcome == Err(TokenError::UnknownKey) {
            outcome = id_token::verify(token, &self.keys(metadata, true).await?, expected);
        }
        outcome.map_err(|error| Refusal::new(Reason::TokenInvalid, error.to_string()))
    }

    /// Returns whether claims that the settings need are not in the ID token.
    fn needs_more(&self, claims: &Claims) -> bool {
        let groups_matter =
            !self.group_grants.is_empty() || !self.settings.allowed_groups.is_empty();
        !claims.contains_key(&self.settings.username_claim)
            || (groups_matter && !claims.contains_key(&self.settings.groups_claim))
    }

    async fn exchange(
        &self,
        metadata: &Metadata,
        code: &str,
        login: &PendingLogin,
    ) -> Result<Tokens, Refusal> {
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &login.redirect_uri),
            ("code_verifier", &login.verifier),
        ];
        let mut request = self.client.post(metadata.token_endpoint.clone());
        // Where a provider does not say, the standard says basic.
        let methods = metadata.token_endpoint_auth_methods_supported.as_ref();
        let basic =
            methods.is_none_or(|known| known.iter().any(|name| name == "client_secret_basic"));
        match &self.secret {
            Some(secret) if basic => {
                request = request
                    .basic_auth(encoded(&self.settings.client_id), Some(encoded(secret.expose())));
            }
            Some(secret) => {
                form.push(("client_id", &self.settings.client_id));
                form.push(("client_secret", secret.expose()));
            }
            None => form.push(("client_id", &self.settings.client_id)),
        }
        fetch::json("token", request.form(&form)).await
    }

    async fn metadata(&self) -> Result<Metadata, Refusal> {
        let mut known = self.known.lock().await;
        if let Some((metadata, at)) = &known.metadata
            && self.is_younger(*at, METADATA_MAX_AGE)
        {
            return Ok(metadata.clone());
        }
        if let Some((detail, at)) = &known.failed
            && self.is_younger(*at, RETRY_INTERVAL)
        {
            return Err(Refusal::new(Reason::ProviderFailed, detail.clone()));
        }
        match self.discover().await {
            Ok(metadata) => {
                known.metadata = Some((metadata.clone(), self.clock.now()));
                known.failed = None;
                Ok(metadata)
            }
            Err(refusal) => {
                known.failed = Some((refusal.detail.clone(), self.clock.now()));
                Err(refusal)
            }
        }
    }

    /// A time that lies ahead is not young: the clock was set back meanwhile.
    fn is_younger(&self, at: Timestamp, limit: Duration) -> bool {
        let now = self.clock.now();
        at <= now && clock::since(now, at) < limit
    }

    async fn discover(&self) -> Result<Metadata, Refusal> {
        let base = self.settings.issuer.trim_end_matches('/');
        let url = format!("{base}/.well-known/openid-configuration");
        let metadata: Metadata = fetch::json("discovery", self.client.get(url)).await?;
        let wrong = |detail: &str| Err(Refusal::new(Reason::ProviderFailed, detail));
        if metadata.issuer != self.settings.issuer {
            return wrong("discovery: the document is of another issuer");
        }
        let endpoints = [
            Some(&metadata.authorization_endpoint),
            Some(&metadata.token_endpoint),
            Some(&metadata.jwks_uri),
            metadata.userinfo_endpoint.as_ref(),
        ];
        // An issuer that we reach in the clear is on this very machine, and
        // so are its endpoints.
        let encrypted = self.issuer.scheme() == "https";
        let sound = |url: &Url| url.scheme() == "https" || (!encrypted && is_loopback(url));
        if !endpoints.into_iter().flatten().all(sound) {
            return wrong("discovery: an endpoint is not https");
        }
        Ok(metadata)
    }

    /// The provider's keys; `again` when one was not among them.
    async fn keys(&self, metadata: &Metadata, again: bool) -> Result<Vec<Jwk>, Refusal> {
        let mut known = self.known.lock().await;
        let limit = if again { KEYS_REFETCH_INTERVAL } else { METADATA_MAX_AGE };
        if let Some((keys, at)) = &known.keys
            && self.is_younger(*at, limit)
        {
            return Ok(keys.clone());
        }
        let request = self.client.get(metadata.jwks_uri.clone());
        let mut document: Value = fetch::json("keys", request).await?;
        let list = match document.get_mut("keys").map(Value::take) {
            Some(Value::Array(list)) => list,
            _ => return Err(Refusal::new(Reason::ProviderFailed, "keys: there is no list")),
        };
        // A key of a kind that we do not know must not hide the others.
        let keys: Vec<Jwk> = list
            .into_iter()
            .filter_map(|key| serde_json::from_value::<Jwk>(key).ok())
            .filter(|key| DecodingKey::from_jwk(key).is_ok())
            .collect();
        known.keys = Some((keys.clone(), self.clock.now()));
        Ok(keys)
    }
}

/// Adds what the ID token did not say. The subject must be the same: user
/// info is not signed.
fn merge(claims: &mut Claims, more: Claims) -> Result<(), Refusal> {
    if id_token::text(&more, "sub") != id_token::text(claims, "sub") {
        let detail = "user info: it is about another subject";
        return Err(Refusal::new(Reason::TokenInvalid, detail));
    }
    for (name, value) in more {
        claims.entry(name).or_insert(value);
    }
    Ok(())
}

fn read_issuer(key: &str, text: &str) -> Result<Url> {
    let key = format!("{key}.issuer");
    let url = Url::parse(text).map_err(|error| Error::settings(&key, error.to_string()))?;
    if url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url)) {
        return Ok(url);
    }
    Err(Error::settings(key, "must be https, except on this very machine"))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

fn read_secret(key: &str, settings: &OidcProvider) -> Result<Option<Secret>> {
    let Some(path) = &settings.client_secret_file else {
        return Ok(settings.client_secret.clone());
    };
    let key = format!("{key}.client_secret_file");
    if settings.client_secret.is_some() {
        return Err(Error::settings(key, "cannot be given together with client_secret"));
    }
    let text = fs::read_to_string(path)
        .map_err(|error| Error::settings(key, format!("{}: {error}", path.display())))?;
    Ok(Some(Secret::new(text.trim())))
}

type Grants = (Vec<(String, Grant)>, Vec<Grant>);

fn read_grants(key: &str, settings: &OidcProvider) -> Result<Grants> {
    let parse = |field: &str, index: usize, role: &str, organisation: &str| {
        names::parse_grant(role, organisation)
            .map_err(|reason| Error::settings(format!("{key}.{field}[{index}]"), reason))
    };
    let mut by_group = Vec::new();
    for (index, grant) in settings.group_grants.iter().enumerate() {
        let read = parse("group_grants", index, &grant.role, &grant.organisation)?;
        by_group.push((grant.group.clone(), read));
    }
    let mut for_all = Vec::new();
    for (index, grant) in settings.default_grants.iter().enumerate() {
        for_all.push(parse("default_grants", index, &grant.role, &grant.organisation)?);
    }
    Ok((by_group, for_all))
}

/// Client credentials are form-encoded before they become basic auth (RFC
/// 6749, 2.3.1).
fn encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
