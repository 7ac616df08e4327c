//! Certificates of machines: join tokens, signing and renewal.

use std::time::Duration;

use jiff::Timestamp;
use selvage_api::selvage::identity as wire;
use selvage_kit::identity::{Kind, Machine, Role};
use selvage_store::transact;
use zeroize::Zeroizing;

use crate::{
    Auth, CertificateAuthority, SignError, Signed, audit, blocking,
    caller::Caller,
    clock,
    error::{Error, Result},
    inventory, names,
    records::{Issue, JoinToken, Member, from_millis},
    secrets,
};

const DEFAULT_TTL: u32 = 60 * 60;
const MAX_TTL: u32 = 7 * 24 * 60 * 60;
/// A join token is remembered for so long after it expired, so that who
/// comes late is told that.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
const LET_IN: &str = "let machines in (an operator: cloudlet/<organisation>/<name> of their own)";
/// Larger than any request for a certificate.
const MAX_CSR: usize = 64 * 1024;

impl Auth {
    /// A token that is good for one certificate.
    pub(crate) async fn create_join_token(
        &self,
        caller: &Caller,
        asked: &wire::CreateJoinTokenRequest,
    ) -> Result<(Zeroizing<String>, Timestamp)> {
        let machine = names::check_machine("machine", &asked.machine)?;
        may_let_in(caller, &machine)?;
        let ttl = match asked.ttl_seconds {
            0 => DEFAULT_TTL,
            ttl @ 1..=MAX_TTL => ttl,
            _ => return Err(Error::invalid("ttl_seconds", format!("at most {MAX_TTL}"))),
        };
        inventory::check_names(&asked.names)?;
        let kind = asked.machine.split('/').next().unwrap_or_default();
        let token = secrets::new_join_token(kind, &self.authority()?.ca_sha256());
        let now = self.now();
        let expires = clock::after(now, Duration::from_secs(ttl.into()));
        let record = JoinToken {
            digest: secrets::join_digest(&token).unwrap_or_default(),
            machine: machine.to_string(),
            created_at: now.as_millisecond(),
            expires_at: expires.as_millisecond(),
            created_by: caller.identity.name.clone(),
            used_at: 0,
            names: asked.names.clone(),
        };
        self.inner.join_tokens.create(record).await?;
        Ok((token, expires))
    }

    /// Trades a join token for a certificate.
    pub(crate) async fn join(&self, caller: &Caller, token: &str, csr: &str) -> Result<Certified> {
        let outcome = self.try_join(caller, token, csr).await;
        match &outcome {
            Ok(certified) => audit::done("machine.join", caller, &certified.machine),
            Err(error) => audit::refused("machine.join", caller, "", error.class()),
        }
        outcome
    }

    async fn try_join(&self, caller: &Caller, token: &str, csr: &str) -> Result<Certified> {
        let digest = secrets::join_digest(token).ok_or(Error::JoinTokenUnknown)?;
        let now = self.now();
        let found = self.read_join_token(&digest).await?;
        check_usable(&found, now)?;
        // Signed before the token is burned, so that a request that cannot
        // be signed leaves the token good; a certificate that loses the race
        // for the token below is thrown away.
        let address = &inventory::address_of(caller.peer.as_ref());
        let certified = self.certify(csr, &found.machine, &found.names, address)?;
        let (digest, certified_ref) = (digest.as_str(), &certified);
        let issued = transact(&self.inner.store, |tx| async move {
            let mut token = tx.get::<JoinToken>(digest).await?.ok_or(Error::JoinTokenUnknown)?;
            check_usable(&token, now)?;
            blocking::require_unblocked(&tx, &token.machine).await?;
            token.used_at = now.as_millisecond();
            tx.put(&token)?;
            tx.put(&certified_ref.issue("join", now))?;
            inventory::remember(&tx, &token, address, now).await?;
            Ok::<(), Error>(())
        });
        self.inner.members.wait_for(issued.await?.revision).await?;
        Ok(certified)
    }

    async fn read_join_token(&self, digest: &str) -> Result<JoinToken> {
        let read = transact(&self.inner.store, |tx| async move {
            Ok::<_, Error>(tx.get::<JoinToken>(digest).await?)
        });
        read.await?.value.ok_or(Error::JoinTokenUnknown)
    }

    /// A new certificate for a machine that has shown a valid one.
    pub(crate) async fn renew(&self, caller: &Caller, csr: &str) -> Result<Certified> {
        let Some(machine) = &caller.machine else {
            let reason = "only a machine that shows its certificate may renew it";
            return Err(Error::Denied(reason.into()));
        };
        let machine = &machine.to_string();
        let shown = caller.certificate.as_deref().map(|shown| shown.pem_sha256.as_str());
        let outcome = self.try_renew(csr, machine, shown.unwrap_or_default()).await;
        match &outcome {
            Ok((certified, _)) => audit::done("machine.renew", caller, &certified.machine),
            Err(error) => audit::refused("machine.renew", caller, machine, error.class()),
        }
        if let Ok((_, true)) = outcome {
            audit::copy_suspected(caller, machine);
        }
        outcome.map(|(certified, _)| certified)
    }

