//! Clusters that are stopped for a while.

use selvage_api::cnct::kaas::api::ClusterStatus;

use super::{Manager, change::check_present};
use crate::{Caller, Error, Result, conditions, plan::Snapshot};

impl Manager {
    /// Stops everything of a cluster and keeps its data. Asking again changes
    /// nothing.
    pub async fn hibernate(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = &caller.name;
        self.edit(name, |snapshot, now| {
            check_present(snapshot)?;
            if snapshot.cluster.hibernated {
                return Ok(());
            }
            let status = conditions::status(&snapshot.cluster.conditions);
            if status != ClusterStatus::Running || snapshot.cluster.paused {
                let status = if snapshot.cluster.paused { "paused" } else { status.as_str_name() };
                return Err(Error::Precondition(format!(
                    "cluster {name:?} is {status}: it can be hibernated when it is RUNNING"
                )));
            }
            snapshot.cluster.hibernated = true;
            snapshot.cluster.add_event(now, format!("{who} asked for it to be hibernated"));
            Ok(())
        })
        .await
    }

    /// Starts a cluster again. Asking for it when it is awake changes nothing.
    pub async fn wake(&self, caller: &Caller, name: &str) -> Result<Snapshot> {
        self.owned(caller, name)?;
        let who = &caller.name;
        self.edit(name, |snapshot, now| {
            check_present(snapshot)?;
            if snapshot.cluster.hibernated {
                snapshot.cluster.hibernated = false;
                snapshot.cluster.add_event(now, format!("{who} asked for it to be woken"));
            }
            Ok(())
        })
        .await
    }
}
