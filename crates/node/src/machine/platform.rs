//! Platform of this machine.

use std::{fs, path::Path};

use selvage_api::machine::PlatformInfo;

/// Returns the platform of the machine whose files are below `root`.
pub(super) fn platform(root: &Path) -> PlatformInfo {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let release = read("etc/os-release");
    let id = release.lines().find_map(|line| line.strip_prefix("ID="));
    let name = id.map(|id| id.trim_matches('"')).filter(|id| !id.is_empty());
    let contained = ["run/.containerenv", ".dockerenv", "run/systemd/container"]
        .iter()
        .any(|mark| root.join(mark).exists());
    let mode = match read("sys/class/dmi/id/sys_vendor").trim() {
        _ if contained => "container",
        "Amazon EC2"
        | "Google"
        | "Microsoft Corporation"
        | "DigitalOcean"
        | "Hetzner"
        | "OpenStack Foundation"
        | "Alibaba Cloud"
        | "Scaleway"
        | "Vultr"
        | "Linode" => "cloud",
        _ => "metal",
    };
    PlatformInfo { name: name.unwrap_or("linux").into(), mode: mode.into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_machine_is_detected_by_its_files() {
        let root = tempfile::tempdir().unwrap();
        let detected = |root: &Path| {
            let platform = platform(root);
            (platform.name, platform.mode)
        };
        assert_eq!(detected(root.path()), ("linux".into(), "metal".into()));
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::create_dir_all(root.path().join("sys/class/dmi/id")).unwrap();
        fs::write(root.path().join("etc/os-release"), "NAME=x\nID=\"debian\"\n").unwrap();
        fs::write(root.path().join("sys/class/dmi/id/sys_vendor"), "Amazon EC2\n").unwrap();
        assert_eq!(detected(root.path()), ("debian".into(), "cloud".into()));
        fs::write(root.path().join(".dockerenv"), "").unwrap();
        assert_eq!(detected(root.path()), ("debian".into(), "container".into()));
    }
}
