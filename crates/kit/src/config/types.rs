//! Values as people write them: `"30s"`, `"4MiB"`, and secrets that stay so.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    time,
};

use selvage_api::Code;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, Visitor},
};
use zeroize::Zeroizing;

/// Longest secret a [`SecretFile`] may hold.
const SECRET_LIMIT: u64 = 64 * 1024;

/// The text is not a value of this type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct Unreadable(&'static str);

impl Unreadable {
    /// Code for the caller.
    pub fn code(&self) -> Code {
        Code::InvalidArgument
    }
}

/// A length of time, written `"500ms"`, `"30s"`, `"1h30m"`, `"7d"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub time::Duration);

const DURATION: &str = r#"a duration such as "500ms", "30s", "5m" or "12h""#;
const DURATION_UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl Duration {
    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(time::Duration::from_secs(seconds))
    }

    /// So many milliseconds.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(time::Duration::from_millis(milliseconds))
    }

    /// As the standard library has it.
    pub const fn get(self) -> time::Duration {
        self.0
    }
}

impl From<Duration> for time::Duration {
    fn from(duration: Duration) -> Self {
        duration.0
    }
}

impl FromStr for Duration {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let error = || Unreadable(DURATION);
        let mut rest = text.trim();
        let mut nanoseconds: u128 = 0;
        while !rest.is_empty() {
            let (number, unit, after) = number_and_unit(rest).ok_or_else(error)?;
            let (_, size) =
                DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
            let part = u128::from(number).checked_mul(*size).ok_or_else(error)?;
            nanoseconds = nanoseconds.checked_add(part).ok_or_else(error)?;
            rest = after;
        }
        if text.trim().is_empty() {
            return Err(error());
        }
        let seconds = u64::try_from(nanoseconds / 1_000_000_000).map_err(|_| error())?;
        let below = u32::try_from(nanoseconds % 1_000_000_000).map_err(|_| error())?;
        Ok(Self(time::Duration::new(seconds, below)))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_nanos();
        if left == 0 {
            return f.write_str("0s");
        }
        for (name, size) in DURATION_UNITS {
            if left >= size {
                write!(f, "{}{name}", left / size)?;
                left %= size;
            }
        }
        Ok(())
    }
}

fn number_and_unit(text: &str) -> Option<(u64, &str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(letters);
    Some((number.parse().ok()?, unit.trim(), after))
}

/// A number of bytes, written `"512KiB"`, `"4MiB"`, `"1GB"`, or as a plain
/// number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const BYTE_SIZE: &str = r#"a size such as 4096, "512KiB", "4MiB" or "1GB""#;
const BINARY_UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const DECIMAL_UNITS: [(&str, u64); 5] = [
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("kB", 1_000),
];

impl ByteSize {
    /// So many KiB.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// So many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// The number of bytes, no more than this machine can address.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let error = || Unreadable(BYTE_SIZE);
        let (number, unit, after) = number_and_unit(text.trim()).ok_or_else(error)?;
        let unit = if unit.is_empty() { "B" } else { unit };
        let (_, size) = BINARY_UNITS
            .iter()
            .chain(&DECIMAL_UNITS)
            .find(|(name, _)| *name == unit && after.is_empty())
            .ok_or_else(error)?;
        number.checked_mul(*size).map(Self).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, size): &&(&str, u64)| self.0.is_multiple_of(*size) && self.0 >= *size;
        match BINARY_UNITS.iter().find(exact) {
            Some((name, size)) => write!(f, "{}{name}", self.0 / size),
            None => f.write_str("0B"),
        }
    }
}

macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

as_text!(Duration, ByteSize);

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl Visitor<'_> for Reading {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(DURATION)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map_err(E::custom)
            }
        }
        // Not `deserialize_str`, which would call a bare number "no text".
        deserializer.deserialize_any(Reading)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl Visitor<'_> for Reading {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(BYTE_SIZE)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom(Unreadable(BYTE_SIZE)))
            }
        }
        deserializer.deserialize_any(Reading)
    }
}

/// By this name the reader knows not to quote a value in an error.
pub(super) const REDACTED: &str = "$selvage::Redacted";
const DOTS: &str = "…";

/// A secret inside a configuration. It shows itself nowhere: `Debug` and
/// serialisation give `…`. The built-in default can only be empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Redacted(Zeroizing<String>);

impl Redacted {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The text, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether there is no secret.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Redacted(empty)" } else { "Redacted(…)" })
    }
}

impl Serialize for Redacted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.is_empty() { "" } else { DOTS })
    }
}

impl<'de> Deserialize<'de> for Redacted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Redacted;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a secret as text in quotes")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Redacted, D::Error> {
                match String::deserialize(deserializer)? {
                    dots if dots == DOTS => Err(D::Error::custom(
                        "this is the mark of a dump, which holds no secrets; put the secret here",
                    )),
                    text => Ok(Redacted::new(text)),
                }
            }
        }
        deserializer.deserialize_newtype_struct(REDACTED, Reading)
    }
}

/// The path of a file that holds a secret and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretFile(pub PathBuf);

/// Why a secret could not be had from its file.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The system says no.
    #[error("secret file {path}: cannot be read")]
    Read {
        /// The file.
        path: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Everybody on this machine may read or write it.
    #[error("secret file {path}: open to everybody (mode {mode:04o}); run: chmod o= {path}")]
    Open {
        /// The file.
        path: String,
        /// Its permissions.
        mode: u32,
    },
    /// It holds nothing, or too much, or no text.
    #[error("secret file {path}: {reason}")]
    Content {
        /// The file.
        path: String,
        /// Reason it is refused.
        reason: &'static str,
    },
}

impl SecretError {
    /// Code for the caller.
    pub fn code(&self) -> Code {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => Code::NotFound,
            Self::Read { .. } | Self::Open { .. } | Self::Content { .. } => {
                Code::FailedPrecondition
            }
        }
    }
}

impl SecretFile {
    /// Path of the file with the secret.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The secret, without the line break at its end.
    pub fn read(&self) -> Result<Redacted, SecretError> {
        let path = self.0.display().to_string();
        let failed = |source| SecretError::Read { path: path.clone(), source };
        let content = |reason| SecretError::Content { path: path.clone(), reason };
        // Permissions and content of the same file, whatever is renamed meanwhile.
        let file = File::open(&self.0).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o007 != 0 {
            return Err(SecretError::Open { path, mode });
        }
        let mut bytes = Zeroizing::new(Vec::new());
        file.take(SECRET_LIMIT + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > SECRET_LIMIT {
            return Err(content("longer than 64 KiB"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| content("not valid UTF-8"))?;
        match text.trim_end_matches(['\n', '\r']) {
            "" => Err(content("empty")),
            secret => Ok(Redacted::new(secret)),
        }
    }
}
