//! Room for files and folders on their way: so many for all, and a share of it
//! for each caller, so that one who does not read keeps nobody else out.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use parking_lot::Mutex;
use selvage_kit::identity::Identity;
use tonic::Request;

use super::Error;

/// Maximum number of files and folders that are sent at the same time.
pub(super) const MAX_TRANSFERS: usize = 64;

/// Maximum number of transfers of one caller.
pub(super) const MAX_PER_CALLER: usize = 16;

#[derive(Clone, Default)]
pub(super) struct TransferSlots(Arc<Mutex<HashMap<String, usize>>>);

/// Given back when it is dropped.
pub(super) struct TransferSlot {
    all: TransferSlots,
    caller: String,
}

impl TransferSlots {
    pub(super) fn take<T>(&self, request: &Request<T>) -> Result<TransferSlot, Error> {
        let caller = request.extensions().get::<Identity>();
        self.take_for(caller.map(|caller| caller.name.clone()).unwrap_or_default())
    }

    fn take_for(&self, caller: String) -> Result<TransferSlot, Error> {
        let mut taken = self.0.lock();
        let own = taken.get(&caller).copied().unwrap_or_default();
        if own >= MAX_PER_CALLER || taken.values().sum::<usize>() >= MAX_TRANSFERS {
            return Err(Error::Busy);
        }
        taken.insert(caller.clone(), own + 1);
        Ok(TransferSlot { all: self.clone(), caller })
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        let mut taken = self.all.0.lock();
        if let Entry::Occupied(mut own) = taken.entry(std::mem::take(&mut self.caller)) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_leaves_room_for_others() {
        let slots = TransferSlots::default();
        let take = |name: &str| slots.take_for(name.to_owned());
        let mut taken: Vec<_> = (0..MAX_PER_CALLER).filter_map(|_| take("eve").ok()).collect();
        assert_eq!(taken.len(), MAX_PER_CALLER);
        assert!(take("eve").is_err() && take("ann").is_ok());
        taken.pop();
        assert!(take("eve").is_ok());
        for caller in 0..MAX_TRANSFERS {
            taken.extend(take(&caller.to_string()));
        }
        assert_eq!(taken.len(), MAX_TRANSFERS);
        assert!(take("late").is_err());
        drop(taken);
        assert!(slots.0.lock().is_empty() && take("late").is_ok());
    }
}
