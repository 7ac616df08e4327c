//! Enums: their range, and their names as the original writes them.

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, EnumDescriptor, Kind, Value};

use super::{Error, to_dynamic};

/// Fails when an enum anywhere in the message has a value that its type does
/// not know, naming the field.
pub fn check_enums<M: Message + Name>(message: &M) -> Result<(), Error> {
    check(&to_dynamic(message)?, "")
}

fn check(message: &DynamicMessage, above: &str) -> Result<(), Error> {
    for (field, value) in message.fields() {
        let path = format!("{above}{}", field.name());
        let kind = match field.kind() {
            Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
            kind => kind,
        };
        match (value, &kind) {
            (Value::List(list), _) => {
                list.iter().try_for_each(|value| check_value(value, &kind, &path))?;
            }
            (Value::Map(map), _) => {
                map.values().try_for_each(|value| check_value(value, &kind, &path))?;
            }
            (value, kind) => check_value(value, kind, &path)?,
        }
    }
    Ok(())
}

fn check_value(value: &Value, kind: &Kind, path: &str) -> Result<(), Error> {
    match (value, kind) {
        (Value::Message(message), _) => check(message, &format!("{path}.")),
        (Value::EnumNumber(number), Kind::Enum(known)) if known.get_value(*number).is_none() => {
            Err(invalid(path, *number, known))
        }
        _ => Ok(()),
    }
}

fn invalid(path: &str, value: i32, known: &EnumDescriptor) -> Error {
    let field = path.rsplit('.').next().unwrap_or(path);
    Error::InvalidEnum {
        name: camel_name(field),
        field: path.to_owned(),
        value,
        known: known.values().map(|value| value.name().to_owned()).collect(),
    }
}

/// A name in capitals or with underscores as one word in camel case:
/// `IP_ACCESS_SHARED` is `IpAccessShared`. Stored keys, progress texts and
/// command lines of the original spell enums so.
pub fn camel_name(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters.map(|c| c.to_ascii_lowercase()))
        })
        .collect()
}
