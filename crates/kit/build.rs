//! Tells the crate which compiler it was built by.

use std::{env, process::Command};

fn main() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).arg("--version").output().ok();
    let version =
        printed.and_then(|printed| String::from_utf8(printed.stdout).ok()).unwrap_or_default();
    println!("cargo::rustc-env=SELVAGE_RUSTC={}", version.trim());
    println!("cargo::rerun-if-changed=build.rs");
}
