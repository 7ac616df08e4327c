//! The field of a request that names the owning organisation: read from, and
//! written to, the encoded message without decoding the rest of it.

use bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost_reflect::{Kind, MessageDescriptor};

/// A path of field numbers that ends in a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StringPath {
    numbers: Vec<u32>,
}

impl StringPath {
    /// Resolves dotted names such as `key.developer_key.name`. `None` when
    /// they do not lead to a singular string.
    pub(super) fn resolve(message: &MessageDescriptor, dotted: &str) -> Option<Self> {
        let mut numbers = Vec::new();
        let mut message = Some(message.clone());
        let mut ends_in_string = false;
        for name in dotted.split('.') {
            let field = message.take()?.get_field_by_name(name)?;
            if field.is_list() || field.is_map() {
                return None;
            }
            numbers.push(field.number());
            match field.kind() {
                Kind::Message(inner) => message = Some(inner),
                Kind::String => ends_in_string = true,
                _ => return None,
            }
        }
        ends_in_string.then_some(Self { numbers })
    }

    /// The string at the path, empty when unset. Later occurrences win, as
    /// they do when a message with repeated sub-messages is decoded: what is
    /// judged here is what the handler will see.
    pub(super) fn read(&self, mut message: &[u8]) -> Result<String, prost::DecodeError> {
        let mut found = String::new();
        read_at(&self.numbers, &mut message, &mut found)?;
        Ok(found)
    }

    /// The encoding of a message with only this string set. Appended to an
    /// encoded message it sets the field there.
    pub(super) fn write(&self, value: &str) -> Vec<u8> {
        let mut encoded = value.as_bytes().to_vec();
        for number in self.numbers.iter().rev() {
            let mut outer = Vec::with_capacity(encoded.len() + 12);
            encoding::encode_key(*number, WireType::LengthDelimited, &mut outer);
            encoding::encode_varint(encoded.len() as u64, &mut outer);
            outer.put_slice(&encoded);
            encoded = outer;
        }
        encoded
    }
}

fn read_at(
    numbers: &[u32],
    message: &mut &[u8],
    found: &mut String,
) -> Result<(), prost::DecodeError> {
    let Some((wanted, rest)) = numbers.split_first() else { return Ok(()) };
    while message.has_remaining() {
        let (number, wire_type) = encoding::decode_key(message)?;
        if number != *wanted || wire_type != WireType::LengthDelimited {
            encoding::skip_field(wire_type, number, message, DecodeContext::default())?;
            continue;
        }
        let mut payload: Vec<u8> = Vec::new();
        encoding::bytes::merge(wire_type, &mut payload, message, DecodeContext::default())?;
        if rest.is_empty() {
            // Not UTF-8: the handler's decoder refuses the whole message.
            *found = String::from_utf8_lossy(&payload).into_owned();
        } else {
            read_at(rest, &mut payload.as_slice(), found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prost::Message;
    use selvage_api::edgeproto::{App, AppKey, DeveloperKey};

    use super::*;

    fn path(dotted: &str) -> Option<StringPath> {
        let app = selvage_api::pool().get_message_by_name("edgeproto.App").unwrap();
        StringPath::resolve(&app, dotted)
    }

    fn app(developer: &str) -> App {
        let developer_key = Some(DeveloperKey { name: developer.into() });
        App {
            image_path: "registry/app:1".into(),
            key: Some(AppKey { developer_key, name: "app".into(), version: "1".into() }),
            ..Default::default()
        }
    }

    #[test]
    fn reads_what_the_decoder_reads() {
        let path = path("key.developer_key.name").unwrap();
        assert_eq!(path.read(&app("Acme").encode_to_vec()).unwrap(), "Acme");
        assert_eq!(path.read(&App::default().encode_to_vec()).unwrap(), "");

        // A message may carry its key twice; decoders merge, the last wins.
        let mut twice = app("Acme").encode_to_vec();
        twice.extend(app("Evil").encode_to_vec());
        let decoded = App::decode(twice.as_slice()).unwrap();
        let seen = decoded.key.unwrap().developer_key.unwrap().name;
        assert_eq!(path.read(&twice).unwrap(), seen);
        assert_eq!(seen, "Evil");
    }

    #[test]
    fn appended_bytes_set_the_field() {
        let path = path("key.developer_key.name").unwrap();
        let mut bytes = App { command: "run".into(), ..Default::default() }.encode_to_vec();
        bytes.extend(path.write("Acme"));
        let decoded = App::decode(bytes.as_slice()).unwrap();
        assert_eq!(decoded.command, "run");
        assert_eq!(decoded.key.unwrap().developer_key.unwrap().name, "Acme");
    }

    #[test]
    fn only_singular_strings_are_paths() {
        for dotted in ["key", "fields", "key.nothing", "image_type", "configs.kind", ""] {
            assert_eq!(path(dotted), None, "{dotted}");
        }
    }

    proptest::proptest! {
        #[test]
        fn garbage_is_refused_or_read_but_never_panics(bytes: Vec<u8>) {
            let _ = path("key.developer_key.name").unwrap().read(&bytes);
        }
    }
}
