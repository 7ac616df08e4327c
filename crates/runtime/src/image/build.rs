//! Images made of files: one layer, a configuration, in an OCI layout.

use std::{fs, io, path::Path};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{Error, Result, error::During};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// An image in the making.
pub struct ImageBuilder {
    layer: tar::Builder<Vec<u8>>,
    command: Vec<String>,
    env: Vec<String>,
}

impl Default for ImageBuilder {
    fn default() -> Self {
        Self { layer: tar::Builder::new(Vec::new()), command: Vec::new(), env: Vec::new() }
    }
}

impl ImageBuilder {
    /// With nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// With the usual folders, and this busybox under its own name and others.
    pub fn busybox(program: &[u8], names: &[&str]) -> Result<Self> {
        let mut image = Self::new().variable("PATH", "/bin");
        for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "www"] {
            image = image.directory(folder, 0o755)?;
        }
        image = image.file("bin/busybox", 0o755, program)?;
        for name in names {
            image = image.link(&format!("bin/{name}"), "busybox")?;
        }
        Ok(image)
    }

    /// Command that runs where a container says nothing else.
    #[must_use]
    pub fn command(mut self, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.command = command.into_iter().map(Into::into).collect();
        self
    }

    /// A variable of every container.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// A directory; those above it must be there.
    pub fn directory(self, path: &str, mode: u32) -> Result<Self> {
        self.entry(path, tar::EntryType::Directory, mode, &[], None)
    }

    /// A file.
    pub fn file(self, path: &str, mode: u32, content: &[u8]) -> Result<Self> {
        self.entry(path, tar::EntryType::Regular, mode, content, None)
    }

    /// A symbolic link.
    pub fn link(self, path: &str, target: &str) -> Result<Self> {
        self.entry(path, tar::EntryType::Symlink, 0o777, &[], Some(target))
    }

    fn entry(
        mut self,
        path: &str,
        kind: tar::EntryType,
        mode: u32,
        content: &[u8],
        target: Option<&str>,
    ) -> Result<Self> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        let added = match target {
            Some(target) => self.layer.append_link(&mut header, path, target),
            None => self.layer.append_data(&mut header, path, content),
        };
        added.during("adding to an image")?;
        Ok(self)
    }

    /// Writes the image under a name into a file: the tar of an OCI layout.
    pub fn write(self, name: &str, path: &Path) -> Result<()> {
        let layer = self.layer.into_inner().during("making an image")?;
        let config = json!({
            "architecture": super::own_architecture(),
            "os": "linux",
            "config": { "Cmd": self.command, "Env": self.env, "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))] },
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described(&config, CONFIG),
            "layers": [described(&layer, LAYER)],
        });
        let manifest = manifest.to_string().into_bytes();
        let mut target = described(&manifest, MANIFEST);
        target["annotations"] = json!({ "io.containerd.image.name": name });
        let index = json!({ "schemaVersion": 2, "manifests": [target] }).to_string();
        let mut layout = tar::Builder::new(Vec::new());
        let mut add = |name: String, content: &[u8]| -> io::Result<()> {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(content.len() as u64);
            layout.append_data(&mut header, name, content)
        };
        add("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#).during("making an image")?;
        add("index.json".into(), index.as_bytes()).during("making an image")?;
        for blob in [&layer, &config, &manifest] {
            add(format!("blobs/sha256/{}", digest(blob)), blob).during("making an image")?;
        }
        let bytes = layout.into_inner().during("making an image")?;
        fs::write(path, bytes).map_err(|error| Error::Io { doing: "writing an image", error })
    }
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn described(blob: &[u8], kind: &str) -> serde_json::Value {
    json!({ "mediaType": kind, "size": blob.len(), "digest": format!("sha256:{}", digest(blob)) })
}
