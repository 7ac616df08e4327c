//! Secrets in messages: which fields hold them, and how such a message is
//! shown. The generated types that have one print it as `…`.

mod fields;

use std::fmt;

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value};

pub use fields::FIELDS;

/// Returns whether the field holds a secret. A sub-message of such a name does
/// not: its own fields are judged one by one.
pub fn is_secret(field: &FieldDescriptor) -> bool {
    let listed = |name: &str| FIELDS.binary_search(&name).is_ok();
    (listed(field.name()) || listed(field.full_name()))
        && (field.is_map() || !matches!(field.kind(), Kind::Message(_)))
}

/// Takes the secrets out of a message, at any depth.
pub fn redact(message: &mut DynamicMessage) {
    let fields: Vec<_> = message.descriptor().fields().filter(|f| message.has_field(f)).collect();
    for field in fields {
        if is_secret(&field) {
            message.clear_field(&field);
            continue;
        }
        redact_value(message.get_field_mut(&field));
    }
}

fn redact_value(value: &mut Value) {
    match value {
        Value::Message(inner) => redact(inner),
        Value::List(items) => items.iter_mut().for_each(redact_value),
        Value::Map(entries) => entries.values_mut().for_each(redact_value),
        Value::String(text) => {
            if let Some(without) = without_user(text) {
                *text = without;
            }
        }
        _ => {}
    }
}

/// An address without the user and password in it; none if it has none.
fn without_user(text: &str) -> Option<String> {
    let start = text.find("://")? + 3;
    let rest = &text[start..];
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let at = rest[..end].rfind('@')?;
    Some(format!("{}…{}", &text[..start], &rest[at..]))
}

/// `Debug` of the generated types that have a secret.
fn debug<M: Message + Name>(message: &M, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut shown = f.debug_struct(M::NAME);
    let Ok(dynamic) = crate::object::to_dynamic(message) else {
        return shown.finish_non_exhaustive();
    };
    for (field, value) in dynamic.fields() {
        if is_secret(&field) {
            shown.field(field.name(), &format_args!("…"));
        } else {
            shown.field(field.name(), &RedactedValue(value));
        }
    }
    shown.finish()
}

/// A value inside such a message.
struct RedactedValue<'a>(&'a Value);

impl fmt::Debug for RedactedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Message(_) | Value::List(_) | Value::Map(_) => {
                let mut value = self.0.clone();
                redact_value(&mut value);
                write!(f, "{value}")
            }
            Value::String(text) => fmt::Debug::fmt(without_user(text).as_ref().unwrap_or(text), f),
            other => write!(f, "{other}"),
        }
    }
}

include!(concat!(env!("OUT_DIR"), "/debug.rs"));

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;
    use crate::{edgeproto as edge, proto as lvmd, services::auth::LoginRequest};

    #[test]
    fn the_list_is_sorted() {
        assert!(FIELDS.is_sorted());
    }

    #[test]
    fn secrets_do_not_show_at_any_depth() {
        let login = LoginRequest { username: "ann".into(), password: "canary".into() };
        assert_eq!(format!("{login:?}"), r#"LoginRequest { username: "ann", password: … }"#);
        let s3 = lvmd::data_source::S3 {
            path: "bucket".into(),
            secret_access_key: "canary".into(),
            ..Default::default()
        };
        let source = lvmd::DataSource {
            r#type: Some(lvmd::data_source::Type::S3(s3)),
            ..Default::default()
        };
        let request = lvmd::CreateLvRequest { data_source: Some(source), ..Default::default() };
        let shown = format!("{request:?}");
        assert!(shown.contains("bucket") && !shown.contains("canary"), "{shown}");
        let mut dynamic = crate::object::to_dynamic(&request).unwrap();
        redact(&mut dynamic);
        assert!(dynamic.to_string().contains("bucket") && !dynamic.to_string().contains("canary"));
    }

    #[test]
    fn what_an_app_is_started_with_does_not_show() {
        let configs =
            vec![edge::ConfigFile { kind: "envVarsYaml".into(), config: "canary".into() }];
        let config = "resources: {}".to_owned();
        let app = edge::App {
            configs,
            config,
            command: "serve --password canary".into(),
            deployment_manifest: "kind: Secret # canary".into(),
            ..Default::default()
        };
        let mut dynamic = crate::object::to_dynamic(&app).unwrap();
        redact(&mut dynamic);
        for shown in [format!("{app:?}"), format!("{:?}", app.configs), dynamic.to_string()] {
            assert!(shown.contains("envVarsYaml") && !shown.contains("canary"), "{shown}");
        }
        assert!(format!("{app:?}").contains("resources"), "another field of that name");
        let words = vec!["mysql".into(), "-pcanary".into()];
        let exec = edge::ExecRequest { command: "canary".into(), words, ..Default::default() };
        let mut dynamic = crate::object::to_dynamic(&exec).unwrap();
        redact(&mut dynamic);
        let shown = format!("{exec:?} {dynamic}");
        assert!(!shown.contains("canary"), "{shown}");
    }

    #[test]
    fn a_password_in_an_address_does_not_show() {
        let address = "http://ann:canary@proxy.example:3128/x".to_owned();
        let s3 = lvmd::data_source::S3 { http_proxy: address, ..Default::default() };
        let shown = "http://…@proxy.example:3128/x";
        assert!(format!("{s3:?}").contains(shown), "{s3:?}");
        let mut dynamic = crate::object::to_dynamic(&s3).unwrap();
        redact(&mut dynamic);
        let text = dynamic.to_string();
        assert!(text.contains("@proxy.example") && !text.contains("canary"), "{text}");
        for plain in ["http://a/b@c", "mail@example.com", "a://b?c=d@e", ""] {
            assert_eq!(without_user(plain), None, "{plain}");
        }
    }

    #[test]
    fn no_field_that_looks_like_a_secret_is_forgotten() {
        let mut forgotten = BTreeSet::new();
        for field in crate::pool().all_messages().flat_map(|m| m.fields().collect::<Vec<_>>()) {
            let name = field.name().to_ascii_lowercase();
            let looks_secret = ["pass", "secret", "token", "cookie", "kubeconfig", "csr"]
                .iter()
                .any(|word| name.contains(word))
                || name.ends_with("_key");
            let text = matches!(field.kind(), Kind::String | Kind::Bytes);
            if looks_secret && text && !is_secret(&field) {
                forgotten.insert(field.full_name().to_owned());
            }
        }
        for harmless in HARMLESS {
            assert!(forgotten.remove(*harmless), "{harmless} is not there any more");
        }
        assert!(forgotten.is_empty(), "add to FIELDS or HARMLESS: {forgotten:#?}");
    }

    /// Fields that look like secrets and are none.
    const HARMLESS: &[&str] = &[
        "distributed_match_engine.RegisterClientReply.token_server_uri",
        "selvage.dashboard.ListAuditRequest.page_token",
        "selvage.dashboard.ListAuditResponse.next_page_token",
    ];
}
