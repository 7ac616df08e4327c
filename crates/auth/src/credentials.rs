//! Tokens and certificates that people hand to programs. Each acts in its
//! owner's name and never does more than the owner may at that moment.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use selvage_api::selvage::identity as wire;
use selvage_kit::{
    identity::{Delegation, Form, Grant, Identity, Kind, Role, covers},
    pki,
};
use selvage_store::{Stored, transact};
use zeroize::Zeroizing;

use crate::{
    Auth, SignError,
    caller::Caller,
    clock::{self, since},
    error::{Error, Result},
    machines, names,
    records::{self, Credential, User, from_millis},
    secrets,
};

/// Lifetimes in seconds, shortest, usual and longest.
struct Lifetimes(u32, u32, u32);

const DAY: u32 = 24 * 60 * 60;
const OF_TOKENS: Lifetimes = Lifetimes(60, 30 * DAY, 366 * DAY);
const OF_CERTIFICATES: Lifetimes = Lifetimes(60, DAY / 2, 7 * DAY);
/// Credentials of one user.
const MOST: usize = 64;
/// Methods to which one is limited.
const MOST_METHODS: usize = 64;
/// Uses closer to each other than this are written down once.
const TOUCH_STEP: Duration = Duration::from_secs(60);
/// Expired ones are listed for so long, so that one sees why a program fails.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Entry of a list of methods that opens the pages of metrics.
const METRICS: &str = selvage_kit::identity::METRICS_PAGES;

pub(crate) type StoredCredential = Arc<Stored<Credential>>;

/// Input of a new token or certificate.
pub(crate) struct NewCredential {
    pub(crate) name: String,
    pub(crate) username: String,
    pub(crate) grants: Vec<wire::Grant>,
    pub(crate) methods: Vec<String>,
    pub(crate) ttl_seconds: u32,
}

/// A new certificate with what it takes to use it.
pub(crate) struct NewCertificate {
    pub(crate) credential: Credential,
    pub(crate) certificate: String,
    pub(crate) ca: String,
}

impl Auth {
    /// Makes a token; gives its text, which is kept nowhere.
    pub(crate) async fn create_token(
        &self,
        caller: &Caller,
        asked: NewCredential,
    ) -> Result<(Credential, Zeroizing<String>)> {
        let token = secrets::new_api_token();
        let mut record = self.draft(caller, asked, Form::Token, &OF_TOKENS)?;
        record.digest = secrets::api_digest(&token).unwrap_or_default();
        self.keep(&record).await?;
        Ok((record, token))
    }

    /// Signs the key of a request in a person's name.
    pub(crate) async fn create_certificate(
        &self,
        caller: &Caller,
        asked: NewCredential,
        csr: &str,
    ) -> Result<NewCertificate> {
        machines::check_csr(csr)?;
        let mut record = self.draft(caller, asked, Form::Certificate, &OF_CERTIFICATES)?;
        let lifetime = since(from_millis(record.expires_at), from_millis(record.created_at));
        let authority = self.authority()?;
        let signed = authority.sign_person(csr, &record.full_name(), lifetime);
        let signed = signed.map_err(machines::refused_request)?;
        let failed = |error| Error::Signing(Box::new(SignError::Failed(Box::new(error))));
        record.digest = pki::certificate_sha256(&signed.certificate_pem).map_err(failed)?;
        record.expires_at = record.expires_at.min(signed.not_after.as_millisecond());
        self.keep(&record).await?;
        let (certificate, ca) = (signed.certificate_pem, authority.ca_pem());
        Ok(NewCertificate { credential: record, certificate, ca })
    }

