//! Membership of a process in a region: how an agent joins a controller with a
//! one-time token, keeps and renews its certificate, reports where it is, and
//! learns which other machines there are; and the certificates that a process
//! with a CA of its own gives itself.
//!
//! Everything it needs to start again is in one directory, so that it serves
//! with its certificate, knows its neighbours and refuses who is blocked while
//! the controller is away. Only people cannot be recognised then: their
//! sessions are the controller's.

mod controller;
mod issued;
mod known;
mod options;
mod people;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::StreamExt;
use parking_lot::Mutex;
use selvage_api::{Code, selvage::identity as wire};
use selvage_kit::{
    clock::Clock,
    dial::{self, Endpoint},
    identity::{Machine, Secret},
    pki::{self, Anchor, KeyRequest, RotatingIdentity, Trust},
};
use tonic::Status;

use self::known::KnownMachines;
pub use self::{
    controller::{BlockedLists, Controller, RemoteController},
    issued::IssuedIdentity,
    options::Options,
    people::People,
};

const CERTIFICATE: &str = "machine.pem";
const CA: &str = "ca.crt";
/// Delay after a failure until the controller is tried again.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Why a machine does not belong to a controller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("controller {0:?} is not host:port")]
    Address(String),
    #[error("{} cannot be made", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("{} cannot be read", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the controller at {controller} does not let this machine in: {}", .status.message())]
    Refused { controller: String, status: Status },
    #[error("no controller answers at {controller}: {}", .status.message())]
    Away { controller: String, status: Status },
    #[error("the controller's answer cannot be used: its CA is not the one that was trusted")]
    OtherCa,
    #[error("the join token is for {machine}, and this is {}: use one for {}", .kind.title(), .kind.pattern())]
    OtherKind { machine: Machine, kind: Kind },
    #[error(transparent)]
    Pki(#[from] pki::Error),
}

impl Error {
    /// Returns the code that a caller gets.
    pub fn code(&self) -> Code {
        match self {
            Self::Address(_) | Self::OtherKind { .. } => Code::InvalidArgument,
            Self::Directory { .. } | Self::Unreadable { .. } => Code::FailedPrecondition,
            Self::Refused { status, .. } | Self::Away { status, .. } => {
                Code::from_grpc(status.code()).unwrap_or(Code::Internal)
            }
            Self::OtherCa => Code::Unauthenticated,
            Self::Pki(error) => error.code(),
        }
    }
}

/// Kind of process that joins a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A machine's agent.
    Node,
    /// The agent of a cloudlet.
    Cloudlet,
    /// A match engine.
    Dme,
}

impl Kind {
    fn title(self) -> &'static str {
        match self {
            Self::Node => "a machine's agent",
            Self::Cloudlet => "the agent of a cloudlet",
            Self::Dme => "a match engine",
        }
    }

    /// Folder in the data directory where a member of this kind keeps what it
    /// got from its controller.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Node => "joined",
            Self::Cloudlet => "joined-cloudlet",
            Self::Dme => "joined-dme",
        }
    }

    /// Returns the pattern of names of this kind.
    pub fn pattern(self) -> &'static str {
        match self {
            Self::Node => "node/NAME",
            Self::Cloudlet => "cloudlet/OPERATOR/NAME",
            Self::Dme => "dme/NAME",
        }
    }

    /// The name of a machine of this kind.
    fn name_of(self, machine: &Machine) -> Result<String, Error> {
        match (self, machine) {
            (Self::Node, Machine::Node { name }) | (Self::Dme, Machine::Dme { name }) => {
                Ok(name.clone())
            }
            (Self::Cloudlet, Machine::Cloudlet { operator, name }) => {
                Ok(format!("{operator}/{name}"))
            }
            _ => Err(Error::OtherKind { machine: machine.clone(), kind: self }),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Cloudlet => "cloudlet",
            Self::Dme => "dme",
        })
    }
}

/// Parameters of joining.
#[derive(Debug)]
pub struct Invitation<'a> {
    /// Kind of machine that joins.
    pub kind: Kind,
    /// Endpoint of the controller, or several of one region, with commas.
    pub controller: &'a str,
    /// Good for one certificate.
    pub token: &'a Secret,
    /// Trust anchor of the controller.
    pub anchor: Anchor,
}

/// A machine that has joined.
pub struct Member {
    directory: PathBuf,
    name: String,
    identity: RotatingIdentity,
    trust: Trust,
    controllers: ArcSwap<Endpoints>,
    known: ArcSwap<KnownMachines>,
    following: Mutex<Following>,
}

