use super::{app_inst, app_inst_key};
use crate::Code;
use crate::edgeproto::{
    App, AppInst, Cloudlet, ClusterInst, ClusterKey, Controller, Developer, Flavor, Node, NodeKey,
    OperatorKey,
};
use crate::object::{Error, Key, camel_name, check_enums};

#[test]
fn keys_are_checked_in_order_with_the_texts_of_the_original() {
    let complaint = |key: &dyn Fn() -> Result<Key, Error>| match key().unwrap().check() {
        Ok(()) => String::new(),
        Err(error) => {
            assert_eq!(error.code(), Code::InvalidArgument);
            error.to_string()
        }
    };
    assert_eq!(complaint(&|| Key::of(&app_inst())), "");
    assert_eq!(complaint(&|| Key::of(&App::default())), "Invalid app name");
    assert_eq!(complaint(&|| Key::of(&AppInst::default())), "Invalid app name");
    assert_eq!(complaint(&|| Key::of(&Cloudlet::default())), "Invalid operator name");
    assert_eq!(complaint(&|| Key::of(&ClusterInst::default())), "Invalid cluster name");
    assert_eq!(complaint(&|| Key::of(&Developer::default())), "Invalid developer name");
    assert_eq!(complaint(&|| Key::of(&Flavor::default())), "Invalid flavor name");
    assert_eq!(complaint(&|| Key::of(&Node::default())), "Invalid node name");
    assert_eq!(complaint(&|| Key::of(&Controller::default())), "Invalid address");

    let mut key = app_inst_key().app_key.unwrap();
    key.developer_key = None;
    assert_eq!(complaint(&|| Key::from_message(&key)), "Invalid developer name");
    key.version = "1/0".into();
    assert_eq!(complaint(&|| Key::from_message(&key)), "Invalid app version string");
    key.name = "-x".into();
    assert_eq!(complaint(&|| Key::from_message(&key)), "Invalid app name");

    let mut key = app_inst_key();
    let cluster = key.cluster_inst_key.as_mut().unwrap();
    cluster.developer = String::new();
    cluster.cloudlet_key.as_mut().unwrap().name = "no/slash".into();
    assert_eq!(complaint(&|| Key::from_message(&key)), "Invalid cloudlet name");
    key.cluster_inst_key.as_mut().unwrap().cluster_key =
        Some(ClusterKey { name: "under_score".into() });
    assert_eq!(complaint(&|| Key::from_message(&key)), "Invalid cluster name");
}

#[test]
fn names_are_those_that_the_original_accepts() {
    let valid =
        |name: &str| Key::from_message(&OperatorKey { name: name.into() }).unwrap().check().is_ok();
    for name in ["AT&T Inc.", "Niantic, Inc.", "Pokemon Go!", "0", "a_b-c ", "developer"] {
        assert!(valid(name), "{name}");
    }
    for name in ["", " name", "-name", "a;sldfj", "$fadf", "é", "a\n", "a\0", ".a"] {
        assert!(!valid(name), "{name}");
    }
}

#[test]
fn keys_are_written_as_the_original_stores_them() {
    assert_eq!(
        Key::of(&app_inst()).unwrap().to_string(),
        r#"{"app_key":{"developer_key":{"name":"AcmeAppCo"},"name":"someapplication1","version":"1.0"},"cluster_inst_key":{"cluster_key":{"name":"SmallCluster"},"cloudlet_key":{"operator_key":{"name":"tmus"},"name":"tmus-cloud-1"},"developer":"AcmeAppCo"}}"#
    );
    assert_eq!(
        Key::of(&AppInst::default()).unwrap().to_string(),
        r#"{"app_key":{"developer_key":{}},"cluster_inst_key":{"cluster_key":{},"cloudlet_key":{"operator_key":{}}}}"#
    );
    let odd = OperatorKey { name: "AT&T <\"\\\n\u{1}\u{2028}é>".into() };
    assert_eq!(
        Key::from_message(&odd).unwrap().to_string(),
        "{\"name\":\"AT\\u0026T \\u003c\\\"\\\\\\n\\u0001\\u2028é\\u003e\"}"
    );
    let node = NodeKey { name: "n".into(), node_type: 2, cloudlet_key: None };
    assert_eq!(
        Key::from_message(&node).unwrap().to_string(),
        r#"{"name":"n","node_type":"NodeCrm","cloudlet_key":{"operator_key":{}}}"#
    );
}

#[test]
fn enums_out_of_range_are_named() {
    assert!(check_enums(&app_inst()).is_ok());
    let text = |error: Error| error.to_string();
    assert_eq!(
        text(check_enums(&App { image_type: 7, ..App::default() }).unwrap_err()),
        "invalid ImageType: image_type cannot be 7, it is one of \
         IMAGE_TYPE_UNKNOWN, IMAGE_TYPE_DOCKER, IMAGE_TYPE_QCOW"
    );
    let error = text(check_enums(&App { del_opt: -1, ..App::default() }).unwrap_err());
    assert!(error.starts_with("invalid DelOpt: del_opt cannot be -1"), "{error}");
    let mut inner = app_inst();
    inner.mapped_ports[1].proto = 9;
    let error = text(check_enums(&inner).unwrap_err());
    assert!(error.starts_with("invalid Proto: mapped_ports.proto cannot be 9"), "{error}");
}

#[test]
fn enum_names_are_camel_case_as_in_the_original() {
    for (name, camel) in [
        ("IP_ACCESS_DEDICATED_OR_SHARED", "IpAccessDedicatedOrShared"),
        ("NODE_CRM", "NodeCrm"),
        ("AUTO_DELETE", "AutoDelete"),
        ("READY", "Ready"),
        ("TRACKED_STATE_UNKNOWN", "TrackedStateUnknown"),
        ("L_PROTO_TCP", "LProtoTcp"),
    ] {
        assert_eq!(camel_name(name), camel);
    }
}
