//! Layers of the crates: who may depend on whom. See ARCHITECTURE.md.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Layers from the ground up. A crate may use crates of lower layers, and of
/// its own layer only where `BESIDE` says so.
const LAYERS: &[&[&str]] = &[
    &["selvage-api", "selvage-files", "selvage-lock", "selvage-memory"],
    &["selvage-edge", "selvage-fetch", "selvage-store", "selvage-transcode", "selvage-kit"],
    &[
        "selvage-auth",
        "selvage-balancer",
        "selvage-kube",
        "selvage-membership",
        "selvage-work",
        "selvage-notify",
        "selvage-restic",
        "selvage-runtime",
        "selvage-samples",
        "selvage-shell",
    ],
    &["selvage-cloudlet", "selvage-components", "selvage-csi", "selvage-part"],
    &[
        "selvage-cli",
        "selvage-controller",
        "selvage-dashboard",
        "selvage-dme",
        "selvage-dns",
        "selvage-crm",
        "selvage-kaas",
        "selvage-lvmd",
        "selvage-node",
        "selvage-sim",
    ],
    &["selvage"],
    // For tests alone: no program that is shipped has it.
    &[TESTKIT],
    // Workshop: may look at everything, is used by nothing.
    &["selvage-bench", "selvage-fuzz-targets", "selvage-tests"],
];

/// Crates below it have it as a dev-dependency.
const TESTKIT: &str = "selvage-testkit";

/// The one neighbourly help within a layer: the listener uses the transcoder.
const BESIDE: &[(&str, &str)] = &[("selvage-kit", "selvage-transcode")];

fn layer(name: &str) -> usize {
    LAYERS
        .iter()
        .position(|crates| crates.contains(&name))
        .unwrap_or_else(|| panic!("{name} has no layer: give it one here and in ARCHITECTURE.md"))
}

/// Our crates and which of ours each depends on, tests apart.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let ours = |package: &cargo_metadata::Package| {
        package
            .dependencies
            .iter()
            .filter(|dependency| dependency.kind == DependencyKind::Normal)
            .filter(|dependency| dependency.path.is_some())
            .map(|dependency| dependency.name.clone())
            .collect()
    };
    metadata.packages.iter().map(|package| (package.name.to_string(), ours(package))).collect()
}

#[test]
fn crates_use_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for (name, uses) in dependencies() {
        for used in uses {
            let beside = BESIDE.contains(&(name.as_str(), used.as_str()));
            if layer(&used) >= layer(&name) && !beside {
                wrong.push(format!("{name} may not depend on {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_crate_has_a_layer_and_every_layer_its_crates() {
    let found: BTreeSet<String> = dependencies().into_keys().collect();
    let placed: BTreeSet<String> =
        LAYERS.iter().flat_map(|layer| layer.iter()).map(ToString::to_string).collect();
    assert_eq!(found, placed);
}

/// Names of crates that deny.toml bans, with its reasons.
fn banned() -> BTreeMap<String, String> {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../deny.toml");
    let config = std::fs::read_to_string(config).unwrap();
    let quoted = |line: &str, key: &str| {
        let value = line.split_once(&format!("{key} = \""))?.1;
        Some(value.split_once('"')?.0.to_owned())
    };
    let bans =
        config.lines().filter_map(|line| Some((quoted(line, "crate")?, quoted(line, "reason")?)));
    bans.collect()
}

/// Names of all crates that are built for a target.
fn built_for(target: &str) -> BTreeSet<String> {
    let printed = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--offline", "--prefix", "none"])
        .args(["--edges", "normal,build,dev", "--format", "{p}", "--target", target])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let printed = String::from_utf8(printed.stdout).unwrap();
    printed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// `cargo deny` says the same and more; this needs nothing to be installed.
#[test]
fn no_build_has_a_crate_that_is_banned() {
    let banned = banned();
    assert!(banned.contains_key("ring"), "{banned:?}");
    for target in ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"] {
        let built = built_for(target);
        assert!(built.contains("aws-lc-rs"), "{built:?}");
        for (name, reason) in &banned {
            assert!(!built.contains(name), "{name} is in a build for {target}: {reason}");
        }
    }
}

/// Paths in backquotes that the map and the table of decisions name.
#[test]
fn what_the_map_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let quoted = text.split('`').skip(1).step_by(2);
    let paths: Vec<&str> =
        quoted.filter(|it| it.starts_with("crates/") || it.starts_with("tests/")).collect();
    assert!(paths.len() > 40, "{paths:?}");
    let missing: Vec<_> = paths.iter().filter(|path| !root.join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
