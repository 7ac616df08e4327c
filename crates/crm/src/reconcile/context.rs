//! State that work on a cloudlet shares, and its reports to the controller.

use std::{any::Any, collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::edgeproto::{AppInstRuntime, TrackedState};
use selvage_cloudlet::AgentCaches;
use selvage_edge::{ObjectKind, Verb};
use selvage_notify::{NotifyClient, ObjectKey};
use tokio::time::Instant;

use crate::{
    Result,
    installed::{Installed, Phase},
    platform::{InstanceFacts, Platform, Restarts},
    publish::Publisher,
};

/// An object as the controller sent it: the same for as long as it says nothing
/// new about it.
type Notice = Arc<dyn Any + Send + Sync>;

/// All that work on a cloudlet takes.
pub(crate) struct AgentContext {
    pub(crate) caches: Arc<AgentCaches>,
    pub(crate) installed: Arc<Installed>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) publisher: Publisher,
    pub(crate) client: NotifyClient,
    /// Time for which the controller must not have mentioned something that is
    /// there before it is removed.
    pub(crate) grace: Duration,
    pub(crate) unmentioned: Mutex<HashMap<(ObjectKind, String), Instant>>,
    /// Operations that failed, and when: whoever asked for one hears of that
    /// before it is begun again.
    pub(crate) failed: Mutex<HashMap<(ObjectKind, String), (Verb, Instant)>>,
    /// Why instances that should run do not.
    pub(crate) unhealthy_reasons: Mutex<HashMap<String, String>>,
    /// Restarts of instances, with their reasons.
    pub(crate) restarts: Mutex<HashMap<String, Restarts>>,
    /// Updates that were made, by the object that asked for them, and when:
    /// whoever asked hears of that before it is begun again.
    pub(crate) updated: Mutex<HashMap<(ObjectKind, String), (Notice, Instant)>>,
}

impl AgentContext {
    /// Returns whether this is what failed a moment ago; anything else makes
    /// that forgotten.
    pub(super) fn has_just_failed(
        &self,
        kind: ObjectKind,
        key: &ObjectKey,
        asked: Option<Verb>,
    ) -> bool {
        let mut failed = self.failed.lock();
        let key = (kind, key.text().to_owned());
        let just = failed
            .get(&key)
            .is_some_and(|(verb, at)| Some(*verb) == asked && at.elapsed() < self.grace);
        if !just {
            failed.remove(&key);
        }
        just
    }

    pub(super) fn notice(&self, kind: ObjectKind, key: &ObjectKey) -> Option<Notice> {
        match kind {
            ObjectKind::Cluster => self.caches.clusters.object(key).map(|object| object as Notice),
            ObjectKind::Instance => {
                self.caches.instances.object(key).map(|object| object as Notice)
            }
        }
    }

    /// Returns whether the update that is asked for is made, and the controller
    /// has not heard of that yet. One that it knows to have begun was written
    /// down before it was told.
    pub(super) fn is_updated(&self, kind: ObjectKind, key: &ObjectKey, begun: bool) -> bool {
        let row = self.installed.get(kind, key.text());
        if row.is_none_or(|row| row.phase != Phase::Made) {
            return false;
        }
        if begun {
            return true;
        }
        let now = self.notice(kind, key);
        let mut updated = self.updated.lock();
        let Some((notice, at)) = updated.get_mut(&(kind, key.text().to_owned())) else {
            return false;
        };
        if !self.client.status().in_sync {
            *at = Instant::now();
        }
        // Two that look alike are told apart by time alone.
        now.is_some_and(|now| Arc::ptr_eq(&now, notice)) && at.elapsed() < self.grace
    }

    /// Writes down that something is updated, and tells of it.
    pub(super) async fn begin_update(
        &self,
        kind: ObjectKind,
        key: &ObjectKey,
    ) -> Result<Option<Notice>> {
        let notice = self.notice(kind, key);
        self.installed.note(kind, key.text(), Phase::Updating).await?;
        self.busy(kind, Verb::Update, key);
        Ok(notice)
    }

    pub(super) fn note_updated(&self, kind: ObjectKind, key: &ObjectKey, notice: Option<Notice>) {
        if let Some(notice) = notice {
            let key = (kind, key.text().to_owned());
            self.updated.lock().insert(key, (notice, Instant::now()));
        }
    }

    pub(super) fn busy(&self, kind: ObjectKind, verb: Verb, key: &ObjectKey) {
        self.caches.report(kind, key, verb.busy(), Vec::new(), AppInstRuntime::default());
    }

    pub(super) fn ready(&self, kind: ObjectKind, key: &ObjectKey, container_ids: Vec<String>) {
        let runtime = self.runtime(key, container_ids);
        self.caches.report(kind, key, TrackedState::Ready, Vec::new(), runtime);
    }

    /// Reports an instance whose update failed in an earlier process: the version
    /// of before serves, and the reason stays as the controller knows it.
    pub(super) fn report_failed_update(&self, key: &ObjectKey, facts: InstanceFacts) {
        let errors = self.caches.instances.object(key).map(|held| held.errors.clone());
        let runtime = self.runtime(key, facts.containers);
        let state = TrackedState::UpdateError;
        self.caches.report(ObjectKind::Instance, key, state, errors.unwrap_or_default(), runtime);
    }

    pub(super) fn runtime(&self, key: &ObjectKey, container_ids: Vec<String>) -> AppInstRuntime {
        let restarts = self.restarts.lock().get(key.text()).cloned().unwrap_or_default();
        AppInstRuntime {
            container_ids,
            addresses: self.publisher.addresses(key.text()),
            unhealthy: self.unhealthy_reason(key.text()),
            restarts: restarts.count,
            last_reason: restarts.last_reason,
        }
    }

    /// Reports instances anew that have begun to answer, or ceased to.
    pub(crate) fn report_health(&self) {
        for info in self.caches.instance_infos.list() {
            let (Ok(key), Some(reported)) = (ObjectKey::of(info.as_ref()), &info.runtime_info)
            else {
                continue;
            };
            let state = info.state();
            let serves = matches!(state, TrackedState::Ready | TrackedState::UpdateError);
            let runtime = self.runtime(&key, reported.container_ids.clone());
            if serves && *reported != runtime {
                self.caches.report(ObjectKind::Instance, &key, state, info.errors.clone(), runtime);
            }
        }
    }

    /// Why an instance does not run or does not answer; empty when it does, or
    /// nobody can tell.
    pub(crate) fn unhealthy_reason(&self, key: &str) -> String {
        let found = self.unhealthy_reasons.lock().get(key).cloned();
        found.unwrap_or_else(|| self.publisher.unhealthy_reason(key))
    }

    pub(super) fn note_unhealthy(&self, key: &str, unhealthy_reason: String) {
        let mut unhealthy_reasons = self.unhealthy_reasons.lock();
        if unhealthy_reason.is_empty() {
            unhealthy_reasons.remove(key);
        } else {
            unhealthy_reasons.insert(key.to_owned(), unhealthy_reason);
        }
    }

    /// Notes how often an instance was started again. The last line of a log may
    /// be another one each time: the reason is that of when the number changed.
    pub(super) fn note_restarts(&self, key: &str, now: Restarts) {
        let mut restarts = self.restarts.lock();
        let known = restarts.get(key);
        if known.is_none_or(|known| known.count != now.count || known.last_reason.is_empty()) {
            restarts.insert(key.to_owned(), now);
        }
    }
}
