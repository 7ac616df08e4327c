//! The cluster service as one part: what a process opens, serves and runs.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_kit::{
    serve::Services,
    tasks::{Backoff, Tasks},
};
use selvage_store::{Record, Table, table::Change};
use selvage_work::{Failure, KeyQueue, KeyedReconcile, Summary};
use tokio_util::sync::CancellationToken;

use crate::{
    Manager,
    record::{Cluster, Machine, Pool},
    service::{ClusterApi, Clusters},
};

/// Interval at which machines are looked for that nobody knows of.
const SWEEP: Duration = Duration::from_secs(600);
/// Interval at which the provider puts right what changed without it.
const MAINTENANCE: Duration = Duration::from_secs(2);

/// Codes and texts that clients expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compat {
    /// Codes that say what is wrong.
    #[default]
    Precise,
    /// Codes and texts of the original, `ims-kaas`.
    ImsKaas,
}

/// The cluster service. Clones are the same.
#[derive(Clone, Debug)]
pub struct Kaas {
    manager: Manager,
    compat: Compat,
    queue: KeyQueue,
    /// Ends streams when the process ends.
    stop: CancellationToken,
}

impl Kaas {
    pub fn new(manager: Manager, compat: Compat) -> Self {
        let clock = manager.clock();
        let queue = KeyQueue::new(clock, manager.settings().workers, Backoff::default());
        Self { manager, compat, queue, stop: CancellationToken::new() }
    }

    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Clusters that have to be looked at.
    pub fn queue(&self) -> &KeyQueue {
        &self.queue
    }

    /// Adds its services to those that are served.
    pub fn add_to(&self, services: &mut Services) {
        services.add(ClusterApi::service(self.manager.clone(), self.compat));
        services.add(Clusters::service(self.manager.clone(), self.stop.clone()));
    }

    /// Starts what runs beside the services.
    pub fn spawn(&self, tasks: &Tasks) {
        let token = tasks.token();
        if let Some(problem) = self.manager.provider().capabilities().problem {
            tracing::warn!("clusters cannot be made: {problem}");
        }
        let (queue, runner) = (self.queue.clone(), Arc::new(Runner(self.manager.clone())));
        let stop = token.clone();
        tasks.spawn("clusters", async move { queue.run(runner, stop).await });
        self.follow(tasks, "clusters' records", self.manager.clusters(), |c: &Cluster| &c.name);
        self.follow(tasks, "pools' records", self.manager.pools(), |p: &Pool| &p.cluster);
        self.follow(tasks, "machines' records", self.manager.machines(), |m: &Machine| &m.cluster);
        let (manager, stop) = (self.manager.clone(), token.clone());
        tasks.spawn("unknown machines", async move { sweep(&manager, &stop).await });
        let (manager, stop) = (self.manager.clone(), token.clone());
        tasks.spawn("maintenance of machines", async move { maintain(&manager, &stop).await });
        let (stopped, streams) = (token.clone(), self.stop.clone());
        tasks.spawn("streams of clusters", async move {
            stopped.cancelled().await;
            streams.cancel();
        });
    }

    /// Looks at a cluster whenever a record of it changes.
    fn follow<R: Record>(
        &self,
        tasks: &Tasks,
        name: &'static str,
        table: &Arc<Table<R>>,
        cluster: fn(&R) -> &String,
    ) {
        let (queue, table, stop) = (self.queue.clone(), Arc::clone(table), tasks.token().clone());
        tasks.spawn(name, async move {
            let mut changes = table.subscribe();
            let add_all = || {
                for stored in table.list() {
                    queue.add(cluster(&stored.value));
                }
            };
            add_all();
            while let Some(Some(change)) = stop.run_until_cancelled(changes.next()).await {
                match change {
                    Change::Put(stored) | Change::Deleted(stored) => {
                        queue.add(cluster(&stored.value));
                    }
                    Change::Reset => add_all(),
                }
            }
        });
    }
}

struct Runner(Manager);

#[async_trait]
impl KeyedReconcile for Runner {
    fn name(&self) -> &str {
        "clusters"
    }

    async fn run(&self, key: &String) -> Result<Summary, Failure> {
        match self.0.reconcile(key).await {
            Ok(again) => Ok(Summary { again, ..Summary::default() }),
            Err(error) => Err(Failure::new(error.code(), error.to_string())),
        }
    }
}

async fn sweep(manager: &Manager, stop: &CancellationToken) {
    loop {
        if let Err(error) = manager.sweep().await {
            tracing::warn!(%error, "machines that nobody knows of were not looked for");
        }
        if let Err(error) = manager.tend_backups().await {
            tracing::warn!(%error, "the repository of backups was not looked at");
        }
        if stop.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_none() {
            return;
        }
    }
}

async fn maintain(manager: &Manager, stop: &CancellationToken) {
    loop {
        if let Err(error) = manager.provider().maintain().await {
            tracing::warn!(%error, "machines are not all as they have to be");
        }
        if stop.run_until_cancelled(tokio::time::sleep(MAINTENANCE)).await.is_none() {
            return;
        }
    }
}
