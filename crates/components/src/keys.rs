//! Keys that are made here and certificates that come for them.
//!
//! A certificate stands in one file with its key, which is replaced as a whole.
//! A key that waits for its certificate stands beside it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use selvage_api::selvage::kubernetes::{
    Certificate, CertificateRequest, CertificateStatus, Profile,
};
use selvage_kit::pki::replace_private;
use sha2::{Digest, Sha256};
use x509_parser::{
    extensions::ParsedExtension,
    prelude::{FromDer, X509Certificate},
};

use crate::{Error, Result};

const KEY_BEGINS: &str = "-----BEGIN PRIVATE KEY-----";

/// Keys and certificates of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    directory: PathBuf,
}

/// A certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Keys {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn kept(&self, profile: Profile) -> PathBuf {
        self.directory.join(format!("{}.pem", name(profile)))
    }

    fn waiting(&self, profile: Profile) -> PathBuf {
        self.directory.join(format!("{}.key", name(profile)))
    }

    /// Makes a key unless one waits already, and a request for it.
    pub(crate) fn request(&self, profile: Profile, renew: bool) -> Result<CertificateRequest> {
        selvage_runtime::private_directory(&self.directory)
            .map_err(Error::file(&self.directory))?;
        let path = self.waiting(profile);
        let key = match read(&path)? {
            Some(pem) if !renew => KeyPair::from_pem(&pem)?,
            _ => {
                let key = KeyPair::generate()?;
                replace_private(&path, key.serialize_pem().as_bytes())?;
                key
            }
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&key)?.pem()?;
        Ok(CertificateRequest { profile: profile.into(), csr })
    }

    /// Refuses certificates that no key here is for.
    pub(crate) fn check(&self, certificates: &[Certificate]) -> Result<()> {
        certificates.iter().try_for_each(|one| self.key_for(one).map(drop))
    }

    /// Keeps certificates, each with the key that it is for.
    pub(crate) fn keep(&self, certificates: &[Certificate]) -> Result<()> {
        for one in certificates {
            let key = self.key_for(one)?;
            let whole = format!("{}{key}", ended(&one.pem));
            let path = self.kept(one.profile());
            if read(&path)?.as_deref() != Some(&whole) {
                replace_private(&path, whole.as_bytes())?;
            }
            let waiting = self.waiting(one.profile());
            if read(&waiting)?.is_some_and(|pem| pem == key) {
                fs::remove_file(&waiting).map_err(Error::file(&waiting))?;
            }
        }
        Ok(())
    }

    /// The key that a certificate is for: that which waits, or that in use.
    fn key_for(&self, certificate: &Certificate) -> Result<String> {
        let profile = certificate.profile();
        let wrong = |reason: &str| Error::Certificate {
            profile: profile.as_str_name(),
            reason: reason.to_owned(),
        };
        let leaf = CertificateDer::from_pem_slice(certificate.pem.as_bytes())
            .map_err(|_| wrong("it is no PEM"))?;
        let (_, parsed) =
            X509Certificate::from_der(&leaf).map_err(|_| wrong("it is no certificate"))?;
        let candidates = [read(&self.waiting(profile))?, self.pair(profile)?.map(|pair| pair.key)];
        for pem in candidates.into_iter().flatten() {
            let key = KeyPair::from_pem(&pem)?;
            if key.subject_public_key_info() == parsed.public_key().raw {
                return Ok(pem);
            }
        }
        Err(wrong("ask for signing requests first"))
    }

    /// The certificate for a use, where there is one.
    pub(crate) fn pair(&self, profile: Profile) -> Result<Option<Pair>> {
        let Some(whole) = read(&self.kept(profile))? else { return Ok(None) };
        let Some(at) = whole.find(KEY_BEGINS) else { return Ok(None) };
        let (certificate, key) = whole.split_at(at);
        Ok(Some(Pair { certificate: certificate.to_owned(), key: key.to_owned() }))
    }

    /// Certificates in use.
    pub(crate) fn status(&self) -> Vec<CertificateStatus> {
        let all = (1..).map_while(|number| Profile::try_from(number).ok());
        all.filter_map(|profile| {
            let pair = self.pair(profile).ok().flatten()?;
            let leaf = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).ok()?;
            let (_, parsed) = X509Certificate::from_der(&leaf).ok()?;
            let seconds = parsed.validity().not_after.timestamp();
            Some(CertificateStatus {
                profile: profile.into(),
                not_after: Some(prost_types::Timestamp { seconds, nanos: 0 }),
                sha256: hex::encode(Sha256::digest(&leaf)),
                authority_key_id: authority_key_id(&parsed),
            })
        })
        .collect()
    }
}

/// Key identifier of the authority that signed, in hexadecimal digits; empty where
/// the certificate does not name it.
fn authority_key_id(certificate: &X509Certificate<'_>) -> String {
    let named =
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref(),
            _ => None,
        });
    named.map(|id| hex::encode(id.0)).unwrap_or_default()
}

/// Name of a profile in files.
pub(crate) fn name(profile: Profile) -> String {
    profile.as_str_name().to_ascii_lowercase().replace('_', "-")
}

fn ended(pem: &str) -> String {
    let mut text = pem.trim_end().to_owned();
    text.push('\n');
    text
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rcgen::{CertificateSigningRequestParams, Issuer};

    use super::*;

    fn authority() -> Issuer<'static, KeyPair> {
        Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap())
    }

    fn signed(request: &CertificateRequest) -> Certificate {
        let csr = CertificateSigningRequestParams::from_pem(&request.csr).unwrap();
        let pem = csr.signed_by(&authority()).unwrap().pem();
        Certificate { profile: request.profile, pem }
    }

    #[test]
    fn a_key_waits_until_its_certificate_comes_and_never_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::new(folder.path().join("pki"));
        let first = signed(&keys.request(Profile::Apiserver, false).unwrap());
        let again = signed(&keys.request(Profile::Apiserver, false).unwrap());
        // Both are for the same key.
        keys.check(std::slice::from_ref(&first)).unwrap();
        keys.keep(&[first]).unwrap();
        keys.keep(&[again]).unwrap();
        assert!(keys.pair(Profile::Apiserver).unwrap().unwrap().key.starts_with(KEY_BEGINS));
        // Renewal: the old one serves until the new one is there.
        let renewed = signed(&keys.request(Profile::Apiserver, false).unwrap());
        let before = keys.status()[0].sha256.clone();
        keys.keep(&[renewed]).unwrap();
        assert_ne!(keys.status()[0].sha256, before);
    }

    #[test]
    fn a_certificate_for_somebody_elses_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) =
            (Keys::new(folder.path().join("a")), Keys::new(folder.path().join("b")));
        ours.request(Profile::EtcdPeer, false).unwrap();
        let foreign = signed(&theirs.request(Profile::EtcdPeer, false).unwrap());
        let error = ours.check(&[foreign]).unwrap_err();
        assert!(error.to_string().contains("ETCD_PEER"), "{error}");
    }
}
