//! Keys and certificates of clusters.
//!
//! Each cluster has three authorities (Kubernetes, etcd, front proxy) and a
//! key for the tokens of service accounts. Their private keys are in the store,
//! sealed with a key that is not, and are never sent anywhere. Members make
//! their own keys and send requests; what a certificate is for is decided
//! here, by its profile.

mod authority;
mod kubeconfig;
mod profile;
mod seal;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use prost::Message;
use zeroize::Zeroizing;

pub use authority::{Authority, Issued, Leaf};
pub use kubeconfig::kubeconfig;
pub use profile::{Member, Use, VOLUMES, leaf};
pub use seal::Seal;
pub(crate) use seal::create_secret;

/// Life of an authority.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Life of a member's certificate.
pub const MEMBER_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Stages of one generation of authorities, see [`ClusterPki::signer`].
pub const STAGES: u32 = 3;
/// Group whose members may do everything in a cluster. Bound by name, so that
/// the binding can be taken away; `system:masters` cannot.
pub const ADMINS: &str = "selvage:cluster-admins";

/// Why keys or certificates cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a certificate cannot be made: {0}")]
    Sign(#[from] rcgen::Error),
    #[error("certificate signing request: {0}")]
    Request(String),
    #[error("name {0:?} cannot stand in a certificate")]
    Name(String),
    #[error("stored keys cannot be opened: the key file {0} is not the one that sealed them")]
    Sealed(String),
    #[error("stored keys cannot be read: {0}")]
    Decode(#[from] prost::DecodeError),
    #[error("{path}")]
    File { path: String, source: std::io::Error },
    #[error("{path}: {reason}")]
    KeyFile { path: String, reason: &'static str },
    #[error("no random numbers")]
    Random,
    #[error("there are no authorities of generation {0}")]
    Generation(u32),
}

/// The three authorities of a cluster.
pub struct Authorities {
    pub kubernetes: Authority,
    pub etcd: Authority,
    pub front_proxy: Authority,
}

/// All keys of one cluster.
///
/// Authorities have a generation. While they are replaced there are those of two
/// generations, and a [stage](Self::signer) says which of them sign and are trusted.
pub struct ClusterPki {
    current: Authorities,
    generation: u32,
    next: Option<Authorities>,
    /// PKCS#8, PEM.
    pub service_account_key: Zeroizing<String>,
}

impl fmt::Debug for ClusterPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterPki(…)")
    }
}

/// Keys as they are encoded before they are sealed.
#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(message, repeated, tag = "1")]
    authorities: Vec<WrittenAuthority>,
    #[prost(string, tag = "2")]
    service_account_key: String,
    #[prost(message, repeated, tag = "3")]
    next: Vec<WrittenAuthority>,
    #[prost(uint32, tag = "4")]
    generation: u32,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenAuthority {
    #[prost(string, tag = "1")]
    certificate: String,
    #[prost(string, tag = "2")]
    key: String,
}

impl Authorities {
    fn generate(cluster: &str, generation: u32, now: u64) -> Result<Self, Error> {
        // Those of two generations must not be mistaken for each other.
        let suffix = if generation == 0 { String::new() } else { format!(" {generation}") };
        let authority = |name: &str| Authority::create(&format!("{cluster} {name}{suffix}"), now);
        Ok(Self {
            kubernetes: authority("kubernetes-ca")?,
            etcd: authority("etcd-ca")?,
            front_proxy: authority("front-proxy-ca")?,
        })
    }

    fn write(&self) -> Vec<WrittenAuthority> {
        let written = |authority: &Authority| WrittenAuthority {
            certificate: authority.certificate().to_owned(),
            key: authority.key().to_string(),
        };
        [&self.kubernetes, &self.etcd, &self.front_proxy].map(written).into()
    }

    fn read(written: &[WrittenAuthority]) -> Result<Self, Error> {
        let read = |at: usize| {
            let missing = || Error::Request("an authority is missing".into());
            let written = written.get(at).ok_or_else(missing)?;
            Authority::read(&written.certificate, &written.key)
        };
        Ok(Self { kubernetes: read(0)?, etcd: read(1)?, front_proxy: read(2)? })
    }
}

impl ClusterPki {
    /// Makes the keys of a new cluster. `now` is in seconds since 1970.
    pub fn generate(cluster: &str, now: u64) -> Result<Self, Error> {
        let account = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        Ok(Self {
            current: Authorities::generate(cluster, 0, now)?,
            generation: 0,
            next: None,
            service_account_key: Zeroizing::new(account.serialize_pem()),
        })
    }

    /// Generation of the authorities that are not being replaced.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Makes the authorities of the next generation, unless there are some.
    pub(crate) fn prepare(&mut self, cluster: &str, now: u64) -> Result<(), Error> {
        if self.next.is_none() {
            self.next = Some(Authorities::generate(cluster, self.generation + 1, now)?);
        }
        Ok(())
    }

    /// Forgets the authorities before that generation.
    pub(crate) fn advance(&mut self, generation: u32) {
        if self.generation < generation
            && let Some(next) = self.next.take()
        {
            self.current = next;
            self.generation += 1;
        }
    }

    /// Forgets authorities that were made and never used.
    pub(crate) fn discard_next(&mut self) {
        self.next = None;
    }

    fn of(&self, generation: u32) -> Result<&Authorities, Error> {
        let next = self.next.as_ref().filter(|_| generation == self.generation + 1);
        let found = if generation == self.generation { Some(&self.current) } else { next };
        found.ok_or(Error::Generation(generation))
    }

    /// Authorities that sign at a stage. Each generation has three: alone, then beside
    /// the next one which does not sign yet, then beside the next one which does.
    pub fn signer(&self, stage: u32) -> Result<&Authorities, Error> {
        self.of(stage / STAGES + u32::from(stage % STAGES == 2))
    }

    /// Certificates of the authorities that are trusted at a stage, the one that signs
    /// first.
    pub fn trusted(
        &self,
        stage: u32,
        which: impl Fn(&Authorities) -> &Authority,
    ) -> Result<String, Error> {
        let mut bundle = which(self.signer(stage)?).certificate().to_owned();
        let other = match stage % STAGES {
            1 => stage / STAGES + 1,
            2 => stage / STAGES,
            _ => return Ok(bundle),
        };
        if !bundle.ends_with('\n') {
            bundle.push('\n');
        }
        bundle.push_str(which(self.of(other)?).certificate());
        Ok(bundle)
    }

    /// Seals the keys of the cluster with that uid.
    pub fn seal(&self, seal: &Seal, uid: &str) -> Result<Vec<u8>, Error> {
        let written = Written {
            authorities: self.current.write(),
            service_account_key: self.service_account_key.to_string(),
            next: self.next.as_ref().map(Authorities::write).unwrap_or_default(),
            generation: self.generation,
        };
        seal.seal(uid, Zeroizing::new(written.encode_to_vec()))
    }

    /// Opens what [`Self::seal`] wrote.
    pub fn open(seal: &Seal, uid: &str, sealed: &[u8]) -> Result<Self, Error> {
        let plain = seal.open_sealed(uid, sealed)?;
        let Written { authorities, service_account_key, next, generation } =
            Written::decode(plain.as_slice())?;
        let next = (!next.is_empty()).then(|| Authorities::read(&next)).transpose()?;
        Ok(Self {
            current: Authorities::read(&authorities)?,
            generation,
            next,
            service_account_key: Zeroizing::new(service_account_key),
        })
    }
}
