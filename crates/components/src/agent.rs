//! Keeps a machine what it was told to be.

mod container;
mod kept;
mod reconcile;

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
    member::{Lvmd, Member, Places},
    probe::Prober,
    spec,
    status::History,
    volumes::PodVolumes,
};

/// Between two looks while something is not as it has to be.
const SOON: Duration = Duration::from_millis(300);
/// Between two looks otherwise.
const LATER: Duration = Duration::from_secs(2);

/// Where an agent keeps what belongs to a member.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What stays: the spec, keys, data of etcd and containerd.
    pub data: PathBuf,
    /// What is gone after the machine was restarted: sockets. Short, because
    /// the paths of sockets are.
    pub run: PathBuf,
    /// A folder of programs by version, beside those that a controller sends.
    pub artifacts: Option<PathBuf>,
    /// Control group below which pods are.
    pub cgroup: String,
    /// Where pods have their volumes from; none: they can have none.
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
    pub(crate) places: Places,
    artifacts: Artifacts,
    pub(crate) keys: Keys,
    runtime: Arc<dyn Runtime>,
    pod_images: PodImages,
    prober: Prober,
    balancer: Balancer,
    kept: Mutex<Option<Arc<MemberSpec>>>,
    history: History,
    status: watch::Sender<MemberStatus>,
    pub(crate) pod_volumes: watch::Sender<Option<Arc<PodVolumes>>>,
    changed: Notify,
    /// Whoever changes the machine.
    turn: tokio::sync::Mutex<reconcile::Done>,
    /// What containers have of the machine that are a part of it.
    top: Top,
}

impl MemberAgent {
    /// Opens what is kept. Containers are made by the runtime without a daemon.
    pub fn open(settings: Settings, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let root = settings.data;
        selvage_runtime::private_directory(&root).map_err(Error::file(&root))?;
        let places =
            Places { root, run: settings.run, cgroup: settings.cgroup, lvmd: settings.lvmd };
        let kept = kept::read(&places.root)?;
        let own = places.root.with_file_name("artifacts");
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
        let top = Top::of(artifacts.folders().chain([places.root.as_path(), &places.run]));
        Ok(Self(Arc::new(Inner {
            top,
            artifacts,
            keys: Keys::new(places.root.join("pki")),
            pod_images: PodImages::new(&places.containerd_socket()),
            prober: Prober::new(),
            balancer,
            kept: Mutex::new(kept.map(Arc::new)),
            history: History::default(),
            status: watch::Sender::new(MemberStatus::default()),
            pod_volumes: watch::Sender::new(None),
            changed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            runtime,
            places,
        })))
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
        let _turn = inner.turn.lock().await;
        if let Some(kept) = inner.kept() {
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
        } else if kept::is_resetting(&inner.places.root) {
            return Err(Error::OtherCluster(kept::resetting(&inner.places.root)));
        }
        inner.keys.check(&spec.certificates)?;
        inner.keys.keep(&spec.certificates)?;
        kept::write(&inner.places.root, &spec)?;
        let generation = spec.generation;
        *inner.kept.lock() = Some(Arc::new(spec));
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
        let _turn = inner.turn.lock().await;
        if let Some(kept) = inner.kept()
            && kept.cluster != cluster
        {
            return Err(Error::OtherCluster(kept.cluster.clone()));
        }
        profiles.into_iter().map(|profile| inner.keys.request(profile, renew)).collect()
    }

    /// How the machine is, now and later.
    pub(crate) fn watch(&self) -> watch::Receiver<MemberStatus> {
        self.0.status.subscribe()
    }

    /// What a driver of volumes needs, now and later; none while the machine runs
    /// no pods.
    pub fn pod_volumes(&self) -> watch::Receiver<Option<Arc<PodVolumes>>> {
        self.0.pod_volumes.subscribe()
    }

    pub(crate) fn artifacts(&self) -> &Artifacts {
        &self.0.artifacts
    }

    /// Looks again at once.
    pub(crate) fn hurry(&self) {
        self.0.changed.notify_one();
    }

    /// etcd of this machine.
    pub(crate) async fn etcd(&self) -> Result<etcd_client::Client> {
        let spec = self.0.kept().ok_or(Error::NoCluster)?;
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
        if let Some(kept) = inner.kept() {
            return Err(Error::OtherCluster(kept.cluster.clone()));
        }
        if kept::is_resetting(&inner.places.root) {
            return Err(Error::OtherCluster(kept::resetting(&inner.places.root)));
        }
        if etcd_restore::is_done(&inner.places) {
            return Ok(None);
        }
        Restore::begin(&inner.places, &inner.artifacts, cluster, peer, version).map(Some)
    }

    /// Makes the machine a member of nothing.
    pub(crate) async fn reset(&self, cluster: &str) -> Result<(Vec<String>, Vec<String>)> {
        let inner = &self.0;
        let mut done = inner.turn.lock().await;
        let kept = inner.kept();
        match &kept {
            Some(kept) if kept.cluster != cluster => {
                return Err(Error::OtherCluster(kept.cluster.clone()));
            }
            // Keys and data that were made for a cluster which never came go too.
            None if !inner.places.root.join("pki").exists()
                && !etcd_restore::is_done(&inner.places)
                && !kept::is_resetting(&inner.places.root) =>
            {
                return Ok((Vec::new(), Vec::new()));
            }
            _ => {}
        }
        kept::begin_reset(&inner.places.root, cluster)?;
        *inner.kept.lock() = None;
        *done = reconcile::Done::default();
        inner.pod_volumes.send_replace(None);
        let outcome = inner.remove_everything(kept.as_deref()).await;
        inner.changed.notify_one();
        Ok(outcome)
    }
}

impl Inner {
    fn kept(&self) -> Option<Arc<MemberSpec>> {
        self.kept.lock().clone()
    }

    pub(crate) fn member<'a>(&'a self, spec: &'a MemberSpec) -> Member<'a> {
        Member { spec, places: &self.places, keys: &self.keys, artifacts: &self.artifacts }
    }

    async fn remove_everything(&self, spec: Option<&MemberSpec>) -> (Vec<String>, Vec<String>) {
        let removed = crate::reset::everything(
            &self.places,
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
