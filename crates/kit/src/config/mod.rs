//! The one configuration style of all daemons.
//!
//! A configuration is a tree of plain structs, with `Serialize`,
//! `DeserializeOwned` and `Default`. [`Loader`] lays four sources over one
//! another, the later winning key by key:
//!
//! 1. the built-in defaults, from `T::default()`;
//! 2. a TOML file;
//! 3. the environment: the key `listen.max_connections` is
//!    `SELVAGE_LISTEN_MAX_CONNECTIONS`, that is the prefix and the key in
//!    upper case, with dots and dashes as underscores. Lists are written
//!    `a,b,c` or as a TOML array, free tables as an inline TOML table;
//! 4. flags, as pairs of key path and value, written like variables.
//!
//! Two things make the errors exact. Every value carries where it came from
//! (`node`), so that whatever the structs refuse is reported with file, line
//! and column, or with the variable or flag. And the keys are read off the
//! types themselves (`schema`), optional ones too, so that an unknown key or
//! variable is refused with the nearest known one, and a variable finds its
//! key without a separator that people mistype.
//!
//! Lists, enums with data and free-form values are replaced as a whole;
//! structs and maps are merged. `#[serde(flatten)]` hides keys from the
//! schema and is not supported. `deny_unknown_fields` is good manners, yet
//! unknown keys are refused without it, too.
//!
//! Secrets are [`Redacted`], or better a [`SecretFile`]. [`dump`] writes a
//! configuration that loads again, except for the redacted secrets.

mod node;
mod read;
mod schema;
mod types;

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
};

use selvage_api::Code;
use serde::{Serialize, de::DeserializeOwned};

pub use self::types::{ByteSize, Duration, Redacted, SecretError, SecretFile};
use self::{
    node::{Node, Origin},
    read::Failure,
    schema::Schema,
};

const PREFIX: &str = "SELVAGE_";

/// Why a configuration was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("{path}: cannot be read")]
    Read {
        /// The file.
        path: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// File, line and column.
        place: String,
        /// Message of the parser.
        message: String,
    },
    /// There is no such key.
    #[error("{place}: unknown key {key:?}{}", did_you_mean(.suggestion))]
    UnknownKey {
        /// File, line and column, or the flag.
        place: String,
        /// The key as written, from the root.
        key: String,
        /// The nearest known key.
        suggestion: Option<String>,
    },
    /// The environment has a variable with our prefix that sets nothing.
    #[error("{variable}: no configuration key has this name{}", did_you_mean(.suggestion))]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// The nearest variable that sets something.
        suggestion: Option<String>,
    },
    /// The value is not what the key takes.
    #[error("{place}: invalid value{} for {key}: {reason}", shown(.value))]
    Invalid {
        /// File, line and column, or variable, or flag.
        place: String,
        /// The key from the root.
        key: String,
        /// The value as written; nothing for secrets and tables.
        value: Option<String>,
        /// Expected form.
        reason: String,
    },
    /// A key that has no default was not given.
    #[error("{place}: key {key:?} is missing")]
    Missing {
        /// The place of the table that lacks it.
        place: String,
        /// The key from the root.
        key: String,
    },
    /// A variable of ours that is not UTF-8.
    #[error("{variable}: the value is not valid UTF-8")]
    NotText {
        /// The variable.
        variable: String,
    },
    /// An override without `=`.
    #[error("override {text:?} is not of the form key.path=value")]
    Override {
        /// The override without its value.
        text: String,
    },
    /// A defect: two keys have the same variable.
    #[error("keys {first:?} and {second:?} are both set by {variable}")]
    Ambiguous {
        /// The variable.
        variable: String,
        /// One key.
        first: String,
        /// The other.
        second: String,
    },
    /// A defect: the type cannot be written as TOML.
    #[error("the configuration cannot be written as TOML")]
    Unwritable(#[source] toml::ser::Error),
}

impl Error {
    /// Code for the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => Code::NotFound,
            Self::Read { .. } => Code::FailedPrecondition,
            Self::Ambiguous { .. } | Self::Unwritable(_) => Code::Internal,
            Self::Syntax { .. }
            | Self::UnknownKey { .. }
            | Self::UnknownVariable { .. }
            | Self::Invalid { .. }
            | Self::Missing { .. }
            | Self::NotText { .. }
            | Self::Override { .. } => Code::InvalidArgument,
        }
    }
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|known| format!(", did you mean {known:?}?")).unwrap_or_default()
}

fn shown(value: &Option<String>) -> String {
    value.as_ref().map(|value| format!(" {value}")).unwrap_or_default()
}

struct Override {
    flag: String,
    key: String,
    value: String,
}

/// Collects the sources of a configuration and reads them.
///
/// Nothing is read from disk before [`Loader::load`], and nothing from the
/// environment unless [`Loader::environment`] says so.
#[derive(Default)]
pub struct Loader {
    file: Option<PathBuf>,
    file_may_be_absent: bool,
    variables: Vec<(OsString, OsString)>,
    allowed: Vec<String>,
    overrides: Vec<Override>,
    renamed: Vec<(String, String)>,
}

