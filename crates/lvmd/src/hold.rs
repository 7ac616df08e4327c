//! Volumes that work is being done on, which must stay as they are meanwhile.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::{Error, Result};

/// A group and a volume in it.
type Key = (String, String);

/// Holds on volumes. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Holds(Arc<Mutex<HoldState>>);

#[derive(Default)]
struct HoldState {
    last: u64,
    /// The number and the reason of every hold.
    reasons: HashMap<Key, Vec<(u64, String)>>,
}

/// Keeps a volume from being removed or resized until it is dropped.
pub struct Hold {
    holds: Holds,
    key: Key,
    number: u64,
}

impl Holds {
    /// Holds a volume; `why` completes "logical volume NAME is …".
    pub(crate) fn hold(&self, group: &str, name: &str, why: &str) -> Hold {
        let key = (group.to_owned(), name.to_owned());
        let mut held = self.0.lock();
        held.last += 1;
        let number = held.last;
        held.reasons.entry(key.clone()).or_default().push((number, why.to_owned()));
        drop(held);
        Hold { holds: self.clone(), key, number }
    }

    /// Nobody holds the volume.
    pub(crate) fn check(&self, group: &str, name: &str) -> Result<()> {
        let held = self.0.lock();
        let reasons = held.reasons.get(&(group.to_owned(), name.to_owned()));
        match reasons.and_then(|reasons| reasons.first()) {
            None => Ok(()),
            Some((_, why)) => {
                Err(Error::Precondition(format!("logical volume {name} is {why}: try again later")))
            }
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.holds.0.lock();
        if let Some(reasons) = held.reasons.get_mut(&self.key) {
            reasons.retain(|(number, _)| *number != self.number);
            if reasons.is_empty() {
                held.reasons.remove(&self.key);
            }
        }
    }
}
