//! Requests as people write them: JSON with the contract's field names or
//! their camelCase form, checked so that every mistake is named by its place.

use std::io::Read;

use prost_reflect::{Cardinality, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use crate::{Error, suggest};

/// All messages of a text: JSON objects one after another.
pub(crate) fn read_all(
    input: impl Read,
    descriptor: &MessageDescriptor,
) -> impl Iterator<Item = Result<DynamicMessage, Error>> {
    let descriptor = descriptor.clone();
    serde_json::Deserializer::from_reader(std::io::BufReader::new(input))
        .into_iter::<Value>()
        .enumerate()
        .map(move |(number, value)| {
            let value = value.map_err(|error| {
                Error::invalid(format!("message {} of the body is not JSON: {error}", number + 1))
            })?;
            message(&value, &descriptor)
        })
}

/// The message that the JSON means.
pub(crate) fn message(
    value: &Value,
    descriptor: &MessageDescriptor,
) -> Result<DynamicMessage, Error> {
    check(value, descriptor, "")?;
    DynamicMessage::deserialize(descriptor.clone(), value.clone())
        .map_err(|error| wrong("the body", error.to_string()))
}

fn check(value: &Value, descriptor: &MessageDescriptor, path: &str) -> Result<(), Error> {
    if descriptor.full_name() == "google.protobuf.Any" {
        return check_any(value, descriptor, path);
    }
    let here = if path.is_empty() { "the body" } else { path };
    let Value::Object(members) = value else {
        let name = descriptor.full_name();
        return Err(wrong(here, format!("must be a JSON object, a {name}")));
    };
    for (key, value) in members {
        let place = join(path, key);
        let field = descriptor
            .get_field_by_name(key)
            .or_else(|| descriptor.get_field_by_json_name(key))
            .ok_or_else(|| unknown_field(&place, key, descriptor))?;
        check_field(value, key, &field, &place)?;
    }
    Ok(())
}

fn check_field(
    value: &Value,
    key: &str,
    field: &FieldDescriptor,
    place: &str,
) -> Result<(), Error> {
    if value.is_null() {
        return Ok(());
    }
    if field.is_map() {
        let kind = field.kind().as_message().map(|entry| entry.map_entry_value_field().kind());
        if let (Value::Object(entries), Some(Kind::Message(inner))) = (value, kind)
            && !is_json_shaped(&inner)
        {
            return entries.iter().try_for_each(|(k, v)| check(v, &inner, &join(place, k)));
        }
        return check_leaf(value, key, field, place);
    }
    let inner = match field.kind() {
        Kind::Message(inner) if !is_json_shaped(&inner) => inner,
        Kind::Enum(kind) => {
            let names: Vec<String> = kind.values().map(|v| v.name().to_owned()).collect();
            return check_enum(value, &names, place)
                .and_then(|()| check_leaf(value, key, field, place));
        }
        _ => return check_leaf(value, key, field, place),
    };
    match (field.cardinality(), value) {
        (Cardinality::Repeated, Value::Array(items)) => items
            .iter()
            .enumerate()
            .try_for_each(|(at, item)| check(item, &inner, &format!("{place}[{at}]"))),
        (Cardinality::Repeated, _) => Err(wrong(place, "must be a JSON array")),
        _ => check(value, &inner, place),
    }
}

/// The field alone in an empty message: what is wrong then is wrong with it.
fn check_leaf(value: &Value, key: &str, field: &FieldDescriptor, place: &str) -> Result<(), Error> {
    let mut alone = serde_json::Map::new();
    alone.insert(key.to_owned(), value.clone());
    DynamicMessage::deserialize(field.parent_message().clone(), Value::Object(alone))
        .map(drop)
        .map_err(|error| wrong(place, error.to_string()))
}

fn check_enum(value: &Value, names: &[String], place: &str) -> Result<(), Error> {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(at, item)| check_enum(item, names, &format!("{place}[{at}]"))),
        Value::String(name) if !names.contains(name) => Err(Error::Field {
            path: place.into(),
            message: format!("{name:?} is none of its values"),
            suggestions: match suggest::closest(name, names.iter().map(String::as_str)) {
                close if close.is_empty() => names.iter().take(3).cloned().collect(),
                close => close,
            },
        }),
        _ => Ok(()),
    }
}

