//! Messages out of JSON text.
//!
//! Reads straight into the message, so that what the contract does not know
//! costs no memory, and says in every error which field it is about. Names
//! may be those of the proto file or lowerCamel; unknown ones are skipped, as
//! the originals did, or refused by name; an unknown name of an enum value is an
//! error.

use std::{borrow::Cow, collections::HashMap, fmt};

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, Value,
};
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::{Error, query, scalar};

/// Number of characters of an unknown name that an error quotes.
const MAX_NAME: usize = 100;

/// The message that `body` holds; a body of nothing or of blanks is the zero
/// message.
pub(crate) fn message(
    descriptor: &MessageDescriptor,
    body: &[u8],
    unknown: Unknown,
) -> Result<DynamicMessage, Error> {
    if body.trim_ascii().is_empty() {
        return Ok(DynamicMessage::new(descriptor.clone()));
    }
    whole(body, MessageSeed { descriptor, at: At::Root(unknown) })
        .map_err(|error| bad_json(descriptor.full_name(), &error))
}

/// One field's value, for routes whose body is a field.
pub(crate) fn field(
    holder: &mut DynamicMessage,
    field: &FieldDescriptor,
    body: &[u8],
    unknown: Unknown,
) -> Result<(), Error> {
    if body.trim_ascii().is_empty() {
        return Ok(());
    }
    let seed = FieldSeed { field, at: At::Field(&At::Root(unknown), field.name()) };
    if let Some(value) = whole(body, seed).map_err(|error| bad_json(field.full_name(), &error))? {
        holder.set_field(field, value);
    }
    Ok(())
}

fn whole<'de, T: DeserializeSeed<'de>>(
    body: &'de [u8],
    seed: T,
) -> Result<T::Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

fn bad_json(message: &str, error: &serde_json::Error) -> Error {
    Error::Json { message: message.to_owned(), reason: error.to_string() }
}

/// Treatment of names that a message does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Unknown fields are skipped.
    Skipped,
    /// Unknown fields are an error.
    Refused,
}

/// Position in the message, for error texts.
#[derive(Clone, Copy)]
enum At<'a> {
    Root(Unknown),
    Field(&'a At<'a>, &'a str),
    Element(&'a At<'a>, usize),
    Key(&'a At<'a>, &'a str),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(_) => Ok(()),
            Self::Field(Self::Root(_), name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Element(parent, index) => write!(f, "{parent}[{index}]"),
            Self::Key(parent, key) => write!(f, "{parent}[{key:?}]"),
        }
    }
}

impl At<'_> {
    fn unknown(&self) -> Unknown {
        match self {
            Self::Root(unknown) => *unknown,
            Self::Field(parent, _) | Self::Element(parent, _) | Self::Key(parent, _) => {
                parent.unknown()
            }
        }
    }

    fn error<E: serde::de::Error>(&self, reason: impl fmt::Display) -> E {
        match self {
            Self::Root(_) => E::custom(reason),
            _ => E::custom(format_args!("field {self}: {reason}")),
        }
    }
}

struct MessageSeed<'a> {
    descriptor: &'a MessageDescriptor,
    at: At<'a>,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = DynamicMessage;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<DynamicMessage, D::Error> {
        if scalar::is_well_known(self.descriptor.full_name()) {
            return DynamicMessage::deserialize(self.descriptor.clone(), deserializer);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = DynamicMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            At::Root(_) => f.write_str("an object"),
            _ => write!(f, "an object for field {}", self.at),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DynamicMessage, A::Error> {
        let mut message = DynamicMessage::new(self.descriptor.clone());
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let Some(field) = query::field(self.descriptor, &name) else {
                if self.at.unknown() == Unknown::Refused {
                    let name: String = name.chars().take(MAX_NAME).collect();
                    let reason = format!("is not one of {}", self.descriptor.full_name());
                    return Err(At::Field(&self.at, &name).error(reason));
                }
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let seed = FieldSeed { field: &field, at: At::Field(&self.at, field.name()) };
            if let Some(value) = map.next_value_seed(seed)? {
                message.set_field(&field, value);
            }
        }
        Ok(message)
    }
}

