//! Keeps a machine what it was told to be.

mod container;
mod reconcile;
mod stored_spec;
#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::selvage::kubernetes::{EtcdPeer, MemberSpec, MemberStatus, Profile};
use selvage_balancer::{Balancer, HealthOptions};
use selvage_runtime::Runtime;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    Error, Result,
    artifact::Artifacts,
    etcd_restore::{self, Restore},
    images::{PodImages, Top},
    keys::Keys,
    member::{Lvmd, Member, Paths},
    probe::Prober,
    spec,
    status::History,
    volumes::PodVolumes,
};

/// Between two looks while something is not as it has to be.
const SOON: Duration = Duration::from_millis(300);
/// Between two looks otherwise.
const LATER: Duration = Duration::from_secs(2);

/// Folders and sockets of an agent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Persistent folder: the spec, keys, data of etcd and containerd.
    pub data: PathBuf,
    /// Volatile folder, gone after the machine was restarted: sockets. Short, because
    /// the paths of sockets are.
    pub run: PathBuf,
    /// A folder of programs by version, beside those that a controller sends.
    pub artifacts: Option<PathBuf>,
    /// Control group below which pods are.
    pub cgroup: String,
    /// Source of volumes for pods; none: they can have none.
    pub lvmd: Option<Lvmd>,
}

impl Settings {
    /// Socket of the containerd that runs pods.
    pub fn containerd_socket(&self) -> PathBuf {
        self.run.join(crate::member::CONTAINERD_SOCKET)
    }
}

/// A machine's membership of clusters. Clones are the same.
#[derive(Clone)]
pub struct MemberAgent(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) paths: Paths,
    artifacts: Artifacts,
    pub(crate) keys: Keys,
    runtime: Arc<dyn Runtime>,
    pod_images: PodImages,
    prober: Prober,
    balancer: Balancer,
    spec: Mutex<Option<Arc<MemberSpec>>>,
    history: History,
    status: watch::Sender<MemberStatus>,
    pub(crate) pod_volumes: watch::Sender<Option<Arc<PodVolumes>>>,
    changed: Notify,
    /// Held by whoever changes the spec or keys, which no pass holds up; a reset does.
    telling: tokio::sync::Mutex<()>,
    /// Held by whoever changes the machine, for as long as that takes; after `telling`.
    turn: tokio::sync::Mutex<reconcile::Done>,
    /// Parts of the machine that its own containers share.
    top: Top,
}

impl MemberAgent {
    /// Opens what is kept. Containers are made by the runtime without a daemon.
    pub fn open(settings: Settings, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let root = settings.data;
        selvage_runtime::private_directory(&root).map_err(Error::file(&root))?;
        let paths = Paths { root, run: settings.run, cgroup: settings.cgroup, lvmd: settings.lvmd };
        let spec = stored_spec::read(&paths.root)?;
        let own = paths.root.with_file_name("artifacts");
        let health = HealthOptions {
            every: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            failures: 1,
            successes: 1,
        };
        let balancer = Balancer::new(selvage_balancer::Options {
            addresses: vec![std::net::Ipv4Addr::LOCALHOST.into()],
            health,
            ..selvage_balancer::Options::default()
        });
        let artifacts = Artifacts::new(own, settings.artifacts);
        let top = Top::of(artifacts.folders().chain([paths.root.as_path(), &paths.run]));
        let agent = Self(Arc::new(Inner {
            top,
            artifacts,
            keys: Keys::new(paths.root.join("pki")),
            pod_images: PodImages::new(&paths.containerd_socket()),
            prober: Prober::new(),
            balancer,
            spec: Mutex::new(spec.map(Arc::new)),
            history: History::default(),
            status: watch::Sender::new(MemberStatus::default()),
            pod_volumes: watch::Sender::new(None),
            changed: Notify::new(),
            telling: tokio::sync::Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            runtime,
            paths,
        }));
        agent.0.report_spec();
        Ok(agent)
    }

    /// Keeps the machine what it has to be, until told to stop. Containers run
    /// on.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let calm = self.0.reconcile().await;
            let wait = if calm { LATER } else { SOON };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.0.changed.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sets what the machine has to be.
    pub(crate) async fn apply(&self, spec: MemberSpec) -> Result<u64> {
        spec::check(&spec)?;
        let inner = &self.0;
        let _telling = inner.telling.lock().await;
        if let Some(kept) = inner.current_spec() {
            if kept.cluster != spec.cluster {
                return Err(Error::OtherCluster(kept.cluster.clone()));
            }
            if spec.generation < kept.generation {
                let (given, kept) = (spec.generation, kept.generation);
                return Err(Error::OldGeneration { given, kept });
            }
            if spec.generation == kept.generation && *kept != spec {
                return Err(Error::SameGeneration(spec.generation));
            }
        } else if stored_spec::is_resetting(&inner.paths.root) {
            return Err(Error::OtherCluster(stored_spec::resetting(&inner.paths.root)));
        }
        inner.keys.check(&spec.certificates)?;
        inner.keys.keep(&spec.certificates)?;
        stored_spec::write(&inner.paths.root, &spec)?;
        let generation = spec.generation;
        *inner.spec.lock() = Some(Arc::new(spec));
        inner.report_spec();
        inner.changed.notify_one();
        Ok(generation)
    }

