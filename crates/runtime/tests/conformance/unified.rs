//! All of it once more on a kernel that has control groups of the unified kind
//! alone, whatever this one has.

use selvage_runtime::cgroup;

use crate::real;

/// Tests of this program that run there.
const AGAIN: [&str; 5] = [
    "oci::oci_by_crun",
    "oci::oci_by_runc",
    "oci::oci_restarts_by_policy_and_keeps_no_helper",
    "containerd::containerd_conforms",
    "unified::control_groups_here_are_unified",
];

#[test]
fn control_groups_here_are_unified() {
    if std::env::var_os(real::IN_MACHINE).is_some() {
        assert!(cgroup::Mounts::read().unwrap().is_unified());
    }
}

#[test]
fn the_suite_passes_where_control_groups_are_unified() {
    if !real::can_run(&["containerd", "runc", "ctr", "crun"]) {
        return;
    }
    let Some(mut machine) = real::machine() else { return };
    // Nothing is skipped there: what it needs was found here.
    machine.env("CI", "true").arg(std::env::current_exe().unwrap());
    machine.args(["--test-threads", "1", "--exact"]).args(AGAIN);
    assert!(machine.status().unwrap().success(), "it fails there");
}
