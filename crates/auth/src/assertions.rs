//! Assertions of callers: what lets a node call other nodes for a person whose
//! token it was shown.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use selvage_kit::{
    access::{Access, Rule},
    assertion::{self, Call, Signer, Verified},
    identity::{Form, Identity, Kind, Machine, Refused, ShownAssertion},
    pki::{KeyRequest, Trust},
};

use crate::{
    Auth, SignError,
    error::{Error, Result},
    names,
    sessions::Activity,
};

/// Machines that one call goes to.
const MOST_MACHINES: usize = 4096;
/// The part whose methods nodes call for others.
const RELAYED_PART: &str = "node";

/// Signing and checking of assertions in this process.
pub(crate) struct Assertions {
    access: Access,
    signer: Mutex<Option<Current>>,
    /// The machine whose agent is in this process.
    machine: OnceLock<Machine>,
}

/// A signer, and what would make it out of date.
struct Current {
    signer: Arc<Signer>,
    authority: String,
    chain: String,
    /// In seconds since 1970.
    renew_at: i64,
}

/// An assertion for a machine.
pub struct Issued {
    /// The machine's name.
    pub machine: String,
    /// Its text.
    pub assertion: String,
}

impl Assertions {
    pub(crate) fn new() -> Result<Self> {
        let access =
            Access::load().map_err(|error| Error::settings("access table", error.to_string()))?;
        Ok(Self { access, signer: Mutex::default(), machine: OnceLock::new() })
    }

    /// The rule of a method that nodes call for others.
    fn rule(&self, method: &str) -> Result<&Rule> {
        let path = format!("/{}", method.trim_start_matches('/'));
        let rule = self.access.rule(&path);
        rule.filter(|rule| rule.method.part == RELAYED_PART).ok_or_else(|| {
            Error::invalid("method", "is not package.Service/Method of a machine's agent")
        })
    }
}

impl Auth {
    /// Name of the machine whose agent is in this process.
    pub fn name_machine(&self, machine: Machine) {
        let _named_before = self.inner.assertions.machine.set(machine);
    }

    /// Says for each machine that this caller wants a method to be called there
    /// by that node, provided that the caller may.
    pub async fn issue_assertions(
        &self,
        caller: &Identity,
        by: &Machine,
        method: &str,
        machines: Vec<String>,
    ) -> Result<Vec<Issued>> {
        let rule = self.inner.assertions.rule(method)?;
        rule.decide(caller, &[]).map_err(|denied| Error::Denied(denied.message))?;
        if machines.is_empty() || machines.len() > MOST_MACHINES {
            return Err(Error::invalid("machines", format!("1 to {MOST_MACHINES} are needed")));
        }
        let signer = self.assertion_signer()?;
        let (caller, by, path) = (caller.clone(), by.clone(), rule.path.clone());
        let now = self.now();
        let signing = tokio::task::spawn_blocking(move || {
            let sign = |machine: String| {
                let to = names::check_machine("machines", &machine)?;
                if !matches!(to, Machine::Node { .. }) {
                    return Err(Error::invalid("machines", format!("{to} is not a node")));
                }
                let call = Call { by: &by, to: &to, method: &path };
                let assertion = signer.sign(&caller, &call, now)?;
                Ok(Issued { machine, assertion })
            };
            machines.into_iter().map(sign).collect()
        });
        signing.await.map_err(|error| Error::Signing(Box::new(error)))?
    }

    /// The caller of an assertion for this machine, as the caller is now: a
    /// session ends, and roles are taken away.
    pub(crate) async fn check_assertion(&self, text: &str, to: &Machine) -> Result<Identity> {
        let verified = assertion::verify_audience(text, &self.trust()?, to, self.now())?;
        // A machine asks for calls that go on.
        self.current_caller(&verified, Activity::Recheck).await
    }

    /// The caller for whom a node calls the machine of this process.
    pub(crate) async fn identify_asserted(
        &self,
        shown: &ShownAssertion,
        look: Activity,
    ) -> Result<Identity, Refused> {
        let machine = self.inner.assertions.machine.get().ok_or_else(|| Refused {
            code: selvage_api::Code::PermissionDenied,
            message: "not authorized: no machine's agent is here".into(),
        })?;
        let call = Call { by: &shown.by, to: machine, method: &shown.method };
        let look = if shown.goes_on { Activity::Recheck } else { look };
        let verify = if shown.goes_on { assertion::verify_ongoing } else { assertion::verify };
        let current = async {
            let verified = verify(shown.text.expose(), &self.trust()?, &call, self.now())?;
            self.current_caller(&verified, look).await
        };
        current.await.map_err(|error| Refused { code: error.code(), message: error.to_string() })
    }

    async fn current_caller(&self, verified: &Verified, look: Activity) -> Result<Identity> {
        let said = verified.caller()?;
        if verified.is_local() {
            return Ok(said);
        }
        let now = match &said.kind {
            Kind::User { session, .. } => self.identify_session(session, look).await,
            Kind::Delegate(limits) => self.identify_credential(&limits.id, Form::Token).await.ok(),
            _ => None,
        };
        now.filter(|now| now.name == said.name).ok_or(Error::SessionEnded)
    }

    /// Authorities that this process believes.
    fn trust(&self) -> Result<Trust> {
        match self.authorities() {
            Ok(authorities) => Ok(authorities.trust().clone()),
            Err(_) => Ok(Trust::of(&self.authority()?.ca_pem())?),
        }
    }

    /// The signer, made anew when its certificate nears its end and when the
    /// authorities change. Its key is in memory only.
    fn assertion_signer(&self) -> Result<Arc<Signer>> {
        let authority = self.authority()?;
        let (sha256, now) = (authority.ca_sha256(), self.now().as_second());
        let mut chain = authority.chain_pem();
        if chain.is_empty() {
            chain = authority.ca_pem();
        }
        let mut current = self.inner.assertions.signer.lock();
        if let Some(current) = &*current
            && (&current.authority, &current.chain) == (&sha256, &chain)
            && now < current.renew_at
        {
            return Ok(Arc::clone(&current.signer));
        }
        let request = KeyRequest::new()?;
        let signed = authority.sign(request.csr_pem(), &Machine::Controller, &[]);
        let signed = signed.map_err(|error: SignError| Error::Signing(Box::new(error)))?;
        let signer =
            Arc::new(Signer::new(&request, &format!("{}{chain}", signed.certificate_pem))?);
        let left = signed.not_after.as_second().saturating_sub(now);
        let renew_at = now.saturating_add(left / 3 * 2);
        *current =
            Some(Current { signer: Arc::clone(&signer), authority: sha256, chain, renew_at });
        Ok(signer)
    }
}
