//! The driver of one machine: what serves the kubelet, claims and snapshots.

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::tasks::{Backoff, Tasks};
use selvage_kube::{Connection, resource};
use selvage_work::{Reconcilers, Schedule, clock::SystemClock};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Result,
    lvmd::Lvmd,
    provision::{Pending, Provisioner, follow},
    serve,
    snapshotter::{Snapshotter, object},
    volume::VolumeId,
};

/// Between two looks at claims that nobody has told of.
const PERIOD: Duration = Duration::from_secs(30);
/// Tasks that do not end by then are ended.
const END: Duration = Duration::from_secs(10);

/// A machine with volumes for pods.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// Root of the kubelet.
    pub kubelet: PathBuf,
    /// Socket of lvmd.
    pub lvmd: PathBuf,
    /// Tag of the volumes that are made.
    pub tag: String,
    /// Folder for what was begun and is not done.
    pub data: PathBuf,
}

/// State that all services share. Clones are the same.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) node: String,
    pub(crate) kubelet: PathBuf,
    pub(crate) lvmd: Lvmd,
    busy: Arc<Mutex<HashSet<String>>>,
}

/// The right to work on a volume, given back when dropped.
pub(crate) struct Turn {
    busy: Arc<Mutex<HashSet<String>>>,
    id: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.id);
    }
}

impl Shared {
    /// Lets one call at a time work on a volume; others are to try again.
    pub(crate) fn turn(&self, id: &VolumeId) -> Result<Turn> {
        let id = id.to_string();
        match self.busy.lock().insert(id.clone()) {
            true => Ok(Turn { busy: Arc::clone(&self.busy), id }),
            false => Err(Error::Busy(id)),
        }
    }
}

/// Driver of a machine.
pub struct Driver {
    settings: Settings,
    pub(crate) shared: Shared,
}

impl Driver {
    pub fn new(settings: Settings) -> Self {
        let shared = Shared {
            node: settings.node.clone(),
            kubelet: settings.kubelet.clone(),
            lvmd: Lvmd::new(&settings.lvmd, settings.tag.clone()),
            busy: Arc::default(),
        };
        Self { settings, shared }
    }

    /// Serves the kubelet, and the claims and snapshots of a cluster, until told to stop.
    pub async fn run(self, cluster: Arc<Connection>, stop: CancellationToken) {
        let tasks = Tasks::new(stop.child_token());
        self.serve(&tasks);
        let pending = Pending::new(self.settings.data.join("pending"));
        let provisioner = Provisioner::new(self.shared.clone(), Arc::clone(&cluster), pending);
        let snapshotter = Snapshotter::new(self.shared, Arc::clone(&cluster));
        let reconcilers = Reconcilers::new(tasks.clone(), Arc::new(SystemClock::new()));
        let volumes = reconcilers.add(provisioner, Schedule::every(PERIOD));
        // A snapshot may take long: claims do not wait for it.
        let snapshots = reconcilers.add(snapshotter, Schedule::every(PERIOD));
        for (kind, triggers) in [
            (resource("", "v1", "PersistentVolumeClaim"), vec![volumes.clone(), snapshots.clone()]),
            (resource("", "v1", "PersistentVolume"), vec![volumes.clone()]),
            (object::kind(object::SNAPSHOT), vec![volumes, snapshots.clone()]),
            (object::kind(object::CONTENT), vec![snapshots]),
        ] {
            let token = tasks.token().clone();
            let name = format!("watch of {}", kind.kind);
            tasks.spawn(name, follow::run(Arc::clone(&cluster), kind, triggers, token));
        }
        stop.cancelled().await;
        if let Err(late) = tasks.shutdown(END).await {
            tracing::warn!(%late, "volumes of pods");
        }
    }

    /// Serves the kubelet alone.
    pub fn serve(&self, tasks: &Tasks) {
        let (shared, token) = (self.shared.clone(), tasks.token().clone());
        let serve = move || serve::run(shared.clone(), token.clone());
        tasks.spawn_restarting("driver of volumes", Backoff::default(), serve);
    }
}
