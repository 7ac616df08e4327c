//! Configuration of a machine for its first start, as cloud-init's NoCloud
//! source has it: a small FAT disk called CIDATA with two files.

use std::io::{Cursor, Write};

use selvage_api::edgeproto::App;
use serde_json::json;

use super::keys;
use crate::{Error, Result, error::During};

/// First line of a manifest of a machine.
const CLOUD_CONFIG: &str = "#cloud-config";
const LABEL: [u8; 11] = *b"CIDATA     ";
/// The least a FAT disk has, beside its files.
const ROOM: usize = 1 << 20;
const SECTOR: usize = 512;

/// The disk for a machine of an app.
pub(super) fn disk(app: &App, machine: &str) -> Result<Vec<u8>> {
    let (meta, user) = (meta_data(app, machine)?, user_data(app)?);
    let length = (ROOM + meta.len() + user.len()).next_multiple_of(SECTOR);
    written(length, &meta, &user).during("making the machine's first instructions")
}

fn written(length: usize, meta: &str, user: &str) -> std::io::Result<Vec<u8>> {
    let mut disk = vec![0; length];
    fatfs::format_volume(
        Cursor::new(&mut disk[..]),
        fatfs::FormatVolumeOptions::new().volume_label(LABEL),
    )?;
    let volume = fatfs::FileSystem::new(Cursor::new(&mut disk[..]), fatfs::FsOptions::new())?;
    for (name, text) in [("meta-data", meta), ("user-data", user)] {
        let mut file = volume.root_dir().create_file(name)?;
        file.write_all(text.as_bytes())?;
        file.flush()?;
    }
    volume.unmount()?;
    Ok(disk)
}

/// JSON is YAML.
fn meta_data(app: &App, machine: &str) -> Result<String> {
    let mut meta = json!({"instance-id": machine, "local-hostname": machine});
    if let Some(key) = keys::line(&app.auth_public_key)? {
        meta["public-keys"] = json!([key]);
    }
    Ok(format!("{meta}\n"))
}

fn user_data(app: &App) -> Result<String> {
    match (app.deployment_manifest.as_str(), app.command.as_str()) {
        ("", "") => Ok(format!("{CLOUD_CONFIG}\n{{}}\n")),
        ("", command) => Ok(format!("{CLOUD_CONFIG}\n{}\n", json!({"runcmd": [command]}))),
        (_, command) if !command.is_empty() => {
            Err(Error::invalid("command", "cannot be given to a machine beside its manifest"))
        }
        (manifest, _) if manifest.starts_with(CLOUD_CONFIG) => Ok(manifest.to_owned()),
        _ => {
            let reason = format!("of a virtual machine must begin with {CLOUD_CONFIG}");
            Err(Error::invalid("deployment_manifest", reason))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::io::Read;

    use super::*;

    fn files(disk: Vec<u8>) -> (String, String) {
        let volume = fatfs::FileSystem::new(Cursor::new(disk), fatfs::FsOptions::new()).unwrap();
        assert_eq!(volume.volume_label(), "CIDATA");
        assert_eq!(volume.read_volume_label_from_root_dir().unwrap().as_deref(), Some("CIDATA"));
        let read = |name: &str| {
            let mut text = String::new();
            volume.root_dir().open_file(name).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        (read("meta-data"), read("user-data"))
    }

    #[test]
    fn a_command_or_a_manifest_and_a_key_are_in_the_seed() {
        let key = "ssh-ed25519 AAAA me";
        let app = App {
            command: "echo \"it's\" $HOME; true".into(),
            auth_public_key: key.into(),
            ..App::default()
        };
        let (meta, user) = files(disk(&app, "m-1").unwrap());
        let meta: serde_json::Value = serde_saphyr::from_str(&meta).unwrap();
        assert_eq!(meta["instance-id"], "m-1");
        assert_eq!(meta["public-keys"], json!([key]));
        let (head, rest) = user.split_once('\n').unwrap();
        assert_eq!(head, "#cloud-config");
        let rest: serde_json::Value = serde_saphyr::from_str(rest).unwrap();
        assert_eq!(rest["runcmd"], json!(["echo \"it's\" $HOME; true"]));

        let manifest = format!("#cloud-config\nwrite_files: []\n# {}\n", "x".repeat(100_000));
        let app = App { deployment_manifest: manifest.clone(), ..App::default() };
        assert_eq!(files(disk(&app, "m").unwrap()).1, manifest);
        let (meta, user) = files(disk(&App::default(), "m").unwrap());
        assert!(!meta.contains("public-keys") && user.starts_with("#cloud-config\n"), "{meta}");
    }

    #[test]
    fn other_manifests_are_refused() {
        let app = App { deployment_manifest: "#!/bin/sh".into(), ..App::default() };
        let error = disk(&app, "m").unwrap_err().to_string();
        assert_eq!(
            error,
            "deployment_manifest: of a virtual machine must begin with #cloud-config"
        );
        let app = App {
            deployment_manifest: "#cloud-config\n".into(),
            command: "true".into(),
            ..App::default()
        };
        assert!(disk(&app, "m").unwrap_err().to_string().starts_with("command: "));
    }
}
