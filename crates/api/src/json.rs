//! Canonical JSON of any message, in the dialects that the contracts speak.
//!
//! Names are accepted in both spellings, enums as names or numbers and 64-bit
//! numbers as strings or numbers whatever the dialect; dialects differ in
//! what they write and in whether they forgive unknown fields.

use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};

use crate::Code;

/// JSON that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Says line and column, and the name of an unknown field.
    #[error("{message} is not given as valid JSON: {reason}")]
    Read { message: String, reason: String },
    #[error("{message} cannot be written as JSON")]
    Write { message: String, source: serde_json::Error },
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Read { .. } => Code::InvalidArgument,
            Self::Write { .. } => Code::Internal,
        }
    }
}

/// Options of writing JSON, and strictness of reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Names as in the proto file, instead of lowerCamelCase.
    pub original_names: bool,
    /// Fields without a value too.
    pub emit_defaults: bool,
    /// 64-bit integers as strings, as the canonical form wants.
    pub int64_as_strings: bool,
    /// Unknown fields are skipped, instead of refused.
    pub ignore_unknown: bool,
}

impl Options {
    /// Controller and match engine: original names, defaults written.
    pub const fn edge() -> Self {
        Self {
            original_names: true,
            emit_defaults: true,
            int64_as_strings: true,
            ignore_unknown: true,
        }
    }

    /// Clusters as a service: original names, defaults left out.
    pub const fn kaas() -> Self {
        Self { emit_defaults: false, ..Self::edge() }
    }

    /// Connect: lowerCamelCase, defaults left out.
    pub const fn connect() -> Self {
        Self { original_names: false, ..Self::kaas() }
    }

    /// The same, refusing unknown fields: for files and command lines, where
    /// an unknown field is a spelling mistake.
    pub const fn strict(self) -> Self {
        Self { ignore_unknown: false, ..self }
    }

    fn serialize(self) -> SerializeOptions {
        SerializeOptions::new()
            .use_proto_field_name(self.original_names)
            .skip_default_fields(!self.emit_defaults)
            .stringify_64_bit_integers(self.int64_as_strings)
    }

    fn deserialize(self) -> DeserializeOptions {
        DeserializeOptions::new().deny_unknown_fields(!self.ignore_unknown)
    }
}

/// The message as compact JSON.
pub fn to_json(message: &DynamicMessage, options: Options) -> Result<String, Error> {
    use prost_reflect::ReflectMessage;

    let mut out = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::new(&mut out);
    let failed =
        |source| Error::Write { message: message.descriptor().full_name().to_owned(), source };
    message.serialize_with_options(&mut serializer, &options.serialize()).map_err(failed)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// The message that a JSON text says. The empty text says the empty message.
pub fn from_json(
    descriptor: &MessageDescriptor,
    text: &[u8],
    options: Options,
) -> Result<DynamicMessage, Error> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(DynamicMessage::new(descriptor.clone()));
    }
    let failed = |source: serde_json::Error| Error::Read {
        message: descriptor.full_name().to_owned(),
        reason: source.to_string(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize_with_options(
        descriptor.clone(),
        &mut deserializer,
        &options.deserialize(),
    )
    .map_err(failed)?;
    deserializer.end().map_err(failed)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn flavor() -> MessageDescriptor {
        crate::pool().get_message_by_name("edgeproto.Flavor").unwrap()
    }

    #[test]
    fn each_dialect_writes_as_its_original_did() {
        let text = br#"{"key":{"name":"x1.small"},"ram":"2048","vcpus":2}"#;
        let flavor = from_json(&flavor(), text, Options::edge()).unwrap();
        assert_eq!(
            to_json(&flavor, Options::edge()).unwrap(),
            r#"{"fields":[],"key":{"name":"x1.small"},"ram":"2048","vcpus":"2","disk":"0"}"#
        );
        assert_eq!(
            to_json(&flavor, Options::kaas()).unwrap(),
            r#"{"key":{"name":"x1.small"},"ram":"2048","vcpus":"2"}"#
        );
        let cloudlet = crate::pool().get_message_by_name("edgeproto.Cloudlet").unwrap();
        let cloudlet = from_json(&cloudlet, br#"{"num_dynamic_ips":3}"#, Options::edge()).unwrap();
        assert_eq!(to_json(&cloudlet, Options::connect()).unwrap(), r#"{"numDynamicIps":3}"#);
    }

    #[test]
    fn unknown_fields_are_forgiven_or_named() {
        let text = b"{\n  \"ran\": 1}";
        assert!(from_json(&flavor(), text, Options::edge()).is_ok());
        let error = from_json(&flavor(), text, Options::edge().strict()).unwrap_err();
        assert!(error.to_string().contains("ran"), "{error}");
        assert!(error.to_string().contains("line 2"), "{error}");
    }

    #[test]
    fn broken_text_names_the_line() {
        for text in ["{", "[]", "{} {}", "{\"ram\": \"many\"}", "nul"] {
            let error = from_json(&flavor(), text.as_bytes(), Options::edge()).unwrap_err();
            assert!(error.to_string().contains("line 1"), "{text}: {error}");
            assert_eq!(error.code(), Code::InvalidArgument);
        }
        assert!(from_json(&flavor(), b" \n", Options::edge()).is_ok());
    }
}
