//! What the controller last said, on disk: the crm knows what should run when
//! it starts while the controller is away.

use bytes::Bytes;
use selvage_api::object::Object;
use selvage_cloudlet::Desk;
use selvage_notify::Cache;
use selvage_store::{MAX_OPS, Op, SharedStore, StoreExt, Txn};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

const ROOT: &str = "/mirror/";

struct Line {
    key: String,
    value: Option<Bytes>,
}

/// The mirror's way to the disk.
pub(crate) struct Mirror {
    store: SharedStore,
    lines: mpsc::UnboundedReceiver<Line>,
}

impl Mirror {
    /// Puts what is on disk on the desk, and follows it from then on.
    pub(crate) async fn open(desk: &Desk, store: SharedStore) -> Result<Self> {
        let (sender, lines) = mpsc::unbounded_channel();
        attach(&desk.flavors, "flavor", &store, &sender).await?;
        attach(&desk.apps, "app", &store, &sender).await?;
        attach(&desk.cloudlets, "cloudlet", &store, &sender).await?;
        attach(&desk.clusters, "cluster", &store, &sender).await?;
        attach(&desk.instances, "instance", &store, &sender).await?;
        Ok(Self { store, lines })
    }

    /// Writes what changes until told to stop. What a crash loses the
    /// controller says again.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::new();
        loop {
            let more = stop.run_until_cancelled(self.lines.recv_many(&mut batch, MAX_OPS)).await;
            if more.is_none_or(|count| count == 0) && batch.is_empty() {
                return;
            }
            // Of several changes of one object the last counts.
            let mut ops = std::collections::BTreeMap::new();
            for line in batch.drain(..) {
                let op = match line.value {
                    Some(value) => Op::put(line.key.clone(), value),
                    None => Op::delete(line.key.clone()),
                };
                ops.insert(line.key, op);
            }
            let txn = ops.into_values().fold(Txn::new(), Txn::then);
            if let Err(error) = self.store.txn(txn).await {
                tracing::error!(%error, "what the controller said is not on disk");
            }
        }
    }
}

async fn attach<M: Object + PartialEq + Send + Sync + 'static>(
    cache: &Cache<M>,
    name: &'static str,
    store: &SharedStore,
    lines: &mpsc::UnboundedSender<Line>,
) -> Result<()> {
    for item in store.list(&format!("{ROOT}{name}/")).await?.items {
        let object = M::decode(item.value)
            .map_err(|error| Error::state(format!("the crm's mirror is damaged: {error}")))?;
        cache.put(object)?;
    }
    let lines = lines.clone();
    cache.on_change(move |change| {
        let key = format!("{ROOT}{name}/{}", change.key.text());
        let value = change.now.map(|object| Bytes::from(object.encode_to_vec()));
        // Nobody writes any more when the process ends.
        let _ = lines.send(Line { key, value });
    });
    Ok(())
}
