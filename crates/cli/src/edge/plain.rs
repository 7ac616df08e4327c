//! Objects as people keep them in files: numbers are numbers, and what is zero
//! is left out.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind as Type, MapKey, ReflectMessage, Value};
use selvage_api::object::camel_name;
use serde_json::{Map, Number, Value as Json};

/// Spelling of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// As in the contract.
    Contract,
    /// As the original's client prints: fields in lower case without
    /// underscores, enums in camel case.
    Edgectl,
}

/// The message in plain values.
pub(crate) fn value(message: &DynamicMessage, spelling: Spelling) -> Json {
    let mut members = Map::new();
    // In order of declaration; `fields()` of a message goes by number.
    for field in message.descriptor().fields().filter(|field| message.has_field(field)) {
        let name = match spelling {
            Spelling::Contract => field.name().to_owned(),
            Spelling::Edgectl => super::scalar::normal(field.name()),
        };
        let value = field_value(&field, &message.get_field(&field), spelling);
        // The original leaves out messages without content as well.
        if value != Json::Object(Map::new()) {
            members.insert(name, value);
        }
    }
    Json::Object(members)
}

fn field_value(field: &FieldDescriptor, value: &Value, spelling: Spelling) -> Json {
    match value {
        Value::List(items) => {
            items.iter().map(|item| single(&field.kind(), item, spelling)).collect()
        }
        Value::Map(entries) => {
            let kind = match field.kind() {
                Type::Message(entry) => entry.map_entry_value_field().kind(),
                kind => kind,
            };
            let mut sorted: Vec<(&MapKey, &Value)> = entries.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            let members = sorted
                .into_iter()
                .map(|(key, value)| (key_text(key), single(&kind, value, spelling)));
            Json::Object(members.collect())
        }
        value => single(&field.kind(), value, spelling),
    }
}

fn single(kind: &Type, value: &Value, spelling: Spelling) -> Json {
    match value {
        Value::Bool(value) => Json::Bool(*value),
        Value::I32(value) => (*value).into(),
        Value::I64(value) => (*value).into(),
        Value::U32(value) => (*value).into(),
        Value::U64(value) => (*value).into(),
        Value::F32(value) => float(f64::from(*value)),
        Value::F64(value) => float(*value),
        Value::String(text) => Json::String(text.clone()),
        Value::Bytes(bytes) => Json::String(hex::encode(bytes)),
        Value::EnumNumber(number) => match kind {
            Type::Enum(known) => known.get_value(*number).map_or((*number).into(), |value| {
                Json::String(match spelling {
                    Spelling::Contract => value.name().to_owned(),
                    Spelling::Edgectl => camel_name(value.name()),
                })
            }),
            _ => (*number).into(),
        },
        Value::Message(message) => self::value(message, spelling),
        Value::List(_) | Value::Map(_) => Json::Null,
    }
}

/// Whole numbers are written as such.
fn float(value: f64) -> Json {
    // Beyond this a float holds no more whole numbers exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        #[allow(clippy::cast_possible_truncation)]
        return Json::Number((value as i64).into());
    }
    Number::from_f64(value).map_or(Json::Null, Json::Number)
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

#[cfg(test)]
mod tests {
    use selvage_api::{
        distributed_match_engine::Loc,
        edgeproto::{Cloudlet, CloudletKey, CloudletRefs, OperatorKey},
        object::to_dynamic,
    };

    use super::*;

    #[test]
    fn as_the_original_prints_it() {
        let key = Some(CloudletKey {
            operator_key: Some(OperatorKey { name: "tmus".into() }),
            name: "cloud-1".into(),
        });
        let location = Some(Loc { latitude: 31.5, longitude: -91.0, ..Loc::default() });
        let cloudlet =
            Cloudlet { key, location, ip_support: 2, num_dynamic_ips: 254, ..Cloudlet::default() };
        let printed = to_dynamic(&cloudlet).map(|message| value(&message, Spelling::Edgectl));
        let expected = r#"{"key":{"operatorkey":{"name":"tmus"},"name":"cloud-1"},"location":{"latitude":31.5,"longitude":-91},"ipsupport":"IpSupportDynamic","numdynamicips":254}"#;
        assert_eq!(printed.ok().map(|json| json.to_string()).as_deref(), Some(expected));

        let refs =
            CloudletRefs { root_lb_ports: [(10002, 2), (80, 1)].into(), ..CloudletRefs::default() };
        let printed = to_dynamic(&refs).map(|message| value(&message, Spelling::Contract));
        let expected = r#"{"root_lb_ports":{"80":1,"10002":2}}"#;
        assert_eq!(printed.ok().map(|json| json.to_string()).as_deref(), Some(expected));
    }
}
