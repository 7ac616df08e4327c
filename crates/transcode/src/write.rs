//! Messages as JSON text, in the manner of each dialect.

use std::cmp::Ordering;

use base64::{Engine, prelude::BASE64_STANDARD};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage, SerializeOptions, Value,
};
use prost_types::Any;
use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::scalar::is_well_known;

/// Style in which a dialect writes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    /// Names as in the proto file instead of lowerCamel.
    pub original_names: bool,
    /// Fields with their zero value are written too.
    pub zeros: bool,
    /// Objects are spread over lines, one blank deep.
    pub indent: bool,
}

/// Deeper than any contract nests; where a type that contains itself stops
/// being written out as zeros.
const ZERO_DEPTH: usize = 16;

/// Serialises a value, compact or indented.
pub(crate) fn to_vec(value: &impl Serialize, indent: bool) -> Result<Vec<u8>, serde_json::Error> {
    if !indent {
        return serde_json::to_vec(value);
    }
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(Vec::new(), formatter);
    value.serialize(&mut serializer)?;
    Ok(serializer.into_inner())
}

/// A message in a style.
pub(crate) struct Styled<'a> {
    pub message: &'a DynamicMessage,
    pub style: Style,
    depth: usize,
}

impl<'a> Styled<'a> {
    pub(crate) fn new(message: &'a DynamicMessage, style: Style) -> Self {
        Self { message, style, depth: 0 }
    }

    fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        for field in self.message.descriptor().fields() {
            let name = if self.style.original_names { field.name() } else { field.json_name() };
            if self.message.has_field(&field) || (self.style.zeros && !field.supports_presence()) {
                let value = self.message.get_field(&field);
                map.serialize_entry(name, &self.field(&value, &field))?;
            } else if self.style.zeros {
                self.write_absent(map, name, &field)?;
            }
        }
        Ok(())
    }

    fn field<'v>(&self, value: &'v Value, field: &'v FieldDescriptor) -> ShownField<'v> {
        ShownField { value, kind: field.kind(), style: self.style, depth: self.depth }
    }

    /// Absent messages, where zeros are written: the originals held messages
    /// of edgeproto by value, so that they always appear, and all others by
    /// reference, so that they appear as null.
    fn write_absent<M: SerializeMap>(
        &self,
        map: &mut M,
        name: &str,
        field: &FieldDescriptor,
    ) -> Result<(), M::Error> {
        let Kind::Message(inner) = field.kind() else { return Ok(()) };
        if field.containing_oneof().is_some() {
            return Ok(());
        }
        let by_value = field.parent_message().package_name() == "edgeproto"
            && !is_well_known(inner.full_name())
            && self.depth < ZERO_DEPTH;
        if !by_value {
            return map.serialize_entry(name, &());
        }
        let empty = DynamicMessage::new(inner);
        map.serialize_entry(
            name,
            &Styled { message: &empty, style: self.style, depth: self.depth + 1 },
        )
    }
}

impl Serialize for Styled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let descriptor = self.message.descriptor();
        match descriptor.full_name() {
            "google.protobuf.Any" => {
                let any: Any = self.message.transcode_to().map_err(S::Error::custom)?;
                ShownAny { any: &any, style: self.style }.serialize(serializer)
            }
            name if is_well_known(name) => {
                self.message.serialize_with_options(serializer, &SerializeOptions::new())
            }
            _ => {
                let mut map = serializer.serialize_map(None)?;
                self.write_fields(&mut map)?;
                map.end()
            }
        }
    }
}

/// An `Any`: its fields when its type is known, else its bytes in base64.
pub(crate) struct ShownAny<'a> {
    pub any: &'a Any,
    pub style: Style,
}

impl ShownAny<'_> {
    fn decoded(&self) -> Option<DynamicMessage> {
        let name = self.any.type_url.rsplit('/').next()?;
        let descriptor = selvage_api::pool().get_message_by_name(name)?;
        DynamicMessage::decode(descriptor, self.any.value.as_slice()).ok()
    }
}

impl Serialize for ShownAny<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("@type", &self.any.type_url)?;
        match self.decoded() {
            Some(message) if is_well_known(message.descriptor().full_name()) => {
                map.serialize_entry("value", &Styled::new(&message, self.style))?;
            }
            Some(message) => Styled::new(&message, self.style).write_fields(&mut map)?,
            None => map.serialize_entry("value", &BASE64_STANDARD.encode(&self.any.value))?,
        }
        map.end()
    }
}

/// One value of a field.
pub(crate) struct ShownField<'a> {
    value: &'a Value,
    kind: Kind,
    style: Style,
    depth: usize,
}

