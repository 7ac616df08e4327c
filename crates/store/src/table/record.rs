//! Requirements on a stored type, and its stored form.

use prost::Message;

use crate::{Error, LeaseId, Result, Revision};

/// A type of record. Its key and index values are computed from the record
/// itself and must not depend on anything else.
pub trait Record: Message + Default + Clone + PartialEq + Send + Sync + 'static {
    /// Name of the type in keys and messages: lower-case letters, digits and
    /// hyphens. Never change it.
    const KIND: &'static str;
    /// Raise it whenever records already stored have to be rewritten.
    const VERSION: u32;

    fn key(&self) -> String;

    /// Pairs of index name and value under which the record can be found.
    fn indexes(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Makes a record out of the bytes that `from_version` wrote.
    fn migrate(from_version: u32, bytes: &[u8]) -> Result<Self> {
        let _ = bytes;
        Err(Error::Corrupt {
            what: format!("a record of kind {}", Self::KIND),
            detail: format!(
                "it has version {from_version} and nothing is known about turning that into {}",
                Self::VERSION
            ),
        })
    }
}

/// A record together with where it stands in history.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<R> {
    pub key: String,
    pub value: R,
    pub create_revision: Revision,
    pub mod_revision: Revision,
    /// Number of writes since the record was created.
    pub version: u64,
    pub lease: Option<LeaseId>,
}

/// Value of a key in the store.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Envelope {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(uint32, tag = "2")]
    pub(crate) version: u32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) record: bytes::Bytes,
}

/// All records lie below this, apart from whatever else uses the store.
pub(crate) const ROOT: &str = "records/";

/// Keys of all records of a kind start with this.
pub(crate) fn prefix<R: Record>() -> String {
    format!("{ROOT}{}/", R::KIND)
}

pub(crate) fn storage_key<R: Record>(key: &str) -> String {
    format!("{ROOT}{}/{key}", R::KIND)
}

pub(crate) fn encode<R: Record>(record: &R) -> bytes::Bytes {
    Envelope {
        kind: R::KIND.to_owned(),
        version: R::VERSION,
        record: record.encode_to_vec().into(),
    }
    .encode_to_vec()
    .into()
}

/// A record read back, and whether it was of an older version.
pub(crate) struct Decoded<R> {
    pub(crate) value: R,
    pub(crate) outdated: bool,
}

pub(crate) fn decode<R: Record>(key: &str, bytes: &bytes::Bytes) -> Result<Decoded<R>> {
    let what = || format!("record {} {key:?}", R::KIND);
    let envelope = open_envelope(bytes).map_err(|detail| Error::corrupt(what(), detail))?;
    if envelope.kind != R::KIND {
        return Err(Error::corrupt(what(), format!("it says it is of kind {:?}", envelope.kind)));
    }
    if envelope.version > R::VERSION {
        return Err(Error::NewerFormat {
            what: what(),
            found: envelope.version.into(),
            supported: R::VERSION.into(),
        });
    }
    let outdated = envelope.version < R::VERSION;
    let value = if outdated {
        R::migrate(envelope.version, &envelope.record)?
    } else {
        R::decode(envelope.record).map_err(|error| Error::corrupt(what(), error.to_string()))?
    };
    if value.key() != key {
        return Err(Error::corrupt(what(), format!("the record within has key {:?}", value.key())));
    }
    Ok(Decoded { value, outdated })
}

/// The envelope of any record, or what is wrong with it.
pub(crate) fn open_envelope(bytes: &bytes::Bytes) -> Result<Envelope, String> {
    let envelope = Envelope::decode(bytes.clone()).map_err(|error| error.to_string())?;
    if envelope.kind.is_empty() || envelope.version == 0 {
        return Err("its envelope names no kind or no version".to_owned());
    }
    Ok(envelope)
}
