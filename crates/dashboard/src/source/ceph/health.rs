//! `GET /api/health/full` of versions 16 to 20. A user who may not see a
//! section gets an answer without it, so everything is optional.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    facts::{Check, Io, Mds, Mgr, Mon, Osd, Pool, Rgw, Storage, Usage},
    source::{Failure, sum},
};

/// Thresholds of Ceph where it does not tell its own.
pub(super) const NEAR_FULL: f64 = 0.85;
pub(super) const FULL: f64 = 0.95;
/// Longest text of a check that is kept, and most of its details.
const LONGEST: usize = 1000;
const MOST_DETAILS: usize = 20;

/// A section that is missing or of another shape than we know is none.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(from)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Full {
    health: Option<Health>,
    #[serde(deserialize_with = "lenient")]
    mon_status: Option<MonStatus>,
    #[serde(deserialize_with = "lenient")]
    mgr_map: Option<MgrMap>,
    #[serde(deserialize_with = "lenient")]
    osd_map: Option<OsdMap>,
    #[serde(deserialize_with = "lenient")]
    fs_map: Option<FsMap>,
    #[serde(deserialize_with = "lenient")]
    pg_info: Option<PgInfo>,
    #[serde(deserialize_with = "lenient")]
    pools: Option<Vec<PoolInfo>>,
    #[serde(deserialize_with = "lenient")]
    df: Option<Df>,
    #[serde(deserialize_with = "lenient")]
    client_perf: Option<ClientPerf>,
    #[serde(deserialize_with = "lenient")]
    rgw: Option<u64>,
}

