//! Last report of the controller, stored for the time it is away.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use selvage_api::selvage::identity as wire;
use selvage_kit::pki;
use serde::{Deserialize, Serialize};

const FILE: &str = "known.json";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownMachines {
    pub(super) controller: String,
    /// Identity of the region for as long as this machine belongs to it: the
    /// authority that it joined under. Empty: the one that it believes now.
    #[serde(default)]
    pub(super) region: String,
    /// Sorted by name.
    pub(super) machines: Vec<Neighbour>,
    pub(super) blocked: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Neighbour {
    pub(super) machine: String,
    pub(super) address: String,
    pub(super) labels: BTreeMap<String, String>,
}

impl KnownMachines {
    pub(super) fn of(answer: wire::ReportResponse) -> Self {
        let neighbour = |machine: wire::Machine| Neighbour {
            machine: machine.machine,
            address: machine.address,
            labels: machine.labels.into_iter().collect(),
        };
        let mut machines: Vec<_> = answer.machines.into_iter().map(neighbour).collect();
        machines.sort_by(|a, b| a.machine.cmp(&b.machine));
        let blocked = answer.blocked.into_iter().collect();
        Self { machines, blocked, ..Self::default() }
    }

    pub(super) fn read(directory: &Path) -> io::Result<Self> {
        let text = fs::read(directory.join(FILE))?;
        serde_json::from_slice(&text).map_err(io::Error::from)
    }

    pub(super) fn write(&self, directory: &Path) -> Result<(), pki::Error> {
        // Strings and lists of strings can always be written.
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        pki::replace_private(&directory.join(FILE), &text)
    }
}

pub(super) fn to_wire(neighbour: &Neighbour) -> wire::Machine {
    wire::Machine {
        machine: neighbour.machine.clone(),
        address: neighbour.address.clone(),
        labels: neighbour.labels.clone().into_iter().collect(),
        ..wire::Machine::default()
    }
}
