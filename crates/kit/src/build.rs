//! Version and commit of this build.

use std::sync::OnceLock;

use selvage_api::machine::VersionInfo;

/// Source that a program was built of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Source {
    /// Full name of the commit; empty where nothing knows it.
    pub commit: &'static str,
    /// `clean` if the tree is that of the commit, `dirty` if it has other changes too,
    /// `archive` if it was told by whoever built it, else `unknown`.
    pub tree: &'static str,
    /// Time, in seconds since 1970 or as text.
    pub built: &'static str,
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// Makes the source of the program known. It is not compiled in here, because everything
/// that uses this crate would be compiled anew with every commit.
pub fn set_source(source: Source) {
    let _ = SOURCE.set(source);
}

fn source() -> Source {
    SOURCE.get().copied().unwrap_or(Source { tree: "unknown", ..Source::default() })
}

/// Returns how the tree was when the program was built, see [`Source::tree`].
pub fn tree_state() -> &'static str {
    source().tree
}

/// The version as machines and this program tell it, with the words for a
/// processor that clients of the original use.
pub fn build() -> VersionInfo {
    let Source { commit, built, .. } = source();
    VersionInfo {
        tag: concat!("v", env!("CARGO_PKG_VERSION")).into(),
        sha: commit.into(),
        built: readable(built),
        go_version: env!("SELVAGE_RUSTC").into(),
        os: std::env::consts::OS.into(),
        arch: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .into(),
    }
}

/// Seconds since 1970 as a date; what is none stays.
fn readable(built: &str) -> String {
    let seconds = built.parse::<i64>().ok();
    let time = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| built.to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_chain_and_the_machine_are_named() {
        let build = build();
        assert!(build.go_version.starts_with("rustc 1."), "{build:?}");
        assert!(build.tag.starts_with('v') && build.os == "linux", "{build:?}");
        assert_ne!(build.arch, "x86_64");
    }

    #[test]
    fn a_time_in_seconds_is_told_as_a_date() {
        assert_eq!(readable("1795038444"), "2026-11-18T21:47:24Z");
        assert_eq!(readable("2026-11-18"), "2026-11-18");
        assert_eq!(readable(""), "");
    }
}
