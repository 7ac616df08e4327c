//! Tells the program of which commit it was built, and when that was made.
//!
//! `SELVAGE_COMMIT` and `SELVAGE_BUILT` of the environment win, for packages that are
//! built of an archive; `SOURCE_DATE_EPOCH` names the time for builds that are to be
//! the same every time. A tree without git says nothing about itself. It is told to this
//! crate alone, so that a commit compiles no other one anew.

use std::{env, path::Path, process::Command};

/// Folders and files that the program is made of, from here.
const SOURCES: [&str; 5] = ["build.rs", "src", "../crates", "../proto", "../Cargo.lock"];

fn main() {
    for name in ["SELVAGE_COMMIT", "SELVAGE_BUILT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let own = is_own_repository();
    if own {
        watch();
    }
    let (commit, state) = match (given("SELVAGE_COMMIT"), own) {
        (Some(commit), _) => (commit, "archive"),
        (None, true) => (git(&["rev-parse", "HEAD"]).unwrap_or_default(), tree_state()),
        (None, false) => (String::new(), "unknown"),
    };
    let committed = || own.then(|| git(&["log", "-1", "--format=%ct"])).flatten();
    let built = given("SELVAGE_BUILT").or_else(|| given("SOURCE_DATE_EPOCH")).or_else(committed);
    println!("cargo::rustc-env=SELVAGE_BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=SELVAGE_BUILD_TREE={state}");
    println!("cargo::rustc-env=SELVAGE_BUILD_TIME={}", built.unwrap_or_default());
}

/// Value of the environment on one line, if it is set to something.
fn given(name: &str) -> Option<String> {
    let text = env::var(name).ok()?;
    text.lines().next().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned)
}

/// First line that git prints; `None` without git.
fn git(arguments: &[&str]) -> Option<String> {
    let printed = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    let text = String::from_utf8(printed.stdout).ok().filter(|_| printed.status.success())?;
    Some(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns whether the repository is of this tree, and not of one that it was unpacked in.
fn is_own_repository() -> bool {
    let top = git(&["rev-parse", "--show-toplevel"]).map(|top| Path::new(&top).canonicalize());
    let root =
        env::var_os("CARGO_MANIFEST_DIR").map(|own| Path::new(&own).join("..").canonicalize());
    matches!((top, root), (Some(Ok(top)), Some(Ok(root))) if top == root)
}

fn tree_state() -> &'static str {
    match git(&["status", "--porcelain"]).as_deref() {
        Some("") => "clean",
        Some(_) => "dirty",
        None => "unknown",
    }
}

/// Lets the script run again with the next commit, and with every change of the sources.
fn watch() {
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned);
    for name in names.into_iter().chain(branch) {
        let path = git(&["rev-parse", "--git-path", &name]);
        // One that is not there would be new each time.
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
}
