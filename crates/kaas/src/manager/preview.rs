//! Plans for changes that are not made: refused as the changes would be.

use selvage_api::{
    cnct::kaas::api::{
        ControlPlaneMachineSpec, CreateClusterMsg, KubernetesLabel, MachineSpec, ScaleNodePoolSpec,
    },
    selvage::clusters::{PlanClusterRequest, PlannedPool},
};

use super::{
    Manager, Origin,
    change::{add_to, delete_from, resize},
};
use crate::{
    Caller, Error, Result,
    plan::{Action, Snapshot, preview},
    validate,
};

/// Fields of requests for changes, and what they are called in a request for a plan.
const FIELDS: [(&str, &str); 5] = [
    ("worker_node_pools", "pools"),
    ("k8s_version", "version"),
    ("control_plane_nodes.count", "control_plane_count"),
    ("control_plane_nodes.instanceType", "control_plane_instance_type"),
    ("control_plane_nodes.labels", "control_plane_labels"),
];

impl Manager {
    /// Everything that would be done for a request.
    pub async fn plan(
        &self,
        caller: &Caller,
        origin: &Origin,
        request: &PlanClusterRequest,
    ) -> Result<Vec<Action>> {
        let after = match self.snapshot(&request.name) {
            Some(known) => {
                caller.check_sees(&known.cluster)?;
                self.changed(known, origin, request).await?
            }
            None => self.created(caller, origin, request).await.map_err(renamed)?,
        };
        Ok(preview(after, &self.settings().policy, self.now()))
    }

    /// A new cluster as it would begin.
    async fn created(
        &self,
        caller: &Caller,
        origin: &Origin,
        request: &PlanClusterRequest,
    ) -> Result<Snapshot> {
        let asked = self.check_request(caller, origin, &as_created(request))?;
        let snapshot = self.prepare(caller, origin, asked, Vec::new()).await?;
        self.check_quota(&snapshot)?;
        Ok(snapshot)
    }

    /// A cluster as it would be wanted after the change.
    async fn changed(
        &self,
        mut snapshot: Snapshot,
        origin: &Origin,
        request: &PlanClusterRequest,
    ) -> Result<Snapshot> {
        let before = snapshot.clone();
        if request.delete {
            snapshot.cluster.deleting = true;
            return Ok(snapshot);
        }
        if !request.delete_pools.is_empty() {
            delete_from(&mut snapshot, &request.delete_pools)?;
        }
        self.change_pools(&before, &mut snapshot, &request.pools).await?;
        if !request.version.is_empty()
            && let Some(wanted) = self.target(&before, &request.version, origin.force).await?
        {
            self.aim_at(&mut snapshot, wanted, origin.force)?;
        }
        self.check_quota(&snapshot)?;
        Ok(snapshot)
    }

    /// Sets the sizes of pools that are there, and adds the others.
    async fn change_pools(
        &self,
        before: &Snapshot,
        snapshot: &mut Snapshot,
        pools: &[PlannedPool],
    ) -> Result<()> {
        let limits = &self.settings().limits;
        let known = |pool: &&PlannedPool| before.pools.iter().any(|p| p.name == pool.name);
        // Checked as a whole, so that fields have the numbers that they have in the request.
        let all: Vec<MachineSpec> = pools.iter().map(as_spec).collect();
        let checked = validate::add_pools(&before.cluster.name, &all, limits).map_err(renamed)?;
        let sizes = pools.iter().filter(known);
        let sizes = sizes.map(|p| ScaleNodePoolSpec { name: p.name.clone(), count: p.count });
        let sizes = validate::scale(&sizes.collect::<Vec<_>>(), limits)?;
        if !sizes.is_empty() {
            self.check_growth(before, &sizes).await?;
            resize(snapshot, &sizes, limits)?;
        }
        let is_new = |name: &str| !before.pools.iter().any(|pool| pool.name == name);
        let fresh: Vec<_> = checked.into_iter().filter(|pool| is_new(&pool.name)).collect();
        if !fresh.is_empty() {
            let wanted = fresh.iter().map(|pool| (&pool.instance_type, pool.count));
            self.check_offers(&wanted.collect::<Vec<_>>()).await?;
            add_to(snapshot, &fresh, limits, self.now())?;
        }
        Ok(())
    }
}

/// The request that would make the cluster.
fn as_created(request: &PlanClusterRequest) -> CreateClusterMsg {
    CreateClusterMsg {
        name: request.name.clone(),
        k8s_version: request.version.clone(),
        control_plane_nodes: Some(ControlPlaneMachineSpec {
            count: request.control_plane_count,
            instance_type: request.control_plane_instance_type.clone(),
            labels: labels(request.control_plane_labels.iter()),
        }),
        worker_node_pools: request.pools.iter().map(as_spec).collect(),
    }
}

fn as_spec(pool: &PlannedPool) -> MachineSpec {
    MachineSpec {
        name: pool.name.clone(),
        instance_type: pool.instance_type.clone(),
        count: pool.count,
        labels: labels(pool.labels.iter()),
    }
}

fn labels<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> Vec<KubernetesLabel> {
    let label = |(name, value): (&String, &String)| KubernetesLabel {
        name: name.clone(),
        value: value.clone(),
    };
    labels.map(label).collect()
}

/// The error with the names that its fields have in a request for a plan.
fn renamed(error: Error) -> Error {
    let Error::Invalid(mut wrong) = error else { return error };
    for violation in &mut wrong {
        let known = FIELDS.iter().find(|(name, _)| violation.field.starts_with(name));
        if let Some((name, other)) = known {
            violation.field = violation.field.replacen(name, other, 1);
        }
    }
    Error::Invalid(wrong)
}
