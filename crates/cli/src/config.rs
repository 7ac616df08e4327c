//! The servers a person knows, and the tokens for them.
//!
//! Contexts are no secret and live in `config.toml`; tokens live beside it in
//! `credentials.toml`, which nobody else may read. Both are replaced whole,
//! under a lock, so that two commands at once lose nothing.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use selvage_api::Code;
use selvage_kit::identity::Secret;
use serde::{Deserialize, Serialize};

use crate::io::Io;

/// Why the contexts or credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a home nor a configuration directory is known.
    #[error("cannot tell where your configuration is: neither HOME nor XDG_CONFIG_HOME is set")]
    NoHome,
    /// The file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// "read" or "write".
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("{} is not right", path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// Position and reason.
        source: toml::de::Error,
    },
    /// A file of ours could not be put into words.
    #[error("cannot write the configuration")]
    Encode(#[from] toml::ser::Error),
    /// Others may read the tokens.
    #[error("{} holds your tokens, and others may read it (mode {mode:03o})", path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

impl Error {
    /// The code in the vocabulary all parts share.
    pub fn code(&self) -> Code {
        match self {
            Self::Format { .. } => Code::InvalidArgument,
            Self::Encode(_) => Code::Internal,
            Self::NoHome | Self::File { .. } | Self::Exposed { .. } => Code::FailedPrecondition,
        }
    }

    /// Next step.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoHome => Some("name a file with SELVAGE_CONFIG".into()),
            Self::Exposed { path, .. } => Some(format!(
                "run `chmod 600 {}`; if somebody may have read it, also `selvage logout` and log in again",
                path.display()
            )),
            Self::Format { path, .. } => {
                Some(format!("correct {}, or move it away and log in again", path.display()))
            }
            _ => None,
        }
    }
}

/// A server, and how to tell it from an impostor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// `https://host:port`, `http://host:port` or `unix:///path`.
    pub(crate) endpoint: String,
    /// Further servers of the same region, tried in turn where that is away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) others: Vec<String>,
    /// The name last logged in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// True if the connection is knowingly not encrypted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) insecure: bool,
    /// PEM of the CA; without it the system's are trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<String>,
}

/// All of them, and which is current.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// The context that leads to the endpoint; the current one if several do.
    pub(crate) fn leading_to(&self, endpoint: &str) -> Option<(&str, &Context)> {
        let current = self.current.as_deref().and_then(|name| self.contexts.get_key_value(name));
        current
            .into_iter()
            .chain(&self.contexts)
            .find(|(_, context)| context.endpoint == endpoint)
            .map(|(name, context)| (name.as_str(), context))
    }
}

/// Result of a login.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    /// The server it is for; it is never shown to another.
    endpoint: String,
    token: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Login {
    pub(crate) fn new(endpoint: &str, token: &Secret, expires: Option<String>) -> Self {
        Self { endpoint: endpoint.into(), token: token.expose().into(), expires }
    }

    /// Lets the token of one endpoint be for another of the same region.
    pub(crate) fn move_to(&mut self, from: &str, to: &str) {
        if self.endpoint == from {
            self.endpoint = to.into();
        }
    }

    /// The token, if it is for this endpoint.
    pub(crate) fn token_for(&self, endpoint: &str) -> Option<Secret> {
        (self.endpoint == endpoint).then(|| Secret::new(&*self.token))
    }
}

/// The logins by context.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    #[serde(default)]
    pub(crate) logins: BTreeMap<String, Login>,
}

/// The files.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    config: PathBuf,
    credentials: PathBuf,
    lock: PathBuf,
}

impl Files {
    /// `SELVAGE_CONFIG`, else `selvage/config.toml` in the user's configuration
    /// directory.
    pub(crate) fn locate(io: &Io) -> Result<Self, Error> {
        let config = if let Some(file) = io.var("SELVAGE_CONFIG") {
            PathBuf::from(file)
        } else if let Some(dir) = io.var("XDG_CONFIG_HOME") {
            Path::new(dir).join("selvage/config.toml")
        } else {
            let home = io.var("HOME").ok_or(Error::NoHome)?;
            Path::new(home).join(".config/selvage/config.toml")
        };
        let dir = selvage_files::parent(&config);
        let (credentials, lock) = (dir.join("credentials.toml"), dir.join(".lock"));
        Ok(Self { config, credentials, lock })
    }

    pub(crate) fn contexts(&self) -> Result<Contexts, Error> {
        read(&self.config)
    }

    pub(crate) fn credentials(&self) -> Result<Credentials, Error> {
        match fs::metadata(&self.credentials) {
            Ok(metadata) => {
                let mode = metadata.permissions().mode() & 0o777;
                if mode & 0o077 != 0 {
                    return Err(Error::Exposed { path: self.credentials.clone(), mode });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Credentials::default());
            }
            Err(source) => {
                return Err(Error::File { action: "read", path: self.credentials.clone(), source });
            }
        }
        parse(&self.credentials, place)
    }

