//! Makes zones of what comes by notify: of the instances that the match engine
//! would send devices to.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use hickory_proto::rr::Name;
use selvage_api::{
    distributed_match_engine::{AppPort, LProto},
    edgeproto::{AppInst, CloudletInfo, CloudletKey, CloudletState},
};
use selvage_cloudlet::SiteInstances;
use selvage_edge::{app_label, cloudlet_domain, is_serving};
use selvage_kit::clock::Clock;
use selvage_notify::Cache;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::zone::{Datum, Names, Zone, add};

/// Changes that come closer together than this are seen together.
const TOGETHER: Duration = Duration::from_millis(100);
/// Rest after zones were made, as a multiple of the time that took: a large
/// region must not keep a core busy.
const REST: u32 = 10;

/// The zones that are answered for and what is the same in all of them.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) origins: Vec<Name>,
    pub(crate) ttl: u32,
    /// Names of the name servers; `ns` in the zone where there are none.
    pub(crate) nameservers: Vec<Name>,
    /// Addresses of that.
    pub(crate) addresses: Vec<IpAddr>,
}

/// All zones at one moment.
#[derive(Debug, Default)]
pub(crate) struct Zones(Vec<Arc<Zone>>);

impl Zones {
    /// The zone that a name is in, the smallest if there are several.
    pub(crate) fn of(&self, name: &Name) -> Option<&Arc<Zone>> {
        let containing = self.0.iter().filter(|zone| zone.origin.zone_of(name));
        containing.max_by_key(|zone| zone.origin.num_labels())
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Zone>> {
        self.0.iter()
    }
}

/// Instances and cloudlets as the controller tells them, or instances as the crm
/// of this process has them, and the zones that follow.
pub(crate) struct Directory {
    pub(crate) instances: Arc<Cache<AppInst>>,
    pub(crate) cloudlets: Arc<Cache<CloudletInfo>>,
    site: OnceLock<SiteInstances>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    changed: Arc<Notify>,
    /// Nothing until everything was told once: that a name is not there must
    /// be known before it is said.
    zones: ArcSwapOption<Zones>,
    /// Changes with each new version of a zone.
    versions: watch::Sender<u64>,
}

impl Directory {
    /// Knows nothing yet.
    pub(crate) fn new(
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, selvage_notify::Error> {
        let directory = Self {
            instances: Cache::new()?,
            cloudlets: Cache::new()?,
            site: OnceLock::new(),
            settings,
            clock,
            changed: Arc::new(Notify::new()),
            zones: ArcSwapOption::empty(),
            versions: watch::Sender::new(0),
        };
        let changed = Arc::clone(&directory.changed);
        directory.instances.on_change(move |_| changed.notify_one());
        let changed = Arc::clone(&directory.changed);
        directory.cloudlets.on_change(move |_| changed.notify_one());
        Ok(Arc::new(directory))
    }

    /// Goes by the crm of this process from now on.
    pub(crate) fn follow(&self, site: SiteInstances) {
        let changed = Arc::clone(&self.changed);
        site.on_change(move || changed.notify_one());
        // There is one crm in a process.
        let _ = self.site.set(site);
    }

    /// The newest zones; `None` before everything is known.
    pub(crate) fn zones(&self) -> Option<Arc<Zones>> {
        self.zones.load_full()
    }

    /// Names of the zones.
    pub(crate) fn origins(&self) -> &[Name] {
        &self.settings.origins
    }

    /// Tells of new versions.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// Keeps the zones up to date, once everything was told, until told to stop.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let begun = self.clock.elapsed();
            self.publish();
            let took = self.clock.elapsed().saturating_sub(begun);
            let pause = tokio::time::sleep(TOGETHER.max(took * REST));
            let next = async {
                pause.await;
                self.changed.notified().await;
            };
            if stop.run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }

