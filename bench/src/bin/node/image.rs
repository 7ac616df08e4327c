//! A tiny image: busybox, and a program that waits.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Name of the image.
pub(crate) const IMAGE: &str = "localhost/selvage-bench:1";

/// Command that runs in it.
pub(crate) const COMMAND: [&str; 2] = ["/bin/sleep", "1000000"];

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Writes it as an OCI layout in a tar.
pub(crate) fn write(path: &Path) -> Result<()> {
    let layer = layer()?;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": COMMAND, "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": descriptor(&config, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor(&layer, "application/vnd.oci.image.layer.v1.tar")],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut target = descriptor(&manifest, MANIFEST);
    target["annotations"] = json!({ "io.containerd.image.name": IMAGE });
    let index = json!({ "schemaVersion": 2, "manifests": [target] }).to_string();
    let mut layout = Builder::new(fs::File::create(path)?);
    add(&mut layout, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    add(&mut layout, "index.json", index.as_bytes())?;
    for blob in [&layer, &config, &manifest] {
        add(&mut layout, &digest(blob).replace("sha256:", "blobs/sha256/"), blob)?;
    }
    Ok(layout.finish()?)
}

fn layer() -> Result<Vec<u8>> {
    let busybox = fs::read("/bin/busybox").context("/bin/busybox")?;
    let mut layer = Builder::new(Vec::new());
    for name in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        let mut header = header(EntryType::Directory, 0);
        layer.append_data(&mut header, name, std::io::empty())?;
    }
    add(&mut layer, "bin/busybox", &busybox)?;
    for name in ["bin/sh", "bin/sleep"] {
        layer.append_link(&mut header(EntryType::Symlink, 0), name, "busybox")?;
    }
    Ok(layer.into_inner()?)
}

fn header(kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size as u64);
    header
}

fn add(to: &mut Builder<impl std::io::Write>, name: &str, content: &[u8]) -> Result<()> {
    Ok(to.append_data(&mut header(EntryType::Regular, content.len()), name, content)?)
}

fn digest(blob: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(blob)))
}

fn descriptor(blob: &[u8], kind: &str) -> Value {
    json!({ "mediaType": kind, "size": blob.len(), "digest": digest(blob) })
}
