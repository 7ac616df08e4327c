//! Index of objects by cloudlet, so that nothing has to be searched.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use crate::ObjectKey;

#[derive(Default)]
pub(super) struct Directory {
    cloudlets: HashMap<Arc<str>, CloudletObjects>,
    /// Number of instances of an app on each cloudlet.
    apps: HashMap<ObjectKey, BTreeMap<Arc<str>, usize>>,
}

#[derive(Default)]
struct CloudletObjects {
    /// Objects by the index of their type in the order of sending.
    objects: BTreeSet<(usize, ObjectKey)>,
    apps: BTreeMap<ObjectKey, usize>,
}

impl Directory {
    /// Takes note that an object is there or not. When that is news, the app
    /// of which it is an instance.
    pub(super) fn apply(
        &mut self,
        index: usize,
        cloudlet: &str,
        key: &ObjectKey,
        present: bool,
        app: impl FnOnce() -> Option<ObjectKey>,
    ) -> Option<ObjectKey> {
        let entry = (index, key.clone());
        if present {
            let name = match self.cloudlets.get_key_value(cloudlet) {
                Some((name, _)) => Arc::clone(name),
                None => Arc::from(cloudlet),
            };
            let on_cloudlet = self.cloudlets.entry(Arc::clone(&name)).or_default();
            if !on_cloudlet.objects.insert(entry) {
                return None;
            }
            let app = app()?;
            *on_cloudlet.apps.entry(app.clone()).or_default() += 1;
            *self.apps.entry(app.clone()).or_default().entry(name).or_default() += 1;
            return Some(app);
        }
        let on_cloudlet = self.cloudlets.get_mut(cloudlet)?;
        if !on_cloudlet.objects.remove(&entry) {
            return None;
        }
        let app = app();
        if let Some(app) = &app {
            decrease(&mut on_cloudlet.apps, app);
        }
        if on_cloudlet.objects.is_empty() {
            self.cloudlets.remove(cloudlet);
        }
        let app = app?;
        if let Some(there) = self.apps.get_mut(&app) {
            decrease(there, cloudlet);
            if there.is_empty() {
                self.apps.remove(&app);
            }
        }
        Some(app)
    }

    /// Returns true if one of these cloudlets has an instance of the app.
    pub(super) fn uses(&self, app: &ObjectKey, cloudlets: &BTreeSet<Arc<str>>) -> bool {
        let there = self.apps.get(app);
        there.is_some_and(|there| cloudlets.iter().any(|cloudlet| there.contains_key(cloudlet)))
    }

    /// The cloudlets that have an instance of an app.
    pub(super) fn cloudlets_of(&self, app: &ObjectKey) -> Vec<Arc<str>> {
        self.apps.get(app).map(|there| there.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns all objects on a cloudlet, by the index of their type, and its
    /// apps.
    pub(super) fn of_cloudlet(&self, cloudlet: &str) -> (Vec<(usize, ObjectKey)>, Vec<ObjectKey>) {
        let Some(on_cloudlet) = self.cloudlets.get(cloudlet) else { return Default::default() };
        (on_cloudlet.objects.iter().cloned().collect(), on_cloudlet.apps.keys().cloned().collect())
    }
}

fn decrease<K, Q>(counts: &mut BTreeMap<K, usize>, key: &Q)
where
    K: Ord + std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
{
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