    /// Makes keys for certificates.
    pub(crate) async fn request(
        &self,
        cluster: &str,
        profiles: Vec<Profile>,
        renew: bool,
    ) -> Result<Vec<selvage_api::selvage::kubernetes::CertificateRequest>> {
        let inner = &self.0;
        let _telling = inner.telling.lock().await;
        if let Some(kept) = inner.current_spec()
            && kept.cluster != cluster
        {
            return Err(Error::OtherCluster(kept.cluster.clone()));
        }
        profiles.into_iter().map(|profile| inner.keys.request(profile, renew)).collect()
    }

    /// Status of the machine, now and later.
    pub(crate) fn watch(&self) -> watch::Receiver<MemberStatus> {
        self.0.status.subscribe()
    }

    /// Values that a driver of volumes needs, now and later; none while the machine runs
    /// no pods.
    pub fn pod_volumes(&self) -> watch::Receiver<Option<Arc<PodVolumes>>> {
        self.0.pod_volumes.subscribe()
    }

    pub(crate) fn artifacts(&self) -> &Artifacts {
        &self.0.artifacts
    }

    /// Looks again at once.
    pub(crate) fn reconcile_now(&self) {
        self.0.changed.notify_one();
    }

    /// etcd of this machine.
    pub(crate) async fn etcd(&self) -> Result<etcd_client::Client> {
        let spec = self.0.current_spec().ok_or(Error::NoCluster)?;
        crate::etcd_members::connect(&self.0.member(&spec)).await
    }

    /// Begins to make data of etcd of a snapshot; none where there are some, as
    /// after a call whose answer was lost.
    pub(crate) fn restore(
        &self,
        cluster: &str,
        peer: EtcdPeer,
        version: &str,
    ) -> Result<Option<Restore>> {
        let inner = &self.0;
        if let Some(kept) = inner.current_spec() {
            return Err(Error::OtherCluster(kept.cluster.clone()));
        }
        if stored_spec::is_resetting(&inner.paths.root) {
            return Err(Error::OtherCluster(stored_spec::resetting(&inner.paths.root)));
        }
        if etcd_restore::is_done(&inner.paths) {
            return Ok(None);
        }
        Restore::begin(&inner.paths, &inner.artifacts, cluster, peer, version).map(Some)
    }

    /// Makes the machine a member of nothing.
    pub(crate) async fn reset(&self, cluster: &str) -> Result<(Vec<String>, Vec<String>)> {
        let inner = &self.0;
        let _telling = inner.telling.lock().await;
        let mut done = inner.turn.lock().await;
        let kept = inner.current_spec();
        match &kept {
            Some(kept) if kept.cluster != cluster => {
                return Err(Error::OtherCluster(kept.cluster.clone()));
            }
            // Keys and data that were made for a cluster which never came go too.
            None if !inner.paths.root.join("pki").exists()
                && !etcd_restore::is_done(&inner.paths)
                && !stored_spec::is_resetting(&inner.paths.root) =>
            {
                return Ok((Vec::new(), Vec::new()));
            }
            _ => {}
        }
        stored_spec::begin_reset(&inner.paths.root, cluster)?;
        *inner.spec.lock() = None;
        *done = reconcile::Done::default();
        inner.pod_volumes.send_replace(None);
        let outcome = inner.remove_everything(kept.as_deref()).await;
        inner.report_reset();
        inner.changed.notify_one();
        Ok(outcome)
    }
}

impl Inner {
    fn current_spec(&self) -> Option<Arc<MemberSpec>> {
        self.spec.lock().clone()
    }

    pub(crate) fn member<'a>(&'a self, spec: &'a MemberSpec) -> Member<'a> {
        Member { spec, paths: &self.paths, keys: &self.keys, artifacts: &self.artifacts }
    }

    async fn remove_everything(&self, spec: Option<&MemberSpec>) -> (Vec<String>, Vec<String>) {
        let removed = crate::reset::everything(
            &self.paths,
            self.runtime.as_ref(),
            self.pod_images.runtime(),
            spec,
        )
        .await;
        // Nobody is connected any more, so that it waits for none to leave.
        self.balancer.withdraw(reconcile::API).await;
        for kind in &crate::component::KINDS {
            self.history.forget(kind.name);
        }
        removed
    }
}
