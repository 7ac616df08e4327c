//! Differences between what is there and what was asked for, field by field.

use prost_reflect::{DynamicMessage, FieldDescriptor, ReflectMessage, SerializeOptions, Value};
use serde_json::Value as Json;

use crate::error::printable;

/// Lines `- field: old` and `+ field: new` for the fields of an update, named
/// by their paths of numbers. Secrets do not show.
pub(crate) fn lines(
    before: &DynamicMessage,
    now: &DynamicMessage,
    paths: &[String],
) -> Vec<String> {
    let mut seen = Vec::new();
    let mut lines = Vec::new();
    for path in paths {
        let numbers: Vec<u32> = path.split('.').filter_map(|number| number.parse().ok()).collect();
        let (Some(old), Some(new)) = (shown(before, &numbers), shown(now, &numbers)) else {
            continue;
        };
        // Several paths lead into one list, which is shown as a whole.
        if seen.contains(&old.name) {
            continue;
        }
        seen.push(old.name.clone());
        if old.text == new.text {
            lines.push(format!("~ {}: another secret", old.name));
            continue;
        }
        lines.push(format!("- {}: {}", old.name, printable(&old.text)));
        lines.push(format!("+ {}: {}", new.name, printable(&new.text)));
    }
    lines
}

struct FieldText {
    name: String,
    text: String,
}

/// The field at a path, or the list on the way to it.
fn shown(message: &DynamicMessage, numbers: &[u32]) -> Option<FieldText> {
    let (first, rest) = numbers.split_first()?;
    let field = message.descriptor().get_field(*first)?;
    let value = message.get_field(&field);
    match (&*value, rest) {
        (Value::Message(inner), [_, ..]) => {
            let inner = shown(inner, rest)?;
            Some(FieldText { name: format!("{}.{}", field.name(), inner.name), ..inner })
        }
        _ => Some(FieldText { name: field.name().to_owned(), text: text(message, &field) }),
    }
}

fn text(message: &DynamicMessage, field: &FieldDescriptor) -> String {
    let mut message = message.clone();
    selvage_api::secret::redact(&mut message);
    let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false);
    let whole = message.serialize_with_options(serde_json::value::Serializer, &options);
    match whole.ok().and_then(|mut whole| whole.get_mut(field.name()).map(Json::take)) {
        Some(Json::String(text)) => text,
        Some(Json::Null) | None => "-".into(),
        Some(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::{
        edgeproto::{App, ConfigFile, FlavorKey},
        object::to_dynamic,
    };

    use super::*;

    #[test]
    fn a_difference_names_fields_and_shows_no_secret() {
        let config = |text: &str| ConfigFile { kind: "envVarsYaml".into(), config: text.into() };
        let flavor = |name: &str| Some(FlavorKey { name: name.into() });
        let before = App {
            default_flavor: flavor("small"),
            configs: vec![config("a"), config("canary")],
            access_ports: "tcp:80".into(),
            ..App::default()
        };
        let now = App {
            default_flavor: flavor("large"),
            configs: vec![config("a"), config("c")],
            ..before.clone()
        };
        let (before, now) = (to_dynamic(&before).unwrap(), to_dynamic(&now).unwrap());
        let descriptor = before.descriptor();
        let number = |name: &str| descriptor.get_field_by_name(name).unwrap().number();
        let flavor = format!("{}.1", number("default_flavor"));
        let paths =
            [flavor, format!("{}.1", number("configs")), format!("{}.2", number("configs"))];
        let lines = lines(&before, &now, &paths);
        let expected = [
            "- default_flavor.name: small",
            "+ default_flavor.name: large",
            "~ configs: another secret",
        ];
        assert_eq!(lines, expected);
    }
}
