//! Programs that machines lack, sent to them from the controller's folder, or from a
//! mirror or the official addresses that it fetches from, so that one machine alone has to
//! have them.

use std::{
    collections::HashMap,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use selvage_api::selvage::kubernetes::{MissingArtifact, PutArtifactRequest, Versions};
use sha2::{Digest, Sha256};
use tokio::{io::AsyncReadExt, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Agent,
    mirror::{Digests, Mirror},
    official::Official,
    refused, timed,
};
use crate::driver::Error;

/// Bytes of one message.
const PIECE: usize = 256 << 10;
/// A large program over a slow line.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// SHA-256 of a file as it was at some time.
struct FileDigest {
    changed: SystemTime,
    sha256: String,
}

/// Origin of programs.
pub(crate) enum Source {
    Folder(PathBuf),
    Mirror(Mirror),
    Official(Official),
}

/// Programs by version.
#[derive(Default)]
pub(crate) struct Artifacts {
    source: Option<Source>,
    /// Digests that the catalogue names.
    pinned: Digests,
    known: Mutex<HashMap<PathBuf, FileDigest>>,
}

impl Artifacts {
    pub(crate) fn new(source: Option<Source>, pinned: Digests) -> Self {
        Self { source, pinned, ..Self::default() }
    }

    /// Sends the first program that a machine lacks and that is to be had, and
    /// names it.
    pub(super) async fn send(
        &self,
        agent: &mut Agent,
        versions: &Versions,
        missing: &[MissingArtifact],
    ) -> Result<Option<String>, Error> {
        for artifact in missing.iter().filter(|one| is_needed(versions, one)) {
            if let Some((path, sha256)) = self.find(artifact).await? {
                self.put(agent, path, sha256, artifact).await?;
                return Ok(Some(format!("{} {}", artifact.name, artifact.version)));
            }
        }
        Ok(None)
    }

    /// Sends the program that makes data of etcd of a snapshot, if it is to be
    /// had; machines of this host see the folder themselves.
    pub(super) async fn send_restorer(&self, agent: &mut Agent, etcd: &str) -> Result<(), Error> {
        let artifact = MissingArtifact {
            name: "etcdutl".into(),
            folder: "etcd".into(),
            version: etcd.to_owned(),
        };
        match self.find(&artifact).await? {
            Some((path, sha256)) => self.put(agent, path, sha256, &artifact).await,
            None => Ok(()),
        }
    }

    /// Path of a program here, and its SHA-256; `None` if it is not to be had.
    async fn find(&self, artifact: &MissingArtifact) -> Result<Option<(PathBuf, String)>, Error> {
        let relative = path(Path::new(""), artifact).display().to_string();
        let folder = match &self.source {
            None => return Ok(None),
            Some(Source::Mirror(mirror)) => return mirror.get(&relative, &self.pinned).await,
            Some(Source::Official(official)) => return official.get(artifact, &self.pinned).await,
            Some(Source::Folder(folder)) => folder,
        };
        let path = path(folder, artifact);
        if !path.is_file() {
            return Ok(None);
        }
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", path.display()));
        let found = self.sha256(&path).await.map_err(failed)?;
        match self.pinned.get(&relative) {
            Some(pinned) if *pinned != found => Err(Error::Unavailable(format!(
                "{} has SHA-256 {found}, and kaas.catalogue names {pinned}",
                path.display()
            ))),
            _ => Ok(Some((path, found))),
        }
    }

    async fn put(
        &self,
        agent: &mut Agent,
        path: PathBuf,
        sha256: String,
        artifact: &MissingArtifact,
    ) -> Result<(), Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", path.display()));
        let file = tokio::fs::File::open(&path).await.map_err(failed)?;
        let first = PutArtifactRequest {
            artifact: Some(artifact.clone()),
            sha256,
            ..PutArtifactRequest::default()
        };
        let request = timed(pieces(file, first), TIMEOUT);
        agent.put_artifact(request).await.map_err(|status| refused(&status))?;
        tracing::info!(program = artifact.name, version = artifact.version, "sent to a machine");
        Ok(())
    }

    /// Computed once for a file that stays as it is.
    async fn sha256(&self, path: &Path) -> io::Result<String> {
        let changed = tokio::fs::metadata(path).await?.modified()?;
        if let Some(known) = self.known.lock().get(path)
            && known.changed == changed
        {
            return Ok(known.sha256.clone());
        }
        let sha256 = digest_of(path).await?;
        let known = FileDigest { changed, sha256: sha256.clone() };
        self.known.lock().insert(path.to_owned(), known);
        Ok(sha256)
    }
}

/// SHA-256 of a file.
pub(crate) async fn digest_of(path: &Path) -> io::Result<String> {
    let path = path.to_owned();
    let computed = tokio::task::spawn_blocking(move || digest(&path));
    computed.await.map_err(io::Error::other)?
}

fn digest(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let (mut digest, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            length => digest.update(&piece[..length]),
        }
    }
}

fn path(folder: &Path, artifact: &MissingArtifact) -> PathBuf {
    let MissingArtifact { name, folder: kind, version } = artifact;
    selvage_components::artifact_folder(folder, kind, version).join(name)
}

/// Returns true if a machine of these versions needs the program. What a machine says
/// becomes a path here, so nothing else will do.
fn is_needed(versions: &Versions, artifact: &MissingArtifact) -> bool {
    selvage_components::needed(versions).any(|(folder, version, name)| {
        artifact.folder == folder && artifact.version == *version && artifact.name == name
    })
}

/// The file in pieces. One that cannot be read to its end does not have the
/// digest that was promised, and is refused.
fn pieces(
    mut file: tokio::fs::File,
    first: PutArtifactRequest,
) -> ReceiverStream<PutArtifactRequest> {
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut next = first;
        loop {
            next.data = vec![0; PIECE];
            let Ok(length) = file.read(&mut next.data).await else { return };
            next.data.truncate(length);
            if length == 0 || sender.send(std::mem::take(&mut next)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_program_of_a_folder_has_the_digest_that_the_catalogue_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("etcd/3.6.8/etcd");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "abc").unwrap();
        let artifact =
            MissingArtifact { folder: "etcd".into(), version: "3.6.8".into(), name: "etcd".into() };
        let with = |digest: &str| {
            let pinned = [("etcd/3.6.8/etcd".to_owned(), digest.to_owned())].into();
            Artifacts::new(Some(Source::Folder(folder.path().to_owned())), pinned)
        };
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let found = with(abc).find(&artifact).await.unwrap();
        assert_eq!(found, Some((file, abc.to_owned())));
        let wrong = with(&"0".repeat(64)).find(&artifact).await.unwrap_err().to_string();
        assert!(wrong.contains(abc) && wrong.contains("kaas.catalogue"), "{wrong}");
    }

    #[test]
    fn a_machine_is_sent_nothing_but_what_it_needs() {
        let versions =
            Versions { kubernetes: "1.36.4".into(), etcd: "3.6.8".into(), ..Versions::default() };
        let asks = |folder: &str, version: &str, name: &str| {
            let artifact = MissingArtifact {
                folder: folder.into(),
                version: version.into(),
                name: name.into(),
            };
            is_needed(&versions, &artifact)
        };
        assert!(asks("kubernetes", "1.36.4", "kubelet"));
        assert!(asks("etcd", "3.6.8", "etcd"));
        assert!(!asks("kubernetes", "1.37.1", "kubelet"));
        assert!(!asks("kubernetes", "../..", "etc/shadow"));
        assert!(!asks("etcd", "3.6.8", "../../../pki/ca.key"));
        assert!(!asks("../pki", "", "ca.key"));
    }
}