    /// Makes zones of all that is known; those that say the same keep their
    /// number.
    pub(crate) fn publish(&self) {
        let before = self.zones.load_full();
        let mut renewed = false;
        let zones = self.made().into_iter().map(|made| {
            let known = before.as_ref().and_then(|zones| zones.of(&made.origin));
            match known {
                Some(known) if known.says_the_same(&made) => Arc::clone(known),
                known => {
                    renewed = true;
                    let serial = self.next_serial(known.map(|zone| zone.serial()));
                    Arc::new(made.numbered(serial))
                }
            }
        });
        let zones = Zones(zones.collect());
        if renewed || before.is_none() {
            self.zones.store(Some(Arc::new(zones)));
            self.versions.send_modify(|version| *version += 1);
        }
    }

    /// A number that is higher than the last, also than those before a restart:
    /// the time, as long as zones change less than once a second on average.
    fn next_serial(&self, last: Option<u32>) -> u32 {
        // Serials wrap around, as RFC 1982 has it.
        let now = self.clock.now().as_second().rem_euclid(1 << 32);
        let now = u32::try_from(now).unwrap_or_default();
        match last {
            Some(last) if last.wrapping_sub(now) < 1 << 31 => last.wrapping_add(1),
            _ => now,
        }
    }

    /// Instances on cloudlets that are up.
    fn reachable(&self) -> Vec<Arc<AppInst>> {
        if let Some(site) = self.site.get() {
            return site.list();
        }
        let ready = i32::from(CloudletState::Ready);
        let infos = self.cloudlets.list();
        let online: HashSet<(&str, &str)> = infos
            .iter()
            .filter(|info| info.state == ready)
            .filter_map(|info| info.key.as_ref().map(names_of))
            .collect();
        let is_up = |instance: &Arc<AppInst>| {
            cloudlet_of(instance).is_some_and(|cloudlet| online.contains(&names_of(cloudlet)))
        };
        self.instances.list().into_iter().filter(is_up).collect()
    }

    fn made(&self) -> Vec<Zone> {
        let settings = &self.settings;
        let mut all: BTreeMap<&Name, Names> =
            settings.origins.iter().map(|origin| (origin, Names::new())).collect();
        for instance in self.reachable().iter().filter(|instance| is_serving(instance)) {
            let Some(cloudlet) = cloudlet_of(instance) else { continue };
            let origin = settings.origins.iter().find(|origin| is_in(instance, cloudlet, origin));
            if let Some((origin, names)) = origin.and_then(|it| Some((it, all.get_mut(it)?))) {
                enter(names, origin, instance);
            }
        }
        all.into_iter().map(|(origin, names)| self.zone(origin, names)).collect()
    }

    fn zone(&self, origin: &Name, mut names: Names) -> Zone {
        let mut servers = self.settings.nameservers.clone();
        if servers.is_empty()
            && let Ok(own) = origin.prepend_label("ns")
        {
            for ip in &self.settings.addresses {
                add(&mut names, origin, &own, (*ip).into());
            }
            servers.push(own);
        }
        Zone::new(origin.clone(), self.settings.ttl, &servers, names)
    }
}

fn cloudlet_of(instance: &AppInst) -> Option<&CloudletKey> {
    instance.key.as_ref()?.cluster_inst_key.as_ref()?.cloudlet_key.as_ref()
}

/// Operator and name of a cloudlet.
fn names_of(key: &CloudletKey) -> (&str, &str) {
    (key.operator_key.as_ref().map_or("", |key| &key.name), &key.name)
}

/// Returns true if the name of an instance is in a zone, and one that its
/// cloudlet may have there: an agent may say which zone its names are in, and
/// must not take those of another cloudlet by that.
fn is_in(instance: &AppInst, cloudlet: &CloudletKey, origin: &Name) -> bool {
    let root = origin.to_ascii();
    let allowed = named(&cloudlet_domain(cloudlet, root.trim_end_matches('.')));
    let (Some(allowed), Some(name)) = (allowed, named(&instance.uri)) else { return false };
    allowed.zone_of(&name)
}

fn named(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text.to_ascii_lowercase()).ok()?;
    name.set_fqdn(true);
    (!text.is_empty()).then_some(name)
}

