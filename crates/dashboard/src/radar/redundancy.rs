//! Redundancy: the share of the rules about spares that are met, of those
//! that apply.

use selvage_api::selvage::dashboard::{Mark, Object, Reason};

use super::{RELIABILITY, mark};
use crate::{
    facts::{Facts, Storage, object},
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
        for volume in &volumes.names {
            let of_volume = |full: &str| full.rsplit('/').next() == Some(volume.as_str());
            let scheduled = backups.schedules.iter().any(|schedule| of_volume(&schedule.volume));
            let text = format!("volume {volume} has no scheduled backup");
            let name = quoted(volume);
            let command = format!(
                "selvage backup schedule set {name}-daily {name} backups/{name} --store file: \
                 --credentials NAME --every 1d"
            );
            rules.check(
                "volume_backup",
                scheduled,
                object("backup", volume.clone()),
                text,
                &command,
            );
        }
    }
}
