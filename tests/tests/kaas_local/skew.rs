//! Versions that run on a machine at the same time, looked at all the while.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

use crate::site::process;

/// Clients and the servers that they must not be ahead of.
const PAIRS: [(&str, &str); 4] = [
    ("kube-controller-manager", "kube-apiserver"),
    ("kube-scheduler", "kube-apiserver"),
    ("kubelet", "kube-apiserver"),
    ("kube-proxy", "kube-apiserver"),
];

/// Somebody who looks at the versions of a control plane all the time.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    looks: JoinHandle<(BTreeSet<String>, BTreeSet<String>)>,
}

/// Version of a component, by the folder of its program. None while it does not run.
pub(crate) fn version(machine: &str, component: &str) -> Option<String> {
    let pid = process(machine, component)?;
    let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let own = command.split('\0').next()?.to_owned();
    // A container has its program mounted from such a folder.
    let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mounted = fields.rfind(|fields| fields.get(4) == Some(&own.as_str()));
    let program = mounted.and_then(|fields| Some((*fields.get(3)?).to_owned())).unwrap_or(own);
    Some(Path::new(&program).parent()?.file_name()?.to_str()?.to_owned())
}

fn minor(version: &str) -> u32 {
    version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

impl Watch {
    pub(crate) fn start(machine: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, machine) = (Arc::clone(&stop), machine.to_owned());
        let looks = spawn(move || {
            let (mut seen, mut wrong) = (BTreeSet::new(), BTreeSet::new());
            while !ended.load(Ordering::Relaxed) {
                for (client, server) in PAIRS {
                    // Versions only grow: whoever is looked at first may be behind by then,
                    // and never ahead.
                    let (own, api) = (version(&machine, client), version(&machine, server));
                    if let (Some(own), Some(api)) = (own, api) {
                        seen.insert(format!("{client} {own}, {server} {api}"));
                        if minor(&own) > minor(&api) {
                            wrong.insert(format!("{client} {own} with {server} {api}"));
                        }
                    }
                }
                sleep(Duration::from_millis(50));
            }
            (seen, wrong)
        });
        Self { stop, looks }
    }

    /// Pairs that ran at the same time, and those that must not.
    pub(crate) fn end(self) -> (BTreeSet<String>, BTreeSet<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.looks.join().unwrap()
    }
}
