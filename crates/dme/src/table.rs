//! Table of the engine's knowledge at one moment. Never changed, only replaced.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jsonwebtoken::DecodingKey;
use selvage_api::{
    distributed_match_engine::{AppPort, Loc},
    edgeproto::{App, AppInst, AppKey, CloudletKey, ClusterInstKey},
};

use crate::{
    near::{Nearest, SpatialIndex},
    position::Position,
    stats::AppStats,
};

/// The carrier of the cloudlet that developers run themselves.
pub(crate) const DEVELOPER: &str = "developer";
/// Name of the cloudlet that developers run themselves.
const DEFAULT: &str = "default";

/// Name of an app: developer, name and version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppName {
    pub developer: String,
    pub name: String,
    pub version: String,
}

impl AppName {
    /// An app by its three names.
    pub fn new(
        developer: impl Into<String>,
        name: impl Into<String>,
        version: impl Into<String>,
    ) -> Self {
        Self { developer: developer.into(), name: name.into(), version: version.into() }
    }

    pub(crate) fn of(key: Option<&AppKey>) -> Self {
        let Some(key) = key else { return Self::default() };
        let developer = key.developer_key.as_ref().map_or("", |key| &key.name);
        Self::new(developer, &key.name, &key.version)
    }
}

/// Name of a cloudlet: operator and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CloudletName {
    pub operator: String,
    pub name: String,
}

impl CloudletName {
    pub(crate) fn of(key: Option<&CloudletKey>) -> Self {
        let Some(key) = key else { return Self::default() };
        let operator = key.operator_key.as_ref().map_or("", |key| &key.name);
        Self { operator: operator.to_owned(), name: key.name.clone() }
    }

    /// Returns true if this is the one that has no agent and is always up.
    pub(crate) fn is_default(&self) -> bool {
        self.operator == DEVELOPER && self.name == DEFAULT
    }
}

/// Cloudlet on which an instance of an app runs. Orders what is equally good.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Site {
    pub(crate) cloudlet: CloudletName,
    pub(crate) cluster: String,
    pub(crate) developer: String,
}

impl Site {
    pub(crate) fn of(key: Option<&ClusterInstKey>) -> Self {
        let cluster = key.and_then(|key| key.cluster_key.as_ref());
        Self {
            cloudlet: CloudletName::of(key.and_then(|key| key.cloudlet_key.as_ref())),
            cluster: cluster.map(|key| key.name.clone()).unwrap_or_default(),
            developer: key.map(|key| key.developer.clone()).unwrap_or_default(),
        }
    }
}

/// An instance that devices may be sent to.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) site: Site,
    pub(crate) location: Loc,
    pub(crate) uri: String,
    pub(crate) ports: Vec<AppPort>,
}

impl Instance {
    pub(crate) fn new(site: Site, instance: &AppInst) -> Self {
        Self {
            site,
            location: instance.cloudlet_loc.unwrap_or_default(),
            uri: instance.uri.clone(),
            ports: instance.mapped_ports.clone(),
        }
    }
}

/// The instances of an app at one carrier.
#[derive(Debug, Default)]
pub(crate) struct Carrier {
    near: SpatialIndex,
    /// Instances, in the order of the places.
    instances: Vec<Instance>,
}

impl Carrier {
    fn new(instances: Vec<Instance>) -> Self {
        let places: Vec<_> =
            instances.iter().map(|instance| Position::of(&instance.location)).collect();
        let (near, order) = SpatialIndex::new(&places);
        let mut instances: Vec<_> = instances.into_iter().map(Some).collect();
        let instances = order.into_iter().filter_map(|at| instances.get_mut(at)?.take()).collect();
        Self { near, instances }
    }

    /// The nearest instance and its distance in km.
    pub(crate) fn nearest(&self, here: &Position) -> Option<(&Instance, f64)> {
        let first = |a: usize, b: usize| self.instances[a].site < self.instances[b].site;
        let Nearest { index, distance } = self.near.nearest(here, first)?;
        Some((self.instances.get(index)?, distance))
    }

