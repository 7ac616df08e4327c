//! Identity of the caller: the one notion of it that all parts share.
//!
//! A call is made by a person with a session, by a machine with a
//! certificate, through a unix socket, or by nobody. Telling which is the
//! work of an [`Authenticator`]; the parts only ever see the [`Identity`].

use std::{fmt, net::IpAddr, sync::Arc};

use selvage_api::Code;
use sha2::{Digest, Sha256};

/// Roles of people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Everything.
    Admin,
    /// An organisation's cloudlets.
    Operator,
    /// An organisation's apps and instances.
    Developer,
    /// Looking at everything that is no secret.
    Viewer,
}

impl Role {
    /// All roles, in the order in which documentation lists them.
    pub const ALL: [Self; 4] = [Self::Admin, Self::Operator, Self::Developer, Self::Viewer];

    /// The name on the wire and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Developer => "developer",
            Self::Viewer => "viewer",
        }
    }

    /// The role of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns whether the role is held within an organisation.
    pub fn of_organisation(self) -> bool {
        matches!(self, Self::Operator | Self::Developer)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role, and where it holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Role that is granted.
    pub role: Role,
    /// Empty for the roles that hold everywhere.
    pub organisation: String,
}

/// Identity of a machine, as its certificate says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A controller.
    Controller,
    /// The crm of one cloudlet.
    Cloudlet {
        /// Organisation that runs the cloudlet.
        operator: String,
        /// The cloudlet's name.
        name: String,
    },
    /// A machine's agent.
    Node {
        /// The machine's name.
        name: String,
    },
    /// A match engine.
    Dme {
        /// The engine's name.
        name: String,
    },
}

/// The text is not the name of a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "machine {0:?} is not one of controller, cloudlet/<operator>/<name>, node/<name>, dme/<name>"
)]
pub struct NotAMachine(pub String);

impl Machine {
    /// Reads `controller`, `cloudlet/<operator>/<name>`, `node/<name>` or
    /// `dme/<name>`.
    pub fn parse(text: &str) -> Result<Self, NotAMachine> {
        let parts: Vec<&str> = text.split('/').collect();
        if parts.iter().any(|part| part.is_empty() || part.len() > 253) {
            return Err(NotAMachine(text.to_owned()));
        }
        match parts.as_slice() {
            ["controller"] => Ok(Self::Controller),
            ["cloudlet", operator, name] => {
                Ok(Self::Cloudlet { operator: (*operator).into(), name: (*name).into() })
            }
            ["node", name] => Ok(Self::Node { name: (*name).into() }),
            ["dme", name] => Ok(Self::Dme { name: (*name).into() }),
            _ => Err(NotAMachine(text.to_owned())),
        }
    }

    /// Beginning of the names of Kubernetes clusters that this machine makes.
    /// Names of clusters are unique in the whole system: with one of its own
    /// nobody takes a name that a cloudlet is going to need.
    pub fn cluster_prefix(&self) -> String {
        let digest = hex::encode(Sha256::digest(self.to_string()));
        format!("{CLUSTER_PREFIX}{}-", &digest[..8])
    }
}

/// Beginning of the names of all clusters that machines make.
pub const CLUSTER_PREFIX: &str = "slv-";

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str("controller"),
            Self::Cloudlet { operator, name } => write!(f, "cloudlet/{operator}/{name}"),
            Self::Node { name } => write!(f, "node/{name}"),
            Self::Dme { name } => write!(f, "dme/{name}"),
        }
    }
}

/// Proof by which the caller was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Nobody: no credentials were shown.
    Anonymous,
    /// A person with a session.
    User {
        /// Names the session, for audit and revocation.
        session: String,
        /// Latest end, seconds since 1970.
        expires: i64,
    },
    /// A token or certificate that a person had made for a program.
    Delegate(Arc<Delegation>),
    /// A machine with a certificate of our CA.
    Machine(Machine),
    /// Somebody who may open a unix socket of ours.
    Local,
    /// Everybody, with `--insecure`.
    Insecure,
}

/// Forms of what a person hands to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A bearer token.
    Token,
    /// A client certificate.
    Certificate,
}

impl Form {
    /// The name on the wire and in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Certificate => "certificate",
        }
    }

    /// The form of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Token, Self::Certificate].into_iter().find(|form| form.name() == name)
    }
}

