//! Kubeconfigs: kept for a start without the controller, and renewed in time.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use selvage_kit::pki;
use serde_json::Value;
use x509_parser::pem::parse_x509_pem;
use zeroize::Zeroizing;

use crate::{Error, Result, error::During};

/// Folder of kubeconfigs in the data directory.
const FOLDER: &str = "kubeconfigs";

/// Kubeconfigs on disk, for the owner of the data directory alone. The key of
/// the crm lies beside them, which gets the same ones from the controller.
pub(super) struct Kubeconfigs {
    folder: PathBuf,
}

impl Kubeconfigs {
    pub(super) fn new(data: &std::path::Path) -> Self {
        Self { folder: data.join(FOLDER) }
    }

    pub(super) fn put(&self, name: &str, text: &str) -> Result<()> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.during("making the folder of kubeconfigs")?;
        let kept = pki::replace_private(&self.folder.join(name), text.as_bytes());
        kept.map_err(|error| Error::state(error.to_string()))
    }

    pub(super) fn get(&self, name: &str) -> Option<Zeroizing<String>> {
        fs::read_to_string(self.folder.join(name)).ok().map(Zeroizing::new)
    }

    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.during("removing a kubeconfig"),
        }
    }
}

/// When half of the life of the certificate in a kubeconfig is over.
pub(super) fn renewal(text: &str) -> Result<SystemTime> {
    let wrong = |reason: &str| Error::invalid("kubeconfig", reason);
    // Whatever a parser has to say might quote the key.
    let config: Value = serde_json::from_str(text).map_err(|_| wrong("is not JSON"))?;
    let encoded = config["users"][0]["user"]["client-certificate-data"].as_str();
    let encoded = encoded.ok_or_else(|| wrong("has no client certificate"))?;
    let pem = STANDARD.decode(encoded).map_err(|_| wrong("has a damaged certificate"))?;
    let (_, pem) = parse_x509_pem(&pem).map_err(|_| wrong("has a damaged certificate"))?;
    let certificate = pem.parse_x509().map_err(|_| wrong("has a damaged certificate"))?;
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let middle = u64::try_from(from + (until - from) / 2).unwrap_or_default();
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(middle))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_kubeconfig_is_kept_for_its_owner_alone() {
        let data = tempfile::tempdir().unwrap();
        let kept = Kubeconfigs::new(data.path());
        assert!(kept.get("a").is_none());
        kept.put("a", "one").unwrap();
        kept.put("a", "two").unwrap();
        assert_eq!(kept.get("a").unwrap().as_str(), "two");
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(data.path().join(FOLDER)), 0o700);
        assert_eq!(mode(data.path().join(FOLDER).join("a")), 0o600);
        kept.remove("a").unwrap();
        kept.remove("a").unwrap();
        assert!(kept.get("a").is_none());
    }

    #[test]
    fn what_is_wrong_with_a_kubeconfig_quotes_nothing_of_it() {
        for text in [
            "geheim",
            r#"{"users": [{"user": {"client-key-data": "geheim"}}]}"#,
            r#"{"users": [{"user": {"client-certificate-data": "geheim"}}]}"#,
        ] {
            let error = renewal(text).unwrap_err().to_string();
            assert!(error.starts_with("kubeconfig: "), "{error}");
            assert!(!error.contains("geheim"), "{error}");
        }
    }
}
