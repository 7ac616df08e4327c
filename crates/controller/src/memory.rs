//! What a controller knows and does not store: the last words of agents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use selvage_api::edgeproto as wire;
use selvage_samples::{Archive, Sink};

use crate::exec::Waiting;
use crate::keys::KeyText;
use crate::metrics::{Refused, newest::Newest};
use crate::relay::Relays;

/// The newest object per key.
#[derive(Debug)]
pub(crate) struct Latest<M>(RwLock<BTreeMap<String, Arc<M>>>);

impl<M> Default for Latest<M> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<M> Latest<M> {
    pub(crate) fn put(&self, key: &impl KeyText, object: M) {
        self.0.write().insert(key.text(), Arc::new(object));
    }

    pub(crate) fn remove(&self, key: &impl KeyText) {
        self.0.write().remove(&key.text());
    }

    /// Removes the objects that `gone` picks.
    pub(crate) fn remove_all(&self, gone: impl Fn(&M) -> bool) {
        self.0.write().retain(|_, object| !gone(object));
    }

    pub(crate) fn list(&self) -> Vec<Arc<M>> {
        self.0.read().values().cloned().collect()
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) app_inst_infos: Latest<wire::AppInstInfo>,
    pub(crate) cluster_inst_infos: Latest<wire::ClusterInstInfo>,
    pub(crate) nodes: Latest<wire::Node>,
    /// CloudletInfos that hang on our lease.
    pub(crate) own_infos: Mutex<BTreeMap<String, wire::CloudletInfo>>,
    /// By which connections of ours each cloudlet is spoken for: one, unless
    /// two agents have the same identity.
    pub(crate) speakers: Mutex<BTreeMap<String, BTreeSet<i64>>>,
    pub(crate) samples: Arc<Archive>,
    pub(crate) refused: Refused,
    pub(crate) newest: Newest,
    /// Where samples go besides.
    pub(crate) influx: Option<Arc<Sink>>,
    pub(crate) waiting: Waiting,
    pub(crate) relays: Relays,
}

impl Memory {
    pub(crate) fn new(samples: Arc<Archive>, influx: Option<Arc<Sink>>) -> Self {
        Self {
            app_inst_infos: Latest::default(),
            cluster_inst_infos: Latest::default(),
            nodes: Latest::default(),
            own_infos: Mutex::default(),
            speakers: Mutex::default(),
            samples,
            refused: Refused::default(),
            newest: Newest::default(),
            influx,
            waiting: Waiting::default(),
            relays: Relays::default(),
        }
    }
}
