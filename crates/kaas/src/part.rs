//! The cluster service as one part: what a process opens, serves and runs.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_kit::{
    serve::Services,
    tasks::{Backoff, Tasks},
};
use selvage_store::{Record, Table, table::Change};
use selvage_work::{Failure, KeyQueue, KeyedReconcile, Reconcilers, Schedule, Summary};
use tokio_util::sync::CancellationToken;

use crate::{
    Manager,
    record::{Cluster, Machine, Pool},
    service::{ClusterApi, Clusters},
};

/// Interval at which unknown machines are given back, and stored backups listed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(600);
/// Interval at which the provider repairs machines.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(2);

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

    /// Adds its services to those that are served.
    pub fn add_to(&self, services: &mut Services) {
        services.add(ClusterApi::service(self.manager.clone(), self.compat));
        services.add(Clusters::service(self.manager.clone(), self.stop.clone()));
    }

    /// Starts what runs beside the services.
    pub fn spawn(&self, reconcilers: &Reconcilers) {
        let tasks = reconcilers.tasks();
        let token = tasks.token();
        if let Some(problem) = self.manager.provider().capabilities().problem {
            tracing::warn!("clusters cannot be made: {problem}");
        }
        let (queue, runner) = (self.queue.clone(), Arc::new(Runner(self.manager.clone())));
        let stop = token.clone();
        reconcilers.show("clusters", &queue);
        tasks.spawn("clusters", async move { queue.run(runner, stop).await });
        self.follow(tasks, "clusters' records", self.manager.clusters(), |c: &Cluster| &c.name);
        self.follow(tasks, "pools' records", self.manager.pools(), |p: &Pool| &p.cluster);
        self.follow(tasks, "machines' records", self.manager.machines(), |m: &Machine| &m.cluster);
        self.keep_tidy(reconcilers);
        let (stopped, streams) = (token.clone(), self.stop.clone());
        tasks.spawn("streams of clusters", async move {
            stopped.cancelled().await;
            streams.cancel();
        });
    }

    /// Starts what is done from time to time, whether a record changes or not.
    fn keep_tidy(&self, reconcilers: &Reconcilers) {
        let manager = self.manager.clone();
        reconcilers.add_fn("unknown machines", Schedule::every(SWEEP_INTERVAL), move || {
            let manager = manager.clone();
            async move { manager.sweep().await.map(|_| ()) }
        });
        let manager = self.manager.clone();
        reconcilers.add_fn("backups of clusters", Schedule::every(SWEEP_INTERVAL), move || {
            let manager = manager.clone();
            async move { manager.tend_backups().await }
        });
        let manager = self.manager.clone();
        let schedule = Schedule::fixed(MAINTENANCE_INTERVAL, MAINTENANCE_INTERVAL);
        reconcilers.add_fn("machines of clusters", schedule, move || {
            let manager = manager.clone();
            async move { manager.provider().maintain().await }
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
        let again = self.0.reconcile(key).await?;
        Ok(Summary { again, ..Summary::default() })
    }
}
