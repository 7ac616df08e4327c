//! The key of an object: what identifies it, whether it is valid, and how it
//! is written where it is stored.

use std::fmt::{self, Write};

use prost::{Message, Name};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};

use super::{Error, camel_name, decode, descriptor_of, to_dynamic};

/// The key of one object. Displayed in its canonical form: JSON with the
/// names of the contract in order of declaration, empty values left out,
/// nested keys always there.
#[derive(Debug, Clone, PartialEq)]
pub struct Key(DynamicMessage);

impl Key {
    /// The key of an object: its field `key`.
    pub fn of<M: Message + Name>(object: &M) -> Result<Self, Error> {
        let descriptor = descriptor_of::<M>()?;
        let missing = || Error::NoKey { message: M::full_name() };
        let field = descriptor.get_field_by_name("key").ok_or_else(missing)?;
        let Kind::Message(key) = field.kind() else { return Err(missing()) };
        if field.is_list() || field.is_map() {
            return Err(missing());
        }
        let mut bytes = Vec::new();
        for found in super::wire::fields(&object.encode_to_vec()) {
            match found {
                Ok((number, super::wire::Raw::Bytes(slice))) if number == field.number() => {
                    bytes.extend_from_slice(slice);
                }
                Ok(_) => {}
                Err(reason) => return Err(Error::Malformed { message: M::full_name(), reason }),
            }
        }
        decode(key, &bytes).map(Self)
    }

    /// A key that is a message by itself, such as an `AppKey`.
    pub fn from_message<K: Message + Name>(key: &K) -> Result<Self, Error> {
        to_dynamic(key).map(Self)
    }

    /// Checks all names, in the order of the original; the first that is
    /// wrong is told in the original's words.
    pub fn check(&self) -> Result<(), Error> {
        check(&self.0)
    }

    pub fn message(&self) -> &DynamicMessage {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_key(&self.0, f)
    }
}

/// Syntax of one part of a key.
enum Rule {
    /// A name of letters, digits and a few signs, blanks included.
    Name(&'static str),
    /// A name that also serves in host names.
    ClusterName(&'static str),
    NotEmpty(&'static str),
    /// A key of its own.
    Key,
}

/// The parts of each type of key, in the order in which they are checked. A
/// part that is not named is not checked.
const RULES: &[(&str, &[(&str, Rule)])] = &[
    ("edgeproto.DeveloperKey", &[("name", Rule::Name("Invalid developer name"))]),
    ("edgeproto.OperatorKey", &[("name", Rule::Name("Invalid operator name"))]),
    ("edgeproto.FlavorKey", &[("name", Rule::Name("Invalid flavor name"))]),
    ("edgeproto.ClusterKey", &[("name", Rule::ClusterName("Invalid cluster name"))]),
    ("edgeproto.ControllerKey", &[("addr", Rule::NotEmpty("Invalid address"))]),
    ("edgeproto.NodeKey", &[("name", Rule::NotEmpty("Invalid node name"))]),
    (
        "edgeproto.AppKey",
        &[
            ("name", Rule::Name("Invalid app name")),
            ("version", Rule::Name("Invalid app version string")),
            ("developer_key", Rule::Key),
        ],
    ),
    (
        "edgeproto.CloudletKey",
        &[("operator_key", Rule::Key), ("name", Rule::Name("Invalid cloudlet name"))],
    ),
    ("edgeproto.ClusterInstKey", &[("cluster_key", Rule::Key), ("cloudlet_key", Rule::Key)]),
    ("edgeproto.AppInstKey", &[("app_key", Rule::Key), ("cluster_inst_key", Rule::Key)]),
];

fn check(key: &DynamicMessage) -> Result<(), Error> {
    let name = key.descriptor();
    let rules = RULES.iter().find(|(message, _)| *message == name.full_name());
    let (_, parts) = rules.ok_or_else(|| Error::NoKey { message: name.full_name().to_owned() })?;
    for (part, rule) in *parts {
        let value = key.get_field_by_name(part);
        match (rule, value.as_deref()) {
            (Rule::Key, Some(Value::Message(nested))) => check(nested)?,
            (rule, Some(Value::String(text))) => rule.check(text)?,
            _ => return Err(Error::NoKey { message: name.full_name().to_owned() }),
        }
    }
    Ok(())
}

impl Rule {
    fn check(&self, text: &str) -> Result<(), Error> {
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let only =
            |signs: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c));
        let (valid, complaint) = match self {
            Self::Name(complaint) => (starts_well && only("-_ .&,!"), complaint),
            Self::ClusterName(complaint) => (starts_well && only("-."), complaint),
            Self::NotEmpty(complaint) => (!text.is_empty(), complaint),
            Self::Key => return Ok(()),
        };
        if valid { Ok(()) } else { Err(Error::InvalidName(complaint)) }
    }
}

fn write_key(key: &DynamicMessage, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('{')?;
    let mut first = true;
    for field in declared_fields(&key.descriptor()) {
        let value = key.get_field(&field);
        if !matches!(*value, Value::Message(_)) && !key.has_field(&field) {
            continue;
        }
        if !first {
            f.write_char(',')?;
        }
        first = false;
        write_string(field.name(), f)?;
        f.write_char(':')?;
        match (&*value, field.kind()) {
            (Value::Message(nested), _) => write_key(nested, f)?,
            (Value::EnumNumber(number), Kind::Enum(known)) => match known.get_value(*number) {
                Some(value) => write_string(&camel_name(value.name()), f)?,
                None => write!(f, "{number}")?,
            },
            (value, _) => write_scalar(value, f)?,
        }
    }
    f.write_char('}')
}

/// Returns the fields in the order of their declaration; descriptors list them
/// by number.
fn declared_fields(descriptor: &MessageDescriptor) -> Vec<FieldDescriptor> {
    let declared = descriptor.descriptor_proto().field.iter();
    declared.filter_map(|field| descriptor.get_field_by_name(field.name())).collect()
}

fn write_scalar(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value {
        Value::String(text) => write_string(text, f),
        Value::Bool(value) => write!(f, "{value}"),
        Value::I32(value) => write!(f, "{value}"),
        Value::I64(value) => write!(f, "{value}"),
        Value::U32(value) => write!(f, "{value}"),
        Value::U64(value) => write!(f, "{value}"),
        // No key holds lists, maps, bytes or floating point.
        _ => f.write_str("null"),
    }
}

/// A JSON string with the escapes of Go's encoder.
fn write_string(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '&' | '<' | '>' | '\u{2028}' | '\u{2029}' | '\0'..='\x1f' => {
                write!(f, "\\u{:04x}", u32::from(c))?;
            }
            _ => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new key type without rules would be accepted unchecked otherwise.
    #[test]
    fn every_key_of_the_controller_has_rules() {
        for message in crate::pool().all_messages() {
            let key = message.get_field_by_name("key").map(|field| field.kind());
            if let (Some(Kind::Message(key)), "edgeproto", false) =
                (key, message.package_name(), message.is_map_entry())
            {
                assert!(
                    RULES.iter().any(|(name, _)| *name == key.full_name()),
                    "{} has no rules",
                    key.full_name()
                );
            }
        }
        for (name, parts) in RULES {
            let descriptor = crate::pool().get_message_by_name(name);
            assert!(descriptor.is_some(), "{name}");
            for (part, _) in *parts {
                assert!(
                    descriptor.as_ref().is_some_and(|d| d.get_field_by_name(part).is_some()),
                    "{name}.{part}"
                );
            }
        }
    }
}
