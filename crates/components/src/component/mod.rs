//! Components in the order in which they start.

mod apiserver;
mod containerd;
mod controller_manager;
mod coredns;
mod etcd;
mod kubelet;
mod lvmd;
mod proxy;
mod scheduler;

use std::path::PathBuf;

use selvage_api::selvage::kubernetes::MemberSpec;
use selvage_runtime::Mount;

use crate::{
    Result,
    member::{API_PORT, File, Member, Paths},
    probe::Probe,
};

pub(crate) use containerd::PAUSE_IMAGE;
pub(crate) use etcd::peer_url as etcd_peer_url;

/// Components that have to be healthy before another is started for the first time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gate {
    /// Name of what is waited for.
    pub(crate) name: &'static str,
    pub(crate) probe: Probe,
}

/// One component of this member.
pub(crate) struct Component {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) files: Vec<File>,
    /// Folders of the machine that it needs; a part of the machine has all.
    pub(crate) mounts: Vec<Mount>,
    /// A part of the machine, see `ContainerSpec::host`.
    pub(crate) host: bool,
    pub(crate) gate: Option<Gate>,
    pub(crate) health: Probe,
}

/// Makes a component, or says what it misses.
type Make = fn(&Member<'_>) -> Result<Component>;

/// A component that a machine may have to have.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) make: Make,
    wanted: fn(&MemberSpec, &Paths) -> bool,
    /// Component that has to run its new version before this one is replaced by another
    /// version: clients are never ahead of their servers.
    pub(crate) after: Option<&'static str>,
}

/// All there are.
pub(crate) const KINDS: [Kind; 9] = [
    Kind { name: etcd::NAME, make: etcd::component, wanted: in_control_plane, after: None },
    Kind {
        name: apiserver::NAME,
        make: apiserver::component,
        wanted: in_control_plane,
        after: Some(etcd::NAME),
    },
    Kind {
        name: controller_manager::NAME,
        make: controller_manager::component,
        wanted: in_control_plane,
        after: Some(apiserver::NAME),
    },
    Kind {
        name: scheduler::NAME,
        make: scheduler::component,
        wanted: in_control_plane,
        after: Some(apiserver::NAME),
    },
    Kind { name: containerd::NAME, make: containerd::component, wanted: runs_pods, after: None },
    Kind { name: lvmd::NAME, make: lvmd::component, wanted: keeps_volumes, after: None },
    Kind {
        name: kubelet::NAME,
        make: kubelet::component,
        wanted: runs_pods,
        after: Some(apiserver::NAME),
    },
    Kind {
        name: proxy::NAME,
        make: proxy::component,
        wanted: runs_pods,
        after: Some(apiserver::NAME),
    },
    Kind { name: coredns::NAME, make: coredns::component, wanted: runs_pods, after: None },
];

impl Kind {
    pub(crate) fn is_wanted(&self, spec: &MemberSpec, paths: &Paths) -> bool {
        (self.wanted)(spec, paths)
    }
}

fn in_control_plane(spec: &MemberSpec, _: &Paths) -> bool {
    spec.control_plane.is_some()
}

fn runs_pods(spec: &MemberSpec, _: &Paths) -> bool {
    spec.worker.is_some()
}

fn keeps_volumes(spec: &MemberSpec, paths: &Paths) -> bool {
    spec.worker.is_some() && paths.runs_lvmd()
}

/// An API server has to answer, on whichever machine.
fn api_answers() -> Gate {
    let url = format!("https://127.0.0.1:{API_PORT}/readyz");
    Gate { name: "kube-apiserver", probe: Probe::Page(url) }
}

/// Arguments of the form `--name=value`.
fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}