impl fmt::Debug for Loader {
    // Variables and overrides may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Loader {
    /// A loader that knows the defaults only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the file, which must be there.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self.file_may_be_absent = false;
        self
    }

    /// Reads the file if it is there.
    pub fn file_if_present(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self.file_may_be_absent = true;
        self
    }

    /// Takes the variables of this process.
    pub fn environment(self) -> Self {
        self.variables(std::env::vars_os())
    }

    /// Takes these variables; those without our prefix are left alone.
    pub fn variables<N, V>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        let pairs = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.variables.extend(pairs);
        self
    }

    /// Names variables with our prefix that mean something else than a key.
    pub fn allow_variables<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.allowed.extend(names.into_iter().map(Into::into));
        self
    }

    /// Takes a key by its old name for the one that it has now.
    pub fn renamed(mut self, old: impl Into<String>, new: impl Into<String>) -> Self {
        self.renamed.push((old.into(), new.into()));
        self
    }

    /// Sets a key because of a flag; errors name the flag.
    pub fn flag(
        mut self,
        flag: impl Into<String>,
        key: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        self.overrides.push(Override { flag: flag.into(), key: key.into(), value: value.into() });
        self
    }

    /// Sets a key by `key.path=value`, as given to `--set`.
    pub fn set(self, text: &str) -> Result<Self, Error> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(self.flag("--set", key.trim(), value.trim()))
            }
            // What follows a `=` may be a secret.
            _ => Err(Error::Override { text: text.split('=').next().unwrap_or("").to_owned() }),
        }
    }

    /// Reads all sources into a configuration. What a source says must be
    /// right also where a later one says something else: whoever drops the
    /// flag should not be the first to hear of it.
    pub fn load<T: DeserializeOwned + Serialize + Default>(&self) -> Result<T, Error> {
        self.load_with_warnings().map(|(config, _)| config)
    }

    /// The same, with a warning for each key that was given by its old name.
    pub fn load_with_warnings<T: DeserializeOwned + Serialize + Default>(
        &self,
    ) -> Result<(T, Vec<String>), Error> {
        let mut warnings = Vec::new();
        let schema = Schema::of::<T>();
        let defaults = toml::Value::try_from(T::default()).map_err(Error::Unwritable)?;
        let mut tree = Node::from_defaults(&defaults);
        if let Some(path) = &self.file
            && let Some(text) = self.read_file(path)?
        {
            let mut file = Node::from_file(path, &text)?;
            for (old, new) in &self.renamed {
                if let Some(place) = file.rename(old, new) {
                    warnings.push(format!("{place}: {old} is now called {new}"));
                }
            }
            tree.overlay(file, &schema, &mut Vec::new());
            check::<T>(&tree, &schema)?;
        }
        for (variable, key, value) in self.known_variables(&schema)? {
            let key = self.current_name(&key, &variable, &mut warnings);
            let origin = Origin::Variable(variable);
            tree.overlay(Node::at_key(&key, value, &origin), &schema, &mut Vec::new());
        }
        check::<T>(&tree, &schema)?;
        for Override { flag, key, value } in &self.overrides {
            let key = self.current_name(key, flag, &mut warnings);
            let origin = Origin::Flag(flag.clone());
            tree.overlay(Node::at_key(&key, value.clone(), &origin), &schema, &mut Vec::new());
        }
        Ok((parsed::<T>(&tree, &schema)?, warnings))
    }

    /// The name that a key has now.
    fn current_name(&self, key: &str, place: &str, warnings: &mut Vec<String>) -> String {
        for (old, new) in &self.renamed {
            let Some(rest) = key.strip_prefix(old.as_str()) else { continue };
            if rest.is_empty() || rest.starts_with('.') {
                warnings.push(format!("{place}: {old} is now called {new}"));
                return format!("{new}{rest}");
            }
        }
        key.to_owned()
    }

    fn read_file(&self, path: &Path) -> Result<Option<String>, Error> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.file_may_be_absent => {
                Ok(None)
            }
            Err(source) => Err(Error::Read { path: path.display().to_string(), source }),
        }
    }

    /// Variable, key and value of every variable with our prefix.
    fn known_variables(&self, schema: &Schema) -> Result<Vec<(String, String, String)>, Error> {
        let mut known = schema.variables(PREFIX)?;
        for (old, _) in &self.renamed {
            known.insert(schema::variable(PREFIX, old), old.clone());
        }
        let mut found = Vec::new();
        for (name, value) in &self.variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
                continue;
            };
            if let Some(key) = known.get(name) {
                let value = value
                    .to_str()
                    .ok_or_else(|| Error::NotText { variable: name.to_owned() })?
                    .to_owned();
                found.push((name.to_owned(), key.clone(), value));
            } else if !self.allowed.iter().any(|allowed| allowed == name) {
                let suggestion = schema::nearest(name, known.keys().map(String::as_str));
                return Err(Error::UnknownVariable { variable: name.to_owned(), suggestion });
            }
        }
        Ok(found)
    }
}

/// The configuration as TOML, for `--dump-config`. Loads again, except for
/// the secrets, which are shown as `…`.
pub fn dump<T: Serialize>(config: &T) -> Result<String, Error> {
    toml::to_string_pretty(config).map_err(Error::Unwritable)
}

fn parsed<T: DeserializeOwned>(tree: &Node, schema: &Schema) -> Result<T, Error> {
    T::deserialize(read::Reader::new(tree)).map_err(|failure| explain(failure, schema))
}

/// Checks the sources so far; missing values may come from the next ones.
fn check<T: DeserializeOwned>(tree: &Node, schema: &Schema) -> Result<(), Error> {
    match parsed::<T>(tree, schema) {
        Ok(_) | Err(Error::Missing { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn explain(failure: Failure, schema: &Schema) -> Error {
    let key = failure.key();
    let fault = failure.into_fault();
    let place = fault.origin.as_ref().unwrap_or(&Origin::Default).to_string();
    match fault.reason {
        read::Reason::UnknownKey { siblings } => {
            Error::UnknownKey { suggestion: schema.suggest(&key, &siblings), place, key }
        }
        read::Reason::Missing => Error::Missing { place, key },
        read::Reason::Invalid(reason) => Error::Invalid { place, key, value: fault.value, reason },
    }
}
