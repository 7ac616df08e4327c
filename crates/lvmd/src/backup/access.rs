//! Location of a repository, and the credentials for it.
//!
//! Credentials live here, in memory, for as long as a job needs them, and
//! nowhere else: they are wiped when dropped, and none of these types can be
//! printed.

use std::{
    fs,
    hash::{Hash, Hasher},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use selvage_api::{proto::data_source::S3 as Wire, selvage::volumes::Repository as Described};
use selvage_restic::{
    Backend, Directory, Limits, Location, Outage, Repository, RepositoryOptions, Rest, S3, Secret,
    SnapshotFilter, StoreOptions,
};
use zeroize::Zeroizing;

use super::{Error, Result};
use crate::config;

/// The endpoint of repositories in this machine's directory.
const DIRECTORY: &str = "file:";
/// Beginning of the endpoint of repositories on a server that speaks restic's REST protocol,
/// as restic writes it.
const REST: &str = "rest:";
/// Ending of what the original's scripts made, on the disk of the machine.
const ARCHIVE: &str = ".tar.gz";
/// The name of credentials that are in the environment of this process.
const ENVIRONMENT: &str = "environment";

/// Location of a repository and its credentials.
pub(crate) struct Access {
    pub(crate) endpoint: String,
    pub(crate) location: Location,
    verify_tls: bool,
    http_proxy: Zeroizing<String>,
    https_proxy: Zeroizing<String>,
    keys: Keys,
    password: Secret,
}

/// Keys for an object store.
struct Keys {
    access_key: Zeroizing<String>,
    secret_key: Secret,
    session_token: Option<Secret>,
}

/// Hashes what opens the repository, not where it is.
impl Hash for Access {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Keys { access_key, secret_key, session_token } = &self.keys;
        (&**access_key, secret_key, session_token, &self.password).hash(state);
        (self.verify_tls, &*self.http_proxy, &*self.https_proxy).hash(state);
    }
}

impl Access {
    /// Reads what a client of the original sends.
    pub(crate) fn from_wire(mut from: Wire, config: &config::Backup) -> Result<Self> {
        let described = Described {
            path: from.path,
            endpoint: from.endpoint,
            skip_tls_verify: !from.verify_tls,
            http_proxy: std::mem::take(&mut from.http_proxy),
            https_proxy: std::mem::take(&mut from.https_proxy),
            access_key_id: std::mem::take(&mut from.access_key_id),
            secret_access_key: std::mem::take(&mut from.secret_access_key),
            session_token: std::mem::take(&mut from.session_token),
            encryption_key: std::mem::take(&mut from.encryption_key),
            credentials: String::new(),
        };
        Self::new(described, config)
    }

    /// Reads what a caller of our own service sends.
    pub(crate) fn new(from: Described, config: &config::Backup) -> Result<Self> {
        let token = Some(Secret::new(from.session_token)).filter(|token| !token.is_empty());
        let mut keys = Keys {
            access_key: Zeroizing::new(from.access_key_id),
            secret_key: Secret::new(from.secret_access_key),
            session_token: token,
        };
        let mut password = Secret::new(from.encryption_key);
        if !from.credentials.is_empty() {
            if !keys.access_key.is_empty() || !keys.secret_key.is_empty() || !password.is_empty() {
                let reason = "keys are given besides; give one of the two".to_owned();
                return Err(Error::Invalid { field: "credentials", reason });
            }
            let rest = from.endpoint.starts_with(REST);
            (keys, password) = named(&from.credentials, &config.workdir, rest)?;
        }
        if password.is_empty()
            && let Some(path) = &config.encryption_key_file
        {
            let text = Zeroizing::new(read(path)?);
            password = Secret::new(text.trim_end_matches(['\r', '\n']));
        }
        if password.is_empty() {
            return Err(Error::Missing("encryption_key"));
        }
        check_endpoint(&from.endpoint, config)?;
        if from.path.is_empty() {
            return Err(Error::Missing("path"));
        }
        let location: Location = from.path.parse()?;
        if location.bucket.ends_with(ARCHIVE) || location.prefix.ends_with(ARCHIVE) {
            let reason = "an archive of files is no repository; unpack it with tar";
            return Err(Error::Invalid { field: "path", reason: reason.to_owned() });
        }
        let verify_tls = !from.skip_tls_verify;
        let address = from.endpoint.strip_prefix(REST).unwrap_or(&from.endpoint);
        if !verify_tls && address.starts_with("https:") {
            if config.require_tls_verify {
                let reason = "this machine does not take object stores it cannot verify".into();
                return Err(Error::Invalid { field: "verify_tls", reason });
            }
            tracing::warn!(endpoint = %from.endpoint, "certificate of the object store not verified");
        }
        Ok(Self {
            location,
            endpoint: from.endpoint,
            verify_tls,
            http_proxy: Zeroizing::new(from.http_proxy),
            https_proxy: Zeroizing::new(from.https_proxy),
            keys,
            password,
        })
    }

