//! Data of etcd, made of a snapshot before the machine is in a cluster.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use selvage_api::selvage::kubernetes::EtcdPeer;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::{
    Error, Result,
    artifact::Artifacts,
    component::etcd_peer_url,
    member::{ETCD, Paths},
};

/// etcd puts the SHA-256 of a snapshot behind it.
const DIGEST: usize = 32;
/// So far ahead are the revisions of the restored etcd: clients that saw later
/// ones than the snapshot has must not take new objects for old ones.
const BUMP: &str = "1000000000";

/// A snapshot that is being received.
pub(crate) struct Restore {
    paths: Paths,
    program: PathBuf,
    cluster: String,
    peer: EtcdPeer,
    path: PathBuf,
    file: File,
}

impl Restore {
    /// Begins, with the `etcdutl` of that version.
    pub(crate) fn begin(
        paths: &Paths,
        artifacts: &Artifacts,
        cluster: &str,
        peer: EtcdPeer,
        version: &str,
    ) -> Result<Self> {
        let program = artifacts.find(ETCD, version, "etcdutl")?;
        selvage_runtime::private_directory(&paths.root).map_err(Error::file(&paths.root))?;
        let path = paths.root.join("etcd-snapshot");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(Error::file(&path))?;
        Ok(Self { paths: paths.clone(), program, cluster: cluster.to_owned(), peer, path, file })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::file(&self.path))
    }

    /// Makes the data of the snapshot; whole or not at all.
    pub(crate) async fn finish(mut self) -> Result<()> {
        check(&mut self.file, &self.path)?;
        let data = self.paths.data(ETCD);
        let new = data.with_extension("new");
        if new.exists() {
            fs::remove_dir_all(&new).map_err(Error::file(&new))?;
        }
        if let Some(parent) = data.parent() {
            selvage_runtime::private_directory(parent).map_err(Error::file(parent))?;
        }
        let url = etcd_peer_url(&self.peer.address);
        let output = Command::new(&self.program)
            .args(["snapshot", "restore"])
            .arg(&self.path)
            .arg(format!("--data-dir={}", new.display()))
            .arg(format!("--name={}", self.peer.name))
            .arg(format!("--initial-cluster={}={url}", self.peer.name))
            .arg(format!("--initial-advertise-peer-urls={url}"))
            .arg(format!("--initial-cluster-token={}", self.cluster))
            .arg(format!("--bump-revision={BUMP}"))
            .arg("--mark-compacted")
            .output();
        let output = output.await.map_err(Error::file(&self.program))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let text = text.lines().last().unwrap_or("ended with an error").to_owned();
            return Err(Error::Program { program: "etcdutl", text });
        }
        sync_tree(&new).map_err(Error::file(&new))?;
        selvage_files::rename(&new, &data).map_err(Error::file(&data))
    }
}

/// Waits until the disk has a folder with all that is in it.
fn sync_tree(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => sync_tree(&entry.path())?,
            false => File::open(entry.path())?.sync_all()?,
        }
    }
    selvage_files::sync_folder(folder)
}

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns whether data of etcd are there already.
pub(crate) fn is_done(paths: &Paths) -> bool {
    paths.data(ETCD).exists()
}

/// Refuses a snapshot that is not whole.
fn check(file: &mut File, path: &Path) -> Result<()> {
    let failed = |error| Error::file(path)(error);
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let damaged = |reason: &str| Error::Invalid(vec![format!("data: {reason}")]);
    let Some(mut left) = size.checked_sub(DIGEST as u64).filter(|left| *left > 0) else {
        return Err(damaged("is no snapshot of etcd: it is too short"));
    };
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let (mut digest, mut piece) = (Sha256::new(), vec![0; 256 << 10]);
    while left > 0 {
        let next = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        file.read_exact(&mut piece[..next]).map_err(failed)?;
        digest.update(&piece[..next]);
        left -= next as u64;
    }
    let mut expected = [0; DIGEST];
    file.read_exact(&mut expected).map_err(failed)?;
    match digest.finalize().as_slice() == expected {
        true => Ok(()),
        false => Err(damaged("is damaged: its SHA-256 is not the one that etcd put behind it")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_snapshot_counts_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot");
        let content = vec![7; 300 << 10];
        let digest = Sha256::digest(&content).to_vec();
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            check(&mut File::open(&path).unwrap(), &path)
        };
        let whole = [content.clone(), digest].concat();
        check(&whole).unwrap();
        for wrong in [&whole[..20], &whole[..whole.len() - 1], &content[..]] {
            let error = check(wrong).unwrap_err();
            assert!(error.to_string().starts_with("data: is "), "{error}");
        }
        let mut changed = whole;
        changed[1000] ^= 1;
        assert!(check(&changed).unwrap_err().to_string().contains("SHA-256"));
    }
}
