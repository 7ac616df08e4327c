//! Rights to pull images: the registry of the site, and pull secrets of
//! developers.
//!
//! The password of the site's registry is the operator's. It is used for what
//! lies below the developer's own folder there, `{registry}/{developer}/`, and
//! for nothing else, and it never leaves this process. Other credentials of a
//! developer are in a file of theirs in `crm.pull_secrets`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use selvage_edge::registry_folder;
use selvage_kit::config::Redacted;
use selvage_runtime::Credentials;
use serde::Deserialize;
use serde_json::json;
use zeroize::Zeroizing;

use crate::{
    Error, Result,
    site::{Registry, Site},
};

/// Rights of all developers of a cloudlet.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    site: Option<Registry>,
    /// File that has the site's password, which may be another by now.
    site_file: Option<PathBuf>,
    /// Files `{developer}.json`, each as Docker's `config.json`.
    pull_secrets: Option<PathBuf>,
}

/// Docker's `config.json`, as far as it is about registries.
#[derive(Deserialize, Default)]
struct PullSecret {
    #[serde(default)]
    auths: BTreeMap<String, Login>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: Redacted,
    /// `user:password` in base64.
    #[serde(default)]
    auth: Redacted,
}

impl Registries {
    pub fn new(site: Option<Registry>, pull_secrets: Option<PathBuf>) -> Self {
        Self { site, site_file: None, pull_secrets }
    }

    /// Those of a site whose file is read again for each image.
    pub fn of_site(site: &Site, pull_secrets: Option<PathBuf>) -> Self {
        let site_file = site.file.clone();
        Self { site_file, ..Self::new(site.registry.clone(), pull_secrets) }
    }

    /// The site's registry with the password that its file has now. A file that
    /// cannot be read just now does not take away the last one.
    fn current(&self) -> Option<Registry> {
        let known = self.site.as_ref()?;
        let read = self.site_file.as_ref().map(|path| (path, Site::read(path)));
        match read {
            Some((_, Ok(Site { registry: Some(now), .. }))) if now.host == known.host => Some(now),
            Some((path, Err(error))) => {
                let path = path.display();
                tracing::warn!(%path, %error, "registry: the password of before is used");
                Some(known.clone())
            }
            _ => Some(known.clone()),
        }
    }

    /// The registry that the operator trusts to be anywhere.
    pub(crate) fn host(&self) -> Option<&str> {
        self.site.as_ref().map(|site| site.host.as_str())
    }

    /// Name of the secret that pods of a cluster pull with.
    pub(crate) fn secret_name(&self) -> Option<&str> {
        self.site.as_ref().map(|site| site.secret.as_str())
    }

    /// Returns who a developer is at the registry of an image.
    pub(crate) fn credentials(
        &self,
        developer: &str,
        reference: &str,
    ) -> Result<Option<Credentials>> {
        let Some((host, repository)) = reference.split_once('/') else { return Ok(None) };
        if let Some(login) = self.logins(developer)?.remove(host) {
            return Ok(Some(login));
        }
        let folder = format!("{}/", registry_folder(developer));
        let own = folder.len() > 1 && repository.to_ascii_lowercase().starts_with(&folder);
        if !own || self.host() != Some(host) {
            return Ok(None);
        }
        let credentials = |site: Registry| Credentials { user: site.user, password: site.password };
        Ok(self.current().map(credentials))
    }

    /// Returns what a cluster of the developer may hold to pull images with:
    /// credentials of the developer and none of the operator.
    pub(crate) fn pull_secret(&self, developer: &str) -> Result<Option<Zeroizing<String>>> {
        let logins = self.logins(developer)?;
        if logins.is_empty() {
            return Ok(None);
        }
        let auths: serde_json::Map<String, serde_json::Value> = logins
            .into_iter()
            .map(|(host, login)| {
                (host, json!({ "username": login.user, "password": login.password.as_str() }))
            })
            .collect();
        Ok(Some(Zeroizing::new(json!({ "auths": auths }).to_string())))
    }

    /// The file is read each time: passwords change.
    fn logins(&self, developer: &str) -> Result<BTreeMap<String, Credentials>> {
        let (Some(folder), name) = (&self.pull_secrets, registry_folder(developer)) else {
            return Ok(BTreeMap::new());
        };
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Ok(BTreeMap::new());
        }
        let path = folder.join(format!("{name}.json"));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(source) => return Err(Error::File { path, source }),
        };
        parse(&path, &text)
    }
}

fn parse(path: &Path, text: &str) -> Result<BTreeMap<String, Credentials>> {
    // What is wrong with it is not said: the text has passwords in it.
    let wrong = |reason: &str| {
        Error::state(format!("the pull secret {} cannot be used: {reason}", path.display()))
    };
    let read: PullSecret =
        serde_json::from_str(text).map_err(|_| wrong("it is not Docker's config.json"))?;
    let mut logins = BTreeMap::new();
    for (host, login) in read.auths {
        let credentials = login.credentials();
        let credentials = credentials.ok_or_else(|| wrong("an entry has no user and password"))?;
        logins.insert(host, credentials);
    }
    Ok(logins)
}