    /// A new certificate, and whether the one that was shown is a copy: the
    /// machine had replaced it, and used the newer one.
    async fn try_renew(&self, csr: &str, machine: &str, shown: &str) -> Result<(Certified, bool)> {
        // Whoever has the key may call from anywhere: that makes no names.
        let known = self.inner.members.get(machine);
        let (names, address) = known.map_or_else(Default::default, |member| {
            (member.value.names.clone(), member.value.joined_from.clone())
        });
        let certified = self.certify(csr, machine, &names, &address)?;
        let now = self.now();
        let issue = &certified.issue("renew", now);
        let issued = transact(&self.inner.store, |tx| async move {
            blocking::require_unblocked(&tx, machine).await?;
            let newest = tx.get::<Issue>(machine).await?;
            let copied = newest.is_some_and(|newest| is_copy(&newest, shown));
            if let (true, Some(mut member)) = (copied, tx.get::<Member>(machine).await?) {
                member.copy_suspected_at = now.as_millisecond();
                tx.put(&member)?;
            }
            tx.put(issue)?;
            Ok::<_, Error>(copied)
        });
        let issued = issued.await?;
        self.inner.issues.wait_for(issued.revision).await?;
        Ok((certified, issued.value))
    }

    /// Notes that the machine uses its newest certificate: an older one that
    /// renews later is a copy, and not one whose answer was lost.
    pub(crate) async fn note_used(&self, machine: &str, shown: &str) -> Result<()> {
        let is_news = |issue: &Issue| !issue.used && issue.certificate_digest == shown;
        if !self.inner.issues.get(machine).is_some_and(|issue| is_news(&issue.value)) {
            return Ok(());
        }
        let noted = transact(&self.inner.store, |tx| async move {
            if let Some(mut issue) = tx.get::<Issue>(machine).await?.filter(is_news) {
                issue.used = true;
                tx.put(&issue)?;
            }
            Ok::<(), Error>(())
        });
        Ok(self.inner.issues.wait_for(noted.await?.revision).await?)
    }

    pub(crate) fn authority(&self) -> Result<&dyn CertificateAuthority> {
        self.inner.authority.as_deref().ok_or(Error::NoAuthority)
    }

    fn certify(
        &self,
        csr: &str,
        machine: &str,
        given: &[String],
        joined_from: &str,
    ) -> Result<Certified> {
        check_csr(csr)?;
        let named = names::check_machine("machine", machine)?;
        let authority = self.authority()?;
        let names = inventory::certificate_names(&named, given, joined_from);
        // Before it signs: at worst a machine is thought to be behind.
        let sha256 = authority.ca_sha256();
        let signed = authority.sign(csr, &named, &names).map_err(refused_request)?;
        Ok(Certified {
            signed,
            authority: sha256,
            ca: authority.ca_pem(),
            chain: authority.chain_pem(),
            machine: machine.into(),
        })
    }

    pub(crate) async fn sweep_join_tokens(&self) -> Result<usize> {
        let now = self.now();
        let gone: Vec<String> = self
            .inner
            .join_tokens
            .list()
            .iter()
            .filter(|token| clock::since(now, from_millis(token.value.expires_at)) >= REMEMBERED)
            .map(|token| token.key.clone())
            .collect();
        let count = gone.len();
        self.delete_all(&self.inner.join_tokens, gone).await?;
        Ok(count)
    }
}

/// Returns whether a certificate that is shown was replaced by one that is in
/// use. Nothing is known of those that an earlier release issued.
fn is_copy(newest: &Issue, shown: &str) -> bool {
    newest.used && !shown.is_empty() && newest.certificate_digest != shown
}

/// Lets administrators make tokens for all machines, operators for the cloudlets
/// of their organisation. A program's token lets no controller in: that could
/// do everything, for good.
fn may_let_in(caller: &Caller, machine: &Machine) -> Result<()> {
    let delegate = matches!(caller.identity.kind, Kind::Delegate(_));
    if delegate && *machine == Machine::Controller {
        return Err(Error::Denied("machine: log in as a person to let a controller in".into()));
    }
    let own = match machine {
        Machine::Cloudlet { operator, .. } => {
            caller.identity.organisations(Role::Operator).any(|own| own == operator)
        }
        _ => false,
    };
    if own { Ok(()) } else { caller.require_administrator(LET_IN) }
}

pub(crate) fn check_csr(csr: &str) -> Result<()> {
    if csr.is_empty() {
        return Err(Error::invalid("csr", "must not be empty"));
    }
    if csr.len() > MAX_CSR {
        return Err(Error::invalid("csr", format!("at most {MAX_CSR} bytes")));
    }
    Ok(())
}

pub(crate) fn refused_request(error: SignError) -> Error {
    match error {
        SignError::BadRequest(reason) => Error::invalid("csr", reason),
        failed @ SignError::Failed(_) => Error::Signing(Box::new(failed)),
    }
}

fn check_usable(token: &JoinToken, now: Timestamp) -> Result<()> {
    if token.used_at != 0 {
        return Err(Error::JoinTokenUsed);
    }
    if now.as_millisecond() >= token.expires_at {
        return Err(Error::JoinTokenExpired(from_millis(token.expires_at)));
    }
    Ok(())
}

/// A certificate with what it takes to use it.
pub(crate) struct Certified {
    signed: Signed,
    /// SHA-256 of the authority that signed it.
    authority: String,
    ca: String,
    chain: String,
    machine: String,
}

impl Certified {
    fn issue(&self, by: &str, now: Timestamp) -> Issue {
        Issue {
            machine: self.machine.clone(),
            issued_at: now.as_millisecond(),
            not_after: self.signed.not_after.as_millisecond(),
            certificate_digest: secrets::sha256_hex(&self.signed.certificate_pem),
            by: by.into(),
            authority: self.authority.clone(),
            used: false,
        }
    }

    pub(crate) fn into_wire(self) -> wire::CertificateResponse {
        wire::CertificateResponse {
            certificate: self.signed.certificate_pem,
            ca: self.ca,
            chain: self.chain,
            not_after: Some(clock::to_wire(self.signed.not_after)),
            machine: self.machine,
        }
    }
}
