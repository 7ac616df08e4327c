//! Redundancy: the share of the rules about spares that are met, of those
//! that apply.

use std::collections::HashMap;

use selvage_api::selvage::dashboard::{Mark, Object, Reason};

use super::{RELIABILITY, mark};
use crate::{
    facts::{Backups, Facts, Schedule, Storage, Volumes, object},
    rules::same_volume,
    text::quoted,
};

struct Rules {
    met: usize,
    broken: Vec<Reason>,
}

impl Rules {
    fn check(&mut self, rule: &str, holds: bool, object: Object, text: String, command: &str) {
        if holds {
            self.met += 1;
            return;
        }
        self.broken.push(Reason {
            rule: rule.into(),
            object: Some(object),
            text,
            command: command.into(),
            points: 0.0,
        });
    }
}

pub(super) fn reliability(facts: &Facts) -> Mark {
    let mut rules = Rules { met: 0, broken: Vec::new() };
    if let Some(storage) = &facts.storage {
        of_ceph(storage, &mut rules);
    }
    of_selvage(facts, &mut rules);
    let total = rules.met + rules.broken.len();
    if total == 0 {
        return mark(RELIABILITY, 0.0, Vec::new());
    }
    let points = 100.0 / total as f64;
    let broken = rules.broken.into_iter().map(|reason| Reason { points, ..reason });
    mark(RELIABILITY, 100.0 * rules.met as f64 / total as f64, broken.collect())
}

fn of_ceph(storage: &Storage, rules: &mut Rules) {
    let ceph = || object("ceph", storage.id.clone());
    if let Some(mon) = &storage.mon {
        let count = mon.names.len();
        let text =
            format!("there are {count} monitors; at least 3, and an odd number, survive a loss");
        let enough = count >= 3 && count % 2 == 1;
        rules.check("ceph_monitors", enough, ceph(), text, "ceph mon stat");
        let text = format!("{} of {count} monitors agree", mon.quorum.len());
        let agree = mon.quorum.len() == count;
        rules.check("ceph_quorum", agree, ceph(), text, "ceph quorum_status");
    }
    if let Some(mgr) = &storage.mgr {
        let text = "there is no standby manager".to_owned();
        rules.check("ceph_managers", !mgr.standbys.is_empty(), ceph(), text, "ceph mgr stat");
    }
    for pool in storage.pools.iter().flatten() {
        let object = object("ceph", pool.name.clone());
        let text = format!("pool {} does not survive the loss of two disks", pool.name);
        let command = "ceph osd pool ls detail";
        let safe = match pool.coding {
            Some(coding) => coding >= 2,
            None => pool.size >= 3 && pool.min_size >= 2,
        };
        rules.check("ceph_pool", safe, object, text, command);
    }
    if let Some(mds) = storage.mds.as_ref().filter(|mds| !mds.filesystems.is_empty()) {
        let text = "no metadata server stands by".to_owned();
        rules.check("ceph_standby_mds", mds.standbys > 0, ceph(), text, "ceph fs status");
    }
    if let Some(rgw) = storage.rgw.as_ref().filter(|rgw| rgw.daemons > 0) {
        let text = "there is one object gateway".to_owned();
        rules.check("ceph_gateways", rgw.daemons >= 2, ceph(), text, "ceph orch ls rgw");
    }
    if let Some(hosts) = storage.hosts {
        let text = format!("the disks are on {hosts} hosts; 3 survive the loss of one");
        rules.check("ceph_hosts", hosts >= 3, ceph(), text, "ceph osd tree");
    }
}

fn of_selvage(facts: &Facts, rules: &mut Rules) {
    if let Some(process) = facts.process.as_ref().filter(|p| !p.controllers.is_empty()) {
        let count = process.controllers.len();
        let text = format!("there is {count} controller; a second one goes on when it fails");
        let command = "selvage controller --set store.kind=etcd";
        rules.check("controllers", count >= 2, object("process", "controller"), text, command);
        let text = "the store is one file on one disk; etcd keeps three copies".to_owned();
        let copies = process.store == "etcd";
        let command = "selvage store export FILE";
        rules.check("store_copies", copies, object("store", process.store.clone()), text, command);
    }
    if let (Some(volumes), Some(backups)) = (&facts.volumes, &facts.backups) {
        backups_of_volumes(volumes, backups, rules);
    }
}

/// Every volume that is no snapshot has a schedule.
fn backups_of_volumes(volumes: &Volumes, backups: &Backups, rules: &mut Rules) {
    let mut named: HashMap<&str, usize> = HashMap::new();
    for volume in &volumes.volumes {
        *named.entry(volume.name.as_str()).or_default() += 1;
    }
    for volume in volumes.volumes.iter().filter(|volume| !volume.snapshot) {
        let full = format!("{}/{}", volume.group, volume.name);
        let scheduled = |schedule: &Schedule| same_volume(&schedule.volume, &full);
        let scheduled = backups.schedules.iter().any(scheduled);
        // The group is named only where the name alone could be another volume.
        let is_alone = named.get(volume.name.as_str()) == Some(&1);
        let shown = if is_alone { volume.name.clone() } else { full };
        let text = format!("volume {shown} has no scheduled backup");
        let (short, name) = (quoted(&shown.replace('/', "-")), quoted(&shown));
        let command = format!(
            "selvage backup schedule set {short}-daily {name} backups/{name} --store file: \
             --credentials NAME --every 1d"
        );
        rules.check("volume_backup", scheduled, object("backup", shown), text, &command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Volume;

    fn without_backup(volumes: &[(&str, &str)], schedules: &[&str]) -> Vec<String> {
        let volume = |(group, name): &(&str, &str)| Volume {
            group: (*group).into(),
            name: (*name).into(),
            snapshot: false,
            pending: false,
        };
        let schedule = |volume: &&str| Schedule {
            object: object("backup", "nightly"),
            volume: (*volume).into(),
            every_seconds: 60,
            error: String::new(),
        };
        let volumes =
            Volumes { volumes: volumes.iter().map(volume).collect(), ..Volumes::default() };
        let schedules = schedules.iter().map(schedule).collect();
        let backups = Backups { schedules, ..Backups::default() };
        let mut rules = Rules { met: 0, broken: Vec::new() };
        backups_of_volumes(&volumes, &backups, &mut rules);
        rules.broken.into_iter().map(|reason| reason.text).collect()
    }

    #[test]
    fn a_schedule_of_another_groups_volume_is_none_of_this_one() {
        let volumes = [("one", "data"), ("two", "data")];
        let second = ["volume two/data has no scheduled backup"];
        assert_eq!(without_backup(&volumes, &["one/data"]), second);
        assert_eq!(without_backup(&volumes, &["one/data", "two/data"]), [""; 0]);
        // A schedule may name the volume alone.
        assert_eq!(without_backup(&[("one", "data")], &["data"]), [""; 0]);
        let alone = ["volume data has no scheduled backup"];
        assert_eq!(without_backup(&[("one", "data")], &["two/data"]), alone);
    }
}
