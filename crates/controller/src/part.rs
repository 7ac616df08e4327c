//! The controller as one part: what a process opens, mounts and runs.

use std::sync::Arc;
use std::time::Duration;

use selvage_kit::serve::Services;
use selvage_kit::tasks::Tasks;
use selvage_kit::telemetry::Metrics;
use selvage_store::SharedStore;
use selvage_work::{Reconcilers, Schedule, clock};

use crate::controller::{Controller, Dependencies, Foundation};
use crate::error::Result;
use crate::instances::InstanceService;
use crate::settings::Settings;

/// Interval of the search for instances without an operation.
const CARE_INTERVAL: Duration = Duration::from_secs(30);

/// A controller with everything that belongs to it.
#[derive(Debug, Clone)]
pub struct EdgeController {
    controller: Arc<Controller>,
    instances: Arc<InstanceService>,
    clock: Arc<dyn clock::Clock>,
}

impl EdgeController {
    /// Opens a controller on a store. When it returns everything is in memory
    /// and the controller is registered: it may be served.
    pub async fn open(
        store: SharedStore,
        settings: Settings,
        dependencies: Dependencies,
    ) -> Result<Self> {
        let clock = Arc::clone(&dependencies.engine.clock);
        let foundation = Foundation::open(store, settings, dependencies).await?;
        let instances = InstanceService::open(&foundation).await?;
        let controller = Controller::open(foundation, Arc::clone(&instances) as _).await?;
        Ok(Self { controller, instances, clock })
    }

    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Mounts every service of the contract.
    pub fn add_to(&self, services: &mut Services) {
        self.controller.add_to(services);
        self.instances.add_to(services);
    }

    /// Shows the controller's own counts among a process's metrics.
    pub fn watch(&self, metrics: &Metrics) {
        crate::telemetry::watch(&self.controller, metrics);
    }

    /// Starts what the controller does by itself. Ends with the tasks; without
    /// it the process is of no use, and so goes down with it.
    pub fn spawn(&self, tasks: &Tasks) -> Reconcilers {
        let reconcilers = Reconcilers::new(tasks.clone(), Arc::clone(&self.clock));
        self.spawn_among(&reconcilers);
        reconcilers
    }

    /// The same, with its reconcilers among those of the process.
    pub fn spawn_among(&self, reconcilers: &Reconcilers) {
        let tasks = reconcilers.tasks();
        let running = Arc::clone(&self.controller).run(tasks.token().clone());
        tasks.spawn_critical("controller", running);
        if let Some(sink) = self.controller.memory.influx.clone() {
            tasks.spawn("influx", sink.run(tasks.token().clone()));
        }
        let samples = Arc::clone(&self.controller.memory.samples).run(tasks.token().clone());
        tasks.spawn("samples", samples);
        reconcilers.add(self.instances.caretaker(), Schedule::every(CARE_INTERVAL));
    }
}
