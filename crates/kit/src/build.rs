//! Version and commit of this build.

use selvage_api::machine::VersionInfo;

/// The version as machines and this program tell it, with the words for a
/// processor that clients of the original use.
pub fn build() -> VersionInfo {
    VersionInfo {
        tag: concat!("v", env!("CARGO_PKG_VERSION")).into(),
        sha: option_env!("SELVAGE_COMMIT").unwrap_or_default().into(),
        built: option_env!("SELVAGE_BUILT").unwrap_or_default().into(),
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
}