    /// Returns the name of the repository, the same for everybody who means it.
    pub(crate) fn repository_name(&self) -> String {
        let Location { bucket, prefix, .. } = &self.location;
        let endpoint = self.endpoint.trim_end_matches('/');
        let parts = [if endpoint.is_empty() { "s3:" } else { endpoint }, bucket, prefix];
        parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("/")
    }

    /// The volume whose backup is meant, `NAME` or `GROUP/NAME`, as the path or another
    /// field says.
    pub(crate) fn source_volume(&self, given: &str) -> Result<Option<String>> {
        let given = Some(given).filter(|given| !given.is_empty());
        match (self.location.volume.as_deref(), given) {
            (Some(one), Some(other)) => {
                let ((group, name), (other_group, other_name)) = (split(one), split(other));
                let apart = group.zip(other_group).is_some_and(|(one, other)| one != other);
                if name != other_name || apart {
                    let reason = format!("the path names volume {one}, and the request {other}");
                    return Err(Error::Invalid { field: "volume", reason });
                }
                Ok(Some(if group.is_some() { one } else { other }.to_owned()))
            }
            (one, other) => Ok(one.or(other).map(str::to_owned)),
        }
    }

    fn backend(
        &self,
        config: &config::Backup,
        limits: &Arc<Limits>,
        outage: Option<&Outage>,
    ) -> Result<Arc<dyn Backend>> {
        if self.endpoint.starts_with(DIRECTORY) {
            let root = config.directory.as_ref().ok_or_else(no_directory)?;
            let folder = root.join(&self.location.bucket).join(&self.location.prefix);
            return Ok(Arc::new(Directory::new(folder).with_limits(Arc::clone(limits))));
        }
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let rest = self.endpoint.strip_prefix(REST);
        let options = StoreOptions {
            access_key: self.keys.access_key.to_string(),
            secret_key: self.keys.secret_key.clone(),
            session_token: self.keys.session_token.clone(),
            verify_tls: self.verify_tls,
            http_proxy: given(&self.http_proxy),
            https_proxy: given(&self.https_proxy),
            limits: Arc::clone(limits),
            retry_for: outage.map_or(Duration::ZERO, |_| config.retry_for()),
            outage: outage.cloned().unwrap_or_default(),
            ..StoreOptions::new(rest.unwrap_or(&self.endpoint), self.location.clone())
        };
        Ok(match rest {
            Some(_) => Arc::new(Rest::new(options)?),
            None => Arc::new(S3::new(options)?),
        })
    }

    /// Opens the repository that is there. A job tells of outages, and sits
    /// them out; other callers are told soon.
    pub(crate) async fn open(
        &self,
        config: &config::Backup,
        limits: &Arc<Limits>,
        outage: Option<&Outage>,
    ) -> Result<Repository> {
        let backend = self.backend(config, limits, outage)?;
        Ok(Repository::open(backend, &self.password, options(limits)).await?)
    }

    /// Opens the repository, or makes it.
    pub(crate) async fn open_or_init(
        &self,
        config: &config::Backup,
        limits: &Arc<Limits>,
        outage: Option<&Outage>,
    ) -> Result<Repository> {
        let backend = self.backend(config, limits, outage)?;
        Ok(Repository::open_or_init(backend, &self.password, options(limits)).await?)
    }
}

/// Splits `GROUP/NAME`; a name alone has no group.
pub(crate) fn split(volume: &str) -> (Option<&str>, &str) {
    match volume.rsplit_once('/') {
        Some((group, name)) => (Some(group).filter(|group| !group.is_empty()), name),
        None => (None, volume),
    }
}