impl<'a> ShownField<'a> {
    /// A field by itself, as `response_body` asks for.
    pub(crate) fn alone(value: &'a Value, field: &FieldDescriptor, style: Style) -> Self {
        Self { value, kind: field.kind(), style, depth: 0 }
    }

    fn inner(&self, value: &'a Value, kind: Kind) -> Self {
        Self { value, kind, style: self.style, depth: self.depth }
    }
}

impl Serialize for ShownField<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::I32(value) => serializer.serialize_i32(*value),
            Value::U32(value) => serializer.serialize_u32(*value),
            Value::I64(value) => serializer.collect_str(value),
            Value::U64(value) => serializer.collect_str(value),
            Value::F32(value) => write_float(f64::from(*value), Some(*value), serializer),
            Value::F64(value) => write_float(*value, None, serializer),
            Value::String(value) => serializer.serialize_str(value),
            Value::Bytes(value) => serializer.serialize_str(&BASE64_STANDARD.encode(value)),
            Value::EnumNumber(number) => write_enum(&self.kind, *number, serializer),
            Value::Message(message) => {
                Styled { message, style: self.style, depth: self.depth + 1 }.serialize(serializer)
            }
            Value::List(values) => {
                let mut list = serializer.serialize_seq(Some(values.len()))?;
                for value in values {
                    list.serialize_element(&self.inner(value, self.kind.clone()))?;
                }
                list.end()
            }
            Value::Map(values) => {
                let Kind::Message(entry) = &self.kind else {
                    return Err(S::Error::custom("map without an entry type"));
                };
                let kind = entry.map_entry_value_field().kind();
                let mut entries: Vec<_> = values.iter().collect();
                entries.sort_by(|a, b| compare_keys(a.0, b.0));
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(&key_text(key), &self.inner(value, kind.clone()))?;
                }
                map.end()
            }
        }
    }
}

fn write_enum<S: Serializer>(kind: &Kind, number: i32, serializer: S) -> Result<S::Ok, S::Error> {
    let Kind::Enum(descriptor) = kind else {
        return Err(S::Error::custom("enum value without an enum type"));
    };
    if descriptor.full_name() == "google.protobuf.NullValue" {
        return serializer.serialize_unit();
    }
    match descriptor.get_value(number) {
        Some(value) => serializer.serialize_str(value.name()),
        None => serializer.serialize_i32(number),
    }
}

