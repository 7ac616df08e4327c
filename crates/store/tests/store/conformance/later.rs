//! The same suite on a later etcd than the distribution has.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use selvage_testkit::{etcd::GIVEN, skip};

/// The newest etcd that was built for Kubernetes (`./dev kubernetes`).
fn later() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    let built = std::env::var_os("SELVAGE_TEST_KUBERNETES_DIR")
        .map_or_else(|| cache.join("selvage/tools/kubernetes"), PathBuf::from);
    let versions = std::fs::read_dir(built.join("etcd")).ok()?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("etcd")));
    programs.filter(|program| program.is_file()).max()
}

/// Authentication with tokens that end, certificates that are replaced, an older
/// snapshot, three nodes, and everything that is promised about a store.
#[test]
fn everything_holds_on_a_later_etcd() {
    if std::env::var_os(GIVEN).is_some() {
        // This is that run.
        return;
    }
    let Some(program) = later() else {
        return skip("a later etcd", "none was built: run ./dev kubernetes");
    };
    let suite = std::env::current_exe().unwrap();
    let output = Command::new(suite)
        .args(["conformance::", "--skip", "embedded", "--skip", "later"])
        .env(GIVEN, &program)
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {output_text}", program.display());
    assert!(
        output_text.contains("life::tokens_that_have_ended_are_replaced ... ok"),
        "{output_text}"
    );
}
