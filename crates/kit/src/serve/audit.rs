//! One line in the audit log for every call that changes something: who,
//! what, from where, with what outcome. Secrets in the request are left out.

use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use selvage_api::Method;

use crate::{
    identity::{Identity, Peer},
    telemetry::Protocol,
};

/// Fields that never appear in the log, whatever message they stand in.
const SECRETS: &[&str] = &[
    "access_key_id",
    "answer",
    "auth_public_key",
    "auth_token",
    "cf_key",
    "csr",
    "current_password",
    "data",
    "docker_reg_pass",
    "docker_registry_secret",
    "encryption_key",
    "generated_password",
    "group_cookie",
    "kubeconfig",
    "new_password",
    "offer",
    "open_rc_vars",
    "passhash",
    "password",
    "secret_access_key",
    "session_cookie",
    "session_token",
    "token",
    "user_data",
    "verify_loc_token",
];

/// The longest request text that a line carries.
const LONGEST: usize = 2048;

/// A call on its way to its audit line.
pub(super) struct Entry {
    method: &'static Method,
    who: String,
    peer: String,
    protocol: &'static str,
    request: String,
}

impl Entry {
    pub(super) fn new(
        method: &'static Method,
        message: &[u8],
        caller: &Identity,
        peer: &Peer,
        protocol: Protocol,
    ) -> Self {
        Self {
            method,
            who: if caller.name.is_empty() { "nobody".into() } else { caller.name.clone() },
            peer: peer.to_string(),
            protocol: protocol.name(),
            request: redacted(method, message),
        }
    }

    pub(super) fn write(self, code: tonic::Code) {
        let Self { method, who, peer, protocol, request } = self;
        let method = method.path.trim_start_matches('/');
        tracing::info!(target: "audit", method, who, peer, protocol, ?code, request, "call");
    }
}

/// The request as JSON without its secrets, cut to a bearable length.
fn redacted(method: &Method, message: &[u8]) -> String {
    let Ok(mut request) = DynamicMessage::decode(method.input.clone(), message) else {
        return format!("<{} unreadable bytes>", message.len());
    };
    redact(&mut request);
    let options = prost_reflect::SerializeOptions::new().use_proto_field_name(true);
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut text);
    if request.serialize_with_options(&mut serializer, &options).is_err() {
        return format!("<{} bytes>", message.len());
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if text.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(cut);
        text.push('…');
    }
    text
}

fn redact(message: &mut DynamicMessage) {
    let fields: Vec<_> = message.descriptor().fields().filter(|f| message.has_field(f)).collect();
    for field in fields {
        if SECRETS.binary_search(&field.name()).is_ok() {
            message.clear_field(&field);
            continue;
        }
        match message.get_field_mut(&field) {
            Value::Message(inner) => redact(inner),
            Value::List(items) => items.iter_mut().for_each(redact_value),
            Value::Map(entries) => entries.values_mut().for_each(redact_value),
            _ => {}
        }
    }
}

fn redact_value(value: &mut Value) {
    if let Value::Message(inner) = value {
        redact(inner);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_reflect::{Kind, MessageDescriptor};
    use selvage_api::{proto as lvmd, selvage::identity::SetPasswordRequest};

    use super::*;

    fn method(service: &str, name: &str) -> &'static Method {
        selvage_api::method(&format!("/{service}/{name}")).unwrap()
    }

    #[test]
    fn the_list_is_sorted() {
        assert!(SECRETS.is_sorted());
    }

    #[test]
    fn secrets_are_left_out_at_any_depth() {
        let request = SetPasswordRequest {
            username: "ann".into(),
            current_password: "canary-1".into(),
            new_password: "canary-2".into(),
        };
        let set = method("selvage.identity.IdentityService", "SetPassword");
        assert_eq!(redacted(set, &request.encode_to_vec()), r#"{"username":"ann"}"#);

        let s3 = lvmd::data_source::S3 {
            path: "bucket".into(),
            secret_access_key: "canary-3".into(),
            encryption_key: "canary-4".into(),
            ..Default::default()
        };
        let source = lvmd::DataSource {
            r#type: Some(lvmd::data_source::Type::S3(s3)),
            ..Default::default()
        };
        let request = lvmd::CreateBackupRequest {
            backup: Some(lvmd::Backup { data_source: Some(source), ..Default::default() }),
        };
        let text = redacted(method("proto.LVService", "CreateBackup"), &request.encode_to_vec());
        assert!(text.contains("bucket") && !text.contains("canary"), "{text}");
    }

    #[test]
    fn unreadable_and_endless_requests_make_short_lines() {
        let create = method("edgeproto.AppApi", "CreateApp");
        assert_eq!(redacted(create, &[0xff; 9]), "<9 unreadable bytes>");
        let app = selvage_api::edgeproto::App {
            deployment_manifest: "ü".repeat(9000),
            ..Default::default()
        };
        assert!(redacted(create, &app.encode_to_vec()).len() < LONGEST + 8);
    }

    #[test]
    fn no_field_that_looks_like_a_secret_is_forgotten() {
        let mut suspects = BTreeSet::new();
        for method in selvage_api::methods() {
            collect(&method.input, &mut suspects, &mut BTreeSet::new());
        }
        let forgotten: Vec<_> = suspects
            .iter()
            .filter(|name| SECRETS.binary_search(&name.as_str()).is_err())
            .collect();
        assert!(forgotten.is_empty(), "add to SECRETS: {forgotten:?}");
    }

    fn collect(
        message: &MessageDescriptor,
        suspects: &mut BTreeSet<String>,
        seen: &mut BTreeSet<String>,
    ) {
        if !seen.insert(message.full_name().to_owned()) {
            return;
        }
        for field in message.fields() {
            match field.kind() {
                Kind::Message(inner) => collect(&inner, suspects, seen),
                Kind::String | Kind::Bytes => {
                    let name = field.name().to_ascii_lowercase();
                    let looks_secret = ["pass", "secret", "token", "cookie", "kubeconfig", "csr"]
                        .iter()
                        .any(|word| name.contains(word))
                        || name.ends_with("_key");
                    if looks_secret {
                        suspects.insert(field.name().to_owned());
                    }
                }
                _ => {}
            }
        }
    }
}
