//! Snapshots of etcd, from the machines that have it and back to one.

use std::time::Duration;

use selvage_api::{
    Code,
    selvage::kubernetes::{EtcdPeer, RestoreEtcdRequest, SnapshotEtcdRequest},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Agent, Members, refused, timed};
use crate::{
    driver::Error,
    plan::Snapshot,
    record::{Machine, Phase},
    vault::{self, Content, Writer},
};

/// A large etcd over a slow line.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Bytes of one message; the largest that is taken is 4 MiB.
const PIECE: usize = 256 << 10;

impl From<vault::Error> for Error {
    fn from(error: vault::Error) -> Self {
        let passing = [Code::Unavailable, Code::Internal, Code::Aborted];
        match passing.contains(&error.code()) {
            true => Self::Unavailable(error.to_string()),
            false => Self::Refused(error.to_string()),
        }
    }
}

impl Members {
    /// Writes a snapshot of the first etcd that gives one.
    pub(super) async fn save_etcd(
        &self,
        snapshot: &Snapshot,
        into: &mut Writer,
    ) -> Result<(), Error> {
        let votes = |m: &&Machine| {
            m.is_control_plane() && m.phase() == Phase::Ready && !m.running.control_plane.is_empty()
        };
        let none = || Error::Unavailable("no control plane is ready".into());
        let machine = snapshot.machines.iter().find(votes).ok_or_else(none)?;
        let mut agent = self.agent(machine).await?;
        let asked = agent.snapshot_etcd(timed(SnapshotEtcdRequest {}, TIMEOUT)).await;
        let mut pieces = asked.map_err(|status| refused(&status))?.into_inner();
        while let Some(piece) = pieces.message().await.map_err(|status| refused(&status))? {
            into.write(&piece.data)?;
        }
        Ok(())
    }

    /// Gives a machine the snapshot that its cluster starts from, if it does.
    pub(super) async fn restore_etcd(
        &self,
        agent: &mut Agent,
        snapshot: &Snapshot,
        machine: &Machine,
        etcd: &str,
    ) -> Result<(), Error> {
        let id = &snapshot.cluster.restored_from;
        if id.is_empty() {
            return Ok(());
        }
        let none = || Error::Refused(format!("backup {id} is not here"));
        let vault = self.vault.as_ref().ok_or_else(none)?;
        let content = match vault.open(id).await {
            Err(error) if error.code() == Code::NotFound => return Err(none()),
            content => content?,
        };
        self.artifacts.send_restorer(agent, etcd).await?;
        let first = RestoreEtcdRequest {
            cluster: snapshot.cluster.name.clone(),
            peer: Some(EtcdPeer { name: machine.name.clone(), address: machine.address.clone() }),
            version: etcd.to_owned(),
            data: Vec::new(),
        };
        let request = timed(pieces(content, id.clone(), first), TIMEOUT);
        agent.restore_etcd(request).await.map_err(|status| refused(&status))?;
        tracing::info!(cluster = snapshot.cluster.name, backup = id, "etcd has the snapshot");
        Ok(())
    }
}

/// The snapshot in pieces. One that cannot be read to its end does not have its
/// digest behind it, and is refused.
fn pieces(
    mut content: Content,
    id: String,
    first: RestoreEtcdRequest,
) -> ReceiverStream<RestoreEtcdRequest> {
    let (sender, receiver) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        let read = || -> Result<(), vault::Error> {
            if sender.blocking_send(first).is_err() {
                return Ok(());
            }
            while let Some(piece) = content.piece()? {
                for data in piece.chunks(PIECE) {
                    let request =
                        RestoreEtcdRequest { data: data.to_vec(), ..RestoreEtcdRequest::default() };
                    if sender.blocking_send(request).is_err() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        };
        if let Err(error) = read() {
            tracing::error!(backup = id, %error, "cannot be read");
        }
    });
    ReceiverStream::new(receiver)
}
