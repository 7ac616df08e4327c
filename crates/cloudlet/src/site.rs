//! Instances of a cloudlet as its own crm sees them.

use std::sync::Arc;

use selvage_api::edgeproto::{AppInst, AppInstInfo};
use selvage_notify::Cache;

use crate::AgentCaches;

/// Instances of a cloudlet with what its crm reports of them, for other parts
/// of the crm's process. Clones are the same.
#[derive(Debug, Clone)]
pub struct SiteInstances {
    wanted: Arc<Cache<AppInst>>,
    reported: Arc<Cache<AppInstInfo>>,
}

impl SiteInstances {
    /// Returns the instances of an agent.
    pub fn of(caches: &AgentCaches) -> Self {
        let (wanted, reported) = (&caches.instances, &caches.instance_infos);
        Self { wanted: Arc::clone(wanted), reported: Arc::clone(reported) }
    }

    /// Instances in the state that was reported of them; others are not there.
    pub fn list(&self) -> Vec<Arc<AppInst>> {
        let wanted = self.wanted.list().into_iter();
        let seen = wanted.filter_map(|instance| {
            let info = self.reported.find(instance.key.as_ref()?)?;
            let mut seen = AppInst::clone(&instance);
            seen.state = info.state;
            // An instance that serves during an update serves as before.
            seen.runtime_info = info.runtime_info.clone().or(seen.runtime_info);
            Some(Arc::new(seen))
        });
        seen.collect()
    }

    /// Calls when an instance or a report has changed.
    pub fn on_change(&self, hook: impl Fn() + Clone + Send + Sync + 'static) {
        let also = hook.clone();
        self.wanted.on_change(move |_| hook());
        self.reported.on_change(move |_| also());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use selvage_api::edgeproto::{AppInstKey, AppInstRuntime, AppKey, TrackedState};
    use selvage_edge::is_serving;

    use super::*;

    fn key(app: &str) -> Option<AppInstKey> {
        let app_key = Some(AppKey { name: app.into(), ..AppKey::default() });
        Some(AppInstKey { app_key, ..AppInstKey::default() })
    }

    #[test]
    fn what_the_crm_says_counts() {
        let caches = AgentCaches::new().unwrap();
        let site = SiteInstances::of(&caches);
        let runtime = |unhealthy: &str| {
            let addresses = vec!["10.0.0.1".into()];
            let unhealthy = unhealthy.into();
            Some(AppInstRuntime { addresses, unhealthy, ..AppInstRuntime::default() })
        };
        let wanted = AppInst {
            key: key("web"),
            state: TrackedState::Ready.into(),
            runtime_info: runtime(""),
            ..AppInst::default()
        };
        caches.instances.put(wanted).unwrap();
        assert!(site.list().is_empty(), "nobody has reported it");
        let report = |state: TrackedState, runtime_info| {
            let state = state.into();
            let info =
                AppInstInfo { key: key("web"), state, runtime_info, ..AppInstInfo::default() };
            caches.instance_infos.put(info).unwrap();
            is_serving(&site.list()[0])
        };
        assert!(report(TrackedState::Ready, runtime("")));
        assert!(!report(TrackedState::Ready, runtime("refused")));
        assert!(report(TrackedState::Updating, None), "the old version serves");
        assert!(!report(TrackedState::Deleting, None));
    }
}
