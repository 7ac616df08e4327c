//! Orders to the platform, put together from the objects of the controller.

use std::sync::Arc;

use selvage_api::{
    edgeproto::{App, AppInstKey, ClusterInst, ClusterInstKey, Flavor, FlavorInfo, FlavorKey},
    selvage::flavors::FlavorSize,
};
use selvage_edge::{ObjectKind, deployment};
use selvage_notify::ObjectKey;

use super::AgentContext;
use crate::{
    Error, Result,
    installed::Row,
    platform::{ClusterOrder, InstanceFacts, InstanceOrder, Progress},
};

impl AgentContext {
    pub(super) fn has_app(&self, kind: ObjectKind, key: &ObjectKey) -> bool {
        kind == ObjectKind::Cluster || self.app_of(key).is_some()
    }

    pub(super) fn app_of(&self, key: &ObjectKey) -> Option<Arc<App>> {
        let key: AppInstKey = key.decode().ok()?;
        self.caches.apps.find(&key.app_key.unwrap_or_default())
    }

    /// The order of an instance as it was made, whatever its App is by now.
    pub(super) fn order_as_made(&self, key: &ObjectKey) -> Result<InstanceOrder> {
        let order = self.instance_order(key)?;
        let made = self.installed.get(ObjectKind::Instance, key.text()).and_then(|row| row.app());
        Ok(match made {
            Some(app) => InstanceOrder { app, ..order },
            None => order,
        })
    }

    /// The flavor as it counts for something: with the amounts that it was made
    /// with, if the flavor was changed since.
    pub(super) fn flavor(
        &self,
        key: Option<&FlavorKey>,
        made: Option<&FlavorSize>,
    ) -> Result<Flavor> {
        let key = key.cloned().unwrap_or_default();
        let found = self.caches.flavors.find(&key);
        let found = found.ok_or_else(|| Error::missing(format!("Flavor {}", key.name)))?;
        let flavor = found.as_ref().clone();
        Ok(match made {
            Some(made) => Flavor { ram: made.ram, vcpus: made.vcpus, disk: made.disk, ..flavor },
            None => flavor,
        })
    }

    /// All flavors of the controller, as a cloudlet offers them.
    pub(crate) fn offered_flavors(&self) -> Vec<FlavorInfo> {
        let offer = |of: Arc<Flavor>| FlavorInfo {
            name: of.key.clone().unwrap_or_default().name,
            vcpus: of.vcpus,
            ram: of.ram,
            disk: of.disk,
        };
        let mut all: Vec<FlavorInfo> = self.caches.flavors.list().into_iter().map(offer).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    pub(super) fn cluster_order(&self, key: &ObjectKey) -> Result<ClusterOrder> {
        let cluster = self.caches.clusters.object(key);
        let cluster = cluster.ok_or_else(|| Error::missing("the cluster"))?;
        let flavor = self.flavor(cluster.flavor.as_ref(), cluster.size.as_ref())?;
        let progress = self.progress(ObjectKind::Cluster, key);
        Ok(ClusterOrder { cluster: cluster.as_ref().clone(), flavor, progress })
    }

    /// Reports what the work on an object waits for.
    fn progress(&self, kind: ObjectKind, key: &ObjectKey) -> Progress {
        let (caches, told) = (Arc::clone(&self.caches), key.clone());
        let progress = Progress::new(move |sentence| caches.report_progress(kind, &told, sentence));
        let (caches, key) = (Arc::clone(&self.caches), key.clone());
        match kind {
            ObjectKind::Cluster => progress,
            ObjectKind::Instance => progress.on_stop(move || caches.report_replaced(&key)),
        }
    }

    pub(super) fn cluster_of(&self, key: &AppInstKey) -> Result<(ClusterInstKey, String)> {
        let cluster = key.cluster_inst_key.clone().unwrap_or_default();
        let named = ClusterInst { key: Some(cluster.clone()), ..ClusterInst::default() };
        let text = ObjectKey::of(&named)?.text().to_owned();
        Ok((cluster, text))
    }

    pub(crate) fn instance_order(&self, key: &ObjectKey) -> Result<InstanceOrder> {
        let instance = self.caches.instances.object(key);
        let instance = instance.ok_or_else(|| Error::missing("the instance"))?;
        let app = match &instance.pinned_app {
            Some(pinned) => pinned.clone(),
            None => {
                let app = self.app_of(key).ok_or_else(|| Error::missing("the App"))?;
                app.as_ref().clone()
            }
        };
        let flavor = self.flavor(instance.flavor.as_ref(), instance.size.as_ref())?;
        let parsed: AppInstKey = key.decode()?;
        let (cluster, text) = self.cluster_of(&parsed)?;
        let cluster_facts = self.installed.cluster(&text);
        if cluster_facts.is_none() && app.deployment != deployment::VM {
            let name = cluster.cluster_key.unwrap_or_default().name;
            return Err(Error::missing(format!("Cluster instance {name}")));
        }
        Ok(InstanceOrder {
            key: parsed,
            app,
            instance: instance.as_ref().clone(),
            flavor,
            cluster,
            cluster_facts,
            progress: self.progress(ObjectKind::Instance, key),
        })
    }

    pub(super) async fn publish(
        &self,
        key: &ObjectKey,
        order: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<()> {
        let cluster = self.caches.clusters.find(&order.cluster);
        self.publisher.publish(key.text(), order, cluster.as_deref(), facts).await
    }

    /// The instances in a cluster.
    pub(super) fn instances_in(&self, cluster: &ClusterInstKey) -> Vec<(String, Row)> {
        let of = |row: &Row| -> Option<ClusterInstKey> {
            <AppInstKey as prost::Message>::decode(row.key.as_slice()).ok()?.cluster_inst_key
        };
        let mut all = self.installed.all(ObjectKind::Instance);
        all.retain(|(_, row)| of(row).as_ref() == Some(cluster));
        all
    }
}
