//! Certificate authorities that are replaced while the cluster runs.
//!
//! First every machine trusts the new ones too, then certificates are signed by
//! them, then the old ones are trusted no more. Members of two neighbouring stages
//! understand each other, so machines change one after the other, and no stage
//! begins before all machines have the one before it.

use super::{Action, Planner, by_pool, is_settled};
use crate::record::Machine;

impl Planner<'_> {
    /// Takes the next step of a replacement; false if there is none.
    pub(super) fn rotate(&mut self) -> bool {
        let authorities = self.snapshot.cluster.authorities;
        if !authorities.is_rotating() || !self.snapshot.cluster.provisioned {
            return false;
        }
        let stage = authorities.stage;
        let machines = &self.snapshot.machines;
        // One that runs nothing yet begins with the stage of the others.
        let fresh = |m: &&Machine| m.phase().is_before_kubernetes() && !m.removing;
        let behind = |m: &&Machine| m.wanted.authority_stage != stage;
        let fresh: Vec<&Machine> = machines.iter().filter(fresh).filter(behind).collect();
        for machine in fresh {
            self.set_stage(machine.name.clone(), stage);
        }
        let member = |m: &&Machine| m.phase().is_member();
        if machines.iter().filter(member).all(|m| m.running.authority_stage == stage) {
            self.act(match stage == authorities.target {
                true => Action::ForgetAuthorities { generation: authorities.generation },
                false => Action::SetAuthorityStage { stage: stage + 1 },
            });
            return true;
        }
        let planes: Vec<&Machine> = self.staying("").collect();
        if let Some(machine) = planes.iter().find(|m| m.wanted.authority_stage != stage) {
            let (machine, settled) = (machine.name.clone(), planes.iter().all(|m| is_settled(m)));
            if settled {
                self.set_stage(machine, stage);
            }
            return true;
        }
        if planes.iter().all(|m| m.running.authority_stage == stage) {
            self.rotate_workers(stage);
        }
        true
    }

    fn rotate_workers(&mut self, stage: u32) {
        for machines in by_pool(self.snapshot).into_values() {
            let moving = machines.iter().filter(|m| !is_settled(m)).count();
            let room = self.policy.max_unavailable.saturating_sub(moving);
            let behind =
                machines.into_iter().filter(|m| is_settled(m) && m.wanted.authority_stage != stage);
            for machine in behind.take(room) {
                self.set_stage(machine.name.clone(), stage);
            }
        }
    }

    fn set_stage(&mut self, machine: String, stage: u32) {
        self.act(Action::SetMachineStage { machine, stage });
    }
}
