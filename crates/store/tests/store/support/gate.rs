//! A store whose watches can be held up.

use std::sync::Arc;

use async_trait::async_trait;
use futures::stream;
use selvage_store::{KeyRange, Overlay, Result, Revision, SharedStore, Watch};
use tokio::sync::watch;

pub(crate) struct Gate {
    inner: SharedStore,
    open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn new(inner: SharedStore) -> Arc<Self> {
        Arc::new(Self { inner, open: watch::Sender::new(true) })
    }

    /// While it is shut no watch delivers anything.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

#[async_trait]
impl Overlay for Gate {
    fn below(&self) -> &SharedStore {
        &self.inner
    }

    async fn watch(&self, range: KeyRange, from: Option<Revision>) -> Result<Watch> {
        let watch = self.inner.watch(range, from).await?;
        let state = (watch, self.open.subscribe());
        Ok(Watch::new(stream::unfold(state, |(mut watch, mut open)| async move {
            loop {
                open.wait_for(|open| *open).await.ok()?;
                let item = tokio::select! {
                    biased;
                    _ = open.wait_for(|open| !*open) => continue,
                    item = watch.next() => item?,
                };
                return Some((item, (watch, open)));
            }
        })))
    }
}
