//! Files of apps: texts that a container finds at the paths its app names.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use selvage_api::edgeproto::App;
use selvage_runtime::{Mount, private_directory};

use crate::{Error, Result, error::During};

/// Before the path, in the kind of a config.
const FILE: &str = "file:";

pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(super) fn new(data: &Path) -> Self {
        Self { folder: data.join("files") }
    }

    /// Writes the files of a container anew, and says where they belong. Of
    /// two for one path the later is seen.
    pub(super) fn provide(&self, container: &str, app: &App) -> Result<Vec<Mount>> {
        self.remove(container)?;
        let named = app.configs.iter().filter_map(|config| {
            config.kind.strip_prefix(FILE).map(|path| (path, config.config.as_bytes()))
        });
        let mut mounts = Vec::new();
        for (number, (path, text)) in named.enumerate() {
            if !path.starts_with('/') {
                return Err(Error::invalid(format!("configs ({FILE}{path})"), "is no path"));
            }
            mounts.push(self.write(container, number, path, text).during("writing a file")?);
        }
        Ok(mounts)
    }

    fn write(&self, container: &str, number: usize, path: &str, text: &[u8]) -> io::Result<Mount> {
        let folder = self.folder.join(container);
        // Others on this machine have no business in them; inside, whoever the
        // app runs as reads them.
        private_directory(&self.folder)?;
        private_directory(&folder)?;
        let source = folder.join(number.to_string());
        selvage_files::replace(&source, text, 0o644)?;
        fs::set_permissions(&source, fs::Permissions::from_mode(0o644))?;
        Ok(Mount { source, target: path.into(), read_only: true })
    }

    pub(super) fn remove(&self, container: &str) -> Result<()> {
        match fs::remove_dir_all(self.folder.join(container)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
        .during("removing the files of an instance")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::ConfigFile;

    use super::*;

    #[test]
    fn files_are_written_anew_and_removed() {
        let data = tempfile::tempdir().unwrap();
        let files = Files::new(data.path());
        let config = |kind: &str, text: &str| ConfigFile { kind: kind.into(), config: text.into() };
        let mut app = App {
            configs: vec![
                config("envVarsYaml", "- name: A\n"),
                config("file:/etc/a.conf", "one"),
                config("file:/etc/b.conf", ""),
            ],
            ..App::default()
        };
        let mounts = files.provide("c1", &app).unwrap();
        let targets: Vec<_> = mounts.iter().map(|mount| mount.target.to_str().unwrap()).collect();
        assert_eq!(targets, ["/etc/a.conf", "/etc/b.conf"]);
        assert_eq!(fs::read_to_string(&mounts[0].source).unwrap(), "one");
        app.configs.truncate(2);
        assert_eq!(files.provide("c1", &app).unwrap().len(), 1);
        assert!(!mounts[1].source.exists(), "of before");
        files.remove("c1").unwrap();
        files.remove("c1").unwrap();
        assert!(!mounts[0].source.exists());
        app.configs[1].kind = "file:etc".into();
        let error = files.provide("c1", &app).unwrap_err().to_string();
        assert_eq!(error, "configs (file:etc): is no path");
    }
}
