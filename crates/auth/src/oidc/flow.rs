//! The two ends of a login: sending the browser away, and taking it back.

use selvage_kit::identity::Peer;
use selvage_store::transact;
use serde::Deserialize;
use subtle::ConstantTimeEq;
use url::Url;
use zeroize::Zeroizing;

use super::{Program, Reason, Refusal, pending::PendingLogin, people::Person};
use crate::{
    Auth, audit,
    error::Error,
    limits::Network,
    records::User,
    secrets,
    sessions::{Carrier, NewSession},
};

/// By which of the two addresses the browser came; it is sent back by the
/// same, because that is the one that is registered with the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// `/auth/oidc/{provider}/…`
    Own,
    /// `/api/oauth2/…/{provider}`, which older installations have registered.
    Legacy,
}

/// Parameters that a provider sends back with the browser.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Callback {
    state: String,
    code: String,
    error: Option<String>,
    iss: Option<String>,
}

/// A browser on its way to the provider.
pub(crate) struct Departure {
    pub(crate) url: Url,
    /// The cookie by which it is known when it comes back.
    pub(crate) binding: Zeroizing<String>,
}

/// A browser that came back from the provider.
pub(crate) enum Arrival {
    /// With a session for our page.
    Page(NewSession),
    /// On its way to the program that sent it.
    Program(Url),
}

/// A login that did not work, and who waits for it.
pub(crate) struct Return {
    pub(crate) refusal: Refusal,
    pub(crate) program: Option<Program>,
}

/// Facts of a login that are known before its end.
#[derive(Default)]
struct LoginFacts {
    username: String,
    program: Option<Program>,
}

impl Auth {
    pub(crate) async fn begin_oidc(
        &self,
        name: &str,
        entrance: Entrance,
        program: Option<Program>,
        peer: Option<&Peer>,
    ) -> Result<Departure, Refusal> {
        let outcome = self.try_begin_oidc(name, entrance, program, peer).await;
        if let Err(refusal) = &outcome {
            report(refusal, "", peer, name);
        }
        outcome
    }

    async fn try_begin_oidc(
        &self,
        name: &str,
        entrance: Entrance,
        program: Option<Program>,
        peer: Option<&Peer>,
    ) -> Result<Departure, Refusal> {
        let oidc = &self.inner.oidc;
        let unknown = || Refusal::new(Reason::InvalidProvider, "no such provider");
        let provider = oidc.provider(name).ok_or_else(unknown)?;
        let public_url = oidc.public_url.as_ref().ok_or_else(unknown)?;
        let path = match entrance {
            Entrance::Own => format!("/auth/oidc/{name}/callback"),
            Entrance::Legacy => format!("/api/oauth2/callback/{name}"),
        };
        let (state, binding) = (secrets::random_text(), secrets::random_text());
        let login = PendingLogin {
            provider: name.to_owned(),
            nonce: secrets::random_text(),
            verifier: secrets::random_text(),
            binding_digest: secrets::sha256_hex(&binding),
            redirect_uri: format!("{}{path}", public_url.as_str().trim_end_matches('/')),
            program,
            network: Network::of_peer(peer),
            started: self.now(),
        };
        let url = provider.login_url(&state, &login).await?;
        oidc.pending.insert(&state, login);
        Ok(Departure { url, binding })
    }

    pub(crate) async fn finish_oidc(
        &self,
        name: &str,
        callback: Callback,
        binding: Option<&str>,
        peer: Option<&Peer>,
    ) -> Result<Arrival, Return> {
        let mut seen = LoginFacts::default();
        let outcome = self.try_finish_oidc(name, callback, binding, peer, &mut seen).await;
        match outcome {
            Ok(arrival) => {
                if let Arrival::Page(session) = &arrival {
                    audit::login(&seen.username, peer, &session.id, name);
                }
                Ok(arrival)
            }
            Err(refusal) => {
                report(&refusal, &seen.username, peer, name);
                Err(Return { refusal, program: seen.program })
            }
        }
    }

    /// Trades the code of a program for a session.
    pub(crate) async fn finish_program(
        &self,
        code: &str,
        verifier: &str,
        peer: Option<&Peer>,
    ) -> Result<(NewSession, String), Error> {
        // Codes cannot be guessed; who tries all the same is slowed down.
        let attempt = self.inner.limiter.begin(None, peer).await?;
        let vouched = self.inner.oidc.codes.take(code, verifier, self.now());
        let Some(vouched) = vouched else {
            audit::login_refused("", peer, "wrong_code", "oidc");
            return Err(Error::LoginCode);
        };
        attempt.succeed();
        let username = vouched.person.username.clone();
        match self.admit(&vouched.provider, &vouched.person, peer, Carrier::Bearer).await {
            Ok(session) => {
                audit::login(&username, peer, &session.id, &vouched.provider);
                Ok((session, username))
            }
            Err(refusal) => {
                report(&refusal, &username, peer, &vouched.provider);
                Err(Error::Denied(refusal.to_string()))
            }
        }
    }

