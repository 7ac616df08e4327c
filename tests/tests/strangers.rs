//! Clients that know nothing of this code: another language's gRPC, a
//! browser, curl.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{path::Path, process::Command};

use selvage_tests::{
    Selvage,
    real::{browser, must_end_ok, python, skip},
};

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

#[test]
fn a_python_client_made_from_the_protos() {
    let Some(python) = python() else { return };
    let selvage = Selvage::up(&[]);
    must_end_ok(
        Command::new(python)
            .arg(repository("tests/foreign/client.py"))
            .arg(repository("proto"))
            .arg(selvage.address())
            .arg(selvage.ready()["ca"].as_str().unwrap())
            .arg("admin")
            .arg(selvage.ready()["admin"]["password_file"].as_str().unwrap()),
    );
}

/// A dashboard that was made for the original: it knows the wire facts and nothing else.
#[test]
fn a_dashboard_made_from_the_wire_facts() {
    let Some(python) = python() else { return };
    let selvage = Selvage::up(&[]);
    must_end_ok(
        Command::new(python)
            .arg(repository("tests/foreign/stats.py"))
            .arg(repository("tests/foreign/stats_wire"))
            .arg(selvage.address())
            .arg(selvage.ready()["ca"].as_str().unwrap())
            .arg("admin")
            .arg(selvage.ready()["admin"]["password_file"].as_str().unwrap()),
    );
}

#[test]
fn a_browser() {
    let Some(mut browser) = browser("docs.mjs") else { return };
    let selvage = Selvage::up(&[]);
    let screenshot = std::env::temp_dir().join("selvage-docs.png");
    must_end_ok(
        browser
            .arg(selvage.endpoint())
            .arg("admin")
            .arg(selvage.ready()["admin"]["password_file"].as_str().unwrap())
            .arg(screenshot),
    );
}

#[test]
fn curl() {
    let selvage = Selvage::up(&[]);
    let login = format!(r#"{{"username":"admin","password":"{}"}}"#, selvage.password());
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--cacert"])
        .arg(selvage.ready()["ca"].as_str().unwrap())
        .args(["--json", &login])
        .arg(format!("{}/services.auth.AuthService/Login", selvage.endpoint()))
        .output();
    let Ok(output) = output else { return skip("curl", "not installed") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(reply["token"].as_str().unwrap().starts_with("slv_"), "{reply}");
}
