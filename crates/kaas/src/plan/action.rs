//! Actions that a planner can ask for.

use std::fmt;

use selvage_store::clock::Millis;

use crate::{
    pki::STAGES,
    record::{Machine, NodeFacts, Phase, Versions},
};

/// A thing to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// One more machine for a pool, or for the control plane if it is empty.
    Add { pool: String, wanted: Versions },
    /// A machine is to go.
    Remove { machine: String },
    /// A machine that is dead is to go at once, without a drain.
    Replace { machine: String },
    /// A machine is to run other versions.
    Retarget { machine: String, wanted: Versions },
    /// A pool that is being deleted has no machines left.
    ForgetPool { pool: String },
    /// A cluster that is being deleted has no machines left.
    Finish,
    /// A snapshot of etcd, before the control plane is given that version.
    Backup { version: String },
    /// Certificate authorities of a cluster are replaced, and all machines are ready for
    /// the next stage of it.
    SetAuthorityStage { stage: u32 },
    /// A machine is to have certificates and trust authorities of that stage.
    SetMachineStage { machine: String, stage: u32 },
    /// The authorities of that generation are trusted by no machine any more.
    ForgetAuthorities { generation: u32 },
    /// A step of one machine.
    Step { machine: String, step: Step },
}

/// A step of one machine. Each is short, may be repeated, and says whether it
/// is done or has to be taken again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Ask the provider for a machine.
    Acquire,
    /// See whether its agent answers.
    Observe,
    /// Tell the agent what to run.
    Configure,
    /// See whether the node is ready, and give it its labels.
    Join,
    /// Keep new pods away.
    Cordon,
    /// Move pods away, as their disruption budgets allow.
    Drain,
    /// Move pods away, whatever their disruption budgets say.
    ForceDrain,
    /// Leave etcd and the list of nodes.
    Leave,
    /// Wipe it and give it back.
    Release,
    /// Give it up.
    Fail,
    /// Stop Kubernetes on it and keep its data.
    Hibernate,
    /// Start Kubernetes on it again.
    Wake,
}

impl Step {
    /// The phase that a machine is in while the step is taken; written down
    /// before it is.
    pub fn phase(self, machine: &Machine) -> Phase {
        match self {
            Self::Acquire => Phase::Requested,
            Self::Observe if machine.phase() == Phase::Allocated => Phase::Allocated,
            Self::Observe => Phase::Deploying,
            Self::Configure if machine.running.kubelet.is_empty() => Phase::Bootstrapping,
            Self::Configure => Phase::Upgrading,
            Self::Join => Phase::Joining,
            // Nothing is kept away before it is done.
            Self::Cordon => machine.phase(),
            Self::Drain | Self::ForceDrain => Phase::Draining,
            Self::Leave => Phase::Removing,
            Self::Release => Phase::Releasing,
            Self::Fail | Self::Hibernate | Self::Wake => machine.phase(),
        }
    }

    /// Phase of a machine after the step is done; `None`: it is gone.
    pub fn done(self, machine: &Machine, now: Millis) -> Option<Machine> {
        let mut next = machine.clone();
        next.retries = 0;
        next.retry_at = 0;
        match self {
            Self::Acquire => next.enter(Phase::Allocated, "", now),
            Self::Observe => next.enter(Phase::Booting, "", now),
            Self::Configure => {
                next.running = next.wanted.clone();
                // What the node said before is no longer so.
                next.node = NodeFacts::default();
                next.enter(Phase::Joining, "", now);
            }
            Self::Hibernate => next.enter(Phase::Hibernated, "", now),
            Self::Wake => next.enter(Phase::Joining, "", now),
            Self::Join => {
                (next.cordoned, next.node.unschedulable) = (false, false);
                next.enter(Phase::Ready, "", now);
            }
            Self::Cordon => {
                next.cordoned = true;
                next.enter(Phase::Cordoned, "", now);
            }
            Self::Drain | Self::ForceDrain if next.removing => {
                next.enter(Phase::Removing, "", now);
            }
            Self::Drain | Self::ForceDrain => next.enter(Phase::Upgrading, "", now),
            Self::Leave => next.enter(Phase::Releasing, "", now),
            Self::Release => return None,
            Self::Fail => {
                let since = next.phase().name();
                let reason = format!("did not get past {since} in time: {}", next.reason);
                next.fail(reason, now);
            }
        }
        Some(next)
    }
}

impl Machine {
    /// Gives the machine up: it leaves the cluster if it was in it, and is
    /// given back.
    pub fn fail(&mut self, reason: impl Into<String>, now: Millis) {
        let phase =
            if self.phase().is_before_kubernetes() { Phase::Failed } else { Phase::Removing };
        self.removing = true;
        self.retry_at = 0;
        self.enter(phase, reason, now);
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add { pool, wanted } if pool.is_empty() => {
                write!(f, "add a control-plane machine with Kubernetes {}", wanted.kubelet)
            }
            Self::Add { pool, wanted } => {
                write!(f, "add a machine to pool {pool} with Kubernetes {}", wanted.kubelet)
            }
            Self::Remove { machine } => write!(f, "remove {machine}"),
            Self::Replace { machine } => write!(f, "replace {machine}, which is dead"),
            Self::Retarget { machine, wanted } if !wanted.control_plane.is_empty() => write!(
                f,
                "upgrade {machine} to control plane {} and kubelet {}",
                wanted.control_plane, wanted.kubelet
            ),
            Self::Retarget { machine, wanted } => {
                write!(f, "upgrade {machine} to kubelet {}", wanted.kubelet)
            }
            Self::ForgetPool { pool } => write!(f, "forget pool {pool}"),
            Self::Finish => f.write_str("forget the cluster and its keys"),
            Self::Backup { version } => {
                write!(f, "take a snapshot of etcd before the upgrade to {version}")
            }
            Self::SetAuthorityStage { stage } => f.write_str(match stage % STAGES {
                1 => "trust the new certificate authorities beside the old ones",
                2 => "sign certificates by the new authorities",
                _ => "trust the new certificate authorities alone",
            }),
            Self::SetMachineStage { machine, .. } => {
                write!(f, "change certificates and trusted authorities of {machine}")
            }
            Self::ForgetAuthorities { .. } => f.write_str("forget the old certificate authorities"),
            Self::Step { machine, step } => match step {
                Step::Acquire => write!(f, "acquire a machine for {machine}"),
                Step::Observe => write!(f, "wait for the agent of {machine}"),
                Step::Configure => write!(f, "start Kubernetes on {machine}"),
                Step::Join => write!(f, "wait until node {machine} is ready, and label it"),
                Step::Cordon => write!(f, "cordon {machine}"),
                Step::Drain => write!(f, "drain {machine}"),
                Step::ForceDrain => {
                    write!(f, "delete the pods of {machine} that budgets kept for too long")
                }
                Step::Leave => write!(f, "take {machine} out of the cluster"),
                Step::Release => write!(f, "wipe {machine} and give it back"),
                Step::Fail => write!(f, "give up {machine}"),
                Step::Hibernate => write!(f, "stop Kubernetes on {machine} and keep its data"),
                Step::Wake => write!(f, "start Kubernetes on {machine} again"),
            },
        }
    }
}