#[derive(Deserialize)]
struct Health {
    status: String,
    #[serde(default, deserialize_with = "lenient")]
    checks: Option<Vec<CheckInfo>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CheckInfo {
    severity: String,
    summary: Message,
    detail: Vec<Message>,
    muted: bool,
    r#type: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Message {
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MonStatus {
    quorum: Vec<u64>,
    monmap: MonMap,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MonMap {
    fsid: String,
    created: String,
    modified: String,
    mons: Vec<MonInfo>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MonInfo {
    rank: u64,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Named {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct MgrMap {
    active_name: String,
    active_change: String,
    standbys: Vec<Named>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OsdMap {
    osds: Vec<OsdInfo>,
    last_up_change: String,
    last_in_change: String,
    nearfull_ratio: Option<f64>,
    full_ratio: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OsdInfo {
    up: u64,
    r#in: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FsMap {
    standbys: Vec<Value>,
    filesystems: Vec<Filesystem>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Filesystem {
    mdsmap: MdsMap,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MdsMap {
    fs_name: String,
    /// One key for each daemon that is up.
    up: BTreeMap<String, Value>,
    info: BTreeMap<String, MdsInfo>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MdsInfo {
    state: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PgInfo {
    statuses: BTreeMap<String, u64>,
    object_stats: ObjectStats,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ObjectStats {
    num_objects: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PoolInfo {
    pool_name: String,
    /// 1, or "replicated"; 3, or "erasure".
    r#type: Value,
    size: u64,
    min_size: u64,
    pg_status: BTreeMap<String, u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Df {
    stats: DfStats,
    pools: Vec<DfPool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DfStats {
    total_bytes: u64,
    total_avail_bytes: u64,
    total_used_bytes: u64,
    total_used_raw_ratio: Option<f64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DfPool {
    stats: DfPoolStats,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DfPoolStats {
    stored: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ClientPerf {
    read_bytes_sec: f64,
    write_bytes_sec: f64,
    read_op_per_sec: f64,
    write_op_per_sec: f64,
}

/// Reads an answer. What it holds is kept even where some of it is of a shape
/// that nobody knows; without a health status it is no answer of Ceph's.
pub fn decode_health(body: &[u8]) -> Result<Storage, Failure> {
    let full: Full = serde_json::from_slice(body).map_err(|error| {
        Failure::Failed(format!("health/full is not the JSON of Ceph: {error}"))
    })?;
    let health = full.health.ok_or_else(|| {
        Failure::Failed("health/full has no health: the user may not read it".into())
    })?;
    if !matches!(health.status.as_str(), "HEALTH_OK" | "HEALTH_WARN" | "HEALTH_ERR") {
        return Err(Failure::Failed("health/full has a status that is none of Ceph's".into()));
    }
    let clean_pgs = clean_pgs(full.pg_info.as_ref(), full.pools.as_deref());
    let stored = full.df.as_ref().map(|df| sum(df.pools.iter().map(|pool| pool.stats.stored)));
    let usage = full.df.as_ref().map(|df| usage(&df.stats, full.osd_map.as_ref()));
    Ok(Storage {
        id: full.mon_status.as_ref().map(|mon| mon.monmap.fsid.clone()).unwrap_or_default(),
        status: health.status,
        checks: health.checks.unwrap_or_default().into_iter().map(check).collect(),
        crashes: Vec::new(),
        mon: full.mon_status.map(mon),
        mgr: full.mgr_map.map(mgr),
        mds: full.fs_map.map(mds),
        osd: full.osd_map.map(osd),
        hosts: None,
        rgw: full.rgw.map(|daemons| Rgw { daemons, hosts: None, zones: None }),
        clean_pgs,
        objects: full.pg_info.and_then(|info| info.object_stats.num_objects),
        pools: full.pools.map(|pools| pools.iter().map(pool).collect()),
        stored_bytes: stored,
        usage,
        io: full.client_perf.map(io),
        volumes: None,
    })
}

fn short(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

fn check(info: CheckInfo) -> Check {
    Check {
        is_error: info.severity == "HEALTH_ERR",
        message: short(&info.summary.message),
        detail: info.detail.iter().take(MOST_DETAILS).map(|line| short(&line.message)).collect(),
        muted: info.muted,
        code: info.r#type,
    }
}

fn mon(status: MonStatus) -> Mon {
    let MonStatus { quorum, monmap } = status;
    let agrees = |mon: &&MonInfo| quorum.contains(&mon.rank);
    Mon {
        quorum: monmap.mons.iter().filter(agrees).map(|mon| mon.name.clone()).collect(),
        created: time(&monmap.created),
        modified: time(&monmap.modified),
        names: monmap.mons.into_iter().map(|mon| mon.name).collect(),
    }
}

pub(super) fn mgr(map: MgrMap) -> Mgr {
    Mgr {
        active: map.active_name,
        standbys: map.standbys.into_iter().map(|mgr| mgr.name).collect(),
        changed: time(&map.active_change),
    }
}

fn mds(map: FsMap) -> Mds {
    let hot = map
        .filesystems
        .iter()
        .flat_map(|fs| fs.mdsmap.info.values())
        .filter(|info| info.state == "up:standby-replay")
        .count();
    Mds {
        up: map.filesystems.iter().map(|fs| fs.mdsmap.up.len() as u64).sum(),
        standbys: (map.standbys.len() + hot) as u64,
        filesystems: map.filesystems.into_iter().map(|fs| fs.mdsmap.fs_name).collect(),
    }
}

fn osd(map: OsdMap) -> Osd {
    Osd {
        count: map.osds.len() as u64,
        up: map.osds.iter().filter(|osd| osd.up > 0).count() as u64,
        r#in: map.osds.iter().filter(|osd| osd.r#in > 0).count() as u64,
        up_changed: time(&map.last_up_change),
        in_changed: time(&map.last_in_change),
    }
}

pub(super) fn pool(info: &PoolInfo) -> Pool {
    let replicated = info.r#type == 1 || info.r#type == "replicated";
    Pool {
        name: info.pool_name.clone(),
        replicated,
        size: info.size,
        min_size: info.min_size,
        // An erasure-coded pool takes writes while k + 1 chunks are there.
        coding: (!replicated).then(|| info.size.saturating_add(1).saturating_sub(info.min_size)),
    }
}

/// Groups that are active and clean. The map of all states is fuller than that of the
/// pools.
fn clean_pgs(info: Option<&PgInfo>, pools: Option<&[PoolInfo]>) -> Option<u64> {
    let clean = |states: &BTreeMap<String, u64>| {
        sum(states.iter().filter(|(state, _)| is_clean(state)).map(|(_, count)| *count))
    };
    match (info, pools) {
        (Some(info), _) if !info.statuses.is_empty() => Some(clean(&info.statuses)),
        (_, Some(pools)) => Some(sum(pools.iter().map(|pool| clean(&pool.pg_status)))),
        _ => None,
    }
}

/// Returns whether a group is active and clean, whatever else is done with it. Of one that
/// is stale nobody has heard since its OSDs went away.
pub(super) fn is_clean(state: &str) -> bool {
    let has = |wanted: &str| state.split('+').any(|word| word == wanted);
    has("active") && has("clean") && !has("stale")
}

fn usage(stats: &DfStats, map: Option<&OsdMap>) -> Usage {
    let share = |used: u64, total: u64| if total == 0 { 0.0 } else { used as f64 / total as f64 };
    let measured = share(stats.total_used_bytes, stats.total_bytes);
    Usage {
        used: stats.total_used_bytes,
        available: stats.total_avail_bytes,
        total: stats.total_bytes,
        ratio: stats.total_used_raw_ratio.filter(|ratio| ratio.is_finite()).unwrap_or(measured),
        near_full: map.and_then(|map| map.nearfull_ratio).unwrap_or(NEAR_FULL),
        full: map.and_then(|map| map.full_ratio).unwrap_or(FULL),
    }
}

fn io(perf: ClientPerf) -> Io {
    Io {
        read_bytes: perf.read_bytes_sec,
        written_bytes: perf.write_bytes_sec,
        reads: perf.read_op_per_sec,
        writes: perf.write_op_per_sec,
    }
}

/// Reads a time with `Z`, `+00:00` or, as Ceph writes it, `+0000`.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let at = text.len().checked_sub(5)?;
    let (begin, offset) = (text.get(..at)?, text.get(at..)?);
    let signed = offset.starts_with(['+', '-']);
    let digits = offset.get(1..)?;
    if !signed || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{begin}{}{}:{}", offset.get(..1)?, digits.get(..2)?, digits.get(2..)?).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_nobody_hears_of_are_not_clean() {
        for clean in ["active+clean", "active+clean+scrubbing+deep", "active+clean+snaptrim"] {
            assert!(is_clean(clean), "{clean}");
        }
        for other in ["stale+active+clean", "active+undersized", "activating+clean", "unknown"] {
            assert!(!is_clean(other), "{other}");
        }
        let states = r#"{"active+clean": 3, "stale+active+clean": 2, "active+degraded": 1}"#;
        let answer = format!(
            r#"{{"health": {{"status": "HEALTH_WARN"}}, "pg_info": {{"statuses": {states}}}}}"#
        );
        let clean = decode_health(answer.as_bytes()).ok().and_then(|storage| storage.clean_pgs);
        assert_eq!(clean, Some(3));
    }
}
