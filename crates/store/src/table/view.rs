//! The in-memory picture of all records of one type.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::Change;
use super::record::{Record, Stored, decode, prefix};
use crate::{Error, KeyValue, Result};

/// Records sorted by key, and by the values of their indexes.
#[derive(Debug)]
pub(super) struct View<R> {
    records: BTreeMap<String, Arc<Stored<R>>>,
    indexes: HashMap<&'static str, BTreeMap<String, BTreeSet<String>>>,
    /// Keys whose newest value cannot be read, and why.
    faults: BTreeMap<String, String>,
}

impl<R: Record> View<R> {
    pub(super) fn new() -> Self {
        Self { records: BTreeMap::new(), indexes: HashMap::new(), faults: BTreeMap::new() }
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Stored<R>>> {
        self.records.get(key).cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn list(&self) -> Vec<Arc<Stored<R>>> {
        self.records.values().cloned().collect()
    }

    pub(super) fn list_prefix(&self, prefix: &str) -> Vec<Arc<Stored<R>>> {
        self.records
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(_, record)| Arc::clone(record))
            .collect()
    }

    pub(super) fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Stored<R>>> {
        let keys = self.indexes.get(index).and_then(|values| values.get(value));
        keys.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    pub(super) fn faults(&self) -> BTreeMap<String, String> {
        self.faults.clone()
    }

    /// Every key that the store holds, with the revision of its last change
    /// as far as this view knows it.
    pub(super) fn mod_revision(&self, key: &str) -> Option<crate::Revision> {
        self.records.get(key).map(|record| record.mod_revision)
    }

    pub(super) fn known(&self) -> usize {
        let unread = self.faults.keys().filter(|key| !self.records.contains_key(*key));
        self.records.len() + unread.count()
    }

    pub(super) fn is_faulty(&self, key: &str) -> bool {
        self.faults.contains_key(key)
    }

    /// Takes in a value. One that cannot be read leaves the record as it was
    /// and is remembered as a fault.
    pub(super) fn put(&mut self, kv: KeyValue) -> Option<Change<R>> {
        let key = match key_of::<R>(&kv.key) {
            Ok(key) => key,
            Err(error) => {
                tracing::error!(kind = R::KIND, %error, "a stored key cannot be read");
                return None;
            }
        };
        match to_stored(key.clone(), kv) {
            Ok(stored) => {
                self.faults.remove(&key);
                Some(self.insert(Arc::new(stored)))
            }
            Err(error) => {
                tracing::error!(kind = R::KIND, key, %error, "a stored record cannot be read");
                self.faults.insert(key, error.to_string());
                None
            }
        }
    }

    pub(super) fn insert(&mut self, stored: Arc<Stored<R>>) -> Change<R> {
        let old = self.records.insert(stored.key.clone(), Arc::clone(&stored));
        if let Some(old) = old {
            self.unindex(&old);
        }
        for (index, value) in stored.value.indexes() {
            let keys = self.indexes.entry(index).or_default().entry(value).or_default();
            keys.insert(stored.key.clone());
        }
        Change::Put(stored)
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Change<R>> {
        self.faults.remove(key);
        let old = self.records.remove(key)?;
        self.unindex(&old);
        Some(Change::Deleted(old))
    }

    fn unindex(&mut self, old: &Stored<R>) {
        for (index, value) in old.value.indexes() {
            let Some(values) = self.indexes.get_mut(index) else { continue };
            if let Some(keys) = values.get_mut(&value) {
                keys.remove(&old.key);
                if keys.is_empty() {
                    values.remove(&value);
                }
            }
        }
    }

    /// Becomes what a new listing says; gives what that changed. In another
    /// history the same revision is another change.
    pub(super) fn replace(
        &mut self,
        listing: Vec<KeyValue>,
        another_history: bool,
    ) -> Vec<Change<R>> {
        let mut changes = Vec::new();
        let mut seen = BTreeSet::new();
        for kv in listing {
            let Ok(key) = key_of::<R>(&kv.key) else { continue };
            seen.insert(key.clone());
            if another_history || self.mod_revision(&key) != Some(kv.mod_revision) {
                changes.extend(self.put(kv));
            }
        }
        let gone: Vec<_> =
            self.records.keys().filter(|key| !seen.contains(*key)).cloned().collect();
        self.faults.retain(|key, _| seen.contains(key));
        changes.extend(gone.iter().filter_map(|key| self.remove(key)));
        changes
    }
}

/// The key of a record out of the key it is stored under.
pub(super) fn key_of<R: Record>(key: &[u8]) -> Result<String> {
    let own = key.strip_prefix(prefix::<R>().as_bytes());
    own.and_then(|own| std::str::from_utf8(own).ok()).map(str::to_owned).ok_or_else(|| {
        let key = String::from_utf8_lossy(key);
        Error::corrupt(format!("key {key:?}"), format!("it is no key of a {}", R::KIND))
    })
}

pub(super) fn to_stored<R: Record>(key: String, kv: KeyValue) -> Result<Stored<R>> {
    let value = decode::<R>(&key, &kv.value)?.value;
    Ok(Stored {
        key,
        value,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    })
}
