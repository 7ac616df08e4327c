//! Apps: names, ports, deployments, manifests, sizes.

use serde_json::{Value, json};
use tonic::Code::{self, InvalidArgument, NotFound, ResourceExhausted};

use super::*;

#[tokio::test]
async fn apps_names_enums_and_ports() {
    let (_selvage, client) = up().await;
    let good = app();
    let mut rows = names("CreateApp", &good, "/key/name", "Invalid app name");
    rows.extend(names("CreateApp", &good, "/key/version", "Invalid app version string"));
    let at = "/key/developer_key/name";
    rows.extend(names("CreateApp", &good, at, "Invalid developer name"));
    rows.extend(enums("CreateApp", &good, "/image_type", "ImageType"));
    rows.extend(enums("CreateApp", &good, "/del_opt", "DelOpt"));
    let mut bad = |at: &str, value: Value, code: Code, text: &str| {
        rows.push(row("CreateApp", with(&good, at, value), code, text));
    };
    bad("/key/name", "n".repeat(53).into(), InvalidArgument, "Invalid app name");
    for (ports, text) in [
        ("tcp", "Invalid Access Ports format, expected proto:port but was tcp"),
        ("tcp:80,", "Invalid Access Ports format, expected proto:port but was "),
        (",", "Invalid Access Ports format, expected proto:port but was "),
        ("80", "Invalid Access Ports format, expected proto:port but was 80"),
        ("sctp:80", "sctp is not a supported Protocol"),
        (":80", " is not a supported Protocol"),
        (" tcp:80", " tcp is not a supported Protocol"),
        ("tcp:", "Failed to convert port  to integer: "),
        ("tcp:http", "Failed to convert port http to integer: "),
        ("tcp:8 0", "Failed to convert port 8 0 to integer: "),
        ("tcp:0x50", "Failed to convert port 0x50 to integer: "),
        ("tcp:80.5", "Failed to convert port 80.5 to integer: "),
        ("tcp:0", "Port 0 out of range"),
        ("tcp:65536", "Port 65536 out of range"),
        ("tcp:-1", "out of range"),
        ("tcp:20-10", "out of range"),
        ("tcp:80,udp:70000", "Port 70000 out of range"),
        ("tcp:80,tcp:80", "tcp:80"),
        ("tcp:80,TCP:080", "tcp:80"),
        ("udp:53,udp:53", "udp:53"),
        ("http:80,tcp:80", "80"),
        ("tcp:70-90,tcp:80", "80"),
        ("tcp:22", "port 22 is reserved"),
        ("tcp:1-65535", "Too many Access Ports"),
        ("tcp:80:frob", "option frob"),
    ] {
        bad("/access_ports", ports.into(), InvalidArgument, text);
    }
    bad("/default_flavor", json!({}), NotFound, "Specified flavor not found");
    bad("/default_flavor/name", "x1.none".into(), NotFound, "Specified flavor not found");
    refuse(&client, rows).await;
}

#[tokio::test]
async fn apps_deployments_and_keys() {
    let (_selvage, client) = up().await;
    let good = app();
    let mut rows = Vec::new();
    let mut bad = |at: &str, value: Value, text: &str| {
        rows.push(row("CreateApp", with(&good, at, value), InvalidArgument, text));
    };
    let kinds = "invalid deployment, must be one of [kubernetes vm helm docker]";
    for deployment in ["lxc", "Kubernetes", "docker ", "x"] {
        bad("/deployment", deployment.into(), kinds);
    }
    for deployment in ["vm", "helm"] {
        bad("/deployment", deployment.into(), "deployment is not valid for image type");
    }
    bad("/image_type", 0.into(), "unknown image type IMAGE_TYPE_UNKNOWN");
    bad("/image_type", 2.into(), "imagepath is required for imagetype IMAGE_TYPE_QCOW");
    for (key, text) in [
        ("no key", "failed to parse public key: "),
        ("---- BEGIN SSH2 PUBLIC KEY ----\nx", "ssh2 key format not supported"),
        ("-----BEGIN PUBLIC KEY-----\nnope", "invalid PEM passed"),
        (
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            "x509.parse pki public key",
        ),
        (
            "-----BEGIN RSA PUBLIC KEY-----\nAAAA\n-----END RSA PUBLIC KEY-----\n",
            "x509.parse rsa public key",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "Unsupported key tpe \"CERTIFICATE\"",
        ),
    ] {
        bad("/auth_public_key", key.into(), text);
    }
    refuse(&client, rows).await;
}