    async fn try_finish_oidc(
        &self,
        name: &str,
        callback: Callback,
        binding: Option<&str>,
        peer: Option<&Peer>,
        seen: &mut LoginFacts,
    ) -> Result<Arrival, Refusal> {
        let provider = self
            .inner
            .oidc
            .provider(name)
            .ok_or_else(|| Refusal::new(Reason::InvalidProvider, "no such provider"))?;
        let login = self.take_pending(name, &callback, binding)?;
        seen.program.clone_from(&login.program);
        if let Some(error) = &callback.error {
            let denied = error == "access_denied";
            let reason = if denied { Reason::Denied } else { Reason::ProviderFailed };
            return Err(Refusal::new(reason, format!("the provider said {}", audit::Clean(error))));
        }
        let other_issuer = callback.iss.is_some_and(|issuer| issuer != provider.settings.issuer);
        if callback.code.is_empty() || other_issuer {
            let detail = "the callback has no code, or is from another issuer";
            return Err(Refusal::new(Reason::InvalidRequest, detail));
        }
        let claims = provider.claims(&callback.code, &login).await?;
        let person = Person::from_claims(&provider, &claims)?;
        seen.username.clone_from(&person.username);
        let Some(program) = &login.program else {
            return self.admit(name, &person, peer, Carrier::Cookie).await.map(Arrival::Page);
        };
        let code = self.inner.oidc.codes.make(program, name, person, self.now());
        let place = code.and_then(|code| program.place("code", &code));
        let busy = || Refusal::new(Reason::InternalError, "too many logins of programs at once");
        place.map(Arrival::Program).ok_or_else(busy)
    }

    /// The login that this browser began.
    fn take_pending(
        &self,
        name: &str,
        callback: &Callback,
        binding: Option<&str>,
    ) -> Result<PendingLogin, Refusal> {
        let wrong = |detail| Refusal::new(Reason::InvalidState, detail);
        if callback.state.is_empty() {
            return Err(Refusal::new(Reason::InvalidRequest, "the callback has no state"));
        }
        let login = self
            .inner
            .oidc
            .pending
            .take(&callback.state, self.now())
            .ok_or_else(|| wrong("no such login is under way"))?;
        let digest = secrets::sha256_hex(binding.unwrap_or_default());
        let same_browser: bool = digest.as_bytes().ct_eq(login.binding_digest.as_bytes()).into();
        if login.provider != name || !same_browser {
            return Err(wrong("the login was begun elsewhere"));
        }
        Ok(login)
    }

    /// Makes or updates the user and opens a session, all at once.
    async fn admit(
        &self,
        provider: &str,
        person: &Person,
        peer: Option<&Peer>,
        carrier: Carrier,
    ) -> Result<NewSession, Refusal> {
        let session = self.new_session(peer, carrier);
        let new_session = &session;
        let done = transact(&self.inner.store, |tx| async move {
            let found = tx.get::<User>(&person.username).await?;
            let user = match self.updated_user(provider, person, found.as_ref()) {
                Ok(user) => user,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if found.as_ref() != Some(&user) {
                tx.put(&user)?;
            }
            self.add_session(&tx, &user, new_session).await?;
            Ok::<_, Error>(Ok(user))
        });
        let internal = |error: Error| Refusal::new(Reason::InternalError, error.to_string());
        let done = done.await.map_err(internal)?;
        let user = done.value?;
        self.show_login(done.revision, &user).await.map_err(internal)?;
        Ok(session)
    }

    fn updated_user(
        &self,
        provider: &str,
        person: &Person,
        found: Option<&User>,
    ) -> Result<User, Refusal> {
        let Some(found) = found else {
            let mut user = self.new_user(&person.username, provider);
            user.subject.clone_from(&person.subject);
            user.set_grants(&person.grants);
            return Ok(user);
        };
        if found.source != provider || found.subject != person.subject {
            let detail = "the username belongs to somebody else";
            return Err(Refusal::new(Reason::AccountConflict, detail));
        }
        if found.disabled {
            return Err(Refusal::new(Reason::NotAllowed, "the user is disabled"));
        }
        let mut user = found.clone();
        if user.grants() != person.grants {
            user.set_grants(&person.grants);
            user.renew_generation();
        }
        Ok(user)
    }
}

fn report(refusal: &Refusal, username: &str, peer: Option<&Peer>, provider: &str) {
    let via = audit::Clean(provider).to_string();
    tracing::warn!(provider = via, detail = %refusal, "login through a provider failed");
    audit::login_refused(username, peer, refusal.reason.word(), &via);
}
