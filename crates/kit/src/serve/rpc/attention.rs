//! Attention of a caller to an open stream: what a person types keeps the
//! session alive, what a page merely listens to does not.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Note that a caller has said something since this was last asked. Clones are
/// about the same caller.
#[derive(Debug, Clone, Default)]
pub struct Attention(Arc<AtomicBool>);

impl Attention {
    /// The caller has said something.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether there was something, and waits for more.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
