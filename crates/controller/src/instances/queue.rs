//! One after the other, for those who would be in each other's way.
//!
//! All instances of a cloudlet are counted in the same rows. Transactions that
//! write these at the same time would all but one be in vain; within this
//! process they wait for their turn instead. Against other controllers only
//! the commit itself helps, and running again.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Locks of all cloudlets that somebody works on or waits for.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

/// One's turn; the next one's comes when it is dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Queues {
    /// Waits behind those who came before.
    pub(super) async fn turn(&self, cloudlet: &str) -> Turn {
        self.queue(cloudlet).lock_owned().await
    }

    fn queue(&self, cloudlet: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get(cloudlet).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::default();
        queues.insert(cloudlet.to_owned(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn turns_come_in_order_and_places_are_forgotten() {
        let queues = Arc::new(Queues::default());
        let first = queues.turn("a").await;
        let elsewhere = queues.turn("b").await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..5)
            .map(|number| {
                let (queues, order) = (Arc::clone(&queues), Arc::clone(&order));
                // Asked for in order: the queue is joined when it is polled.
                let mut turn = Box::pin(async move {
                    let turn = queues.turn("a").await;
                    order.lock().push(number);
                    turn
                });
                assert!(futures::FutureExt::now_or_never(&mut turn).is_none());
                tokio::spawn(turn)
            })
            .collect();
        drop(first);
        for task in waiting {
            drop(task.await.unwrap());
        }
        assert_eq!(*order.lock(), [0, 1, 2, 3, 4]);
        drop(elsewhere);
        drop(queues.turn("c").await);
        assert_eq!(queues.0.lock().keys().collect::<Vec<_>>(), ["c"]);
    }
}
