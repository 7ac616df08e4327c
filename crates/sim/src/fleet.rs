//! Many simulated crms.

use selvage_api::edgeproto::{CloudletKey, OperatorKey};
use selvage_notify::Error;

use crate::{Infrastructure, SimCrm, SimOptions};

/// A number of crms, each of a cloudlet of its own.
#[derive(Debug)]
pub struct SimFleet {
    crms: Vec<SimCrm>,
}

impl SimFleet {
    /// Starts `count` crms like the example, of the cloudlets
    /// [`SimFleet::cloudlet`]. Needs a runtime.
    pub fn start(count: usize, example: &SimOptions) -> Result<Self, Error> {
        let one = |number| {
            let cloudlet = Self::cloudlet(number);
            let node = cloudlet.name.trim_start_matches("sim-").to_owned();
            SimCrm::start(SimOptions { cloudlet, node, ..example.clone() })
        };
        Ok(Self { crms: (0..count).map(one).collect::<Result<_, _>>()? })
    }

    /// The cloudlet of one of them: `sim-cloudlet-<number>` of operator `sim`.
    pub fn cloudlet(number: usize) -> CloudletKey {
        CloudletKey {
            operator_key: Some(OperatorKey { name: "sim".into() }),
            name: format!("sim-cloudlet-{number}"),
        }
    }

    /// All of them, in the order of their numbers.
    pub fn crms(&self) -> &[SimCrm] {
        &self.crms
    }

    /// Returns the number of crms that have everything that their controller has
    /// for them.
    pub fn in_sync(&self) -> usize {
        self.crms.iter().filter(|crm| crm.client().in_sync).count()
    }

    /// Notices received by all together.
    pub fn received(&self) -> u64 {
        self.crms.iter().map(|crm| crm.client().stats.recv).sum()
    }

    /// Bytes of notices received by all together.
    pub fn received_bytes(&self) -> u64 {
        self.crms.iter().map(|crm| crm.client().stats.recv_bytes).sum()
    }

    /// Returns the infrastructure of all cloudlets together.
    pub fn infrastructure(&self) -> Infrastructure {
        let mut all = Infrastructure::default();
        for crm in &self.crms {
            let one = crm.infrastructure();
            all.clusters.extend(one.clusters);
            all.instances.extend(one.instances);
        }
        all
    }

    /// Breaks all connections at once.
    pub fn break_connections(&self) {
        self.crms.iter().for_each(SimCrm::break_connection);
    }
}