    /// All of them with their distances in km.
    pub(crate) fn all(&self, here: &Position) -> impl Iterator<Item = (&Instance, f64)> {
        let here = *here;
        let all = self.instances.iter().enumerate();
        all.map(move |(index, instance)| (instance, self.near.distance(&here, index)))
    }

    pub(crate) fn instances(&self) -> &[Instance] {
        &self.instances
    }
}

/// Key that checks the developer's tokens of an app.
pub(crate) enum DeveloperKey {
    /// The app has no key: tokens are not used.
    None,
    /// Key that checks tokens.
    Key(Box<DecodingKey>),
    /// The key of the app is invalid: no token can be checked.
    Unreadable,
}

/// An app and where it runs.
pub(crate) struct AppEntry {
    pub(crate) name: AppName,
    pub(crate) developer_key: DeveloperKey,
    pub(crate) android_package: String,
    pub(crate) permits_platform_apps: bool,
    carriers: BTreeMap<String, Carrier>,
    pub(crate) stats: Arc<AppStats>,
}

impl AppEntry {
    /// An app with those of its instances that devices may be sent to.
    pub(crate) fn new(
        name: AppName,
        app: &App,
        instances: impl Iterator<Item = Instance>,
        stats: Arc<AppStats>,
    ) -> Self {
        let mut carriers: BTreeMap<String, Vec<Instance>> = BTreeMap::new();
        for instance in instances {
            let operator = instance.site.cloudlet.operator.clone();
            carriers.entry(operator).or_default().push(instance);
        }
        let carriers = carriers.into_iter().map(|(name, all)| (name, Carrier::new(all)));
        Self {
            name,
            developer_key: developer_key(&app.auth_public_key),
            android_package: app.android_package_name.clone(),
            permits_platform_apps: app.permits_platform_apps,
            carriers: carriers.collect(),
            stats,
        }
    }

    /// Its instances at a carrier.
    pub(crate) fn carrier(&self, name: &str) -> Option<&Carrier> {
        self.carriers.get(name)
    }

    /// All carriers it runs at.
    pub(crate) fn carriers(&self) -> impl Iterator<Item = (&str, &Carrier)> {
        self.carriers.iter().map(|(name, carrier)| (name.as_str(), carrier))
    }
}

/// A key in one of the forms that the controller takes for apps.
fn developer_key(text: &str) -> DeveloperKey {
    let text = text.trim();
    if text.is_empty() {
        return DeveloperKey::None;
    }
    let key = match DecodingKey::from_rsa_pem(text.as_bytes()) {
        Ok(key) => Some(key),
        Err(_) => text.lines().find_map(ssh_key),
    };
    key.map_or(DeveloperKey::Unreadable, |key| DeveloperKey::Key(Box::new(key)))
}

/// An RSA key as a line of OpenSSH's `authorized_keys`.
fn ssh_key(line: &str) -> Option<DecodingKey> {
    let blob = line.trim().strip_prefix("ssh-rsa ")?.split_whitespace().next()?;
    let blob = STANDARD.decode(blob).ok()?;
    let mut rest = blob.as_slice();
    let mut field = || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (field, after) = after.split_at_checked(length)?;
        rest = after;
        Some(field)
    };
    let (kind, exponent, modulus) = (field()?, field()?, field()?);
    // Numbers have a zero in front where they would look negative.
    let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
    (kind == b"ssh-rsa").then(|| DecodingKey::from_rsa_raw_components(modulus, exponent))
}

/// All apps.
#[derive(Default, Clone)]
pub struct Table {
    pub(crate) apps: HashMap<AppName, Arc<AppEntry>>,
}

impl Table {
    pub(crate) fn app(&self, name: &AppName) -> Option<&Arc<AppEntry>> {
        self.apps.get(name)
    }

    /// Number of apps that are known.
    pub fn app_count(&self) -> usize {
        self.apps.len()
    }

    /// Number of instances devices may be sent to.
    pub fn instance_count(&self) -> usize {
        let carriers = self.apps.values().flat_map(|app| app.carriers.values());
        carriers.map(|carrier| carrier.instances.len()).sum()
    }
}
