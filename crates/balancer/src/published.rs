//! A service that is published, seen as one.

use std::sync::{Arc, atomic::AtomicUsize};

use parking_lot::Mutex;

use crate::{
    Health, Protocol, Status,
    frontend::{Context, Frontend},
};

pub(crate) struct Published {
    pub(crate) id: String,
    pub(crate) context: Arc<Context>,
    /// Connections of all frontends.
    pub(crate) load: Arc<AtomicUsize>,
    frontends: Mutex<Vec<Arc<Frontend>>>,
    announced: Mutex<Health>,
}

impl Published {
    pub(crate) fn new(id: String, context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            id,
            context,
            load: Arc::default(),
            frontends: Mutex::default(),
            announced: Mutex::default(),
        })
    }

    pub(crate) fn frontends(&self) -> Vec<Arc<Frontend>> {
        self.frontends.lock().clone()
    }

    pub(crate) fn set_frontends(&self, frontends: Vec<Arc<Frontend>>) {
        *self.frontends.lock() = frontends;
        self.refresh();
    }

    /// Looks at the health of all frontends anew, and tells those who listen when
    /// the service's is another.
    pub(crate) fn refresh(&self) {
        // The lock is held until it is told: what comes last is what is true.
        let mut announced = self.announced.lock();
        let mut health = self.health();
        if let (Health::Unhealthy { since, .. }, Health::Unhealthy { since: before, .. }) =
            (&mut health, &*announced)
        {
            *since = *before;
        }
        let changed = !health.like(&announced);
        *announced = health;
        if changed {
            // Nobody may be listening.
            let _ = self.context.changes.send((self.id.clone(), announced.clone()));
        }
    }

    fn health(&self) -> Health {
        let frontends = self.frontends();
        let mut answer = Health::Healthy;
        let mut silent = 0;
        for frontend in &frontends {
            match frontend.health() {
                Health::Unhealthy { reason, .. } => {
                    let reason =
                        format!("{} port {}: {reason}", frontend.protocol, frontend.public);
                    return Health::Unhealthy { reason, since: (self.context.now)() };
                }
                Health::Unknown if frontend.protocol == Protocol::Udp => silent += 1,
                Health::Unknown => answer = Health::Unknown,
                Health::Healthy => {}
            }
        }
        // Unknown only if no target of any port was heard.
        if silent == frontends.len() { Health::Unknown } else { answer }
    }

    pub(crate) fn status(&self) -> Status {
        let ports = self.frontends().iter().map(|frontend| frontend.status()).collect();
        Status { health: self.announced.lock().clone(), ports }
    }
}
