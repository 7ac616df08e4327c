//! One look at the machine: what is missing is made, what is wrong is put right.

use std::{fs, net::SocketAddr, sync::Arc};

use futures::future::join_all;
use selvage_api::selvage::kubernetes::{ComponentState, MemberSpec, MemberStatus, MissingArtifact};
use selvage_balancer::{Port, Protocol, Service};

use super::{Inner, kept};
use crate::{Error, Result, component::KINDS, images, member, network, status::Seen};

/// The service by which members reach an API server.
pub(super) const API: &str = "kube-apiserver";

/// What was done before and need not be again.
#[derive(Default)]
pub(super) struct Done {
    network: Option<selvage_api::selvage::kubernetes::ClusterNetwork>,
    api_servers: Vec<String>,
}

impl Inner {
    /// Says whether everything is as it has to be.
    pub(super) async fn reconcile(&self) -> bool {
        let mut done = self.turn.lock().await;
        let Some(spec) = self.kept() else {
            return self.go_on_resetting().await;
        };
        let prepared = self.prepare(&spec, &mut done).await;
        let seen = match &prepared {
            Ok(()) => join_all(KINDS.iter().map(|kind| self.component(kind, &spec))).await,
            Err(_) => Vec::new(),
        };
        let seen: Vec<Seen> = seen.into_iter().flatten().collect();
        if seen.iter().any(|one| one.name == "containerd" && one.state == ComponentState::Healthy)
            && let Err(error) = self.pod_images.provide(&self.artifacts, &self.places.root).await
        {
            tracing::warn!(%error, "images for pods");
        }
        self.offer_volumes(&spec);
        let obstacle = prepared.err().map(|error| error.to_string());
        self.tell(&spec, &seen, obstacle)
    }

    /// Goes on with a reset that was interrupted.
    async fn go_on_resetting(&self) -> bool {
        let resetting = kept::is_resetting(&self.places.root);
        if resetting {
            let spec = kept::last(&self.places.root).unwrap_or_default();
            let (_, left) = self.remove_everything(spec.as_ref()).await;
            for line in &left {
                tracing::warn!(line, "something is left of a cluster");
            }
        }
        let resetting = kept::is_resetting(&self.places.root);
        self.publish(MemberStatus { resetting, ..MemberStatus::default() });
        !resetting
    }

    /// Folders, network, the way to the API, images to make containers of.
    async fn prepare(&self, spec: &Arc<MemberSpec>, done: &mut Done) -> Result<()> {
        for folder in [&self.places.root, &self.places.run] {
            selvage_runtime::private_directory(folder).map_err(Error::file(folder))?;
        }
        if spec.worker.is_some() {
            fs::create_dir_all(member::KUBELET_ROOT).map_err(Error::file(member::KUBELET_ROOT))?;
            for group in ["shims", "pods"] {
                crate::reset::make_groups(&format!("{}/{group}", self.places.cgroup))?;
            }
            if done.network != spec.network {
                network::apply(spec).await?;
                done.network.clone_from(&spec.network);
            }
        }
        if done.api_servers != spec.api_servers {
            self.balancer.publish(api_service(&spec.api_servers)).await?;
            done.api_servers.clone_from(&spec.api_servers);
        }
        images::for_components(self.runtime.as_ref(), &self.top, &self.places.root).await
    }

    fn tell(&self, spec: &MemberSpec, seen: &[Seen], obstacle: Option<String>) -> bool {
        let is_well = |one: &Seen| one.state == ComponentState::Healthy;
        let calm = obstacle.is_none() && seen.iter().all(is_well);
        let generation = spec.generation;
        let missing: Vec<MissingArtifact> =
            seen.iter().filter_map(|one| one.missing.clone()).collect();
        self.publish(MemberStatus {
            metadata: None,
            generation,
            observed_generation: if calm { generation } else { self.observed() },
            cluster: spec.cluster.clone(),
            node: spec.node.clone(),
            components: seen.iter().map(|one| self.history.tell(one, generation)).collect(),
            missing,
            certificates: self.keys.status(),
            obstacles: obstacle.into_iter().collect(),
            resetting: false,
        });
        calm
    }

    /// The generation that was reached last.
    fn observed(&self) -> u64 {
        self.status.borrow().observed_generation
    }

    fn publish(&self, status: MemberStatus) {
        self.status.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }
}

fn api_service(servers: &[String]) -> Service {
    let targets: Vec<SocketAddr> = servers.iter().filter_map(|one| one.parse().ok()).collect();
    let port =
        Port { protocol: Protocol::Tcp, public: member::API_PORT, targets, ..Port::default() };
    Service { id: API.into(), ports: vec![port] }
}
