//! Tells the crate which compiler it was built by.

use std::{env, process::Command};

fn main() {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = Command::new(rustc).arg("--version").output().ok();
    let version = told.and_then(|told| String::from_utf8(told.stdout).ok()).unwrap_or_default();
    println!("cargo::rustc-env=SELVAGE_RUSTC={}", version.trim());
    println!("cargo::rerun-if-changed=build.rs");
}