/// Limits of a token or certificate that acts in a person's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// Its form.
    pub form: Form,
    /// Names it, for revocation. Empty where only the controller knows.
    pub id: String,
    /// Latest end, seconds since 1970.
    pub expires: i64,
    /// `package.Service/Method` or `package.Service/*`; empty: whatever the
    /// grants open.
    pub methods: Vec<String>,
}

impl Delegation {
    /// Returns whether its list of methods lets `/package.Service/Method` through.
    pub fn opens(&self, path: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|method| covers(method, path))
    }

    /// Returns whether `/package.Service/Method` is named letter for letter.
    pub fn names(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        self.methods.iter().any(|method| method == path)
    }
}

/// Entry of a list of methods that opens the pages of metrics, which are no
/// methods.
pub const METRICS_PAGES: &str = "/metrics";

/// Returns whether an entry of a list of methods covers the method of this path.
pub fn covers(entry: &str, path: &str) -> bool {
    let path = path.trim_start_matches('/');
    match (entry.strip_suffix("/*"), path.split_once('/')) {
        (Some(service), Some((of, _))) => service == of,
        _ => entry == path,
    }
}

/// The caller as all parts see it. Handlers find it in the request's
/// extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A username, or a machine's name, or empty for nobody.
    pub name: String,
    /// Proof by which the caller was recognised.
    pub kind: Kind,
    /// Grants of the caller.
    pub grants: Vec<Grant>,
}

impl Identity {
    /// Nobody.
    pub fn anonymous() -> Self {
        Self { name: String::new(), kind: Kind::Anonymous, grants: Vec::new() }
    }

    /// An identity that may do everything: `--insecure` and unix sockets.
    pub fn all_powerful(name: &str, kind: Kind) -> Self {
        let admin = Grant { role: Role::Admin, organisation: String::new() };
        Self { name: name.into(), kind, grants: vec![admin] }
    }

    /// A machine that showed its certificate.
    pub fn machine(machine: Machine) -> Self {
        Self { name: machine.to_string(), kind: Kind::Machine(machine), grants: Vec::new() }
    }

    /// Returns whether a person calls, or what a person handed to a program.
    pub fn is_person(&self) -> bool {
        matches!(self.kind, Kind::User { .. } | Kind::Delegate(_))
    }

    /// Returns whether the caller holds the role anywhere.
    pub fn has_role(&self, role: Role) -> bool {
        self.grants.iter().any(|grant| grant.role == role)
    }

    /// Returns whether the caller holds all of these.
    pub fn holds_all(&self, grants: &[Grant]) -> bool {
        grants.iter().all(|grant| self.grants.contains(grant))
    }

    /// Organisations in which the caller holds the role.
    pub fn organisations(&self, role: Role) -> impl Iterator<Item = &str> {
        self.grants
            .iter()
            .filter(move |grant| grant.role == role)
            .map(|grant| grant.organisation.as_str())
    }
}

/// Source of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A TCP connection.
    Ip(IpAddr),
    /// A unix socket, with the user at the other end where the kernel tells.
    Unix(Option<u32>),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Unix(Some(uid)) => write!(f, "unix:uid={uid}"),
            Self::Unix(None) => f.write_str("unix"),
        }
    }
}

/// Facts of the certificate that a machine showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownCertificate {
    /// SHA-256 of the certificate as PEM, hexadecimal.
    pub pem_sha256: String,
    /// Name of the authority that signed it, DER.
    pub issuer: Box<[u8]>,
}

/// Facts of a connection, in the extensions of every request.
#[derive(Debug, Clone)]
pub struct Connection {
    /// The other end.
    pub peer: Peer,
    /// The machine whose certificate the other end showed, verified.
    pub machine: Option<Machine>,
    /// Facts of that certificate.
    pub certificate: Option<Arc<ShownCertificate>>,
    /// The person's certificate that it showed instead, verified.
    pub person: Option<PersonCertificate>,
    /// True if the connection is encrypted.
    pub encrypted: bool,
}

/// A person's certificate whose key the other end has. It is of our CA; whether
/// it still counts is for the [`Authenticator`] to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonCertificate {
    /// SHA-256 of the certificate, lower-case hex.
    pub sha256: String,
}

