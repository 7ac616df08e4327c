//! Clients that know nothing of this code: another language's gRPC, a
//! browser, curl.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{path::Path, process::Command};

use selvage_tests::{
    Selvage,
    real::{node_modules, python, skip},
};

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Runs a command that ends with `ok` on a line of its own.
fn must_end_ok(command: &mut Command) {
    let output = command.output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert_eq!(stdout.lines().last(), Some("ok"), "{stdout}\n{stderr}");
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

#[test]
fn a_browser() {
    let Some(modules) = node_modules() else { return };
    if !Path::new("/usr/bin/chromium").exists() {
        return skip("chromium", "not installed");
    }
    let selvage = Selvage::up(&[]);
    let screenshot = std::env::temp_dir().join("selvage-docs.png");
    must_end_ok(
        Command::new("node")
            .env("NODE_PATH", modules)
            .arg(repository("tests/browser/docs.mjs"))
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