/// The backup that is meant by a volume, `NAME` or `GROUP/NAME`, and a machine, each
/// empty if it does not matter.
pub(crate) fn wanted<'a>(volume: &'a str, hostname: &'a str) -> SnapshotFilter<'a> {
    let given = |text: &'a str| Some(text).filter(|text| !text.is_empty());
    let (group, volume) = split(volume);
    SnapshotFilter { volume: given(volume), group, hostname: given(hostname) }
}

/// The name that backups of this machine bear.
pub(crate) fn own_hostname() -> String {
    RepositoryOptions::default().hostname
}

fn options(limits: &Arc<Limits>) -> RepositoryOptions {
    RepositoryOptions { limits: Arc::clone(limits), ..RepositoryOptions::default() }
}

fn no_directory() -> Error {
    let reason = "this machine has no directory for backups".to_owned();
    Error::Invalid { field: "endpoint", reason }
}

fn check_endpoint(endpoint: &str, config: &config::Backup) -> Result<()> {
    let invalid =
        |reason: &str| Err(Error::Invalid { field: "endpoint", reason: reason.to_owned() });
    if endpoint.starts_with(DIRECTORY) {
        if !matches!(endpoint, "file:" | "file:/" | "file://" | "file:///") {
            return invalid("file: takes no directory, the path says where in this machine's");
        }
        return if config.directory.is_some() { Ok(()) } else { Err(no_directory()) };
    }
    if endpoint.is_empty() {
        return Ok(());
    }
    match url::Url::parse(endpoint.strip_prefix(REST).unwrap_or(endpoint)) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            invalid("it holds a user or a password; use the fields for keys")
        }
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(()),
        _ => invalid("it is not http://HOST or https://HOST, nor rest: before one of these"),
    }
}

