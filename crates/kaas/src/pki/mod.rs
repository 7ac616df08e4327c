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

/// Life of an authority.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Life of a member's certificate.
pub const MEMBER_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
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
}

/// All keys of one cluster.
pub struct ClusterPki {
    pub kubernetes: Authority,
    pub etcd: Authority,
    pub front_proxy: Authority,
    /// PKCS#8, PEM.
    pub service_account_key: Zeroizing<String>,
}

impl fmt::Debug for ClusterPki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterPki(…)")
    }
}

/// How keys are written before they are sealed.
#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(message, repeated, tag = "1")]
    authorities: Vec<WrittenAuthority>,
    #[prost(string, tag = "2")]
    service_account_key: String,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenAuthority {
    #[prost(string, tag = "1")]
    certificate: String,
    #[prost(string, tag = "2")]
    key: String,
}

impl ClusterPki {
    /// Makes the keys of a new cluster. `now` is in seconds since 1970.
    pub fn generate(cluster: &str, now: u64) -> Result<Self, Error> {
        let authority = |name: &str| Authority::create(&format!("{cluster} {name}"), now);
        let account = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        Ok(Self {
            kubernetes: authority("kubernetes-ca")?,
            etcd: authority("etcd-ca")?,
            front_proxy: authority("front-proxy-ca")?,
            service_account_key: Zeroizing::new(account.serialize_pem()),
        })
    }

    /// Seals the keys of the cluster with that uid.
    pub fn seal(&self, seal: &Seal, uid: &str) -> Result<Vec<u8>, Error> {
        let authorities =
            [&self.kubernetes, &self.etcd, &self.front_proxy].map(|authority| WrittenAuthority {
                certificate: authority.certificate().to_owned(),
                key: authority.key().to_string(),
            });
        let written = Written {
            authorities: authorities.into(),
            service_account_key: self.service_account_key.to_string(),
        };
        seal.seal(uid, Zeroizing::new(written.encode_to_vec()))
    }

    /// Opens what [`Self::seal`] wrote.
    pub fn open(seal: &Seal, uid: &str, sealed: &[u8]) -> Result<Self, Error> {
        let plain = seal.open_sealed(uid, sealed)?;
        let Written { authorities, service_account_key } = Written::decode(plain.as_slice())?;
        let read = |at: usize| {
            let missing = || Error::Request("an authority is missing".into());
            let written = authorities.get(at).ok_or_else(missing)?;
            Authority::read(&written.certificate, &written.key)
        };
        Ok(Self {
            kubernetes: read(0)?,
            etcd: read(1)?,
            front_proxy: read(2)?,
            service_account_key: Zeroizing::new(service_account_key),
        })
    }
}
