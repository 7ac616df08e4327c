//! Logging in through an OpenID Connect provider: authorization code with
//! PKCE, and an ID token that is checked here. No token ever appears in a
//! URL.

mod fetch;
mod flow;
mod id_token;
mod pending;
mod people;
mod program;
mod provider;

use std::sync::Arc;

use jiff::Timestamp;
use url::Url;

use crate::{
    error::{Error, Result},
    options::Options,
};

pub(crate) use flow::{Arrival, Callback, Entrance};
pub(crate) use pending::LIFETIME as LOGIN_LIFETIME;
use pending::PendingLogins;
use program::Codes;
pub(crate) use program::{Program, ProgramQuery};
use provider::Provider;

/// Why a login did not work, as the browser is told. The words are fixed:
/// nothing that a provider sends is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The callback lacks what it needs.
    InvalidRequest,
    /// The login was not begun by this browser, or too long ago.
    InvalidState,
    /// There is no provider of that name.
    InvalidProvider,
    /// The provider does not answer, or not as it should.
    ProviderFailed,
    /// The user or the provider said no.
    Denied,
    /// The ID token does not hold.
    TokenInvalid,
    /// The user is known to the provider and not let in here.
    NotAllowed,
    /// Another user has that name here.
    AccountConflict,
    /// We failed.
    InternalError,
}

impl Reason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidState => "invalid_state",
            Self::InvalidProvider => "invalid_provider",
            Self::ProviderFailed => "provider_failed",
            Self::Denied => "denied",
            Self::TokenInvalid => "token_invalid",
            Self::NotAllowed => "not_allowed",
            Self::AccountConflict => "account_conflict",
            Self::InternalError => "internal_error",
        }
    }
}

/// A login that did not work: what the browser is told, and what the log is.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
}

impl Refusal {
    fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// The providers, and the logins under way.
pub(crate) struct Oidc {
    providers: Vec<Arc<Provider>>,
    pending: PendingLogins,
    codes: Codes,
    public_url: Option<Url>,
}

impl Oidc {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        if !options.oidc.is_empty() && options.public_url.is_none() {
            return Err(Error::settings("public_url", "needed for OIDC"));
        }
        let mut providers: Vec<Arc<Provider>> = Vec::new();
        for settings in &options.oidc {
            let provider = Provider::new(settings, Arc::clone(&options.clock))?;
            if providers.iter().any(|known| known.name == provider.name) {
                let key = format!("oidc.{}", provider.name);
                return Err(Error::settings(key, "there are two of that name"));
            }
            providers.push(Arc::new(provider));
        }
        Ok(Self {
            providers,
            pending: PendingLogins::default(),
            codes: Codes::default(),
            public_url: options.public_url.clone(),
        })
    }

    fn provider(&self, name: &str) -> Option<Arc<Provider>> {
        self.providers.iter().find(|provider| provider.name == name).cloned()
    }

    /// Name and label of each provider.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.providers.iter().map(|provider| (provider.name.as_str(), provider.label.as_str()))
    }

    /// Name and label of each provider, and where a browser begins.
    pub(crate) fn entrances(&self) -> Vec<(String, String, String)> {
        let base = self.public_url.as_ref().map_or("", |url| url.as_str().trim_end_matches('/'));
        let entrance = |(name, label): (&str, &str)| {
            (name.to_owned(), label.to_owned(), format!("{base}/auth/oidc/{name}/login"))
        };
        self.names().map(entrance).collect()
    }

    /// The providers in a sentence.
    pub(crate) fn labels(&self) -> String {
        self.names().map(|(_, label)| label).collect::<Vec<_>>().join(" or ")
    }

    pub(crate) fn tidy(&self, now: Timestamp) {
        self.pending.tidy(now);
    }
}