    /// Changes both together; nothing is written when the change fails.
    pub(crate) fn update<T, E: From<Error>>(
        &self,
        change: impl FnOnce(&mut Contexts, &mut Credentials) -> Result<T, E>,
    ) -> Result<T, E> {
        let _lock = self.lock()?;
        let (mut contexts, mut credentials) = (self.contexts()?, self.credentials()?);
        let had = (!credentials.logins.is_empty(), contexts.clone());
        let result = change(&mut contexts, &mut credentials)?;
        // Tokens first: a context without a token asks for a login, a token
        // without a context would lie about for ever.
        if had.0 || !credentials.logins.is_empty() {
            write(&self.credentials, &credentials, 0o600)?;
        }
        if contexts != had.1 {
            write(&self.config, &contexts, 0o644)?;
        }
        Ok(result)
    }

    fn lock(&self) -> Result<File, Error> {
        let wrap = |source| Error::File { action: "write", path: self.lock.clone(), source };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(selvage_files::parent(&self.config))
            .map_err(wrap)?;
        let file = File::options().create(true).append(true).open(&self.lock).map_err(wrap)?;
        file.lock().map_err(wrap)?;
        Ok(file)
    }
}

fn read<T: Default + serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    parse(path, std::convert::identity)
}

fn parse<T: Default + serde::de::DeserializeOwned>(
    path: &Path,
    tell: impl FnOnce(toml::de::Error) -> toml::de::Error,
) -> Result<T, Error> {
    match fs::read_to_string(path) {
        Ok(text) => toml::from_str(&text)
            .map_err(|source| Error::Format { path: path.to_owned(), source: tell(source) }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(source) => Err(Error::File { action: "read", path: path.to_owned(), source }),
    }
}

/// The place of the mistake alone: what stands there may be a token.
fn place(error: toml::de::Error) -> toml::de::Error {
    let at = error.span().map_or(0, |span| span.start);
    serde::de::Error::custom(format!("not what is expected there, from byte {at} on"))
}

fn write(path: &Path, value: &impl Serialize, mode: u32) -> Result<(), Error> {
    let text = toml::to_string_pretty(value)?;
    selvage_files::replace(path, text.as_bytes(), mode).map_err(|source| Error::File {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn files(dir: &Path) -> Files {
        Files {
            config: dir.join("sub/config.toml"),
            credentials: dir.join("sub/credentials.toml"),
            lock: dir.join("sub/.lock"),
        }
    }

    fn remember(files: &Files, name: &str) {
        files
            .update(|contexts, credentials| {
                let endpoint = format!("https://{name}:1");
                credentials.logins.insert(
                    name.into(),
                    Login::new(&endpoint, &Secret::new(format!("token-of-{name}")), None),
                );
                contexts.current = Some(name.into());
                contexts.contexts.insert(name.into(), Context { endpoint, ..Context::default() });
                Ok::<_, Error>(())
            })
            .unwrap();
    }

    #[test]
    fn what_is_written_is_read_back_and_tokens_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        assert_eq!(files.contexts().unwrap(), Contexts::default());
        remember(&files, "a");
        let contexts = files.contexts().unwrap();
        assert_eq!(contexts.leading_to("https://a:1").unwrap().0, "a");
        let login = files.credentials().unwrap().logins.remove("a").unwrap();
        assert_eq!(login.token_for("https://a:1").unwrap().expose(), "token-of-a");
        assert!(login.token_for("https://b:1").is_none());
        assert!(!format!("{login:?}").contains("token-of"));
        let mode = fs::metadata(&files.credentials).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!fs::read_to_string(&files.config).unwrap().contains("token-of"));
    }

    #[test]
    fn credentials_others_may_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        remember(&files, "a");
        for mode in [0o640, 0o604] {
            fs::set_permissions(&files.credentials, fs::Permissions::from_mode(mode)).unwrap();
            let error = files.credentials().unwrap_err();
            assert!(error.to_string().ends_with(&format!("others may read it (mode {mode:o})")));
            assert!(error.hint().unwrap().contains("chmod 600"));
        }
    }

    #[test]
    fn a_broken_file_is_named_without_quoting_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        remember(&files, "a");
        for text in ["token = \"canary\"\nx", "[logins]\na = \"canary\"", "x = \"canary"] {
            fs::write(&files.credentials, text).unwrap();
            let error = files.credentials().unwrap_err();
            let text_of_error =
                format!("{error} {error:?} {}", std::error::Error::source(&error).unwrap());
            assert!(
                text_of_error.contains("credentials.toml") && !text_of_error.contains("canary"),
                "{text_of_error}"
            );
        }
        fs::write(&files.config, "curent = \"a\"").unwrap();
        let error = files.contexts().unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("line 1") && cause.contains("curent"), "{cause}");
    }

    #[test]
    fn changes_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        std::thread::scope(|scope| {
            for number in 0..8 {
                let files = &files;
                scope.spawn(move || remember(files, &format!("c{number}")));
            }
        });
        assert_eq!(files.contexts().unwrap().contexts.len(), 8);
        assert_eq!(files.credentials().unwrap().logins.len(), 8);
    }
}
