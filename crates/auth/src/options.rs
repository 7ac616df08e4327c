//! Settings. The defaults are what a public installation should run with.

use std::{num::NonZeroUsize, path::PathBuf, sync::Arc, thread, time::Duration};

use selvage_kit::{
    clock::{Clock, SystemClock},
    identity::{Grant, Secret},
};
use serde::{Deserialize, Serialize};
use url::Url;

/// Options of identity.
#[derive(Debug, Clone)]
pub struct Options {
    /// A session ends when it was not used for so long.
    pub idle: Duration,
    /// A session ends so long after the login, used or not.
    pub absolute: Duration,
    /// Maximum of sessions of a user; beyond it, the oldest ends.
    pub max_sessions_per_user: usize,
    /// Against guessing.
    pub limits: RateLimits,
    /// Cost of hashing a password.
    pub argon2: HashCost,
    /// Number of passwords that are hashed at once.
    pub hashing_concurrency: usize,
    /// True if users may log in with a password. Only to be switched off where
    /// there is an OIDC provider.
    pub password_login: bool,
    /// Other providers of users.
    pub oidc: Vec<OidcProvider>,
    /// The address under which browsers reach this system. Needed for OIDC.
    pub public_url: Option<Url>,
    /// True if other processes may use the same store.
    pub shares_store: bool,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60 * 60),
            absolute: Duration::from_secs(12 * 60 * 60),
            max_sessions_per_user: 64,
            limits: RateLimits::default(),
            argon2: HashCost::default(),
            hashing_concurrency: thread::available_parallelism().map_or(1, NonZeroUsize::get),
            password_login: true,
            oidc: Vec::new(),
            public_url: None,
            shares_store: true,
            clock: Arc::new(SystemClock),
        }
    }
}

/// Maximum numbers of failed attempts. Successes do not count, and nothing is
/// ever locked: a user on another network is not concerned, nor is one who
/// logged in on this network lately by the failures of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimits {
    /// The time that is looked back on.
    pub window: Duration,
    /// Failures for one username from one network (IPv4 /24, IPv6 /64).
    pub per_user: usize,
    /// Failures from one address, whatever the username. Loopback addresses
    /// are exempt: everybody on the machine shares them.
    pub per_address: usize,
    /// Number of usernames and addresses that are remembered; the one that
    /// failed longest ago is forgotten first.
    pub max_entries: usize,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(300),
            per_user: 10,
            per_address: 50,
            max_entries: 10_000,
        }
    }
}

/// The cost of argon2id. The defaults are OWASP's minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HashCost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub iterations: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Default for HashCost {
    fn default() -> Self {
        Self { memory_kib: 19_456, iterations: 2, lanes: 1 }
    }
}

/// An OpenID Connect provider through which users may log in.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcProvider {
    /// Name in URLs and in a user's `source`: small letters, digits and `-`.
    pub name: String,
    /// Text of the button. Empty: the name.
    #[serde(default)]
    pub label: String,
    /// The issuer, exactly as its discovery document names it.
    pub issuer: String,
    /// The name under which this system is registered there.
    pub client_id: String,
    /// The secret of that registration. Without one the client is public and
    /// PKCE alone protects the code. In a configuration it is in a file.
    #[serde(skip)]
    pub client_secret: Option<Secret>,
    /// A file that holds the secret, instead.
    #[serde(default)]
    pub client_secret_file: Option<PathBuf>,
    /// Scopes that are requested.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<String>,
    /// The claim that becomes the username.
    #[serde(default = "default_username_claim")]
    pub username_claim: String,
    /// The claim that lists groups.
    #[serde(default = "default_groups_claim")]
    pub groups_claim: String,
    /// Grants of the members of a group. Somebody without any grant is not let
    /// in.
    #[serde(default)]
    pub group_grants: Vec<GroupGrant>,
    /// Grants of everybody who is let in, groups or not.
    #[serde(default)]
    pub default_grants: Vec<WrittenGrant>,
    /// Users that are let in; if this or `allowed_groups` is not empty, only
    /// those named may in.
    #[serde(default)]
    pub allowed_users: Vec<String>,
    /// See `allowed_users`.
    #[serde(default)]
    pub allowed_groups: Vec<String>,
    /// PEM file with the CA of the provider, if it is a private one.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

impl OidcProvider {
    /// A provider with nothing but the needful; nobody is let in until it is
    /// given grants.
    pub fn new(
        name: impl Into<String>,
        issuer: impl Into<String>,
        client_id: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            label: String::new(),
            issuer: issuer.into(),
            client_id: client_id.into(),
            client_secret: None,
            client_secret_file: None,
            scopes: default_scopes(),
            username_claim: default_username_claim(),
            groups_claim: default_groups_claim(),
            group_grants: Vec::new(),
            default_grants: Vec::new(),
            allowed_users: Vec::new(),
            allowed_groups: Vec::new(),
            ca_file: None,
        }
    }
}

/// Grants of the members of one group.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupGrant {
    /// The group as the provider names it.
    pub group: String,
    /// `admin`, `operator`, `developer` or `viewer`.
    pub role: String,
    /// For `operator` and `developer`.
    #[serde(default)]
    pub organisation: String,
}

/// A grant as it is written in settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenGrant {
    /// `admin`, `operator`, `developer` or `viewer`.
    pub role: String,
    /// For `operator` and `developer`.
    #[serde(default)]
    pub organisation: String,
}

impl From<&Grant> for WrittenGrant {
    fn from(grant: &Grant) -> Self {
        Self { role: grant.role.name().into(), organisation: grant.organisation.clone() }
    }
}

fn default_scopes() -> Vec<String> {
    ["openid", "profile", "email"].map(str::to_owned).to_vec()
}

fn default_username_claim() -> String {
    "preferred_username".into()
}

fn default_groups_claim() -> String {
    "groups".into()
}
