//! The way into a cluster for those who may use it.

use std::time::Duration;

use selvage_store::clock::Millis;
use zeroize::Zeroizing;

use super::Manager;
use crate::{
    Error, Result,
    pki::{self, ADMINS, Leaf},
    record::{BY_CLUSTER, Cluster, Phase},
};

/// A kubeconfig is handed out again for so long, so that asking for a cluster
/// often does not cost a signature each time.
const REUSED_FOR: Duration = Duration::from_secs(600);
/// Kubeconfigs that are kept at most.
const CACHE_CAPACITY: usize = 4096;

/// A kubeconfig that was handed out.
pub(super) struct CachedKubeconfig {
    text: Zeroizing<String>,
    endpoint: String,
    /// Stage of the certificate authorities.
    stage: u32,
    until: Millis,
}

impl Manager {
    /// A kubeconfig for that user, once the API has answered.
    pub async fn kubeconfig(
        &self,
        cluster: &Cluster,
        user: &str,
    ) -> Result<Option<Zeroizing<String>>> {
        if !cluster.provisioned || cluster.endpoint.is_empty() || cluster.deleting {
            return Ok(None);
        }
        let endpoint = self.endpoint(cluster);
        let now = self.now();
        let stage = cluster.authorities.stage;
        let name = (cluster.uid.clone(), user.to_owned());
        if let Some(cached) = self.inner.kubeconfigs.lock().get(&name)
            && cached.until > now
            && cached.endpoint == endpoint
            && cached.stage == stage
        {
            return Ok(Some(cached.text.clone()));
        }
        let keys = self.inner.dependencies.keyring.keys(cluster).await?;
        let user = if user.is_empty() { "admin" } else { user };
        let leaf = Leaf {
            common_name: format!("selvage:{user}"),
            organisation: Some(ADMINS.to_owned()),
            client: true,
            server: false,
            names: Vec::new(),
            lifetime: self.inner.settings.kubeconfig_lifetime,
        };
        let failed = |source| Error::Keys { cluster: cluster.name.clone(), source };
        let signer = keys.signer(stage).map_err(failed)?;
        let issued = signer.kubernetes.issue(&leaf, now / 1000).map_err(failed)?;
        let trusted = keys.trusted(stage, |all| &all.kubernetes).map_err(failed)?;
        let text = pki::kubeconfig(&cluster.name, &endpoint, &trusted, user, &issued);
        let reused = REUSED_FOR.min(self.inner.settings.kubeconfig_lifetime / 2);
        let until = now + u64::try_from(reused.as_millis()).unwrap_or(0);
        let mut cached = self.inner.kubeconfigs.lock();
        if cached.len() >= CACHE_CAPACITY {
            cached.clear();
        }
        cached.insert(name, CachedKubeconfig { text: text.clone(), endpoint, stage, until });
        Ok(Some(text))
    }

    /// Name of the API, which holds whatever becomes of control planes. Without one,
    /// the address of a control plane that answers now.
    fn endpoint(&self, cluster: &Cluster) -> String {
        if let Some(endpoint) = &self.inner.settings.endpoint {
            return endpoint.address(&cluster.name);
        }
        let (address, port) = cluster.endpoint.rsplit_once(':').unwrap_or((&cluster.endpoint, ""));
        let machines = self.inner.machines.by_index(BY_CLUSTER, &cluster.name);
        let mut ready = machines.iter().map(|stored| &stored.value).filter(|machine| {
            machine.is_control_plane()
                && !machine.address.is_empty()
                && machine.phase() == Phase::Ready
        });
        match ready.clone().find(|machine| machine.address == address).or(ready.next()) {
            Some(machine) => format!("{}:{port}", machine.address),
            None => cluster.endpoint.clone(),
        }
    }

    /// Forgets the keys of a cluster that is gone.
    pub(super) fn forget_keys(&self, uid: &str) {
        self.inner.dependencies.keyring.forget(uid);
        self.inner.kubeconfigs.lock().retain(|(owner, _), _| owner != uid);
    }
}
