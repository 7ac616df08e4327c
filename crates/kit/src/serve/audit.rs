//! One line in the audit log for every call that changes something: who,
//! what, from where, with what outcome. Secrets in the request are left out.

use prost_reflect::DynamicMessage;
use selvage_api::{Method, secret};

use super::request_id::RequestId;
use crate::{
    identity::{Identity, Peer},
    telemetry::Protocol,
};

/// The longest request text that a line carries.
const LONGEST: usize = 2048;

/// A call on its way to its audit line.
pub(super) struct Entry {
    method: &'static Method,
    who: String,
    peer: String,
    protocol: &'static str,
    request: String,
    request_id: String,
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
            request_id: String::new(),
        }
    }

    pub(super) fn with_id(self, id: Option<&RequestId>) -> Self {
        let request_id = id.map(RequestId::as_str).unwrap_or_default().to_owned();
        Self { request_id, ..self }
    }

    pub(super) fn write(self, code: tonic::Code) {
        let Self { method, who, peer, protocol, request, request_id } = self;
        let method = method.path.trim_start_matches('/');
        tracing::info!(
            target: "audit", method, who, peer, protocol, ?code, request, request_id, "call"
        );
    }
}

/// The request as JSON without its secrets, cut to a bearable length.
fn redacted(method: &Method, message: &[u8]) -> String {
    let Ok(mut request) = DynamicMessage::decode(method.input.clone(), message) else {
        return format!("<{} unreadable bytes>", message.len());
    };
    secret::redact(&mut request);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prost::Message;
    use selvage_api::{proto as lvmd, selvage::identity::SetPasswordRequest};

    use super::*;

    fn method(service: &str, name: &str) -> &'static Method {
        selvage_api::method(&format!("/{service}/{name}")).unwrap()
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
    fn what_an_app_is_started_with_is_left_out() {
        let config = selvage_api::edgeproto::ConfigFile {
            kind: "envVarsYaml".into(),
            config: "- {name: DB_PASSWORD, value: canary}".into(),
        };
        let app = selvage_api::edgeproto::App {
            configs: vec![config],
            command: "serve --password canary".into(),
            deployment_manifest: "env: [{name: DB_PASSWORD, value: canary}]".into(),
            ..Default::default()
        };
        for name in ["CreateApp", "UpdateApp"] {
            let text = redacted(method("edgeproto.AppApi", name), &app.encode_to_vec());
            assert_eq!(text, r#"{"configs":[{"kind":"envVarsYaml"}]}"#, "{name}");
        }
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
}
