//! The storage cluster's numbers: of Ceph where there is one, else of our own
//! volumes and machines.

use jiff::Timestamp;
use selvage_api::{
    resources::stats::{
        ClusterStats, Crash, Data, Io, MdsService, MgrService, MonService, Objects, OsdService,
        Pgs, Pools, RgwService, Services, Usage,
    },
    selvage::dashboard::{Problem, Severity},
};

use crate::{
    facts::{self, Facts, Storage, each},
    snapshot::Snapshot,
    source::sum,
    stamp, text,
};

/// All numbers of a snapshot.
pub(crate) fn cluster_stats(snapshot: &Snapshot) -> ClusterStats {
    match &snapshot.facts.storage {
        Some(storage) => of_ceph(storage),
        None => of_selvage(snapshot),
    }
}

/// The wire has 32 bits for what may be more.
fn small(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn large(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn time(time: Option<Timestamp>) -> Option<prost_types::Timestamp> {
    time.map(stamp)
}

fn io(io: facts::Io) -> Io {
    Io {
        client_read: text::read_rate(io.read_bytes),
        client_read_ops: text::ops(io.reads, "rd"),
        client_write_ops: text::ops(io.writes, "wr"),
    }
}

fn of_ceph(storage: &Storage) -> ClusterStats {
    let checks = storage.checks.iter().filter(|check| !check.muted);
    let checks = checks.map(|check| check.message.clone());
    let crashes = storage.crashes.iter().map(|crash| format!("crash: {crash}"));
    ClusterStats {
        id: storage.id.clone(),
        status: storage.status.clone(),
        crashes: checks.chain(crashes).map(|description| Crash { description }).collect(),
        services: Some(services(storage)),
        data: Some(data(storage)),
        test: String::new(),
        io: storage.io.map(io),
    }
}

fn services(storage: &Storage) -> Services {
    Services {
        mon: storage.mon.as_ref().map(|mon| MonService {
            daemon_count: small(mon.names.len() as u64),
            quorum: mon.quorum.join(","),
            created_at: time(mon.created),
            updated_at: time(mon.modified),
        }),
        mgr: storage.mgr.as_ref().map(|mgr| MgrService {
            active: mgr.active.clone(),
            standbys: mgr.standbys.clone(),
            updated_at: time(mgr.changed),
        }),
        mds: storage.mds.as_ref().map(|mds| MdsService {
            daemons_up: small(mds.up),
            hot_standby_count: small(mds.standbys),
        }),
        osd: storage.osd.as_ref().map(|osd| OsdService {
            osd_count: small(osd.count),
            osd_up: small(osd.up),
            osd_in: small(osd.r#in),
            osd_up_updated_at: time(osd.up_changed),
            osd_in_updated_at: time(osd.in_changed),
        }),
        rgw: storage.rgw.as_ref().map(|rgw| RgwService {
            active_daemon: small(rgw.daemons),
            host_count: small(rgw.hosts.unwrap_or_default()),
            zone_count: small(rgw.zones.unwrap_or_default()),
        }),
    }
}

fn data(storage: &Storage) -> Data {
    let objects = storage.objects.is_some() || storage.stored_bytes.is_some();
    Data {
        volumes: small(storage.volumes.unwrap_or_default()),
        pools: storage.pools.as_ref().map(|pools| Pools {
            pools: small(pools.len() as u64),
            pgs: storage.clean_pgs.map(|count| Pgs { active_clean: small(count) }),
        }),
        objects: objects.then(|| Objects {
            object_count: small(storage.objects.unwrap_or_default()),
            size: text::bytes(storage.stored_bytes.unwrap_or_default() as f64),
        }),
        usage: storage.usage.map(|usage| Usage {
            used: large(usage.used),
            available: large(usage.available),
            total: large(usage.total),
        }),
    }
}

/// Without Ceph the same fields tell of our own volumes and machines;
/// docs/dashboard.md says which of what.
fn of_selvage(snapshot: &Snapshot) -> ClusterStats {
    let problems = &snapshot.overview.problems;
    let status = match problems.iter().map(Problem::severity).max() {
        Some(Severity::Critical) => "HEALTH_ERR",
        Some(Severity::Warning) => "HEALTH_WARN",
        _ => "HEALTH_OK",
    };
    let serious = problems.iter().filter(|problem| problem.severity() >= Severity::Warning);
    // What crashed comes after what is wrong.
    let (crashes, wrong): (Vec<&Problem>, Vec<&Problem>) =
        serious.partition(|problem| problem.rule == "instance_crash_loop");
    let wrong = wrong.into_iter().map(|problem| problem.summary.clone());
    let crashes = crashes.into_iter().map(|problem| format!("crash: {}", problem.summary));
    ClusterStats {
        id: snapshot.id.clone(),
        status: status.into(),
        crashes: wrong.chain(crashes).map(|description| Crash { description }).collect(),
        services: None,
        data: own_data(&snapshot.facts),
        test: String::new(),
        io: snapshot.facts.hosts.as_ref().map(|_| io(own_io(&snapshot.facts))),
    }
}

fn own_data(facts: &Facts) -> Option<Data> {
    let volumes = facts.volumes.as_ref()?;
    let room = volumes.room();
    let total = sum(room.iter().map(|(group, _)| group.size));
    let used = sum(room.iter().map(|(_, used)| *used));
    let available = large(total.saturating_sub(used));
    Some(Data {
        volumes: small(volumes.volumes.len() as u64),
        pools: Some(Pools { pools: small(volumes.classes.into()), pgs: None }),
        objects: None,
        usage: Some(Usage { used: large(used), available, total: large(total) }),
    })
}

fn own_io(facts: &Facts) -> facts::Io {
    let mut sum = facts::Io::default();
    for host in each(&facts.hosts) {
        sum.read_bytes += host.io.read_bytes;
        sum.written_bytes += host.io.written_bytes;
        sum.reads += host.io.reads;
        sum.writes += host.io.writes;
    }
    sum
}
