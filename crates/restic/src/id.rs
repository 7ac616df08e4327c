//! The name of everything in a repository: a SHA-256.

use std::{fmt, str::FromStr};

use aws_lc_rs::digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 32 bytes, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id([u8; Self::LENGTH]);

/// Text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an id: 64 hexadecimal digits are")]
pub struct NotAnId(String);

impl Id {
    /// Number of bytes of an id.
    pub const LENGTH: usize = 32;

    /// The id of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, bytes);
        let mut id = [0; Self::LENGTH];
        id.copy_from_slice(digest.as_ref());
        Self(id)
    }

    /// An id that nothing has yet.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The id with exactly these bytes.
    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }

    /// The first eight digits, as restic shows ids.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; Self::LENGTH * 2];
        hex::encode_to_slice(self.0, &mut digits).map_err(|_| fmt::Error)?;
        f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for Id {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let mut id = [0; Self::LENGTH];
        hex::decode_to_slice(text, &mut id).map_err(|_| NotAnId(text.to_owned()))?;
        Ok(Self(id))
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Id;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 hexadecimal digits")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}
