//! The monitors, asked by the `ceph` program: they answer while no manager
//! does. A call takes a second of CPU, so they are asked only when needed.

use std::{collections::BTreeMap, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{process::Command, time::Instant};

use super::{
    Crashes,
    health::{self, time},
};
use crate::{
    board::Board,
    facts::{Check, Data, Io, Mds, Mgr, Mon, Osd, Rgw, Section, Storage, Usage},
    source::{Failure, Probe, SHARE, Source, sum},
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const LARGEST: usize = 8 << 20;
/// Interval at which maps are asked for that do not seem to have changed.
const MAPS_INTERVAL: Duration = Duration::from_secs(60);

/// The `ceph` program and how it reaches the cluster.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program, such as `ceph`.
    pub path: PathBuf,
    /// Its configuration file; the usual one where not given.
    pub conf: Option<PathBuf>,
    /// Our user there, such as `client.selvage`; `client.admin` where not given.
    pub name: Option<String>,
}

impl Program {
    async fn run(&self, words: &[&str]) -> Result<Vec<u8>, Failure> {
        let mut command = Command::new(&self.path);
        if let Some(conf) = &self.conf {
            command.arg("--conf").arg(conf);
        }
        if let Some(name) = &self.name {
            command.arg("--name").arg(name);
        }
        command.args(["--connect-timeout", "5", "--format", "json"]).args(words);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let failed = |reason: String| Failure::Failed(reason);
        let ran = tokio::time::timeout(ANSWER_TIMEOUT, command.output()).await;
        let output = ran
            .map_err(|_| failed("the monitors do not answer".into()))?
            .map_err(|error| failed(format!("{}: {error}", self.path.display())))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("without a word").trim().to_owned();
            return Err(failed(format!("ceph: {last}")));
        }
        if output.stdout.len() > LARGEST {
            return Err(failed("ceph says too much".into()));
        }
        Ok(output.stdout)
    }

    /// Daemons that crashed and that nobody has archived.
    pub(super) async fn crashes(&self) -> Result<Vec<String>, Failure> {
        #[derive(Deserialize)]
        struct Crash {
            #[serde(default)]
            entity_name: String,
            #[serde(default)]
            timestamp: String,
        }
        let said = self.run(&["crash", "ls-new"]).await?;
        let crashes: Vec<Crash> = serde_json::from_slice(&said)
            .map_err(|error| Failure::Failed(format!("ceph crash ls-new: {error}")))?;
        let describe = |crash: &Crash| format!("{} at {}", crash.entity_name, crash.timestamp);
        Ok(crashes.iter().take(100).map(describe).collect())
    }
}

/// The monitors as a source.
pub struct CephMon {
    program: Program,
    board: Arc<Board>,
    every: Duration,
    /// Asked also while a manager answers.
    always: bool,
}

impl CephMon {
    /// A source that is asked while the one named `ceph` on this board fails,
    /// or always.
    pub fn new(program: Program, board: Arc<Board>, every: Duration, always: bool) -> Self {
        Self { program, board, every, always }
    }
}

impl Source for CephMon {
    fn name(&self) -> &'static str {
        "ceph-mon"
    }

    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>> {
        let (maps, crashes) = (Maps::default(), Crashes::default());
        vec![Box::new(Monitors { source: *self, maps, crashes })]
    }
}

struct Monitors {
    source: CephMon,
    maps: Maps,
    crashes: Crashes,
}

/// Parts of the managers' and the OSDs' maps that the status does not contain.
#[derive(Default)]
struct Maps {
    /// Status that they belong to, and when they were asked for.
    of: Option<(Version, Instant)>,
    mgr: Option<Mgr>,
    osds: Option<OsdDump>,
}

/// Values of the status that change when a map does.
#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(default)]
struct Version {
    osdmap: Epoch,
    mgrmap: MgrMap,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(default)]
