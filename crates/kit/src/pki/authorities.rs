//! The authorities of an installation, which is one, or two while one takes over
//! from the other.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;

use super::{Ca, Error, Issued, Signed, Trust, ca};
use crate::{
    clock::{Clock, SystemClock},
    identity::Machine,
};

/// The authority that signs, and those that are believed beside it. Clones share
/// them.
#[derive(Clone)]
pub struct Authorities(Arc<Inner>);

struct Inner {
    now: ArcSwap<Snapshot>,
    /// One change at a time, on disk and here.
    changing: Mutex<()>,
    trust: Trust,
}

struct Snapshot {
    /// The one that signs comes first; never empty.
    all: Vec<Arc<Ca>>,
    /// Certificate of the one that signs by the other one, for those who believe
    /// only that.
    introduction: Option<CertificateDer<'static>>,
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authorities").field(&self.0.trust).finish()
    }
}

impl Authorities {
    /// Opens those of the directory, or makes one as [`Ca::open_or_create`] does.
    pub fn open_or_create(directory: &Path) -> Result<Self, Error> {
        Self::open_or_create_with(directory, Arc::new(SystemClock))
    }

    /// The same, with a clock.
    pub fn open_or_create_with(directory: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Self::of(Ca::open_all(directory, clock)?.into_iter().map(Arc::new).collect())
    }

    fn of(all: Vec<Arc<Ca>>) -> Result<Self, Error> {
        let trust = Trust::of(&ca::bundle(&all))?;
        let now = ArcSwap::from_pointee(Snapshot::of(all)?);
        Ok(Self(Arc::new(Inner { now, changing: Mutex::default(), trust })))
    }

    /// The one that signs.
    pub fn signer(&self) -> Arc<Ca> {
        Arc::clone(&self.0.now.load().all[0])
    }

    /// All of them, the one that signs first.
    pub fn all(&self) -> Vec<Arc<Ca>> {
        self.0.now.load().all.clone()
    }

    /// Their certificates, PEM, that of the one which signs first.
    pub fn pem(&self) -> String {
        ca::bundle(&self.0.now.load().all)
    }

    /// Belief in their certificates, which follows every change.
    pub fn trust(&self) -> &Trust {
        &self.0.trust
    }

    /// Certificates that are shown after one that was signed now, PEM: they lead
    /// to each of the authorities.
    pub fn chain_pem(&self) -> String {
        self.0.now.load().chain_pem()
    }

    /// Makes a key and a certificate for a server with these DNS names and IP
    /// addresses.
    pub fn issue_server<S: AsRef<str>>(&self, names: &[S]) -> Result<Issued, Error> {
        let held = self.0.now.load_full();
        held.all[0].issue_server_with(names, &held.chain_pem())
    }

    /// Signs a machine's key, see [`Ca::sign_machine_for`].
    pub fn sign_machine_for(
        &self,
        csr_pem: &str,
        machine: &Machine,
        names: &[String],
        lifetime: Duration,
    ) -> Result<Signed, Error> {
        self.signer().sign_machine_for(csr_pem, machine, names, lifetime)
    }

    /// Has these instead, the one that signs first: on disk, for what is signed
    /// and for what is believed.
    pub fn replace(&self, all: Vec<Arc<Ca>>) -> Result<(), Error> {
        let _changing = self.0.changing.lock();
        let before = self.all();
        if all.is_empty() || ca::bundle(&all) == ca::bundle(&before) {
            return Ok(());
        }
        let held = Snapshot::of(all)?;
        ca::write_all(&held.all, &before)?;
        self.0.trust.replace(&ca::bundle(&held.all))?;
        self.0.now.store(Arc::new(held));
        Ok(())
    }
}

impl Snapshot {
    fn of(all: Vec<Arc<Ca>>) -> Result<Self, Error> {
        let introduction = match all.as_slice() {
            [signer, other, ..] => other.introduce(signer)?,
            _ => None,
        };
        Ok(Self { all, introduction })
    }

    /// The one that signs comes last: who is asked whom to trust is asked about
    /// the last.
    fn chain_pem(&self) -> String {
        let introduction = self.introduction.iter().map(ca::pem);
        introduction.chain(self.all.iter().rev().map(|ca| ca.pem().to_owned())).collect()
    }
}

impl TryFrom<Arc<Ca>> for Authorities {
    type Error = Error;

    /// One that stands alone.
    fn try_from(ca: Arc<Ca>) -> Result<Self, Error> {
        Self::of(vec![ca])
    }
}
