//! Single values as people write them.

use prost_reflect::{EnumDescriptor, Kind as Type, MapKey, Value};
use selvage_api::object::camel_name;

use crate::suggest;

/// Why a text is no such value, and what may have been meant.
#[derive(Debug, PartialEq)]
pub(crate) struct Wrong {
    pub(crate) message: String,
    pub(crate) suggestions: Vec<String>,
}

/// A name without what the original's clients do not care for: case, `_`, `-`.
pub(crate) fn normal(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// The value of a type that a text means.
pub(crate) fn value(kind: &Type, text: &str) -> Result<Value, Wrong> {
    let number =
        |what: &str| Wrong { message: format!("{text:?} is not {what}"), suggestions: Vec::new() };
    Ok(match kind {
        Type::String => Value::String(text.to_owned()),
        Type::Bool => Value::Bool(boolean(text).ok_or_else(|| number("true or false"))?),
        Type::Enum(kind) => Value::EnumNumber(enum_number(kind, text)?),
        Type::Int32 | Type::Sint32 | Type::Sfixed32 => {
            Value::I32(text.parse().map_err(|_| number("a whole number of 32 bits"))?)
        }
        Type::Int64 | Type::Sint64 | Type::Sfixed64 => {
            Value::I64(text.parse().map_err(|_| number("a whole number"))?)
        }
        Type::Uint32 | Type::Fixed32 => {
            Value::U32(text.parse().map_err(|_| number("a whole number from 0 to 4294967295"))?)
        }
        Type::Uint64 | Type::Fixed64 => {
            Value::U64(text.parse().map_err(|_| number("a whole number from 0 up"))?)
        }
        Type::Float => Value::F32(text.parse().map_err(|_| number("a number"))?),
        Type::Double => Value::F64(text.parse().map_err(|_| number("a number"))?),
        Type::Bytes | Type::Message(_) => {
            return Err(Wrong {
                message: "must be a mapping, not a single value".into(),
                suggestions: Vec::new(),
            });
        }
    })
}

/// The key of a map entry that a text means.
pub(crate) fn map_key(kind: &Type, text: &str) -> Result<MapKey, Wrong> {
    value(kind, text)?.into_map_key().ok_or_else(|| Wrong {
        message: format!("{text:?} cannot be a key here"),
        suggestions: Vec::new(),
    })
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// All names that a value of an enum goes by: the original's camel case first,
/// then without what all values have in common.
pub(crate) fn enum_names(kind: &EnumDescriptor, name: &str) -> Vec<String> {
    let short = name.get(common_prefix(kind)..).unwrap_or(name);
    let mut names = vec![camel_name(name), camel_name(short), name.to_owned()];
    names.dedup();
    names
}

/// Length of the words that all values of the enum begin with.
fn common_prefix(kind: &EnumDescriptor) -> usize {
    let names: Vec<String> = kind.values().map(|value| value.name().to_owned()).collect();
    let Some(first) = names.first() else { return 0 };
    let mut ends = first.match_indices('_').map(|(at, _)| at + 1);
    ends.rfind(|end| names.iter().all(|name| name.starts_with(&first[..*end]) && name.len() > *end))
        .unwrap_or(0)
}

fn enum_number(kind: &EnumDescriptor, text: &str) -> Result<i32, Wrong> {
    if let Ok(number) = text.parse::<i32>()
        && kind.get_value(number).is_some()
    {
        return Ok(number);
    }
    let wanted = normal(text);
    let mut values = kind.values();
    let found =
        values.find(|v| enum_names(kind, v.name()).iter().any(|name| normal(name) == wanted));
    found.map(|value| value.number()).ok_or_else(|| {
        let names: Vec<String> = kind.values().map(|value| camel_name(value.name())).collect();
        let close = suggest::closest(text, names.iter().map(String::as_str));
        let rest = if close.is_empty() { format!(": {}", names.join(", ")) } else { String::new() };
        Wrong { message: format!("{text:?} is none of its values{rest}"), suggestions: close }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn enumeration(name: &str) -> EnumDescriptor {
        selvage_api::pool().get_enum_by_name(name).unwrap()
    }

    #[test]
    fn an_enum_goes_by_many_names() {
        let kind = enumeration("edgeproto.ImageType");
        for text in ["ImageTypeDocker", "IMAGE_TYPE_DOCKER", "1", "docker", "Docker"] {
            assert_eq!(enum_number(&kind, text), Ok(1), "{text}");
        }
        let kind = enumeration("edgeproto.CRMOverride");
        for text in ["IgnoreCrm", "IGNORE_CRM", "2", "ignore-crm"] {
            assert_eq!(enum_number(&kind, text), Ok(2), "{text}");
        }
        let wrong = enum_number(&kind, "IgnoreCmr").unwrap_err();
        assert_eq!(wrong.suggestions[0], "IgnoreCrm");
        assert!(enum_number(&kind, "9").unwrap_err().message.contains("NoOverride, IgnoreCrm"));
    }

    #[test]
    fn no_two_values_of_an_enum_go_by_one_name() {
        for kind in selvage_api::pool().all_enums() {
            let mut seen = std::collections::HashMap::new();
            for value in kind.values() {
                for name in enum_names(&kind, value.name()) {
                    let other = seen.insert(normal(&name), value.number());
                    assert!(
                        other.is_none_or(|other| other == value.number()),
                        "{} {name}",
                        kind.full_name()
                    );
                }
            }
        }
    }

    #[test]
    fn numbers_keep_their_range() {
        assert_eq!(value(&Type::Uint32, "7"), Ok(Value::U32(7)));
        assert!(value(&Type::Uint32, "-1").is_err());
        assert!(value(&Type::Int32, "1.5").is_err());
        assert_eq!(value(&Type::Double, "-91"), Ok(Value::F64(-91.0)));
        assert_eq!(value(&Type::String, "1.10"), Ok(Value::String("1.10".into())));
    }
}
