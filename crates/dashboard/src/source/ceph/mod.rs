//! A Ceph cluster: through the REST API of its manager's dashboard, and
//! through its monitors where no manager answers.

pub mod health;
mod mon;
mod rest;

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;

use self::rest::{Rest, document};
pub use self::{
    health::decode_health,
    mon::{CephMon, Program, decode_status},
    rest::RestOptions,
};
use super::{BadOptions, Failure, Probe, Source};
use crate::facts::{Check, Data, Section, Storage};

/// Interval at which everything is asked for when nothing seems to have changed.
const FULL_INTERVAL: Duration = Duration::from_secs(15);
/// Interval at which values that change rarely are asked for.
const SLOW_INTERVAL: Duration = Duration::from_secs(60);
/// Health check that tells how many crashes are new.
const CRASH_CHECK: &str = "RECENT_CRASH";

/// The manager's dashboard as a source.
pub struct Ceph {
    rest: Rest,
    every: Duration,
    program: Option<Program>,
}

impl Ceph {
    /// A source that looks for changes once per `every`. The `ceph` program,
    /// where there is one, tells of crashes, which the API does not.
    pub fn new(
        options: RestOptions,
        every: Duration,
        program: Option<Program>,
    ) -> Result<Self, BadOptions> {
        Ok(Self { rest: Rest::new(options)?, every, program })
    }
}

impl Source for Ceph {
    fn name(&self) -> &'static str {
        "ceph"
    }

    fn probes(self: Box<Self>) -> Vec<Box<dyn Probe>> {
        let probe = Manager {
            rest: self.rest,
            every: self.every,
            program: self.program,
            minimal: None,
            full: None,
            extra: Extra::default(),
            crashes: Crashes::default(),
            asked: None,
        };
        vec![Box::new(probe)]
    }
}

/// Values that health/full does not contain.
#[derive(Debug, Clone, Default)]
struct Extra {
    volumes: Option<u64>,
    osd_hosts: Option<u64>,
    rgw_hosts: Option<u64>,
    rgw_zones: Option<u64>,
}

/// New crashes, of which only the `ceph` program tells.
#[derive(Default)]
struct Crashes {
    listed: Vec<String>,
    /// Check that the list belongs to.
    check: Option<Check>,
    asked: Option<Instant>,
}

impl Crashes {
    /// Asks where health tells of other crashes than before, and once in a while. What
    /// was listed last stays where the program fails.
    async fn ask(&mut self, program: &Program, checks: &[Check]) {
        let check = checks.iter().find(|check| check.code == CRASH_CHECK);
        let is_fresh = self.asked.is_some_and(|asked| asked.elapsed() < SLOW_INTERVAL);
        if is_fresh && self.check.as_ref() == check {
            return;
        }
        (self.asked, self.check) = (Some(Instant::now()), check.cloned());
        match program.crashes().await {
            Ok(listed) => self.listed = listed,
            Err(error) => tracing::debug!(%error, "the list of crashes stays as it was"),
        }
    }
}

struct Manager {
    rest: Rest,
    every: Duration,
    program: Option<Program>,
    /// The short answer that the full one belongs to.
    minimal: Option<Value>,
    full: Option<(Instant, Storage)>,
    extra: Extra,
    crashes: Crashes,
    asked: Option<Instant>,
}

#[async_trait]
impl Probe for Manager {
    fn section(&self) -> Section {
        Section::Storage
    }

    fn every(&self) -> Duration {
        self.every
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn stale_after(&self) -> Duration {
        self.every * 3 + Duration::from_secs(4)
    }

    async fn fetch(&mut self) -> Result<Data, Failure> {
        // The short answer costs the manager little; of it we see that
        // something changed.
        let minimal = self.rest.get("health/minimal", "1.0").await?;
        let minimal = Some(steady(document(&minimal).ok_or_else(no_json)?));
        let known = self.full.as_ref().filter(|(at, _)| at.elapsed() < FULL_INTERVAL);
        let known = known.filter(|_| minimal == self.minimal).map(|(_, full)| full.clone());
        let storage = match known {
            Some(full) => full,
            None => {
                let full = decode_health(&self.rest.get("health/full", "1.0").await?)?;
                self.full = Some((Instant::now(), full.clone()));
                full
            }
        };
        self.minimal = minimal;
        if self.asked.is_none_or(|asked| asked.elapsed() >= SLOW_INTERVAL) {
            self.ask_rarely().await;
        }
        if let Some(program) = &self.program {
            self.crashes.ask(program, &storage.checks).await;
        }
        let mut storage = self.extra.added_to(storage);
        storage.crashes.clone_from(&self.crashes.listed);
        Ok(Data::Storage(storage.into()))
    }
}

fn no_json() -> Failure {
    Failure::Failed("health/minimal is no JSON".into())
}

/// Without what changes all the time and makes no difference.
fn steady(mut minimal: Value) -> Value {
    if let Some(map) = minimal.as_object_mut() {
        map.remove("client_perf");
        map.remove("scrub_status");
    }
    minimal
}

impl Manager {
    /// Asks for values that change rarely. Those that the user may not see, or that a
    /// version does not have, stay unknown.
    async fn ask_rarely(&mut self) {
        self.asked = Some(Instant::now());
        let mut ask = async |path: &str, version: &str| {
            self.rest.get(path, version).await.ok().and_then(|body| document(&body))
        };
        let images = ask("block/image", "2.0").await.map(|value| images(&value));
        let filesystems =
            ask("cephfs", "1.0").await.and_then(|value| Some(value.as_array()?.len()));
        let gateways = ask("rgw/daemon", "1.0").await;
        let osds = ask("osd", "1.0").await;
        let distinct = |value: &Option<Value>, path: &str| {
            let list = value.as_ref()?.as_array()?;
            let names: BTreeSet<&str> =
                list.iter().filter_map(|entry| entry.pointer(path)?.as_str()).collect();
            Some(names.len() as u64)
        };
        self.extra.volumes = match (images, filesystems) {
            (None, None) => None,
            (images, filesystems) => Some(images.unwrap_or(0) + filesystems.unwrap_or(0) as u64),
        };
        self.extra.rgw_hosts = distinct(&gateways, "/server_hostname");
        self.extra.rgw_zones = distinct(&gateways, "/zone_name");
        self.extra.osd_hosts = distinct(&osds, "/host/name").filter(|count| *count > 0);
    }
}

/// Images of all pools: the answer has one entry for each pool.
fn images(value: &Value) -> u64 {
    let count = |pool: &Value| pool.get("value")?.as_array().map(Vec::len);
    value.as_array().map_or(0, |pools| pools.iter().filter_map(count).sum::<usize>() as u64)
}

impl Extra {
    fn added_to(&self, mut storage: Storage) -> Storage {
        storage.volumes = self.volumes;
        storage.hosts = self.osd_hosts;
        if let Some(rgw) = &mut storage.rgw {
            (rgw.hosts, rgw.zones) = (self.rgw_hosts, self.rgw_zones);
        }
        storage
    }
}
