//! Path captures and query parameters into fields of a message.

use std::{borrow::Cow, collections::HashSet};

use percent_encoding::percent_decode_str;
use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, Value};

use crate::{Error, scalar};

/// Percent-decodes, refusing escapes that are not ones and what is not UTF-8.
pub(crate) fn decode(raw: &str) -> Result<Cow<'_, str>, &'static str> {
    let mut rest = raw.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        rest = &rest[at + 1..];
        if rest.len() < 2 || !rest[..2].iter().all(u8::is_ascii_hexdigit) {
            return Err("a percent sign must be followed by two hexadecimal digits");
        }
    }
    percent_decode_str(raw).decode_utf8().map_err(|_| "is not valid UTF-8")
}

/// Finds a field by the name in the proto file or by its lowerCamel form.
pub(crate) fn field(message: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    message.get_field_by_name(name).or_else(|| message.get_field_by_json_name(name))
}

/// The fields that a dotted name leads through.
fn resolve(message: &MessageDescriptor, name: &str) -> Option<Vec<FieldDescriptor>> {
    let mut found = Vec::new();
    let mut current = Some(message.clone());
    for part in name.split('.') {
        let step = field(&current?, part)?;
        current = match step.kind() {
            _ if step.is_list() || step.is_map() => None,
            prost_reflect::Kind::Message(inner) => Some(inner),
            _ => None,
        };
        found.push(step);
    }
    Some(found)
}

/// Sets the field that `name` leads to; `Ok(false)` when it leads nowhere.
fn assign(message: &mut DynamicMessage, name: &str, text: &str) -> Result<bool, String> {
    use prost_reflect::ReflectMessage;
    let Some(mut steps) = resolve(&message.descriptor(), name) else {
        return Ok(false);
    };
    let Some(last) = steps.pop() else { return Ok(false) };
    if last.is_map() {
        return Err("is a map, which only a JSON body can carry".to_owned());
    }
    let value = scalar::from_text(&last.kind(), text)?;
    let mut holder = message;
    for step in &steps {
        match holder.get_field_mut(step) {
            Value::Message(inner) => holder = inner,
            _ => return Ok(false),
        }
    }
    if last.is_list() {
        if let Value::List(list) = holder.get_field_mut(&last) {
            list.push(value);
        }
    } else {
        holder.set_field(&last, value);
    }
    Ok(true)
}

/// Sets a field from what the path captured.
pub(crate) fn apply_capture(
    message: &mut DynamicMessage,
    name: &str,
    text: &str,
) -> Result<(), Error> {
    let failed = |reason| Error::PathParameter { name: name.to_owned(), reason };
    match assign(message, name, text) {
        Ok(true) => Ok(()),
        Ok(false) => Err(failed("is not a field of the request".to_owned())),
        Err(reason) => Err(failed(reason)),
    }
}

/// Fills fields from a query string. Fields that `taken` names (from the
/// path or the body) are left alone. `lenient` is as the gateways of the
/// originals were: unknown names are passed over, and of several values for
/// one that takes one the first counts.
pub(crate) fn apply(
    message: &mut DynamicMessage,
    query: &str,
    taken: &[&str],
    lenient: bool,
) -> Result<(), Error> {
    use prost_reflect::ReflectMessage;
    let mut seen = HashSet::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (raw_name, raw_value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = form_decode(raw_name).map_err(|reason| parameter(raw_name, reason))?;
        let value = form_decode(raw_value).map_err(|reason| parameter(&name, reason))?;
        let Some(steps) = resolve(&message.descriptor(), &name) else {
            if lenient {
                continue;
            }
            return Err(parameter(&name, "is not known here"));
        };
        let canonical = steps.iter().map(FieldDescriptor::name).collect::<Vec<_>>().join(".");
        if taken.iter().any(|t| canonical == *t || canonical.starts_with(&format!("{t}."))) {
            continue;
        }
        let repeated = steps.last().is_some_and(FieldDescriptor::is_list);
        if !repeated && !seen.insert(canonical) {
            if lenient {
                continue;
            }
            return Err(parameter(&name, "is given more than once"));
        }
        assign(message, &name, &value)
            .map_err(|reason| Error::Parameter { name: name.clone(), reason })?;
    }
    Ok(())
}

fn parameter(name: &str, reason: &str) -> Error {
    Error::Parameter { name: name.to_owned(), reason: reason.to_owned() }
}

fn form_decode(raw: &str) -> Result<String, &'static str> {
    decode(&raw.replace('+', " ")).map(Cow::into_owned)
}