struct Epoch {
    epoch: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OsdDump {
    pools: Vec<health::PoolInfo>,
    nearfull_ratio: Option<f64>,
    full_ratio: Option<f64>,
}

impl Maps {
    /// Asks where the status tells of other maps than before, and once in a while.
    async fn ask(&mut self, program: &Program, version: Version) {
        let is_fresh =
            |(of, at): &(Version, Instant)| *of == version && at.elapsed() < MAPS_INTERVAL;
        if self.of.as_ref().is_some_and(is_fresh) {
            return;
        }
        let (mgr, osds) =
            tokio::join!(program.run(&["mgr", "dump"]), program.run(&["osd", "dump"]));
        let (mgr, osds) = (read::<health::MgrMap>(mgr), read::<OsdDump>(osds));
        // What fails is asked for again, and stays as it was meanwhile.
        self.of = (mgr.is_some() && osds.is_some()).then(|| (version, Instant::now()));
        self.mgr = mgr.map(health::mgr).or_else(|| self.mgr.take());
        self.osds = osds.or_else(|| self.osds.take());
    }

    fn add_to(&self, storage: &mut Storage) {
        if let Some(mgr) = &self.mgr {
            storage.mgr = Some(mgr.clone());
        }
        let Some(osds) = &self.osds else { return };
        storage.pools = Some(osds.pools.iter().map(health::pool).collect());
        if let Some(usage) = &mut storage.usage {
            usage.near_full = osds.nearfull_ratio.unwrap_or(usage.near_full);
            usage.full = osds.full_ratio.unwrap_or(usage.full);
        }
    }
}

fn read<T: DeserializeOwned>(said: Result<Vec<u8>, Failure>) -> Option<T> {
    serde_json::from_slice(&said.ok()?).ok()
}

impl Monitors {
    fn needed(&self) -> bool {
        let failing = |state: &crate::SourceState| {
            state.source == "ceph" && state.section == Section::Storage && state.failing()
        };
        self.source.always || self.source.board.sources().iter().any(failing)
    }
}

#[async_trait]
impl Probe for Monitors {
    fn section(&self) -> Section {
        Section::Storage
    }

    fn every(&self) -> Duration {
        self.source.every
    }

    /// A cluster without its managers is looked at more closely.
    fn share(&self) -> u32 {
        if self.source.always { SHARE } else { 4 }
    }

    fn timeout(&self) -> Duration {
        ANSWER_TIMEOUT * 4
    }

    /// Each question takes a second, and as much longer is the pause.
    fn stale_after(&self) -> Duration {
        Duration::from_secs(2) * self.share() + ANSWER_TIMEOUT * 2
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        if !self.needed() {
            return Err(Failure::Absent);
        }
        let program = &self.source.program;
        let said = program.run(&["status"]).await?;
        let mut storage = decode_status(&said)?;
        let version: Version = serde_json::from_slice(&said).unwrap_or_default();
        // Crashes are kept by a manager: without one the question hangs.
        if version.mgrmap.available {
            self.crashes.ask(program, &storage.checks).await;
        }
        storage.crashes.clone_from(&self.crashes.listed);
        self.maps.ask(program, version).await;
        self.maps.add_to(&mut storage);
        Ok(Data::Storage(storage.into()))
    }

