//! Properties that ClusterInsts and AppInsts have in common, so that waiting,
//! reports and state changes are written once.

use std::future::Future;

use selvage_api::edgeproto::{
    AppInst, AppInstInfo, AppInstKey, AppInstRuntime, CloudletKey, ClusterInst, ClusterInstInfo,
    ClusterInstKey, TrackedState,
};
use selvage_store::Transaction;

use super::core::{Core, PendingByOperation};
use super::error::Error;
use super::state::{Override, Verb, state_of};
use super::usage;
use crate::keys::{AppInstKeyParts, AppKeyParts, CloudletKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::StoredObject;
use crate::tables::HasTable;

/// Report of a crm about an instance.
pub(crate) trait Info: Send + Sync + 'static {
    fn key_text(&self) -> String;
    fn state(&self) -> TrackedState;
    fn errors(&self) -> &[String];
    fn runtime(&self) -> Option<&AppInstRuntime>;

    /// Progress of the crm: what it waits for, or empty.
    fn progress(&self) -> &str;
}

/// An object whose life is shared by controller and crm.
pub(crate) trait Instance: HasTable {
    /// As texts name it.
    const NOUN: &'static str;

    type Info: Info;

    fn state(&self) -> TrackedState;
    fn set_state(&mut self, state: TrackedState);
    fn errors(&self) -> &[String];
    fn set_errors(&mut self, errors: Vec<String>);
    fn cloudlet_key(&self) -> &CloudletKey;
    fn over(&self) -> Override;

    /// Names without which the key means nothing, and what is said when one of
    /// them is empty.
    fn names(&self) -> Vec<(&str, &'static str)>;

    /// Error of a request that cannot wait any longer for another.
    fn busy(verb: Verb) -> Error;

    /// Takes over what the crm says about the running instance; says whether
    /// anything changed.
    fn set_runtime(&mut self, runtime: Option<&AppInstRuntime>) -> bool;

    /// Progress of the crm on the instance.
    fn progress(&self) -> &str;

    /// Takes over what the crm waits for; says whether anything changed.
    fn set_progress(&mut self, progress: &str) -> bool;

    /// Changes that an operation has not seen yet.
    fn pending(core: &Core) -> &PendingByOperation<Self>;

    /// Removes the instance and everything that is counted for it.
    fn remove(&self, tx: &Transaction) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Accessors of the fields that everything with a state has.
macro_rules! reported_fields {
    () => {
        fn state(&self) -> TrackedState {
            state_of(self.state)
        }

        fn errors(&self) -> &[String] {
            &self.errors
        }

        fn progress(&self) -> &str {
            &self.progress
        }
    };
}

/// The same for what is changed here as well.
macro_rules! instance_fields {
    () => {
        reported_fields!();

        fn set_state(&mut self, state: TrackedState) {
            self.state = state.into();
            // It was of the state before.
            self.set_progress("");
        }

        fn set_progress(&mut self, progress: &str) -> bool {
            let changes = self.progress != progress;
            if changes {
                progress.clone_into(&mut self.progress);
            }
            changes
        }

        fn set_errors(&mut self, errors: Vec<String>) {
            self.errors = errors;
        }

        fn over(&self) -> Override {
            Override::of(self.crm_override)
        }
    };
}

impl Instance for ClusterInst {
    const NOUN: &'static str = "ClusterInst";

    type Info = ClusterInstInfo;

    instance_fields!();

    fn cloudlet_key(&self) -> &CloudletKey {
        self.object_key().cloudlet_or_empty()
    }

    fn names(&self) -> Vec<(&str, &'static str)> {
        let key = self.object_key();
        let cloudlet = key.cloudlet_or_empty();
        vec![
            (&key.developer, "Developer cannot be empty"),
            (&cloudlet.name, "Cloudlet name cannot be empty"),
            (&cloudlet.operator_or_empty().name, "Operator name cannot be empty"),
            (&key.cluster_or_empty().name, "Cluster name cannot be empty"),
        ]
    }

    fn busy(verb: Verb) -> Error {
        match verb {
            Verb::Create => Error::KeyExists,
            Verb::Update => Error::ClusterInstBusyUpdate,
            Verb::Delete => Error::ClusterInstBusyDelete,
        }
    }

    fn set_runtime(&mut self, _: Option<&AppInstRuntime>) -> bool {
        false
    }

    fn pending(core: &Core) -> &PendingByOperation<Self> {
        &core.pending_clusters
    }

    async fn remove(&self, tx: &Transaction) -> Result<(), Error> {
        usage::release_cluster(tx, self).await
    }
}

impl Instance for AppInst {
    const NOUN: &'static str = "AppInst";

    type Info = AppInstInfo;

    instance_fields!();

    fn cloudlet_key(&self) -> &CloudletKey {
        self.object_key().cluster_inst_or_empty().cloudlet_or_empty()
    }

    /// The cluster may be left to the server, and with it its developer.
    fn names(&self) -> Vec<(&str, &'static str)> {
        let app = self.object_key().app_or_empty();
        let cloudlet = self.cloudlet_key();
        vec![
            (&app.developer_or_empty().name, "App developer cannot be empty"),
            (&app.name, "App name cannot be empty"),
            (&cloudlet.name, "Cloudlet name cannot be empty"),
            (&cloudlet.operator_or_empty().name, "Operator name cannot be empty"),
        ]
    }

    fn busy(verb: Verb) -> Error {
        match verb {
            Verb::Create => Error::KeyExists,
            Verb::Update => Error::AppInstBusyUpdate,
            Verb::Delete => Error::AppInstBusyDelete,
        }
    }

    fn set_runtime(&mut self, runtime: Option<&AppInstRuntime>) -> bool {
        let changes = self.runtime_info.as_ref() != runtime;
        if changes {
            self.runtime_info = runtime.cloned();
        }
        changes
    }

    fn pending(core: &Core) -> &PendingByOperation<Self> {
        &core.pending_apps
    }

    async fn remove(&self, tx: &Transaction) -> Result<(), Error> {
        usage::release_app(tx, self).await
    }
}

impl Info for ClusterInstInfo {
    fn key_text(&self) -> String {
        self.key.as_ref().unwrap_or(ClusterInstKey::empty()).text()
    }

    reported_fields!();

    fn runtime(&self) -> Option<&AppInstRuntime> {
        None
    }
}

impl Info for AppInstInfo {
    fn key_text(&self) -> String {
        self.key.as_ref().unwrap_or(AppInstKey::empty()).text()
    }

    reported_fields!();

    fn runtime(&self) -> Option<&AppInstRuntime> {
        self.runtime_info.as_ref()
    }
}