/// Whole numbers without a decimal point, as the originals wrote them.
fn write_float<S: Serializer>(
    value: f64,
    narrow: Option<f32>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.is_nan() {
        serializer.serialize_str("NaN")
    } else if value.is_infinite() {
        serializer.serialize_str(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else if value.fract() == 0.0
        && value.abs() < EXACT
        && (value != 0.0 || value.is_sign_positive())
    {
        #[allow(clippy::cast_possible_truncation)]
        serializer.serialize_i64(value as i64)
    } else if let Some(narrow) = narrow {
        serializer.serialize_f32(narrow)
    } else {
        serializer.serialize_f64(value)
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(value) => value.to_string(),
        MapKey::I32(value) => value.to_string(),
        MapKey::I64(value) => value.to_string(),
        MapKey::U32(value) => value.to_string(),
        MapKey::U64(value) => value.to_string(),
        MapKey::String(value) => value.clone(),
    }
}

fn compare_keys(a: &MapKey, b: &MapKey) -> Ordering {
    match (a, b) {
        (MapKey::String(a), MapKey::String(b)) => a.cmp(b),
        (MapKey::I32(a), MapKey::I32(b)) => a.cmp(b),
        (MapKey::I64(a), MapKey::I64(b)) => a.cmp(b),
        (MapKey::U32(a), MapKey::U32(b)) => a.cmp(b),
        (MapKey::U64(a), MapKey::U64(b)) => a.cmp(b),
        (MapKey::Bool(a), MapKey::Bool(b)) => a.cmp(b),
        _ => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use proptest::prelude::*;
    use prost::Message;
    use prost_reflect::MessageDescriptor;

    use super::*;
    use crate::read::Unknown;

    const CONNECT: Style = Style { original_names: false, zeros: false, indent: false };
    const EDGE: Style = Style { original_names: true, zeros: true, indent: true };

    /// A message of random content, from a list of random numbers.
    struct Dice<'a> {
        rolls: &'a [u64],
        at: usize,
    }

    impl Dice<'_> {
        fn roll(&mut self) -> u64 {
            self.at += 1;
            self.rolls[self.at % self.rolls.len()].rotate_left(self.at as u32)
        }

        fn message(&mut self, descriptor: &MessageDescriptor, depth: usize) -> DynamicMessage {
            let mut message = DynamicMessage::new(descriptor.clone());
            match descriptor.full_name() {
                "google.protobuf.Timestamp" | "google.protobuf.Duration" => {
                    let seconds = (self.roll() % 4_000_000_000) as i64;
                    message.set_field_by_name("seconds", Value::I64(seconds));
                    return message;
                }
                name if is_well_known(name) => return message,
                _ => {}
            }
            for field in descriptor.fields() {
                if self.roll().is_multiple_of(3) || depth > 3 {
                    continue;
                }
                if let Kind::Message(inner) = field.kind()
                    && inner.full_name() == "google.protobuf.Any"
                {
                    continue;
                }
                let value = self.field(&field, depth);
                message.set_field(&field, value);
            }
            message
        }

        fn field(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
            if field.is_map() {
                let Kind::Message(entry) = field.kind() else { panic!() };
                let key = self.value(&entry.map_entry_key_field().kind(), depth);
                let value = self.value(&entry.map_entry_value_field().kind(), depth);
                return Value::Map([(key.into_map_key().unwrap(), value)].into());
            }
            if field.is_list() {
                let count = self.roll() % 3;
                return Value::List((0..count).map(|_| self.value(&field.kind(), depth)).collect());
            }
            self.value(&field.kind(), depth)
        }

        #[allow(clippy::cast_possible_truncation)]
        fn value(&mut self, kind: &Kind, depth: usize) -> Value {
            let roll = self.roll();
            match kind {
                Kind::String => Value::String(format!("é\"\\\n<{roll}>")),
                Kind::Bytes => Value::Bytes(roll.to_le_bytes().to_vec().into()),
                Kind::Bool => Value::Bool(roll.is_multiple_of(2)),
                Kind::Double => Value::F64(roll as f64 / 7.0),
                Kind::Float => Value::F32(roll as f32 / 7.0),
                Kind::Enum(_) => Value::EnumNumber((roll % 9) as i32),
                Kind::Message(inner) => Value::Message(self.message(inner, depth + 1)),
                Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(roll as i32),
                Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(roll as i64),
                Kind::Uint32 | Kind::Fixed32 => Value::U32(roll as u32),
                Kind::Uint64 | Kind::Fixed64 => Value::U64(roll),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_message_comes_back_from_json(rolls in prop::collection::vec(any::<u64>(), 7)) {
            for descriptor in selvage_api::pool().all_messages() {
                let google = descriptor.package_name().starts_with("google.");
                if descriptor.is_map_entry() || google {
                    continue;
                }
                let message = Dice { rolls: &rolls, at: 0 }.message(&descriptor, 0);
                let json = to_vec(&Styled::new(&message, CONNECT), false).unwrap();
                let back = crate::read::message(&descriptor, &json, Unknown::Skipped).unwrap();
                prop_assert_eq!(back.encode_to_vec(), message.encode_to_vec(), "{}", descriptor.full_name());
                // With zeros, absent and empty messages look the same; the
                // text stays what it is.
                let json = to_vec(&Styled::new(&message, EDGE), true).unwrap();
                let back = crate::read::message(&descriptor, &json, Unknown::Skipped).unwrap();
                let again = to_vec(&Styled::new(&back, EDGE), true).unwrap();
                prop_assert_eq!(String::from_utf8(again), String::from_utf8(json));
            }
        }

        #[test]
        fn canonical_json_agrees_with_an_independent_writer(
            rolls in prop::collection::vec(any::<u64>(), 7),
        ) {
            for descriptor in selvage_api::pool().all_messages() {
                if descriptor.is_map_entry() || descriptor.package_name().starts_with("google.") {
                    continue;
                }
                let message = Dice { rolls: &rolls, at: 3 }.message(&descriptor, 0);
                let ours = to_vec(&Styled::new(&message, CONNECT), false).unwrap();
                let theirs = serde_json::to_vec(&message).unwrap();
                let ours = DynamicMessage::deserialize(
                    descriptor.clone(),
                    &mut serde_json::Deserializer::from_slice(&ours),
                ).unwrap();
                let theirs = crate::read::message(&descriptor, &theirs, Unknown::Skipped).unwrap();
                prop_assert_eq!(ours.encode_to_vec(), theirs.encode_to_vec());
            }
        }
    }

    #[test]
    fn numbers_are_written_as_the_originals_wrote_them() {
        let text = |value: f64| {
            let mut buffer = Vec::new();
            write_float(value, None, &mut serde_json::Serializer::new(&mut buffer)).unwrap();
            String::from_utf8(buffer).unwrap()
        };
        assert_eq!(text(37.0), "37");
        assert_eq!(text(-122.5), "-122.5");
        assert_eq!(text(f64::NAN), "\"NaN\"");
        assert_eq!(text(f64::NEG_INFINITY), "\"-Infinity\"");
    }
}