fn check_any(value: &Value, descriptor: &MessageDescriptor, path: &str) -> Result<(), Error> {
    let kind = value.get("@type").and_then(Value::as_str).ok_or_else(|| {
        wrong(
            path,
            r#"must name what it holds, such as {"@type": "type.googleapis.com/edgeproto.App", …}"#,
        )
    })?;
    let name = kind.rsplit('/').next().unwrap_or(kind);
    let inner = descriptor.parent_pool().get_message_by_name(name).ok_or_else(|| {
        let pool = descriptor.parent_pool();
        let all: Vec<String> = pool.all_messages().map(|m| m.full_name().to_owned()).collect();
        Error::Field {
            path: join(path, "@type"),
            message: format!("there is no message {name:?}"),
            suggestions: suggest::closest(name, all.iter().map(String::as_str)),
        }
    })?;
    match value {
        Value::Object(members) if !is_json_shaped(&inner) => {
            let mut rest = members.clone();
            rest.remove("@type");
            check(&Value::Object(rest), &inner, path)
        }
        _ => Ok(()),
    }
}

/// Returns whether the message has a JSON form of its own, such as a time.
pub(crate) fn is_json_shaped(descriptor: &MessageDescriptor) -> bool {
    descriptor.package_name() == "google.protobuf" && descriptor.name() != "Any"
}

fn unknown_field(place: &str, key: &str, descriptor: &MessageDescriptor) -> Error {
    let names: Vec<String> = descriptor.fields().map(|f| f.name().to_owned()).collect();
    Error::Field {
        path: place.into(),
        message: format!("{} has no field {key:?}", descriptor.full_name()),
        suggestions: suggest::closest(key, names.iter().map(String::as_str)),
    }
}

fn wrong(path: &str, message: impl Into<String>) -> Error {
    Error::Field { path: path.into(), message: message.into(), suggestions: Vec::new() }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(name: &str, text: &str) -> Result<Vec<DynamicMessage>, Error> {
        let descriptor = selvage_api::pool().get_message_by_name(name).unwrap();
        read_all(text.as_bytes(), &descriptor).collect()
    }

    fn refusal(name: &str, text: &str) -> String {
        read(name, text).unwrap_err().to_string()
    }

    #[test]
    fn both_spellings_of_a_field_are_taken() {
        let name = "selvage.identity.CreateJoinTokenRequest";
        let texts = [r#"{"ttl_seconds": 5}"#, r#"{"ttlSeconds": 5}"#];
        let [a, b] = texts.map(|text| read(name, text).unwrap().remove(0));
        assert_eq!(a, b);
        assert_eq!(a.get_field_by_name("ttl_seconds").unwrap().as_u32(), Some(5));
    }

    #[test]
    fn messages_follow_one_another() {
        assert_eq!(read("edgeproto.Notice", "{} {\"version\":1}\n{}").unwrap().len(), 3);
        assert_eq!(read("edgeproto.Notice", " ").unwrap().len(), 0);
    }

    #[test]
    fn mistakes_are_named_by_their_place() {
        let add = "selvage.identity.AddUserRequest";
        assert_eq!(
            refusal(add, r#"{"user":{"usernme":"a"}}"#),
            r#"user.usernme: selvage.identity.User has no field "usernme"; did you mean username?"#
        );
        assert_eq!(
            refusal(add, r#"{"user":{"grants":[{},{"rol":"x"}]}}"#),
            r#"user.grants[1].rol: selvage.identity.Grant has no field "rol"; did you mean role?"#
        );
        assert!(refusal(add, r#"{"user":{"disabled":"maybe"}}"#).starts_with("user.disabled: "));
        assert!(refusal(add, r#"{"user":{"created_at":"noon"}}"#).starts_with("user.created_at: "));
        assert!(refusal(add, r#"{"user":{"grants":{}}}"#).starts_with("user.grants: must be"));
        assert!(refusal(add, "[]").starts_with("the body: must be a JSON object"));
        assert!(refusal(add, r#"{} {"user""#).starts_with("message 2 of the body is not JSON"));
    }

    #[test]
    fn enums_and_anys_are_looked_into() {
        let notice = "edgeproto.Notice";
        assert_eq!(
            refusal(notice, r#"{"action":"UPDTE"}"#),
            r#"action: "UPDTE" is none of its values; did you mean UPDATE?"#
        );
        assert!(read(notice, r#"{"action":"UPDATE"}"#).is_ok());
        assert!(refusal(notice, r#"{"any":{}}"#).starts_with("any: must name what it holds"));
        assert!(
            refusal(notice, r#"{"any":{"@type":"x/edgeproto.Ap"}}"#)
                .contains("did you mean edgeproto.App")
        );
        let good = r#"{"any":{"@type":"type.googleapis.com/selvage.identity.Grant","role":"x"}}"#;
        assert!(read(notice, good).is_ok());
        assert!(refusal(notice, &good.replace("role", "rule")).starts_with("any.rule: "));
    }
}
