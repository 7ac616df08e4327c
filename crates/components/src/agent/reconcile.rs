//! One look at the machine: what is missing is made, what is wrong is put right.

use std::{fs, net::SocketAddr, sync::Arc};

use futures::future::join_all;
use selvage_api::selvage::kubernetes::{ComponentState, MemberSpec, MemberStatus, MissingArtifact};
use selvage_balancer::{Port, Protocol, Service};

use super::{Inner, stored_spec};
use crate::{Error, Result, component::KINDS, images, member, network, status::ComponentStatus};

/// The service by which members reach an API server.
pub(super) const API: &str = "kube-apiserver";

/// Results of earlier passes that need not be repeated.
#[derive(Default)]
pub(super) struct Done {
    network: Option<selvage_api::selvage::kubernetes::ClusterNetwork>,
    api_servers: Vec<String>,
}

impl Inner {
    /// Says whether everything is as it has to be.
    pub(super) async fn reconcile(&self) -> bool {
        let mut done = self.turn.lock().await;
        let Some(spec) = self.current_spec() else {
            return self.go_on_resetting().await;
        };
        let prepared = self.prepare(&spec, &mut done).await;
        if spec.hibernated {
            let seen = self.hibernate().await;
            self.offer_volumes(&spec);
            return self.report(&spec, &seen, None);
        }
        let seen = match &prepared {
            Ok(()) => join_all(KINDS.iter().map(|kind| self.component(kind, &spec))).await,
            Err(_) => Vec::new(),
        };
        let seen: Vec<ComponentStatus> = seen.into_iter().flatten().collect();
        if seen.iter().any(|one| one.name == "containerd" && one.state == ComponentState::Healthy)
            && let Err(error) = self.pod_images.provide(&self.artifacts, &self.paths.root).await
        {
            tracing::warn!(%error, "images for pods");
        }
        self.offer_volumes(&spec);
        let obstacle = prepared.err().map(|error| error.to_string());
        self.report(&spec, &seen, obstacle)
    }

    /// Stops everything and keeps all data; tells what could not be stopped. Pods end
    /// before the containerd that runs them, and after the kubelet that would start
    /// them again.
    async fn hibernate(&self) -> Vec<ComponentStatus> {
        let mut failed = Vec::new();
        let (containerd, others): (Vec<&str>, Vec<&str>) =
            KINDS.iter().map(|kind| kind.name).partition(|name| *name == "containerd");
        for name in others.into_iter().rev() {
            failed.extend(self.stop(name).await);
        }
        if failed.is_empty() {
            crate::reset::stop_pods(self.pod_images.runtime()).await;
            for name in containerd {
                failed.extend(self.stop(name).await);
            }
            crate::reset::end_group(&format!("{}/shims", self.paths.cgroup)).await;
        }
        failed
    }

    pub(super) async fn stop(&self, name: &'static str) -> Option<ComponentStatus> {
        let removed = self.remove(name).await;
        self.history.forget(name);
        let error = removed.err()?;
        Some(ComponentStatus::new(name, ComponentState::Failed, error.to_string()))
    }

    /// Goes on with a reset that was interrupted.
    async fn go_on_resetting(&self) -> bool {
        let resetting = stored_spec::is_resetting(&self.paths.root);
        if resetting {
            let spec = stored_spec::last(&self.paths.root).unwrap_or_default();
            let (_, left) = self.remove_everything(spec.as_ref()).await;
            for line in &left {
                tracing::warn!(line, "something is left of a cluster");
            }
        }
        self.report_reset()
    }

    /// Reports a machine without a spec; says whether nothing is left of the last one.
    pub(super) fn report_reset(&self) -> bool {
        let resetting = stored_spec::is_resetting(&self.paths.root);
        self.publish(MemberStatus { resetting, ..MemberStatus::default() });
        !resetting
    }

    /// Folders, network, the way to the API, images to make containers of.
    async fn prepare(&self, spec: &Arc<MemberSpec>, done: &mut Done) -> Result<()> {
        for folder in [&self.paths.root, &self.paths.run] {
            selvage_runtime::private_directory(folder).map_err(Error::file(folder))?;
        }
        if spec.worker.is_some() {
            fs::create_dir_all(member::KUBELET_ROOT).map_err(Error::file(member::KUBELET_ROOT))?;
            for group in ["shims", "pods"] {
                crate::reset::make_groups(&format!("{}/{group}", self.paths.cgroup))?;
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
        images::for_components(self.runtime.as_ref(), &self.top, &self.paths.root).await
    }

    pub(super) fn report(
        &self,
        spec: &MemberSpec,
        seen: &[ComponentStatus],
        obstacle: Option<String>,
    ) -> bool {
        let is_well = |one: &ComponentStatus| one.state == ComponentState::Healthy;
        let calm = obstacle.is_none() && seen.iter().all(is_well);
        let generation = spec.generation;
        let missing: Vec<MissingArtifact> =
            seen.iter().filter_map(|one| one.missing.clone()).collect();
        self.publish(MemberStatus {
            metadata: None,
            generation,
            observed_generation: if calm { generation } else { self.observed(&spec.cluster) },
            cluster: spec.cluster.clone(),
            node: spec.node.clone(),
            components: seen.iter().map(|one| self.history.report(one, generation)).collect(),
            missing,
            certificates: Vec::new(),
            obstacles: obstacle.into_iter().collect(),
            resetting: false,
        });
        calm
    }

    /// Reports that there is another spec, before anything was done about it: whoever
    /// told us of it, and asks, would otherwise tell us again.
    pub(super) fn report_spec(&self) {
        let Some(spec) = self.current_spec() else { return };
        let known = self.status.borrow().clone();
        let known = if known.cluster == spec.cluster { known } else { MemberStatus::default() };
        let (cluster, node) = (spec.cluster.clone(), spec.node.clone());
        self.publish(MemberStatus { cluster, node, ..known });
    }

    /// The generation that was reached last in a cluster.
    fn observed(&self, cluster: &str) -> u64 {
        let last = self.status.borrow();
        if last.cluster == cluster { last.observed_generation } else { 0 }
    }

    /// Publishes a status with the newest spec's generation and certificates: a pass
    /// that began with an older one does not hide that there is another.
    fn publish(&self, mut status: MemberStatus) {
        self.status.send_if_modified(|old| {
            if let Some(spec) = self.current_spec() {
                status.generation = spec.generation;
                status.certificates = self.keys.status();
            }
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