    /// Is there as soon as it is needed.
    async fn changed(&mut self, pause: Duration) {
        let every = self.source.every;
        let needed = self.needed();
        let mut waited = Duration::ZERO;
        while waited < pause && self.needed() == needed {
            tokio::time::sleep(every).await;
            waited += every;
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    fsid: String,
    health: Option<Health>,
    quorum_names: Vec<String>,
    monmap: MonMap,
    osdmap: Option<OsdMap>,
    pgmap: Option<PgMap>,
    fsmap: Option<FsMap>,
    mgrmap: Option<MgrMap>,
    servicemap: ServiceMap,
}

#[derive(Deserialize)]
struct Health {
    status: String,
    #[serde(default)]
    checks: BTreeMap<String, CheckInfo>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CheckInfo {
    severity: String,
    summary: Summary,
    muted: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Summary {
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MonMap {
    num_mons: usize,
    created: String,
    modified: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OsdMap {
    num_osds: u64,
    num_up_osds: u64,
    num_in_osds: u64,
    osd_up_since: i64,
    osd_in_since: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PgMap {
    pgs_by_state: Vec<PgState>,
    num_objects: u64,
    data_bytes: u64,
    bytes_used: u64,
    bytes_avail: u64,
    bytes_total: u64,
    read_bytes_sec: f64,
    write_bytes_sec: f64,
    read_op_per_sec: f64,
    write_op_per_sec: f64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PgState {
    state_name: String,
    count: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct FsMap {
    up: u64,
    #[serde(rename = "up:standby")]
    standby: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(default)]
struct MgrMap {
    available: bool,
    num_standbys: usize,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ServiceMap {
    services: BTreeMap<String, Value>,
}

/// Reads what `ceph status --format json` says.
pub fn decode_status(said: &[u8]) -> Result<Storage, Failure> {
    let status: Status = serde_json::from_slice(said)
        .map_err(|error| Failure::Failed(format!("ceph status: {error}")))?;
    let health =
        status.health.ok_or_else(|| Failure::Failed("ceph status has no health".into()))?;
    let check = |(code, info): (String, CheckInfo)| Check {
        code,
        is_error: info.severity == "HEALTH_ERR",
        message: info.summary.message,
        detail: Vec::new(),
        muted: info.muted,
    };
    let usage = status.pgmap.as_ref().map(usage);
    let io = status.pgmap.as_ref().map(|map| Io {
        read_bytes: map.read_bytes_sec,
        written_bytes: map.write_bytes_sec,
        reads: map.read_op_per_sec,
        writes: map.write_op_per_sec,
    });
    Ok(Storage {
        id: status.fsid,
        status: health.status,
        checks: health.checks.into_iter().map(check).collect(),
        mon: Some(monitors(&status.monmap, status.quorum_names)),
        // Their names are in a map of their own.
        mgr: status.mgrmap.map(|map| Mgr {
            standbys: vec![String::new(); map.num_standbys.min(64)],
            ..Mgr::default()
        }),
        mds: status.fsmap.map(|map| Mds {
            up: map.up,
            standbys: map.standby,
            filesystems: Vec::new(),
        }),
        osd: status.osdmap.map(|map| osd(&map)),
        rgw: gateways(&status.servicemap),
        clean_pgs: status.pgmap.as_ref().map(clean),
        objects: status.pgmap.as_ref().map(|map| map.num_objects),
        stored_bytes: status.pgmap.as_ref().map(|map| map.data_bytes),
        usage,
        io,
        ..Storage::default()
    })
}

fn monitors(map: &MonMap, quorum: Vec<String>) -> Mon {
    let mut names = quorum.clone();
    // Those that do not agree are counted, not named.
    names.resize(map.num_mons.clamp(names.len(), 1000), String::new());
    Mon { names, quorum, created: time(&map.created), modified: time(&map.modified) }
}

fn osd(map: &OsdMap) -> Osd {
    Osd {
        count: map.num_osds,
        up: map.num_up_osds,
        r#in: map.num_in_osds,
        up_changed: Timestamp::from_second(map.osd_up_since).ok(),
        in_changed: Timestamp::from_second(map.osd_in_since).ok(),
    }
}

fn clean(map: &PgMap) -> u64 {
    sum(map.pgs_by_state.iter().filter(|pg| health::is_clean(&pg.state_name)).map(|pg| pg.count))
}

fn usage(map: &PgMap) -> Usage {
    let total = map.bytes_total.max(1) as f64;
    Usage {
        used: map.bytes_used,
        available: map.bytes_avail,
        total: map.bytes_total,
        ratio: map.bytes_used as f64 / total,
        near_full: health::NEAR_FULL,
        full: health::FULL,
    }
}

fn gateways(map: &ServiceMap) -> Option<Rgw> {
    let daemons = map.services.get("rgw")?.get("daemons")?.as_object()?;
    // Beside the daemons stands a summary.
    let count = daemons.values().filter(|daemon| daemon.is_object()).count();
    Some(Rgw { daemons: count as u64, hosts: None, zones: None })
}
