//! Machines that are dead: which of them may be replaced, and when.

use selvage_store::clock::Millis;

use super::{Action, Planner};
use crate::record::{Machine, Phase};

impl Planner<'_> {
    /// Replaces a machine that has been dead for too long; the next one when the
    /// cluster is whole again.
    pub(super) fn remedy(&mut self) {
        let limit = u64::try_from(self.policy.remediate_after.as_millis()).unwrap_or(u64::MAX);
        if limit == 0 || !self.snapshot.cluster.provisioned {
            return;
        }
        let mut dead: Vec<&Machine> =
            self.snapshot.machines.iter().filter(|machine| is_dead(machine)).collect();
        dead.sort_by_key(|machine| (machine.lost_since, &machine.name));
        for machine in dead {
            let due = due_at(machine, limit);
            if due > self.now {
                self.wake(due);
            } else if !self.is_busy() && self.may_lose(machine) {
                return self.act(Action::Replace { machine: machine.name.clone() });
            }
        }
    }

    /// Returns whether machines come or go. One that waits to be wiped does neither.
    fn is_busy(&self) -> bool {
        let goes = |m: &Machine| m.removing && m.phase() != Phase::Releasing;
        let comes = |m: &Machine| !m.removing && m.phase().is_coming_up();
        self.snapshot.machines.iter().any(|m| goes(m) || comes(m))
    }

    /// Returns whether the cluster goes on without the machine. Of a control plane those
    /// that are left have to be a majority of all, the dead one counted.
    fn may_lose(&self, machine: &Machine) -> bool {
        if !machine.is_control_plane() {
            return self.api_is_up();
        }
        let all = self.staying("").count();
        let well = self.staying("").filter(|other| other.phase() == Phase::Ready).count();
        all >= 3 && well > all / 2
    }
}

fn is_dead(machine: &Machine) -> bool {
    machine.phase() == Phase::NotReady && machine.lost_since > 0 && !machine.removing
}

/// Time at which a dead machine is to be replaced, or is looked at again.
fn due_at(machine: &Machine, limit: Millis) -> Millis {
    let since = machine.lost_since.max(machine.since);
    since.saturating_add(limit).max(machine.retry_at)
}
