//! Real parts of a machine that tests need: found, or the test is counted as skipped.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// Says loudly that a test did not run. On CI a missing part is a failure.
///
/// # Panics
///
/// On CI.
pub fn skip(part: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{part} is missing on CI: {reason}");
    say_skipped(part, reason);
}

/// The same for a part that CI may lack too.
pub fn say_skipped(part: &str, reason: &str) {
    // Straight to the file descriptor: the test harness hides what passing
    // tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {part}: {reason}");
}

/// Path of a program that is installed, also where `PATH` is that of a user who
/// does not administer the machine.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin", "/usr/local/sbin"];
    usual
        .iter()
        .map(|folder| Path::new(folder).to_owned())
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}
