//! Field values out of text: path segments, query parameters, JSON strings.

use base64::Engine;
use bytes::Bytes;
use prost_reflect::{DynamicMessage, EnumDescriptor, Kind, MapKey, Value};

use crate::failure::LENIENT_BASE64;

/// The value that `text` has in a field of this kind, or what was expected.
pub(crate) fn from_text(kind: &Kind, text: &str) -> Result<Value, String> {
    Ok(match kind {
        Kind::String => Value::String(text.to_owned()),
        Kind::Bool => Value::Bool(boolean(text)?),
        Kind::Enum(descriptor) => Value::EnumNumber(enumeration(descriptor, text)?),
        Kind::Bytes => Value::Bytes(bytes(text)?),
        Kind::Double => Value::F64(float(text)?),
        Kind::Float => Value::F32(narrow(float(text)?)?),
        Kind::Message(descriptor) if is_well_known(descriptor.full_name()) => {
            let json = serde_json::Value::String(text.to_owned());
            DynamicMessage::deserialize(descriptor.clone(), json)
                .map(Value::Message)
                .map_err(|error| error.to_string())?
        }
        Kind::Message(_) => return Err("is a message; name one of its fields".to_owned()),
        _ => integer(kind, text)?,
    })
}

/// Well-known types have a JSON form of their own.
pub(crate) fn is_well_known(full_name: &str) -> bool {
    full_name.starts_with("google.protobuf.")
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "True" | "TRUE" | "t" | "T" | "1" => Ok(true),
        "false" | "False" | "FALSE" | "f" | "F" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

pub(crate) fn enumeration(descriptor: &EnumDescriptor, text: &str) -> Result<i32, String> {
    if let Some(value) = descriptor.get_value_by_name(text) {
        return Ok(value.number());
    }
    text.parse().map_err(|_| {
        let names: Vec<_> = descriptor.values().map(|value| value.name().to_owned()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Base64 in either alphabet, padded or not.
pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    let standard: String = text
        .chars()
        .map(|c| {
            if c == '-' {
                '+'
            } else if c == '_' {
                '/'
            } else {
                c
            }
        })
        .collect();
    LENIENT_BASE64.decode(standard).map(Bytes::from).map_err(|_| "expected base64".to_owned())
}

pub(crate) fn float(text: &str) -> Result<f64, String> {
    match text {
        "NaN" => Ok(f64::NAN),
        "Infinity" => Ok(f64::INFINITY),
        "-Infinity" => Ok(f64::NEG_INFINITY),
        _ => match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err("expected a number".to_owned()),
        },
    }
}

pub(crate) fn narrow(value: f64) -> Result<f32, String> {
    #[allow(clippy::cast_possible_truncation)]
    let narrowed = value as f32;
    if value.is_finite() && !narrowed.is_finite() {
        return Err("is too large for a 32-bit number".to_owned());
    }
    Ok(narrowed)
}

pub(crate) fn integer(kind: &Kind, text: &str) -> Result<Value, String> {
    fn parsed<T: std::str::FromStr>(text: &str, expected: &str) -> Result<T, String> {
        text.parse().map_err(|_| format!("expected {expected}"))
    }
    Ok(match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            Value::I32(parsed(text, "a 32-bit whole number")?)
        }
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            Value::I64(parsed(text, "a 64-bit whole number")?)
        }
        Kind::Uint32 | Kind::Fixed32 => {
            Value::U32(parsed(text, "a 32-bit whole number, not negative")?)
        }
        Kind::Uint64 | Kind::Fixed64 => {
            Value::U64(parsed(text, "a 64-bit whole number, not negative")?)
        }
        _ => return Err("cannot be given as a number".to_owned()),
    })
}

/// A map key out of the text that JSON makes of it.
pub(crate) fn map_key(kind: &Kind, text: &str) -> Result<MapKey, String> {
    let value = match kind {
        Kind::String => Value::String(text.to_owned()),
        Kind::Bool => Value::Bool(boolean(text)?),
        _ => integer(kind, text)?,
    };
    value.into_map_key().ok_or_else(|| "cannot be a map key".to_owned())
}