/// Lists of blocked machines that the controller pushes. Reports carry the list too,
/// and one that was asked for before a push has an older one. Locked by whoever
/// changes what is known.
#[derive(Debug, Default)]
struct Following {
    connected: bool,
    /// Number of lists so far.
    lists: u64,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Member {
    /// Returns true if an earlier join left something in the directory.
    pub fn has_joined(directory: &Path) -> bool {
        directory.join(CERTIFICATE).exists()
    }

    /// Opens the membership that an earlier join left in the directory; `None`
    /// where there was none.
    pub fn open(
        directory: &Path,
        kind: Kind,
        clock: Arc<dyn Clock>,
    ) -> Result<Option<Self>, Error> {
        let path = directory.join(CERTIFICATE);
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Unreadable { path, source }
        };
        if !path.try_exists().map_err(unreadable(&path))? {
            return Ok(None);
        }
        let identity = RotatingIdentity::open_with(&path, clock)?;
        let name = kind.name_of(&identity.machine())?;
        let ca = directory.join(CA);
        let ca_pem = fs::read_to_string(&ca).map_err(unreadable(&ca))?;
        let known = KnownMachines::read(directory).map_err(unreadable(directory))?;
        let controllers = Endpoints::parse(&known.controller)?;
        Ok(Some(Self {
            directory: directory.to_owned(),
            name,
            identity,
            trust: Trust::of(&ca_pem)?,
            controllers: ArcSwap::from_pointee(controllers),
            known: ArcSwap::from_pointee(known),
            following: Mutex::default(),
        }))
    }

    /// Gets a first certificate and keeps it. Whatever can fail on this side
    /// fails before the token is spent.
    pub async fn join(
        directory: &Path,
        invitation: &Invitation<'_>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let controllers = Endpoints::parse(invitation.controller)?;
        let tls = Arc::new(invitation.anchor.config()?);
        let asked = RemoteController::new(&controllers.0, tls).map_err(failed(&controllers))?;
        Self::join_at(directory, invitation, &asked, clock).await
    }

