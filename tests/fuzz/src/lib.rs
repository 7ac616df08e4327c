//! Everything that reads bytes of strangers, as functions that take any bytes
//! and must neither panic nor break what they say of themselves.
//!
//! `fuzz/` runs each under libFuzzer (`./dev fuzz TARGET`); the test of this
//! crate runs all of them on seeds and on seeds that were changed at random, in
//! every run of the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what the fuzzer looks for")]

mod contract;
mod machine;
mod network;

/// A target: its name, which is that of its folder of seeds, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("assertion", network::assertion),
    ("csi_mount", selvage_csi::fuzz::mount),
    ("dns_packet", selvage_dns::fuzz::packet),
    ("dtls", selvage_shell::fuzz::handshake),
    ("filter_and_mask", contract::filter_and_mask),
    ("http2", selvage_kit::serve::fuzz::connection),
    ("hpack", selvage_kit::serve::fuzz::headers),
    ("image_manifest", selvage_runtime::oci::fuzz::manifest),
    ("layer", machine::layer),
    ("lvm_device", machine::lvm_device),
    ("lvm_metadata", selvage_lvmd::backend::lvm::fuzz::metadata),
    ("node_parsers", machine::node_parsers),
    ("notice", contract::notice),
    ("registry_reply", selvage_runtime::oci::fuzz::registry_reply),
    ("restic_documents", selvage_restic::fuzz::documents),
    ("restic_index", selvage_restic::fuzz::index),
    ("restic_pack", selvage_restic::fuzz::pack),
    ("sdp", selvage_shell::fuzz::description),
    ("store_file", machine::store_file),
    ("transcode", contract::transcode),
];

/// Runs the target of that name.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    target(bytes);
}
