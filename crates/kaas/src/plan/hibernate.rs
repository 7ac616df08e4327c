//! Clusters that are stopped for a while: workers first, and started again the
//! other way round.

use super::{Action, Planner, Step};
use crate::record::{Machine, Phase};

impl Planner<'_> {
    /// Stops workers, and the control plane when none of them runs any more.
    pub(super) fn hibernate(&mut self) {
        let awake = |m: &&Machine| m.phase() != Phase::Hibernated;
        let (planes, workers): (Vec<&Machine>, Vec<&Machine>) =
            self.snapshot.machines.iter().filter(awake).partition(|m| m.is_control_plane());
        let next = if workers.is_empty() { planes } else { workers };
        for machine in next {
            if self.is_due(machine) {
                let (machine, step) = (machine.name.clone(), Step::Hibernate);
                self.act(Action::Step { machine, step });
            }
        }
    }

    /// Returns whether a machine may be started again: workers need an API, and etcd
    /// needs all of the control plane that it can get.
    pub(super) fn may_wake(&self, machine: &Machine) -> bool {
        machine.is_control_plane() || self.api_is_up()
    }
}