#[tokio::test]
async fn apps_configs_and_manifests() {
    let (_selvage, client) = up().await;
    let good = app();
    let mut rows = Vec::new();
    let mut bad = |at: &str, value: Value, text: &str| {
        rows.push(row("CreateApp", with(&good, at, value), InvalidArgument, text));
    };
    for config in ["[1, 2]", "just words", "{", "a: [", "resources: &a [*a]"] {
        bad("/config", config.into(), "cannot unmarshal json/yaml config str");
    }
    bad("/config", bomb().into(), "cannot unmarshal json/yaml config str");
    bad("/config", "http://127.0.0.1:9/c".into(), "cannot get config from http://127.0.0.1:9/c");
    let internal = "http://169.254.169.254/latest/meta-data";
    bad("/deployment_manifest", internal.into(), "cannot get manifest from http://169.254.169.254");
    bad("/deployment_manifest", bomb().into(), "invalid deployment manifest");
    bad("/deployment_manifest", "a: [".into(), "invalid deployment manifest");
    bad("/deployment_manifest", "words".into(), "invalid deployment manifest");
    let deep = "[".repeat(100_000);
    bad("/deployment_manifest", deep.into(), "invalid deployment manifest");
    bad("/deployment_manifest", "kind: Pod\n".into(), "access port tcp:80 is missing");
    bad("/deployment_generator", "frob".into(), "invalid deployment generator frob");
    for kind in ["", "frob"] {
        bad("/configs", json!([{"kind": kind, "config": "a: b"}]), "invalid config kind");
    }
    bad("/configs", json!([{"kind": "envVarsYaml", "config": ""}]), "envVarsYaml");
    bad("/configs", json!([{"kind": "envVarsYaml", "config": "{"}]), "envVarsYaml");
    let text = "config kind helmCustomizationYaml is not valid for deployment kubernetes";
    bad("/configs", json!([{"kind": "helmCustomizationYaml", "config": "a: b"}]), text);
    bad("/configs", json!([{"kind": "envVarsYaml", "config": bomb()}]), "envVarsYaml");
    for field in ["image_path", "app_template", "command", "annotations", "android_package_name"] {
        bad(&format!("/{field}"), "x".repeat(17 * 1024).into(), &format!("{field} is too large"));
    }
    for path in ["--privileged", "a b", "a\nb", "a;b", "$(a)", "a\"b", "na\u{ef}ve"] {
        bad("/image_path", path.into(), "Invalid image_path: ");
    }
    for field in ["app_template", "command", "annotations", "android_package_name"] {
        let text = format!("{field} has a control character in it");
        bad(&format!("/{field}"), "a\u{0}b".into(), &text);
        bad(&format!("/{field}"), "\u{1b}[2J".into(), &text);
    }
    let taken = "AndroidPackageName: net.example.one in use by another app";
    bad("/android_package_name", "net.example.one".into(), taken);
    let vm = with(&with(&good, "/image_type", 2), "/image_path", "https://example.net/vm.qcow2");
    let script = with(&vm, "/deployment_manifest", "#!/bin/sh");
    let only = "invalid deploymentment manifest only cloud-init script support, \
                must start with '#cloud-config'";
    rows.push(row("CreateApp", script, InvalidArgument, only));
    let both = with(&vm, "/deployment_manifest", "#cloud-config\n");
    let text =
        "both deploymentmanifest and command cannot be used together for VM based deployment";
    rows.push(row("CreateApp", with(&both, "/command", "x"), InvalidArgument, text));
    refuse(&client, rows).await;
}

/// The message itself is too large, whatever is in it.
#[tokio::test]
async fn ten_megabytes_of_annotations() {
    let (selvage, client) = up().await;
    let before = everything(&client).await;
    let huge = "x".repeat(10 * 1024 * 1024);
    for (method, object, at) in [
        ("CreateApp", app(), "/annotations"),
        ("CreateDeveloper", developer(), "/address"),
        ("CreateCloudlet", cloudlet(), "/access_uri"),
        ("CreateFlavor", flavor(), "/key/name"),
    ] {
        let (_, code, text) = call(&client, method, &with(&object, at, huge.as_str())).await;
        assert!(matches!(code, ResourceExhausted | InvalidArgument), "{method} {code:?} {text}");
    }
    assert_eq!(everything(&client).await, before);
    assert!(!selvage.log().contains("panic"), "{}", selvage.log());
}