/// Enters the names of an instance: its own, those of its ports, its services.
fn enter(names: &mut Names, origin: &Name, instance: &AppInst) {
    let Some(own) = named(&instance.uri) else { return };
    let addresses: Vec<IpAddr> = instance
        .runtime_info
        .iter()
        .flat_map(|runtime| &runtime.addresses)
        .filter_map(|text| text.parse().ok())
        .filter(|ip: &IpAddr| !ip.is_unspecified())
        .collect();
    if addresses.is_empty() {
        return;
    }
    let label = instance.key.as_ref().and_then(|key| key.app_key.as_ref()).map(app_label);
    let at = |names: &mut Names, name: &Name| {
        for ip in &addresses {
            add(names, origin, name, (*ip).into());
        }
    };
    at(names, &own);
    for (index, port) in instance.mapped_ports.iter().enumerate() {
        let Some(target) = named(&format!("{}{}", port.fqdn_prefix, instance.uri)) else {
            continue;
        };
        at(names, &target);
        for (service, datum) in label.iter().flat_map(|it| services(it, &own, index, port, &target))
        {
            add(names, origin, &service, datum);
        }
    }
}

/// SRV records of a port: under the app's name, where the first port is to be
/// taken first, and under the app's name and the port that the app itself knows.
fn services(
    label: &str,
    own: &Name,
    index: usize,
    port: &AppPort,
    target: &Name,
) -> Vec<(Name, Datum)> {
    let Some(public) = u16::try_from(port.public_port).ok().filter(|port| *port != 0) else {
        return Vec::new();
    };
    let protocol = match port.proto() {
        LProto::Udp => "_udp",
        LProto::Tcp | LProto::Http | LProto::Unknown => "_tcp",
    };
    let priority = u16::try_from(index).unwrap_or(u16::MAX);
    let under = |service: String, priority: u16| {
        let name = own.prepend_label(protocol).ok()?.prepend_label(service).ok()?;
        Some((name, Datum::Srv { priority, port: public, target: target.clone() }))
    };
    let by_port = under(format!("_{label}-{}", port.internal_port), 0);
    [under(format!("_{label}"), priority), by_port].into_iter().flatten().collect()
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use hickory_proto::rr::RecordType;
    use selvage_api::edgeproto::{
        AppInstInfo, AppInstKey, AppInstRuntime, AppKey, ClusterInstKey, ClusterKey, DeveloperKey,
        OperatorKey, TrackedState,
    };
    use selvage_kit::clock::ManualClock;

    use super::*;
    use crate::zone::{Lookup, tests::name};

    fn cloudlet(operator: &str, cloudlet: &str) -> CloudletKey {
        let operator_key = Some(OperatorKey { name: operator.into() });
        CloudletKey { operator_key, name: cloudlet.into() }
    }

    pub(crate) fn online(operator: &str, at: &str, state: CloudletState) -> CloudletInfo {
        let key = Some(cloudlet(operator, at));
        CloudletInfo { key, state: state.into(), ..CloudletInfo::default() }
    }

    /// A healthy instance with this uri on the cloudlet `here` of `op`.
    pub(crate) fn instance(app: &str, uri: &str, address: &str) -> AppInst {
        let app_key = Some(AppKey {
            developer_key: Some(DeveloperKey { name: "Acme".into() }),
            name: app.into(),
            version: "1.0".into(),
        });
        let cluster_inst_key = Some(ClusterInstKey {
            cluster_key: Some(ClusterKey { name: format!("cluster{app}") }),
            cloudlet_key: Some(cloudlet("op", "here")),
            developer: "Acme".into(),
        });
        let port = |proto: LProto, internal_port, public_port, prefix: &str| AppPort {
            proto: proto.into(),
            internal_port,
            public_port,
            fqdn_prefix: prefix.into(),
            ..AppPort::default()
        };
        AppInst {
            key: Some(AppInstKey { app_key, cluster_inst_key }),
            uri: uri.into(),
            state: TrackedState::Ready.into(),
            mapped_ports: vec![
                port(LProto::Tcp, 80, 8080, ""),
                port(LProto::Udp, 5000, 5000, "voice-udp."),
            ],
            runtime_info: Some(AppInstRuntime {
                addresses: vec![address.into()],
                ..AppInstRuntime::default()
            }),
            ..AppInst::default()
        }
    }

    fn settings(origins: &[&str]) -> Settings {
        Settings {
            origins: origins.iter().map(|origin| name(origin)).collect(),
            ttl: 10,
            nameservers: Vec::new(),
            addresses: vec!["192.0.2.53".parse().unwrap()],
        }
    }

    fn clock() -> ManualClock {
        ManualClock::new(jiff::Timestamp::from_second(1_800_000_000).unwrap())
    }

    pub(crate) fn directory() -> Arc<Directory> {
        let made = Directory::new(settings(&["edge.example"]), Arc::new(clock())).unwrap();
        made.cloudlets.put(online("op", "here", CloudletState::Ready)).unwrap();
        made
    }

    fn answers(directory: &Directory, asked: &str, wanted: RecordType) -> Vec<String> {
        let zones = directory.zones().unwrap();
        let asked = name(asked);
        match zones.of(&asked).unwrap().find(&asked, wanted) {
            Lookup::Records { answers, .. } => {
                answers.iter().map(|record| record.data.to_string()).collect()
            }
            _ => Vec::new(),
        }
    }

    const URI: &str = "web.here.op.edge.example";

    #[test]
    fn an_instance_has_its_name_those_of_its_ports_and_services() {
        let directory = directory();
        directory.instances.put(instance("web", URI, "10.1.0.1")).unwrap();
        directory.publish();
        let find = |asked: &str, wanted| answers(&directory, asked, wanted);
        assert_eq!(find(URI, RecordType::A), ["10.1.0.1"]);
        assert_eq!(find(&format!("voice-udp.{URI}"), RecordType::A), ["10.1.0.1"]);
        let of_app = find(&format!("_acmeweb10._tcp.{URI}"), RecordType::SRV);
        assert_eq!(of_app, [format!("0 0 8080 {URI}.")]);
        let of_port = find(&format!("_acmeweb10-5000._udp.{URI}"), RecordType::SRV);
        assert_eq!(of_port, [format!("0 0 5000 voice-udp.{URI}.")]);
        assert_eq!(find("ns.edge.example", RecordType::A), ["192.0.2.53"]);
    }

    #[test]
    fn only_what_serves_on_a_cloudlet_that_is_up_has_a_name() {
        let directory = directory();
        let web = instance("web", URI, "10.1.0.1");
        let seen = |web: &AppInst| {
            directory.instances.put(web.clone()).unwrap();
            directory.publish();
            answers(&directory, URI, RecordType::A)
        };
        assert_eq!(seen(&web), ["10.1.0.1"]);
        let mut sick = web.clone();
        sick.runtime_info.as_mut().unwrap().unhealthy = "connection refused".into();
        assert!(seen(&sick).is_empty());
        assert_eq!(seen(&web), ["10.1.0.1"]);
        let deleting = AppInst { state: TrackedState::Deleting.into(), ..web.clone() };
        assert!(seen(&deleting).is_empty());
        directory.cloudlets.put(online("op", "here", CloudletState::Offline)).unwrap();
        assert!(seen(&web).is_empty());
    }

    #[test]
    fn one_name_has_the_addresses_of_all_that_are_behind_it() {
        let directory = directory();
        let shared = "here.op.edge.example";
        directory.instances.put(instance("one", shared, "10.1.0.1")).unwrap();
        directory.instances.put(instance("two", shared, "10.1.0.2")).unwrap();
        // One that listens everywhere does not say where that is.
        directory.instances.put(instance("three", shared, "0.0.0.0")).unwrap();
        directory.publish();
        assert_eq!(answers(&directory, shared, RecordType::A), ["10.1.0.1", "10.1.0.2"]);
    }

    #[test]
    fn nobody_takes_the_name_of_another_cloudlet() {
        let directory = directory();
        for (index, uri) in [
            "web.there.op.edge.example",
            // As if its agent had said that its zone were `victim.edge.example`.
            "here.op.victim.edge.example",
            "edge.example",
            "ns.edge.example",
            "nowhere.op.edge.example",
            "",
            "a..b",
        ]
        .into_iter()
        .enumerate()
        {
            let app = format!("app{index}");
            directory.instances.put(instance(&app, uri, "10.66.6.6")).unwrap();
        }
        directory.publish();
        let zones = directory.zones().unwrap();
        let all = zones.iter().flat_map(|zone| zone.records().collect::<Vec<_>>());
        let stolen: Vec<_> =
            all.map(|record| record.to_string()).filter(|it| it.contains("10.66.6.6")).collect();
        assert!(stolen.is_empty(), "{stolen:?}");
    }

    #[test]
    fn a_site_answers_for_what_its_own_crm_reports() {
        let caches = selvage_cloudlet::AgentCaches::new().unwrap();
        let made = Directory::new(settings(&["edge.example"]), Arc::new(clock())).unwrap();
        made.follow(SiteInstances::of(&caches));
        let web = instance("web", URI, "10.1.0.1");
        let info = |state: TrackedState| AppInstInfo {
            key: web.key.clone(),
            state: state.into(),
            runtime_info: web.runtime_info.clone(),
            ..AppInstInfo::default()
        };
        // What the controller thinks of it does not count.
        caches.instances.put(AppInst { state: 0, ..web.clone() }).unwrap();
        caches.instance_infos.put(info(TrackedState::Ready)).unwrap();
        made.publish();
        assert_eq!(answers(&made, URI, RecordType::A), ["10.1.0.1"]);
        caches.instance_infos.put(info(TrackedState::Deleting)).unwrap();
        made.publish();
        assert!(answers(&made, URI, RecordType::A).is_empty());
    }

    #[test]
    fn a_number_is_higher_than_the_last_and_changes_with_the_zone_alone() {
        let clock = clock();
        let made = Directory::new(settings(&["edge.example"]), Arc::new(clock.clone())).unwrap();
        made.cloudlets.put(online("op", "here", CloudletState::Ready)).unwrap();
        let serial = || {
            made.publish();
            made.zones().unwrap().iter().next().unwrap().serial()
        };
        assert_eq!(serial(), 1_800_000_000);
        clock.advance(Duration::from_secs(60));
        assert_eq!(serial(), 1_800_000_000, "nothing changed");
        made.instances.put(instance("web", URI, "10.1.0.1")).unwrap();
        assert_eq!(serial(), 1_800_000_060);
        made.instances.put(instance("web", URI, "10.1.0.2")).unwrap();
        assert_eq!(serial(), 1_800_000_061, "twice in one second");
    }

    #[test]
    fn a_name_is_of_the_smallest_zone_that_it_is_in() {
        let made =
            Directory::new(settings(&["edge.example", "shop.edge.example"]), Arc::new(clock()))
                .unwrap();
        assert!(made.zones().is_none(), "nothing is known yet");
        made.publish();
        let zones = made.zones().unwrap();
        let of = |text: &str| zones.of(&name(text)).map(|zone| zone.origin.to_ascii());
        assert_eq!(of("a.Shop.Edge.example").as_deref(), Some("shop.edge.example."));
        assert_eq!(of("workshop.edge.example").as_deref(), Some("edge.example."));
        assert_eq!(of("example"), None);
        assert_eq!(of("notedge.example"), None);
    }
}
