//! Authentication of callers of a member. Machines show certificates; people show
//! tokens of sessions that are the controller's, so it is the controller that is
//! asked.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use selvage_api::{Code, selvage::identity::WhoAmIResponse};
use selvage_kit::{
    assertion,
    clock::Clock,
    identity::{
        Authenticator, Credentials, Delegation, Form, Grant, Identity, Kind, Machine, Refused,
        Role, Secret, ShownAssertion, ShownCertificate,
    },
};
use sha2::{Digest, Sha256};
use tonic::Status;

use super::{Controller, Member};

/// For so long an answer of the controller holds: a session that ends there
/// ends here no later.
const HOLDS: Duration = Duration::from_secs(10);
/// Answers that are remembered.
const MOST: usize = 1024;

/// Recognises callers by asking the controller.
pub struct People {
    member: Arc<Member>,
    controller: Arc<dyn Controller>,
    clock: Arc<dyn Clock>,
    known: Mutex<HashMap<[u8; 32], CachedIdentity>>,
}

/// Credentials that the controller is asked about.
enum Presented<'a> {
    Token(&'a Secret),
    /// Its digest. The key was proved to the listener, and to nobody else.
    Certificate(&'a str),
    /// Of a call that goes on.
    Assertion(&'a Secret),
}

impl Presented<'_> {
    /// Key under which the answer is remembered. Whoever shows the digest of a
    /// certificate as a token must not find what is known of the certificate.
    fn digest(&self) -> [u8; 32] {
        let (kind, text) = match self {
            Self::Token(token) => ("token:", token.expose()),
            Self::Certificate(sha256) => ("certificate:", *sha256),
            Self::Assertion(assertion) => ("assertion:", assertion.expose()),
        };
        Sha256::new().chain_update(kind).chain_update(text).finalize().into()
    }
}

struct CachedIdentity {
    identity: Identity,
    at: Duration,
    /// The controller was told of a use then.
    attended: bool,
}

impl People {
    pub fn new(
        member: Arc<Member>,
        controller: Arc<dyn Controller>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { member, controller, clock, known: Mutex::default() }
    }

    /// Answer that the controller gave a moment ago. A use is not kept from it because
    /// somebody else only looked.
    fn remembered(&self, digest: &[u8; 32], attended: bool) -> Option<Identity> {
        let now = self.clock.elapsed();
        let known = self.known.lock();
        let found = known.get(digest).filter(|known| now.saturating_sub(known.at) < HOLDS)?;
        (found.attended || !attended).then(|| found.identity.clone())
    }

    fn remember(&self, digest: [u8; 32], identity: Identity, attended: bool) {
        let at = self.clock.elapsed();
        let mut known = self.known.lock();
        if known.len() >= MOST {
            known.retain(|_, known| at.saturating_sub(known.at) < HOLDS);
        }
        if known.len() < MOST {
            known.insert(digest, CachedIdentity { identity, at, attended });
        }
    }

    /// The caller for whom a node calls this machine.
    fn asserted(&self, shown: &ShownAssertion) -> Result<Identity, assertion::Error> {
        let (machine, now) = (self.member.machine_name(), self.clock.now());
        let call = assertion::Call { by: &shown.by, to: &machine, method: &shown.method };
        let verify = if shown.goes_on { assertion::verify_ongoing } else { assertion::verify };
        verify(shown.text.expose(), self.member.trust(), &call, now)?.caller()
    }

    async fn whose(&self, credentials: &Credentials, attended: bool) -> Result<Identity, Refused> {
        let shown = match credentials {
            Credentials::Bearer(token) => Presented::Token(token),
            Credentials::Certificate(certificate) => Presented::Certificate(&certificate.sha256),
            // A call begins by what a controller signed; none has to be there. The
            // right to a call that lasts can end meanwhile, so it is asked.
            Credentials::Assertion(shown) => {
                let caller = self.asserted(shown)?;
                if !shown.goes_on {
                    return Ok(caller);
                }
                Presented::Assertion(&shown.text)
            }
            Credentials::Cookie(_) => {
                let message = "sessions of browsers are the controller's: show a token".into();
                return Err(Refused { code: Code::Unauthenticated, message });
            }
        };
        let digest = shown.digest();
        if let Some(identity) = self.remembered(&digest, attended) {
            return Ok(identity);
        }
        let identity = self.ask(&shown, attended).await?;
        self.remember(digest, identity.clone(), attended);
        Ok(identity)
    }

    async fn ask(&self, shown: &Presented<'_>, attended: bool) -> Result<Identity, Refused> {
        let answer = match shown {
            Presented::Token(token) => self.controller.who_is(token, attended).await,
            Presented::Certificate(sha256) => self.controller.whose_certificate(sha256).await,
            Presented::Assertion(assertion) => self.controller.check_assertion(assertion).await,
        };
        let answer = answer.map_err(|status| refused(&status))?;
        read(answer).ok_or_else(|| Refused {
            code: Code::Unauthenticated,
            message: "the token or certificate is not that of a person".into(),
        })
    }
}

fn refused(status: &Status) -> Refused {
    match Code::from_grpc(status.code()) {
        Some(code @ (Code::Unauthenticated | Code::PermissionDenied)) => {
            Refused { code, message: status.message().to_owned() }
        }
        _ => Refused {
            code: Code::Unavailable,
            message: format!(
                "the controller cannot be asked whose token this is: {}",
                status.message()
            ),
        },
    }
}

fn read(answer: WhoAmIResponse) -> Option<Identity> {
    let expires = answer.expires.map_or(i64::MAX, |end| end.seconds);
    // Which session or token it is, only the controller knows.
    let id = String::new();
    let kind = match (answer.kind.as_str(), Form::parse(&answer.kind)) {
        ("user", _) => Kind::User { session: id, expires },
        (_, Some(form)) => {
            Kind::Delegate(Arc::new(Delegation { form, id, expires, methods: answer.methods }))
        }
        _ => return None,
    };
    let grants = answer.grants.into_iter().filter_map(|grant| {
        Some(Grant { role: Role::parse(&grant.role)?, organisation: grant.organisation })
    });
    Some(Identity { name: answer.name, kind, grants: grants.collect() })
}

#[async_trait]
impl Authenticator for People {
    async fn authenticate(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        self.whose(credentials, true).await
    }

    async fn recheck(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        self.whose(credentials, false).await
    }

    fn machine_allowed(&self, machine: &Machine) -> bool {
        !self.member.is_blocked(machine)
    }

    fn certificate_allowed(&self, certificate: &ShownCertificate) -> bool {
        self.member.trust().believes(certificate)
    }

    fn certificate_is_current(&self, certificate: &ShownCertificate) -> bool {
        self.member.trust().is_current(certificate)
    }
}
