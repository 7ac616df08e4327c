//! JSON schemas of messages and enums.

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value as Json, json};

use super::comments::Comments;
use crate::scalar::is_well_known;

/// Naming of fields: Connect writes lowerCamel, REST the proto file's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    Camel,
    Original,
}

pub(super) struct Schemas<'a> {
    comments: &'a Comments,
    found: Map<String, Json>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(comments: &'a Comments) -> Self {
        Self { comments, found: Map::new() }
    }

    pub(super) fn finish(mut self) -> Map<String, Json> {
        self.found.sort_keys();
        self.found
    }

    /// A reference to a message's schema, which is made if it is not there.
    pub(super) fn message(&mut self, message: &MessageDescriptor, naming: Naming) -> Json {
        if is_well_known(message.full_name()) {
            return well_known(message.full_name());
        }
        let key = match naming {
            Naming::Camel => message.full_name().to_owned(),
            Naming::Original => format!("rest.{}", message.full_name()),
        };
        let reference = json!({"$ref": format!("#/components/schemas/{key}")});
        if self.found.contains_key(&key) || message.is_map_entry() {
            return reference;
        }
        // Stands here before its fields are looked at: types may contain
        // themselves.
        self.found.insert(key.clone(), Json::Null);
        let mut properties = Map::new();
        for field in message.fields() {
            let name = match naming {
                Naming::Camel => field.json_name(),
                Naming::Original => field.name(),
            };
            properties.insert(name.to_owned(), self.field(&field, naming));
        }
        let mut schema =
            json!({"type": "object", "title": message.name(), "properties": properties});
        self.describe(&mut schema, self.comments.get(&message.parent_file(), message.path()));
        self.found.insert(key, schema);
        reference
    }

    pub(super) fn field(&mut self, field: &FieldDescriptor, naming: Naming) -> Json {
        let mut schema = if field.is_map() {
            let value = match field.kind() {
                Kind::Message(entry) => entry.map_entry_value_field().kind(),
                other => other,
            };
            json!({"type": "object", "additionalProperties": self.kind(&value, naming)})
        } else if field.is_list() {
            json!({"type": "array", "items": self.kind(&field.kind(), naming)})
        } else {
            self.kind(&field.kind(), naming)
        };
        self.describe(&mut schema, self.comments.get(&field.parent_file(), field.path()));
        schema
    }

    fn describe(&self, schema: &mut Json, comment: Option<&str>) {
        if let Some(text) = comment {
            schema["description"] = Json::String(text.to_owned());
        }
    }

    fn kind(&mut self, kind: &Kind, naming: Naming) -> Json {
        match kind {
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Double => json!({"type": "number", "format": "double"}),
            Kind::Float => json!({"type": "number", "format": "float"}),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                json!({"type": "integer", "format": "int32"})
            }
            Kind::Uint32 | Kind::Fixed32 => {
                json!({"type": "integer", "format": "uint32", "minimum": 0})
            }
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                json!({"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"})
            }
            Kind::Uint64 | Kind::Fixed64 => {
                json!({"type": "string", "format": "uint64", "pattern": "^[0-9]+$"})
            }
            Kind::Message(message) => self.message(message, naming),
            Kind::Enum(descriptor) => self.enumeration(descriptor),
        }
    }

    fn enumeration(&mut self, descriptor: &EnumDescriptor) -> Json {
        let key = descriptor.full_name().to_owned();
        let reference = json!({"$ref": format!("#/components/schemas/{key}")});
        if !self.found.contains_key(&key) {
            let names: Vec<_> = descriptor.values().map(|v| v.name().to_owned()).collect();
            let mut schema = json!({"type": "string", "title": descriptor.name(), "enum": names});
            let comment = self.comments.get(&descriptor.parent_file(), descriptor.path());
            self.describe(&mut schema, comment);
            self.found.insert(key, schema);
        }
        reference
    }
}

fn well_known(full_name: &str) -> Json {
    match full_name.trim_start_matches("google.protobuf.") {
        "Timestamp" => json!({"type": "string", "format": "date-time"}),
        "Duration" => json!({"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?s$"}),
        "FieldMask" | "StringValue" => json!({"type": "string"}),
        "BytesValue" => json!({"type": "string", "contentEncoding": "base64"}),
        "BoolValue" => json!({"type": "boolean"}),
        "Int32Value" | "UInt32Value" => json!({"type": "integer"}),
        "Int64Value" | "UInt64Value" => json!({"type": "string", "format": "int64"}),
        "FloatValue" | "DoubleValue" => json!({"type": "number"}),
        "ListValue" => json!({"type": "array"}),
        "Any" => json!({"type": "object", "properties": {"@type": {"type": "string"}}}),
        "Struct" | "Empty" => json!({"type": "object"}),
        _ => json!({}),
    }
}