    /// The record of what was asked for, checked but for its owner's grants.
    fn draft(
        &self,
        caller: &Caller,
        asked: NewCredential,
        form: Form,
        lifetimes: &Lifetimes,
    ) -> Result<Credential> {
        names::check_username("name", &asked.name)?;
        let grants = names::grants_from_wire("grants", &asked.grants)?;
        if grants.is_empty() {
            return Err(Error::invalid("grants", "at least one is needed"));
        }
        check_methods(&asked.methods)?;
        let Lifetimes(shortest, usual, longest) = *lifetimes;
        let ttl = if asked.ttl_seconds == 0 { usual } else { asked.ttl_seconds };
        if !(shortest..=longest).contains(&ttl) {
            let reason = format!("{shortest} to {longest}");
            return Err(Error::invalid("ttl_seconds", reason));
        }
        let now = self.now();
        let mut record = Credential {
            id: records::new_id(),
            form: form.name().into(),
            name: asked.name,
            username: asked.username,
            methods: asked.methods,
            created_at: now.as_millisecond(),
            expires_at: clock::after(now, Duration::from_secs(ttl.into())).as_millisecond(),
            created_by: caller.identity.name.clone(),
            ..Credential::default()
        };
        record.set_grants(&grants);
        Ok(record)
    }

    /// Writes a new one down, provided that its owner holds its grants at that
    /// very moment and has none of the same name.
    async fn keep(&self, record: &Credential) -> Result<()> {
        let others = self.inner.credentials.by_index("user", &record.username);
        if others.iter().any(|other| other.value.name == record.name) {
            return Err(Error::CredentialExists(record.full_name()));
        }
        if others.len() >= MOST {
            return Err(Error::TooManyCredentials {
                username: record.username.clone(),
                most: MOST,
            });
        }
        let kept = transact(&self.inner.store, |tx| async move {
            let owner = tx.get::<User>(&record.username).await?;
            let owner = owner.ok_or_else(|| Error::UserNotFound(record.username.clone()))?;
            require_held(&owner, &record.grants())?;
            let record = Credential { owner_since: owner.created_at, ..record.clone() };
            tx.put(&record)?;
            Ok::<(), Error>(())
        });
        self.inner.credentials.wait_for(kept.await?.revision).await?;
        Ok(())
    }

    /// Identity of a token or certificate by its digest; the error tells its
    /// holder why it does not count any more.
    pub(crate) async fn identify_delegate(&self, digest: &str, form: Form) -> Result<Identity> {
        let found = self.inner.credentials.get(digest);
        let found = found.filter(|found| found.value.form == form.name());
        let found = found.ok_or(Error::CredentialUnknown(form.name()))?;
        let identity = self.delegate(&found.value, form)?;
        self.touch_credential(&found).await;
        Ok(identity)
    }

    /// The same by its id.
    pub(crate) async fn identify_credential(&self, id: &str, form: Form) -> Result<Identity> {
        let found = self.credential_by_id(id).ok_or(Error::CredentialUnknown(form.name()))?;
        self.identify_delegate(&found.key, form).await
    }

    pub(crate) fn is_live_api_token(&self, digest: &str) -> bool {
        let found = self.inner.credentials.get(digest);
        found.is_some_and(|found| self.delegate(&found.value, Form::Token).is_ok())
    }

    fn delegate(&self, record: &Credential, form: Form) -> Result<Identity> {
        if self.now().as_millisecond() >= record.expires_at {
            let ended = from_millis(record.expires_at);
            return Err(Error::CredentialExpired { form: form.name(), ended });
        }
        let owner = self.inner.users.get(&record.username).filter(|owner| {
            // Another person of the same name is not its owner.
            !owner.value.disabled && owner.value.created_at == record.owner_since
        });
        let held = owner.map(|owner| owner.value.grants()).unwrap_or_default();
        let grants: Vec<Grant> =
            record.grants().into_iter().filter(|grant| holds(&held, grant)).collect();
        if grants.is_empty() {
            return Err(Error::CredentialVoid(form.name()));
        }
        let limits = Delegation {
            form,
            id: record.id.clone(),
            expires: from_millis(record.expires_at).as_second(),
            methods: record.methods.clone(),
        };
        Ok(Identity { name: record.full_name(), kind: Kind::Delegate(Arc::new(limits)), grants })
    }

    /// Writes the use down, at most once a minute. That it cannot be written is
    /// no reason to refuse the call.
    async fn touch_credential(&self, found: &Stored<Credential>) {
        let now = self.now();
        if since(now, from_millis(found.value.last_used_at)) < TOUCH_STEP {
            return;
        }
        let now = now.as_millisecond();
        let table = &self.inner.credentials;
        self.write_use(table, &found.key, |record: &mut Credential| {
            record.last_used_at = record.last_used_at.max(now);
        })
        .await;
    }

