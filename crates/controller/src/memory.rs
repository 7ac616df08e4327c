//! Knowledge of a controller that it does not store: the last reports of
//! agents.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use selvage_api::Code;
use selvage_api::edgeproto as wire;
use selvage_kit::identity::{Identity, Kind};
use selvage_notify::Stream;
use selvage_samples::{Archive, Sink};

use crate::error::{Error, Result};
use crate::exec::Waiting;
use crate::keys::KeyText;
use crate::metrics::{Refused, newest::Newest};
use crate::relay::Relays;

/// The newest object per key, with who said it.
#[derive(Debug)]
pub(crate) struct Latest<M>(RwLock<Said<M>>);

#[derive(Debug)]
struct Said<M> {
    objects: BTreeMap<String, (Arc<str>, Arc<M>)>,
    /// Number of objects of each.
    counts: BTreeMap<Arc<str>, usize>,
}

impl<M> Default for Latest<M> {
    fn default() -> Self {
        Self(RwLock::new(Said { objects: BTreeMap::new(), counts: BTreeMap::new() }))
    }
}

impl<M> Said<M> {
    fn forget(&mut self, owner: &Arc<str>) {
        if let Some(count) = self.counts.get_mut(owner) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(owner);
            }
        }
    }
}

impl<M> Latest<M> {
    /// Keeps an object that somebody said, unless that is one too many of
    /// theirs.
    pub(crate) fn put(
        &self,
        key: &impl KeyText,
        object: M,
        owner: &Identity,
        most: usize,
    ) -> Result<()> {
        // Whoever has no certificate has the whole machine, or a laboratory.
        let most = if matches!(owner.kind, Kind::Machine(_)) { most } else { usize::MAX };
        let (key, owner) = (key.text(), Arc::<str>::from(owner.name.as_str()));
        let mut said = self.0.write();
        let before = said.objects.get(&key).map(|(owner, _)| Arc::clone(owner));
        if before.as_ref() != Some(&owner) {
            let count = said.counts.entry(Arc::clone(&owner)).or_default();
            if *count >= most {
                let text = format!("{owner} reports on more than {most} objects of one kind");
                return Err(Error::refused(Code::ResourceExhausted, text));
            }
            *count += 1;
            before.into_iter().for_each(|before| said.forget(&before));
        }
        said.objects.insert(key, (owner, Arc::new(object)));
        Ok(())
    }

    pub(crate) fn remove(&self, key: &impl KeyText) {
        let mut said = self.0.write();
        if let Some((owner, _)) = said.objects.remove(&key.text()) {
            said.forget(&owner);
        }
    }

    /// Removes the objects that `gone` picks.
    pub(crate) fn remove_all(&self, gone: impl Fn(&M) -> bool) {
        let mut said = self.0.write();
        let mut owners = Vec::new();
        said.objects.retain(|_, (owner, object)| {
            let goes = gone(object);
            if goes {
                owners.push(Arc::clone(owner));
            }
            !goes
        });
        owners.iter().for_each(|owner| said.forget(owner));
    }

    pub(crate) fn list(&self) -> Vec<Arc<M>> {
        self.0.read().objects.values().map(|(_, object)| Arc::clone(object)).collect()
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
    pub(crate) speakers: Mutex<BTreeMap<String, BTreeMap<i64, Stream>>>,
    pub(crate) samples: Arc<Archive>,
    pub(crate) refused: Refused,
    pub(crate) newest: Newest,
    /// InfluxDB that gets the samples besides.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use selvage_kit::identity::Machine;

    use super::*;

    fn key(name: &str) -> wire::NodeKey {
        wire::NodeKey { name: name.into(), ..Default::default() }
    }

    #[test]
    fn a_certificate_reports_on_so_many_and_no_more() {
        let nodes = Latest::<wire::Node>::default();
        let machine = |name: &str| Identity::machine(Machine::parse(name).unwrap());
        let (one, other) = (machine("dme/one"), machine("dme/other"));
        let put = |name: &str, owner: &Identity| {
            nodes.put(
                &key(name),
                wire::Node { key: Some(key(name)), ..Default::default() },
                owner,
                2,
            )
        };
        put("a", &one).unwrap();
        put("b", &one).unwrap();
        put("b", &one).unwrap();
        assert_eq!(put("c", &one).unwrap_err().code(), Code::ResourceExhausted);
        put("c", &other).unwrap();
        nodes.remove(&key("a"));
        put("d", &one).unwrap();
        // What another took over counts for that one.
        put("d", &other).unwrap();
        assert!(put("e", &other).is_err());
        put("e", &one).unwrap();
        nodes.remove_all(|_| true);
        assert!(nodes.list().is_empty() && nodes.0.read().counts.is_empty());
        let everybody = Identity::all_powerful("insecure", Kind::Insecure);
        for number in 0..9 {
            put(&number.to_string(), &everybody).unwrap();
        }
    }
}