/// A token that never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The credentials a call shows, besides its connection.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// `authorization: Bearer …`, with or without the word Bearer.
    Bearer(Secret),
    /// The session cookie. The listener has checked already that the browser
    /// meant this call (see `serve::csrf`).
    Cookie(Secret),
    /// The certificate of a person.
    Certificate(PersonCertificate),
    /// A statement of a controller, passed on by a node that calls for another.
    Assertion(ShownAssertion),
}

/// An [assertion](crate::assertion), and the call that it came with.
#[derive(Debug, Clone)]
pub struct ShownAssertion {
    /// Its text.
    pub text: Secret,
    /// Machine that passes it on.
    pub by: Machine,
    /// `/package.Service/Method` that is called.
    pub method: String,
    /// True if the call was let in before and goes on: an assertion is for
    /// the beginning of a call, and the right to the rest can end.
    pub goes_on: bool,
}

/// Credentials that were shown and are not good.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// UNAUTHENTICATED for bad credentials, UNAVAILABLE when they could not
    /// be checked.
    pub code: Code,
    /// Text for the caller.
    pub message: String,
}

/// Tells whose credentials these are.
#[async_trait::async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The identity behind the credentials.
    async fn authenticate(&self, credentials: &Credentials) -> Result<Identity, Refused>;

    /// The same, when nobody uses the credentials just now: a stream that is open
    /// is looked at again, or a page keeps itself fresh. What ends without use is
    /// not kept alive by it.
    async fn recheck(&self, credentials: &Credentials) -> Result<Identity, Refused> {
        self.authenticate(credentials).await
    }

    /// Returns whether a machine whose certificate holds is let in. The
    /// certificate itself cannot be taken back before it expires.
    fn machine_allowed(&self, _machine: &Machine) -> bool {
        true
    }

    /// Returns whether the authority of a certificate is believed still. A
    /// connection outlives the handshake in which its certificate was looked at.
    fn certificate_allowed(&self, _certificate: &ShownCertificate) -> bool {
        true
    }

    /// Returns whether a certificate is one of the authority that signs now. A
    /// connection with another one is closed when it has nothing to say, so that
    /// its client comes back with a new one.
    fn certificate_is_current(&self, _certificate: &ShownCertificate) -> bool {
        true
    }
}

/// An authenticator as the listener holds it.
pub type SharedAuthenticator = Arc<dyn Authenticator>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn machine_names_read_back_as_written() {
        for text in ["controller", "cloudlet/tmus/cloud 1", "node/rack3-7", "dme/west"] {
            assert_eq!(Machine::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "node", "node/", "cloudlet/a", "cloudlet//b", "x/y", "controller/1"] {
            assert_eq!(Machine::parse(text), Err(NotAMachine(text.into())));
        }
    }

    #[test]
    fn clusters_of_two_cloudlets_have_no_name_in_common() {
        let prefix = |text: &str| Machine::parse(text).unwrap().cluster_prefix();
        let west = prefix("cloudlet/tmus/west");
        assert_eq!(west.len(), 13);
        assert!(west.starts_with(CLUSTER_PREFIX) && west.ends_with('-'), "{west}");
        assert_eq!(west, prefix("cloudlet/tmus/west"));
        assert_ne!(west, prefix("cloudlet/tmus/east"));
    }

    #[test]
    fn a_list_of_methods_opens_what_it_names() {
        let limited = |methods: &[&str]| Delegation {
            form: Form::Token,
            id: String::new(),
            expires: 0,
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
        };
        let show = "/edgeproto.AppApi/ShowApp";
        assert!(limited(&[]).opens(show) && !limited(&[]).names(show));
        assert!(limited(&["edgeproto.AppApi/*"]).opens(show));
        assert!(!limited(&["edgeproto.AppApi/*"]).names(show));
        assert!(limited(&["edgeproto.AppApi/ShowApp"]).names(show));
        for other in ["edgeproto.App/*", "edgeproto.AppApi/Show", "*", "/*", "edgeproto.AppApi"] {
            assert!(!limited(&[other]).opens(show), "{other}");
        }
    }

    #[test]
    fn a_secret_does_not_show_in_debug() {
        let shown = format!("{:?}", Credentials::Bearer(Secret::new("canary")));
        assert!(!shown.contains("canary"), "{shown}");
    }
}