    /// Those of a user, or of all, sorted by owner and name.
    pub(crate) fn list_credentials(&self, username: Option<&str>) -> Vec<StoredCredential> {
        let mut found = match username {
            Some(name) => self.inner.credentials.by_index("user", name),
            None => self.inner.credentials.list(),
        };
        found.sort_by(|a, b| {
            let order = |it: &Credential| (it.username.clone(), it.name.clone(), it.id.clone());
            order(&a.value).cmp(&order(&b.value))
        });
        found
    }

    pub(crate) fn credential_by_id(&self, id: &str) -> Option<StoredCredential> {
        self.inner.credentials.by_index("id", id).pop()
    }

    pub(crate) async fn delete_credentials(&self, keys: Vec<String>) -> Result<()> {
        self.delete_all(&self.inner.credentials, keys).await
    }

    /// Removes those that expired long ago and those whose owner is gone.
    pub(crate) async fn sweep_credentials(&self) -> Result<usize> {
        let now = self.now();
        let gone: Vec<String> = self
            .inner
            .credentials
            .list()
            .iter()
            .filter(|found| self.is_done_with(&found.value, now))
            .map(|found| found.key.clone())
            .collect();
        let count = gone.len();
        self.delete_credentials(gone).await?;
        Ok(count)
    }

    fn is_done_with(&self, record: &Credential, now: Timestamp) -> bool {
        let expired = since(now, from_millis(record.expires_at)) >= REMEMBERED;
        // Our view of users may lag behind that of credentials.
        let settled = since(now, from_millis(record.created_at)) >= REMEMBERED;
        let owner = self.inner.users.get(&record.username);
        let owned = owner.is_some_and(|owner| owner.value.created_at == record.owner_since);
        expired || (settled && !owned)
    }
}

/// Returns whether somebody with these grants has this one: administrators have
/// all.
fn holds(held: &[Grant], grant: &Grant) -> bool {
    held.iter().any(|own| own.role == Role::Admin || own == grant)
}

fn require_held(owner: &User, grants: &[Grant]) -> Result<()> {
    let held = if owner.disabled { Vec::new() } else { owner.grants() };
    match grants.iter().find(|grant| !holds(&held, grant)) {
        None => Ok(()),
        Some(grant) => {
            let of = if grant.organisation.is_empty() { "" } else { ":" };
            let (owner, role, organisation) = (&owner.username, grant.role, &grant.organisation);
            Err(Error::Denied(format!("grants: {owner} does not hold {role}{of}{organisation}")))
        }
    }
}

fn check_methods(methods: &[String]) -> Result<()> {
    if methods.len() > MOST_METHODS {
        return Err(Error::invalid("methods", format!("at most {MOST_METHODS}")));
    }
    let known = |entry: &str| {
        entry == METRICS || selvage_api::methods().iter().any(|method| covers(entry, &method.path))
    };
    match methods.iter().find(|entry| !known(entry)) {
        None => Ok(()),
        Some(entry) => {
            let entry: String = entry.chars().take(200).collect();
            let reason = format!(
                "{entry:?} is no method: write package.Service/Method, package.Service/* or \
                 {METRICS}"
            );
            Err(Error::invalid("methods", reason))
        }
    }
}

impl Credential {
    /// Name under which it acts: that of its owner and its own.
    pub(crate) fn full_name(&self) -> String {
        format!("{}+{}", self.username, self.name)
    }

    pub(crate) fn to_wire(&self) -> wire::Credential {
        let time = |millis| Some(clock::to_wire(from_millis(millis)));
        wire::Credential {
            id: self.id.clone(),
            kind: self.form.clone(),
            name: self.name.clone(),
            username: self.username.clone(),
            grants: names::grants_to_wire(&self.grants()),
            methods: self.methods.clone(),
            created_at: time(self.created_at),
            expires: time(self.expires_at),
            last_used_at: if self.last_used_at == 0 { None } else { time(self.last_used_at) },
            created_by: self.created_by.clone(),
        }
    }
}