impl Login {
    fn credentials(self) -> Option<Credentials> {
        if !self.username.is_empty() {
            let password = Zeroizing::new(self.password.expose().to_owned());
            return Some(Credentials { user: self.username, password });
        }
        let text = Zeroizing::new(STANDARD.decode(self.auth.expose()).ok()?);
        let (user, password) = std::str::from_utf8(&text).ok()?.split_once(':')?;
        Some(Credentials { user: user.to_owned(), password: Zeroizing::new(password.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn registries(folder: &Path) -> Registries {
        let site = Registry {
            host: "reg.example:5000".into(),
            user: "operator".into(),
            password: Zeroizing::new("geheim".into()),
            secret: "mexgitlabsecret".into(),
        };
        Registries::new(Some(site), Some(folder.to_owned()))
    }

    #[test]
    fn the_operators_password_is_for_a_developers_own_folder() {
        let folder = tempfile::tempdir().unwrap();
        let registries = registries(folder.path());
        let user = |developer: &str, reference: &str| {
            registries.credentials(developer, reference).unwrap().map(|found| found.user)
        };
        for own in ["reg.example:5000/acmeco/images/app:1", "reg.example:5000/AcmeCo/x@sha256:0"] {
            assert_eq!(user("Acme Co", own).as_deref(), Some("operator"), "{own}");
        }
        for other in [
            "reg.example:5000/bmce/images/app:1",
            "reg.example:5000/acmeco-other/app:1",
            "reg.example:5000/acmeco:1",
            "reg.example:5000/other/acmeco/app:1",
            "reg.example/acmeco/app:1",
            "evil.example/acmeco/app:1",
            "acmeco/app:1",
            "reg.example:5000",
        ] {
            assert_eq!(user("Acme Co", other), None, "{other}");
        }
        // No name is nobody's folder.
        assert_eq!(user("", "reg.example:5000//app:1"), None);
    }

    #[test]
    fn a_new_password_counts_from_the_next_image_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.yaml");
        let write = |host: &str, password: &str| {
            let common =
                format!("{{docker_registry: \"{host}\", docker_reg_pass: \"{password}\"}}");
            std::fs::write(&path, format!("common: {common}\n")).unwrap();
        };
        write("reg.example", "joe:old");
        let registries = Registries::of_site(&Site::read(&path).unwrap(), None);
        let login = || {
            let found = registries.credentials("acme", "reg.example/acme/app:1").unwrap().unwrap();
            (found.user, found.password.to_string())
        };
        assert_eq!(login(), ("joe".into(), "old".into()));
        write("reg.example", "jane:new");
        assert_eq!(login(), ("jane".into(), "new".into()));
        // A half written file, or one about another place, changes nothing.
        std::fs::write(&path, "common: {docker_reg").unwrap();
        assert_eq!(login(), ("joe".into(), "old".into()));
        write("other.example", "jane:new");
        assert_eq!(login(), ("joe".into(), "old".into()));
    }

    #[test]
    fn a_developers_own_secret_is_for_that_developer_alone() {
        let folder = tempfile::tempdir().unwrap();
        let registries = registries(folder.path());
        let auth = STANDARD.encode("ann:hers");
        let text = json!({ "auths": {
            "hub.example": { "auth": auth },
            "reg.example:5000": { "username": "acme", "password": "own" },
        } });
        std::fs::write(folder.path().join("acmeco.json"), text.to_string()).unwrap();
        let of = |developer: &str, reference: &str| {
            let found = registries.credentials(developer, reference).unwrap();
            found.map(|found| (found.user, found.password.to_string()))
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(of("Acme Co", "hub.example/x:1"), pair("ann", "hers"));
        assert_eq!(of("Acme Co", "reg.example:5000/acmeco/x:1"), pair("acme", "own"));
        assert_eq!(of("Bmce", "hub.example/x:1"), None);
        let secret = registries.pull_secret("Acme Co").unwrap().unwrap();
        assert!(secret.contains("hers") && !secret.contains("geheim"));
        for nobody in ["Bmce", "", "../acmeco", "./acmeco"] {
            assert!(registries.pull_secret(nobody).unwrap().is_none(), "{nobody}");
        }
        assert!(!format!("{registries:?}").contains("geheim"));
    }

    #[test]
    fn a_broken_secret_is_named_without_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let registries = registries(folder.path());
        for text in ["{ geheim", r#"{ "auths": { "a": { "auth": "geheim" } } }"#] {
            std::fs::write(folder.path().join("acmeco.json"), text).unwrap();
            let error = registries.pull_secret("Acme Co").unwrap_err().to_string();
            assert!(error.contains("acmeco.json") && !error.contains("geheim"), "{error}");
        }
    }
}
