//! Programs that machines lack, sent to them from the controller's folder, so
//! that one machine alone has to have them.

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

use super::{Agent, refused, timed};
use crate::driver::Error;

/// Bytes of one message.
const PIECE: usize = 256 << 10;
/// A large program over a slow line.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// SHA-256 of a file as it was at some time.
struct Known {
    changed: SystemTime,
    sha256: String,
}

/// Folder of programs by version.
#[derive(Default)]
pub(super) struct Artifacts {
    folder: Option<PathBuf>,
    known: Mutex<HashMap<PathBuf, Known>>,
}

impl Artifacts {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, ..Self::default() }
    }

    /// Sends the first program that a machine lacks and the folder has, and
    /// names it.
    pub(super) async fn send(
        &self,
        agent: &mut Agent,
        versions: &Versions,
        missing: &[MissingArtifact],
    ) -> Result<Option<String>, Error> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let here = |one: &&MissingArtifact| is_needed(versions, one) && path(folder, one).is_file();
        let Some(artifact) = missing.iter().find(here) else { return Ok(None) };
        self.put(agent, path(folder, artifact), artifact).await?;
        Ok(Some(format!("{} {}", artifact.name, artifact.version)))
    }

    /// Sends the program that makes data of etcd of a snapshot, if the folder has
    /// it; machines of this host see the folder themselves.
    pub(super) async fn send_restorer(&self, agent: &mut Agent, etcd: &str) -> Result<(), Error> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let artifact = MissingArtifact {
            name: "etcdutl".into(),
            folder: "etcd".into(),
            version: etcd.to_owned(),
        };
        let path = path(folder, &artifact);
        if !path.is_file() {
            return Ok(());
        }
        self.put(agent, path, &artifact).await
    }

    async fn put(
        &self,
        agent: &mut Agent,
        path: PathBuf,
        artifact: &MissingArtifact,
    ) -> Result<(), Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", path.display()));
        let sha256 = self.sha256(&path).await.map_err(failed)?;
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
        let file = path.to_owned();
        let computed = tokio::task::spawn_blocking(move || digest(&file));
        let sha256 = computed.await.map_err(io::Error::other)??;
        let known = Known { changed, sha256: sha256.clone() };
        self.known.lock().insert(path.to_owned(), known);
        Ok(sha256)
    }
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
    selvage_components::place(folder, kind, version).join(name)
}

/// Whether a machine of these versions needs the program. What a machine says
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
    use super::*;

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