/// The value of a field; `None` for null, which is the same as absent.
struct FieldSeed<'a> {
    field: &'a FieldDescriptor,
    at: At<'a>,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        match self.field.kind() {
            // Types to which null is a value.
            Kind::Message(inner)
                if inner.full_name() == "google.protobuf.Value" && !self.field.is_list() =>
            {
                DynamicMessage::deserialize(inner, deserializer).map(|m| Some(Value::Message(m)))
            }
            _ => deserializer.deserialize_option(self),
        }
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value for field {}", self.at)
    }

    fn visit_none<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        let kind = self.field.kind();
        if self.field.is_map() {
            return deserializer.deserialize_any(MapSeed { kind: &kind, at: self.at }).map(Some);
        }
        if self.field.is_list() {
            return deserializer.deserialize_any(ListSeed { kind: &kind, at: self.at }).map(Some);
        }
        ValueSeed { kind: &kind, at: self.at }.deserialize(deserializer).map(Some)
    }
}

struct ListSeed<'a> {
    kind: &'a Kind,
    at: At<'a>,
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list for field {}", self.at)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let at = At::Element(&self.at, values.len());
            match list.next_element_seed(ValueSeed { kind: self.kind, at })? {
                Some(value) => values.push(value),
                None => return Ok(Value::List(values)),
            }
        }
    }
}

struct MapSeed<'a> {
    kind: &'a Kind,
    at: At<'a>,
}

impl<'de> Visitor<'de> for MapSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object for field {}", self.at)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Kind::Message(entry) = self.kind else {
            return Err(A::Error::custom("map without an entry type"));
        };
        let (key_kind, value_kind) =
            (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
        let mut values = HashMap::new();
        while let Some(text) = map.next_key::<Cow<'de, str>>()? {
            let at = At::Key(&self.at, &text);
            let key = scalar::map_key(&key_kind, &text).map_err(|reason| at.error(reason))?;
            values.insert(key, map.next_value_seed(ValueSeed { kind: &value_kind, at })?);
        }
        Ok(Value::Map(values))
    }
}

/// One value that is neither list nor map nor null.
struct ValueSeed<'a> {
    kind: &'a Kind,
    at: At<'a>,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.kind {
            Kind::Message(descriptor) => MessageSeed { descriptor, at: self.at }
                .deserialize(deserializer)
                .map(Value::Message),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = match self.kind {
            Kind::String => "a string",
            Kind::Bytes => "a string in base64",
            Kind::Bool => "true or false",
            Kind::Enum(_) => "the name of an enum value",
            _ => "a number",
        };
        write!(f, "{expected} for field {}", self.at)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        match self.kind {
            Kind::Bool => Ok(Value::Bool(value)),
            _ => Err(E::invalid_type(serde::de::Unexpected::Bool(value), &self)),
        }
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        if matches!(self.kind, Kind::Bool) {
            return Err(E::invalid_type(serde::de::Unexpected::Str(text), &self));
        }
        scalar::from_text(self.kind, text).map_err(|reason| self.at.error(reason))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Value, E> {
        self.whole_number(i128::from(number))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Value, E> {
        self.whole_number(i128::from(number))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        match self.kind {
            Kind::Double => Ok(Value::F64(number)),
            Kind::Float => {
                scalar::narrow(number).map(Value::F32).map_err(|reason| self.at.error(reason))
            }
            // Some clients write 3 as 3.0 or 3e0. Saturates at the ends of
            // i128, which no field reaches.
            #[allow(clippy::cast_possible_truncation)]
            _ if number.fract() == 0.0 => self.whole_number(number as i128),
            _ => Err(E::invalid_type(serde::de::Unexpected::Float(number), &self)),
        }
    }
}

impl ValueSeed<'_> {
    fn whole_number<E: serde::de::Error>(self, number: i128) -> Result<Value, E> {
        match self.kind {
            #[allow(clippy::cast_precision_loss)]
            Kind::Double => Ok(Value::F64(number as f64)),
            #[allow(clippy::cast_precision_loss)]
            Kind::Float => Ok(Value::F32(number as f32)),
            Kind::Enum(descriptor) => enum_number(descriptor, number, &self.at),
            Kind::String | Kind::Bytes | Kind::Bool => {
                Err(E::invalid_type(serde::de::Unexpected::Other("number"), &self))
            }
            _ => scalar::integer(self.kind, &number.to_string())
                .map_err(|reason| self.at.error(reason)),
        }
    }
}

/// Numbers without a name are kept: a newer peer may know them.
fn enum_number<E: serde::de::Error>(
    descriptor: &EnumDescriptor,
    number: i128,
    at: &At<'_>,
) -> Result<Value, E> {
    i32::try_from(number)
        .map(Value::EnumNumber)
        .map_err(|_| at.error(format_args!("no value of {} is {number}", descriptor.name())))
}
