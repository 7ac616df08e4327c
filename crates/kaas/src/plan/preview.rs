//! The whole way that a cluster has before it, if nothing fails.

use selvage_store::clock::Millis;

use super::{Action, Policy, Snapshot, Step, plan};
use crate::{
    record::{AuthorityRecord, Machine, Phase},
    validate::CONTROL_PLANE,
};

/// More steps than the largest cluster has before it.
const MOST_STEPS: usize = 200_000;

/// Returns every action from here to the end, in order, as if each went well
/// at once.
pub fn preview(mut snapshot: Snapshot, policy: &Policy, now: Millis) -> Vec<Action> {
    let mut all = Vec::new();
    let mut number = 0;
    loop {
        let actions = plan(&snapshot, policy, now).actions;
        if actions.is_empty() || all.len() > MOST_STEPS {
            return all;
        }
        let ends = actions.contains(&Action::Finish);
        for action in &actions {
            pretend(&mut snapshot, action, &mut number, now);
        }
        all.extend(actions);
        if ends {
            return all;
        }
    }
}

fn pretend(snapshot: &mut Snapshot, action: &Action, number: &mut usize, now: Millis) {
    let find = |machine: &str, all: &[Machine]| all.iter().position(|m| m.name == machine);
    match action {
        Action::Add { pool, wanted } => {
            *number += 1;
            let prefix = if pool.is_empty() { CONTROL_PLANE } else { pool };
            let mut machine = Machine {
                name: format!("{prefix}-{number}"),
                pool: pool.clone(),
                wanted: wanted.clone(),
                ..Machine::default()
            };
            machine.enter(Phase::Requested, "", now);
            snapshot.machines.push(machine);
            snapshot.machines.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Action::Remove { machine } => {
            if let Some(at) = find(machine, &snapshot.machines) {
                snapshot.machines[at].removing = true;
            }
        }
        Action::Replace { machine } => {
            if let Some(at) = find(machine, &snapshot.machines) {
                snapshot.machines[at].fail("it is dead", now);
            }
        }
        Action::Retarget { machine, wanted } => {
            if let Some(at) = find(machine, &snapshot.machines) {
                snapshot.machines[at].wanted = wanted.clone();
            }
        }
        Action::ForgetPool { pool } => snapshot.pools.retain(|p| p.name != *pool),
        Action::Finish => {}
        Action::SetMachineStage { machine, stage } => {
            if let Some(at) = find(machine, &snapshot.machines) {
                snapshot.machines[at].wanted.authority_stage = *stage;
            }
        }
        Action::SetAuthorityStage { stage } => snapshot.cluster.authorities.stage = *stage,
        Action::ForgetAuthorities { generation } => {
            snapshot.cluster.authorities = AuthorityRecord::settled(generation + 1);
        }
        Action::Backup { version } => snapshot.cluster.backed_up_for.clone_from(version),
        Action::Step { machine, step } => {
            let Some(at) = find(machine, &snapshot.machines) else { return };
            match step.done(&snapshot.machines[at], now) {
                Some(next) => snapshot.machines[at] = next,
                None => drop(snapshot.machines.remove(at)),
            }
            if *step == Step::Configure {
                snapshot.cluster.provisioned = true;
            }
        }
    }
}