    /// The same at a controller that was found already.
    pub async fn join_at(
        directory: &Path,
        invitation: &Invitation<'_>,
        asked: &dyn Controller,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let controllers = Endpoints::parse(invitation.controller)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| Error::Directory { path: directory.to_owned(), source })?;
        let known =
            KnownMachines { controller: controllers.to_string(), ..KnownMachines::default() };
        known.write(directory)?;
        let request = KeyRequest::new()?;
        let answer = asked.join(invitation.token, request.csr_pem()).await;
        let answer = answer.map_err(failed(&controllers))?;
        if !invitation.anchor.is_among(&answer.ca)? {
            return Err(Error::OtherCa);
        }
        if let Ok(machine) = Machine::parse(&answer.machine) {
            invitation.kind.name_of(&machine)?;
        }
        pki::replace_private(&directory.join(CA), answer.ca.as_bytes())?;
        // The certificate comes last: it is what tells that a machine joined.
        let chain = shown_chain(&answer);
        let path = directory.join(CERTIFICATE);
        RotatingIdentity::create_with(&path, &request, &chain, Arc::clone(&clock))?;
        Self::open(directory, invitation.kind, clock)?.ok_or(Error::OtherCa)
    }

    /// Its name, without what all of its kind have in front.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its whole name, such as `node/rack3-7`.
    pub fn machine_name(&self) -> Machine {
        self.identity.machine()
    }

    /// Endpoint of its controller; of several all, with commas.
    pub fn controller(&self) -> String {
        self.controllers.load().to_string()
    }

    /// Endpoints of the controllers, in the order in which they are tried.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        self.controllers.load().0.clone()
    }

    /// The same, each as `host:port`.
    pub fn controllers(&self) -> Vec<String> {
        self.controllers.load().0.iter().map(Endpoint::to_string).collect()
    }

    /// The controller has moved, or there are others.
    pub fn move_to(&self, controller: &str) -> Result<(), Error> {
        let endpoints = Endpoints::parse(controller)?;
        if endpoints != **self.controllers.load() {
            let _changing = self.following.lock();
            let known = KnownMachines {
                controller: endpoints.to_string(),
                ..KnownMachines::clone(&self.known.load())
            };
            self.keep(known)?;
            self.controllers.store(Arc::new(endpoints));
        }
        Ok(())
    }

    /// Certificates of the authorities that it believes, PEM.
    pub fn ca_pem(&self) -> String {
        self.trust.pem()
    }

    /// Authorities that it believes.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Text that is the same for as long as this machine belongs to the region,
    /// whatever authorities come and go.
    pub fn region(&self) -> String {
        let known = self.known.load();
        if known.region.is_empty() { self.trust.pem() } else { known.region.clone() }
    }

    /// The file with the CA's certificate.
    pub fn ca_path(&self) -> PathBuf {
        self.directory.join(CA)
    }

    /// The certificate's last second, since 1970.
    pub fn not_after(&self) -> i64 {
        self.identity.not_after()
    }

    /// TLS of a listener: its certificate, and the CA of its clients.
    pub fn server_tls(&self) -> Result<Arc<rustls::ServerConfig>, Error> {
        Ok(pki::trusting_machine_config(&self.identity, &self.trust)?)
    }

    /// TLS configuration of clients that show its certificate to any machine.
    pub fn client_tls(&self) -> Result<Arc<rustls::ClientConfig>, Error> {
        Ok(Arc::new(self.trust.client_config(Some(&self.identity))?))
    }

    /// TLS configuration of clients that show its certificate to controllers,
    /// and to nobody who is none.
    pub fn controller_tls(&self) -> Result<Arc<rustls::ClientConfig>, Error> {
        Ok(Arc::new(self.trust.controller_config(Some(&self.identity))?))
    }

    /// The way to its controller, or to the first of several that is there.
    pub fn to_controller(&self) -> Result<RemoteController, Error> {
        let endpoints = self.controllers.load();
        RemoteController::new(&endpoints.0, self.controller_tls()?).map_err(failed(&endpoints))
    }

    /// Returns true if the machine of this name must not be let in.
    pub fn is_blocked(&self, machine: &Machine) -> bool {
        self.known.load().blocked.contains(&machine.to_string())
    }

    /// Renews the certificate if that is due; tells whether it was.
    pub async fn renew_if_due(&self, controller: &dyn Controller) -> Result<bool, Error> {
        if !self.identity.needs_renewal() {
            return Ok(false);
        }
        self.renew(controller).await?;
        Ok(true)
    }

    async fn renew(&self, controller: &dyn Controller) -> Result<(), Error> {
        let request = KeyRequest::new()?;
        let answer = controller.renew(request.csr_pem()).await;
        let answer = answer.map_err(failed(&self.controllers.load()))?;
        self.believe(&answer.ca)?;
        self.identity.renew(&request, &shown_chain(&answer))?;
        tracing::info!(not_after = self.not_after(), "certificate renewed");
        Ok(())
    }

    /// Tells the controller where this machine is, and keeps what it says.
    pub async fn report(
        &self,
        controller: &dyn Controller,
        report: &wire::ReportRequest,
    ) -> Result<(), Error> {
        let report =
            wire::ReportRequest { authorities: self.trust.fingerprints(), ..report.clone() };
        let lists = self.following.lock().lists;
        let answer = controller.report(report).await;
        let answer = answer.map_err(failed(&self.controllers.load()))?;
        self.follow_authorities(controller, &answer).await?;
        let mut known = KnownMachines::of(answer);
        let following = self.following.lock();
        let before = self.known.load_full();
        known.controller.clone_from(&before.controller);
        known.region.clone_from(&before.region);
        if following.connected || following.lists != lists {
            known.blocked.clone_from(&before.blocked);
        }
        if known != **self.known.load() {
            self.keep(known)?;
        }
        Ok(())
    }

    /// Believes the authorities that the controller has now, and gets a
    /// certificate of the one that signs.
    async fn follow_authorities(
        &self,
        controller: &dyn Controller,
        answer: &wire::ReportResponse,
    ) -> Result<(), Error> {
        self.believe(&answer.ca)?;
        let signer = self.trust.authority(&answer.signing_authority);
        match signer.is_some_and(|signer| !self.identity.is_signed_by(&signer)) {
            true => self.renew(controller).await,
            false => Ok(()),
        }
    }

    /// Believes these authorities from now on: on disk first, then in
    /// handshakes. Controllers of earlier releases name none.
    fn believe(&self, ca_pem: &str) -> Result<(), Error> {
        if ca_pem.is_empty() || ca_pem == self.trust.pem() {
            return Ok(());
        }
        // Nothing that cannot be used gets to the disk.
        Trust::of(ca_pem)?;
        let _changing = self.following.lock();
        let known = self.known.load_full();
        if known.region.is_empty() {
            self.keep(KnownMachines { region: self.trust.pem(), ..KnownMachines::clone(&known) })?;
        }
        pki::replace_private(&self.ca_path(), ca_pem.as_bytes())?;
        self.trust.replace(ca_pem)?;
        tracing::info!(authorities = ?self.trust.fingerprints(), "authorities changed");
        Ok(())
    }

    fn keep(&self, known: KnownMachines) -> Result<(), Error> {
        known.write(&self.directory)?;
        self.known.store(Arc::new(known));
        Ok(())
    }

    /// Follows the controller's list of blocked machines for as long as the
    /// connection lasts: reports come too seldom to keep a thief out. Fails where
    /// there is no connection.
    pub async fn follow_blocked(&self, controller: &dyn Controller) -> Result<(), Error> {
        let lists = controller.blocked_machines().await;
        let mut lists = lists.map_err(failed(&self.controllers.load()))?;
        let _connected = Connected(&self.following);
        while let Some(Ok(list)) = lists.next().await {
            let blocked = list.into_iter().collect();
            let mut following = self.following.lock();
            following.connected = true;
            following.lists += 1;
            let known = self.known.load_full();
            if known.blocked != blocked {
                self.keep(KnownMachines { blocked, ..KnownMachines::clone(&known) })?;
            }
        }
        Ok(())
    }

    /// One round of staying in touch with the controller: renews the
    /// certificate if that is due, and reports.
    pub async fn stay_in_touch(
        &self,
        controller: &dyn Controller,
        report: &wire::ReportRequest,
    ) -> Result<(), Error> {
        self.renew_if_due(controller).await?;
        self.report(controller, report).await
    }
}

