//! Plans for changes that are not made.

use selvage_api::{cnct::kaas::api::CreateClusterMsg, selvage::clusters::PlanClusterRequest};

use super::{Manager, Origin};
use crate::{
    Caller, Error, Result,
    catalogue::Version,
    error::violation,
    plan::{Action, Snapshot, preview},
    record::Pool,
    validate,
};

impl Manager {
    /// Everything that would be done for a new cluster.
    pub fn plan_new(&self, request: &CreateClusterMsg) -> Result<Vec<Action>> {
        let new = self.check_new(request)?;
        let nobody = Caller { admin: true, ..Caller::default() };
        let snapshot = self.begin(&nobody, &Origin::default(), new, String::new(), Vec::new());
        Ok(preview(snapshot, &self.settings().policy, self.now()))
    }

    /// Everything that would be done for a change of a cluster.
    pub fn plan_change(
        &self,
        mut snapshot: Snapshot,
        request: &PlanClusterRequest,
    ) -> Result<Vec<Action>> {
        let mut wrong = Vec::new();
        if !request.version.is_empty() {
            match request.version.parse::<Version>() {
                Ok(version) => snapshot.cluster.version = version.to_string(),
                Err(error) => wrong.push(violation("version", error.to_string())),
            }
        }
        for (index, pool) in request.pools.iter().enumerate() {
            let field = format!("pools[{index}]");
            validate::check_name(&format!("{field}.name"), &pool.name, &mut wrong);
            let Ok(count) = u32::try_from(pool.count) else {
                wrong.push(violation(format!("{field}.count"), "is negative"));
                continue;
            };
            match snapshot.pools.iter_mut().find(|known| known.name == pool.name) {
                Some(known) => known.count = count,
                None => snapshot.pools.push(Pool {
                    cluster: snapshot.cluster.name.clone(),
                    name: pool.name.clone(),
                    instance_type: pool.instance_type.clone(),
                    count,
                    ..Pool::default()
                }),
            }
        }
        if !wrong.is_empty() {
            return Err(Error::Invalid(wrong));
        }
        for pool in &mut snapshot.pools {
            pool.deleting |= request.delete_pools.contains(&pool.name);
        }
        snapshot.cluster.deleting |= request.delete;
        Ok(preview(snapshot, &self.settings().policy, self.now()))
    }
}
