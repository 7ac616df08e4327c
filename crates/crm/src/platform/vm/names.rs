//! Names of machines. Each follows from a key, so that what a process left
//! behind that died can be found by the next.

use std::path::Path;

use selvage_api::edgeproto::{AppInstKey, CloudletKey};
use sha2::{Digest, Sha256};

use crate::{
    Result,
    platform::naming::{readable, text},
};

/// Digits of a digest in names.
const SITE: usize = 8;
const SHORT: usize = 8;
/// Characters of the app's name in names: sockets have paths of 107 bytes at
/// most.
const READABLE: usize = 24;

/// Gives names. Two crms on one machine do not give the same, even of one
/// cloudlet, as long as each has a directory of its own.
#[derive(Debug, Clone)]
pub(super) struct Namer {
    site: String,
}

/// The names of what one machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// Of the machine, and of its directory.
    pub(super) machine: String,
    /// Name that its process is told.
    pub(super) process: String,
    pub(super) uuid: String,
    /// Address of its network card.
    pub(super) mac: [u8; 6],
}

impl Namer {
    pub(super) fn new(cloudlet: &CloudletKey, data: &Path) -> Result<Self> {
        let mut digest = Sha256::new();
        digest.update(text(cloudlet)?);
        digest.update(data.as_os_str().as_encoded_bytes());
        Ok(Self { site: short(&digest.finalize(), SITE) })
    }

    /// Prefix of the names of all processes.
    pub(super) fn processes(&self) -> String {
        format!("slv-{}-", self.site)
    }

    /// Name of the process of a machine.
    pub(super) fn process(&self, machine: &str) -> String {
        format!("{}{machine}", self.processes())
    }

    pub(super) fn instance(&self, key: &AppInstKey) -> Result<Names> {
        let digest: [u8; 32] = Sha256::digest(format!("{}/{}", self.site, text(key)?)).into();
        let app = key.app_key.clone().unwrap_or_default();
        let readable = readable(&format!("{}-{}", app.name, app.version), READABLE);
        let short = short(&digest, SHORT);
        let machine = format!("{readable}-{short}").trim_start_matches('-').to_owned();
        let [_, _, _, _, a, b, c, ..] = digest;
        let mut id = [0; 16];
        id.copy_from_slice(&digest[16..]);
        Ok(Names {
            process: self.process(&machine),
            machine,
            uuid: uuid::Builder::from_custom_bytes(id).into_uuid().to_string(),
            mac: [0x52, 0x54, 0, a, b, c],
        })
    }
}

fn short(digest: &[u8], digits: usize) -> String {
    let mut text = hex::encode(digest);
    text.truncate(digits);
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::{AppKey, DeveloperKey};

    use super::*;

    fn key(developer: &str, app: &str) -> AppInstKey {
        AppInstKey {
            app_key: Some(AppKey {
                developer_key: Some(DeveloperKey { name: developer.into() }),
                name: app.into(),
                version: "1.0".into(),
            }),
            cluster_inst_key: None,
        }
    }

    #[test]
    fn names_are_stable_readable_and_distinct() {
        let cloudlet = CloudletKey { operator_key: None, name: "here".into() };
        let here = Namer::new(&cloudlet, Path::new("/a")).unwrap();
        let one = here.instance(&key("acme", "Hello, World & Co")).unwrap();
        assert!(one.machine.starts_with("hello-world-co-1-0-"), "{one:?}");
        assert!(one.process.starts_with(&here.processes()), "{one:?}");
        assert_eq!(one, here.instance(&key("acme", "Hello, World & Co")).unwrap());
        assert_ne!(one.machine, here.instance(&key("other", "Hello, World & Co")).unwrap().machine);
        let elsewhere = Namer::new(&cloudlet, Path::new("/b")).unwrap();
        assert_ne!(one.process, elsewhere.process(&one.machine));
        let strange = here.instance(&key("acme", "日本")).unwrap();
        assert!(strange.machine.is_ascii() && !strange.machine.starts_with('-'), "{strange:?}");
    }
}