/// Refuses proxies that hold a password, where they would be kept.
pub(crate) fn check_storable(repository: &Described) -> Result<()> {
    let proxies =
        [("http_proxy", &repository.http_proxy), ("https_proxy", &repository.https_proxy)];
    for (field, proxy) in proxies {
        if proxy.contains('@') {
            let reason = "a user or password would have to be kept".to_owned();
            return Err(Error::Invalid { field, reason });
        }
    }
    let keys = [
        &repository.access_key_id,
        &repository.secret_access_key,
        &repository.session_token,
        &repository.encryption_key,
    ];
    if keys.iter().any(|key| !key.is_empty()) {
        let reason = "keys are not kept: name credentials of the machine".to_owned();
        return Err(Error::Invalid { field: "repository", reason });
    }
    if repository.credentials.is_empty() {
        return Err(Error::Missing("repository.credentials"));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Credentials of the machine: its environment, or a file that only its owner
/// may read, of lines `NAME=VALUE`.
fn named(name: &str, workdir: &Path, rest: bool) -> Result<(Keys, Secret)> {
    let wrong = |reason: String| Error::Credentials { name: name.to_owned(), reason };
    if name == ENVIRONMENT {
        return Ok(pick(|variable| std::env::var(variable).ok(), rest));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.starts_with('.') || !name.bytes().all(fits) {
        return Err(wrong("a name has letters, digits, '-', '_' and '.'".into()));
    }
    let path = workdir.join("credentials").join(name);
    let about = fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
    if about.mode() & 0o077 != 0 {
        return Err(wrong("the file can be read by others than its owner".into()));
    }
    let text = Zeroizing::new(fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?);
    let value = |variable: &str| {
        let lines = text.lines().map(|line| line.trim().trim_start_matches("export "));
        let found = lines.filter_map(|line| line.split_once('=')).find(|(key, _)| *key == variable);
        found.map(|(_, value)| value.trim_matches(['"', '\'']).to_owned())
    };
    Ok(pick(value, rest))
}

/// The names that other programs use for the same.
fn pick(value: impl Fn(&str) -> Option<String>, rest: bool) -> (Keys, Secret) {
    let (user, password) = match rest {
        true => ("RESTIC_REST_USERNAME", "RESTIC_REST_PASSWORD"),
        false => ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    };
    let secret = |name: &str| Secret::new(value(name).unwrap_or_default());
    let keys = Keys {
        access_key: Zeroizing::new(value(user).unwrap_or_default()),
        secret_key: secret(password),
        session_token: value("AWS_SESSION_TOKEN").map(Secret::new).filter(|t| !t.is_empty()),
    };
    (keys, secret("RESTIC_PASSWORD"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn described() -> Described {
        Described {
            path: "bucket/prefix".into(),
            endpoint: "https://store.example".into(),
            encryption_key: "word".into(),
            ..Described::default()
        }
    }

    fn refused(from: Described, config: &config::Backup) -> String {
        match Access::new(from, config) {
            Ok(_) => panic!("not refused"),
            Err(error) => error.text(),
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_field() {
        let config = config::Backup::default();
        let cases: [(Described, &str); 8] = [
            (Described { encryption_key: "".into(), ..described() }, "encryption_key is required"),
            (Described { path: "".into(), ..described() }, "path is required"),
            (Described { path: "/".into(), ..described() }, "path: "),
            (Described { path: "bucket/snap-a.tar.gz".into(), ..described() }, "path: an archive"),
            (Described { endpoint: "ftp://x".into(), ..described() }, "endpoint: "),
            (Described { endpoint: "https://a:b@x".into(), ..described() }, "endpoint: "),
            (Described { endpoint: "file:".into(), ..described() }, "endpoint: "),
            (Described { credentials: "x".into(), ..described() }, "credentials: "),
        ];
        for (from, start) in cases {
            let refusal = refused(from, &config);
            assert!(refusal.starts_with(start), "{refusal}");
        }
    }

    #[test]
    fn servers_that_speak_rest_have_names_and_keys_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let config =
            config::Backup { workdir: folder.path().to_owned(), ..config::Backup::default() };
        let file = folder.path().join("credentials/here");
        fs::create_dir(file.parent().unwrap()).unwrap();
        let lines = "AWS_ACCESS_KEY_ID=s3\nRESTIC_REST_USERNAME=me\nRESTIC_PASSWORD=word\n";
        fs::write(&file, lines).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let on = |endpoint: &str| {
            let (endpoint, credentials) = (endpoint.to_owned(), "here".to_owned());
            let encryption_key = String::new();
            Access::new(Described { endpoint, credentials, encryption_key, ..described() }, &config)
        };
        let rest = on("rest:https://store.example").unwrap();
        assert_eq!(*rest.keys.access_key, "me");
        assert_eq!(rest.repository_name(), "rest:https://store.example/bucket/prefix");
        let backend = rest.backend(&config, &Arc::default(), None).unwrap();
        assert_eq!(backend.location(), "rest:https://store.example/bucket/prefix");
        assert_eq!(*on("https://store.example").unwrap().keys.access_key, "s3");
        for wrong in ["rest:", "rest:store", "rest:ftp://store", "rest:https://a:b@store"] {
            let refusal = on(wrong).err().map(|error| error.text()).unwrap_or_default();
            assert!(refusal.starts_with("endpoint: "), "{wrong}: {refusal}");
        }
    }

    #[test]
    fn a_machine_may_insist_on_certificates() {
        let config = config::Backup { require_tls_verify: true, ..config::Backup::default() };
        let from = Described { skip_tls_verify: true, ..described() };
        assert!(refused(from, &config).starts_with("verify_tls: "));
        assert!(Access::new(described(), &config).is_ok());
    }

    #[test]
    fn a_repository_has_one_name() {
        let config = config::Backup::default();
        let name = |endpoint: &str, path: &str| {
            let from = Described { endpoint: endpoint.into(), path: path.into(), ..described() };
            Access::new(from, &config).unwrap().repository_name()
        };
        let known = name("https://store.example", "bucket/prefix");
        assert_eq!(known, "https://store.example/bucket/prefix");
        assert_eq!(name("https://store.example/", "s3://bucket/prefix/#latest"), known);
        assert_eq!(name("", "bucket"), "s3:/bucket");
    }

    #[test]
    fn credentials_of_the_machine_are_a_file_for_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let config =
            config::Backup { workdir: folder.path().to_owned(), ..config::Backup::default() };
        let from = Described {
            encryption_key: String::new(),
            credentials: "nightly".into(),
            ..described()
        };
        assert!(refused(from.clone(), &config).starts_with("credentials nightly: "));
        fs::create_dir(folder.path().join("credentials")).unwrap();
        let path = folder.path().join("credentials/nightly");
        fs::write(&path, "export AWS_ACCESS_KEY_ID=me\nRESTIC_PASSWORD=\"word\"\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(from.clone(), &config).contains("read by others"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let access = Access::new(from.clone(), &config).unwrap();
        assert_eq!(*access.keys.access_key, "me");
        let outside = Described { credentials: "../nightly".into(), ..from };
        assert!(refused(outside, &config).contains("a name has"));
    }
}