impl Member {
    /// The machines that the controller listed last, sorted by name.
    pub fn machines(&self) -> Vec<wire::Machine> {
        self.known.load().machines.iter().map(known::to_wire).collect()
    }

    /// The one of this name, such as `node/rack3-7`; also one that is blocked.
    pub fn machine(&self, machine: &str) -> Option<wire::Machine> {
        let known = self.known.load();
        let found = known.machines.binary_search_by(|one| one.machine.as_str().cmp(machine)).ok();
        let found = found.and_then(|index| known.machines.get(index)).map(known::to_wire);
        let blocked = known.blocked.contains(machine);
        found.or_else(|| {
            blocked.then(|| wire::Machine {
                machine: machine.to_owned(),
                blocked,
                ..wire::Machine::default()
            })
        })
    }
}

/// Time in which lists of blocked machines are followed.
struct Connected<'a>(&'a Mutex<Following>);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.lock().connected = false;
    }
}

/// Reads `host`, `host:port` or `https://host:port`.
fn endpoint_of(controller: &str) -> Result<Endpoint, Error> {
    let bare = controller.strip_prefix("https://").unwrap_or(controller);
    Endpoint::parse(bare.trim_end_matches('/'), dial::DEFAULT_PORT)
        .ok_or_else(|| Error::Address(controller.to_owned()))
}

/// The controllers of a region, in the order in which they are tried.
#[derive(Debug, PartialEq, Eq)]
struct Endpoints(Vec<Endpoint>);

impl Endpoints {
    fn parse(text: &str) -> Result<Self, Error> {
        text.split(',').map(|one| endpoint_of(one.trim())).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, endpoint) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{endpoint}")?;
        }
        Ok(())
    }
}

/// Translates a controller's failure.
fn failed(controllers: &Endpoints) -> impl FnOnce(Status) -> Error {
    let controller = controllers.to_string();
    move |status| match status.code() {
        tonic::Code::Unavailable | tonic::Code::DeadlineExceeded => {
            Error::Away { controller, status }
        }
        _ => Error::Refused { controller, status },
    }
}

/// A new certificate with those that lead from it to the authorities.
fn shown_chain(answer: &wire::CertificateResponse) -> String {
    let rest = if answer.chain.is_empty() { &answer.ca } else { &answer.chain };
    format!("{}{rest}", answer.certificate)
}

/// Report of an agent about itself.
pub fn report_of(
    port: u16,
    address: &str,
    labels: &BTreeMap<String, String>,
) -> wire::ReportRequest {
    wire::ReportRequest {
        port: port.into(),
        address: address.to_owned(),
        labels: labels.clone().into_iter().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        authorities: Vec::new(),
        instance: format!("{:016x}", rand::random::<u64>()),
    }
}

#[cfg(test)]
mod tests;
