//! Records in the store. Times are milliseconds since 1970.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use selvage_api::selvage::identity as wire;
use selvage_kit::identity::{Grant, Role};
use selvage_store::Record;

use crate::{clock, names};

/// `source` of users who have their password here.
pub(crate) const PASSWORD_SOURCE: &str = "password";

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct StoredGrant {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
    #[prost(string, tag = "2")]
    pub(crate) organisation: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct User {
    #[prost(string, tag = "1")]
    pub(crate) username: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) grants: Vec<StoredGrant>,
    #[prost(bool, tag = "3")]
    pub(crate) disabled: bool,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    /// PHC string; empty for users who come through a provider.
    #[prost(string, tag = "5")]
    pub(crate) password_hash: String,
    #[prost(int64, tag = "6")]
    pub(crate) password_changed_at: i64,
    /// `password` or the name of a provider.
    #[prost(string, tag = "7")]
    pub(crate) source: String,
    /// The provider's own name for the user, which never changes.
    #[prost(string, tag = "8")]
    pub(crate) subject: String,
    /// A session holds as long as it carries this same text. Replacing it
    /// ends all sessions in one write, those included that are being made
    /// at this moment.
    #[prost(string, tag = "9")]
    pub(crate) generation: String,
}

impl Record for User {
    const KIND: &'static str = "auth-user";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.username.clone()
    }
}

impl User {
    /// A role that this version does not know grants nothing.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        read_grants(&self.grants)
    }

    pub(crate) fn set_grants(&mut self, grants: &[Grant]) {
        self.grants = stored_grants(grants);
    }

    /// Returns true while the password is the one that the user was made with.
    pub(crate) fn has_first_password(&self) -> bool {
        !self.password_hash.is_empty() && self.password_changed_at == self.created_at
    }

    pub(crate) fn is_administrator(&self) -> bool {
        !self.disabled && self.grants().iter().any(|grant| grant.role == Role::Admin)
    }

    /// Ends all sessions once it is written.
    pub(crate) fn renew_generation(&mut self) {
        self.generation = new_id();
    }

    pub(crate) fn to_wire(&self) -> wire::User {
        let has_password = !self.password_hash.is_empty();
        wire::User {
            username: self.username.clone(),
            grants: names::grants_to_wire(&self.grants()),
            disabled: self.disabled,
            created_at: Some(clock::to_wire(from_millis(self.created_at))),
            password_changed_at: has_password
                .then(|| clock::to_wire(from_millis(self.password_changed_at))),
            source: self.source.clone(),
        }
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("username", &self.username).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct Session {
    /// SHA-256 of the token, hexadecimal.
    #[prost(string, tag = "1")]
    pub(crate) digest: String,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(string, tag = "3")]
    pub(crate) username: String,
    #[prost(string, tag = "4")]
    pub(crate) generation: String,
    #[prost(int64, tag = "5")]
    pub(crate) created_at: i64,
    #[prost(int64, tag = "6")]
    pub(crate) last_used_at: i64,
    #[prost(int64, tag = "7")]
    pub(crate) expires_at: i64,
    #[prost(string, tag = "8")]
    pub(crate) peer: String,
    /// `bearer` or `cookie`.
    #[prost(string, tag = "9")]
    pub(crate) kind: String,
}

impl Record for Session {
    const KIND: &'static str = "auth-session";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.digest.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![("user", self.username.clone()), ("id", self.id.clone())]
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// A token or certificate that a person handed to a program.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct Credential {
    /// SHA-256 of the token, or of the certificate, hexadecimal.
    #[prost(string, tag = "1")]
    pub(crate) digest: String,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    /// `token` or `certificate`.
    #[prost(string, tag = "3")]
    pub(crate) form: String,
    #[prost(string, tag = "4")]
    pub(crate) name: String,
    #[prost(string, tag = "5")]
    pub(crate) username: String,
    /// When that user was made: another of the same name is not its owner.
    #[prost(int64, tag = "6")]
    pub(crate) owner_since: i64,
    #[prost(message, repeated, tag = "7")]
    pub(crate) grants: Vec<StoredGrant>,
    #[prost(string, repeated, tag = "8")]
    pub(crate) methods: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) created_at: i64,
    #[prost(int64, tag = "10")]
    pub(crate) expires_at: i64,
    /// 0: not yet.
    #[prost(int64, tag = "11")]
    pub(crate) last_used_at: i64,
    #[prost(string, tag = "12")]
    pub(crate) created_by: String,
}

impl Record for Credential {
    const KIND: &'static str = "auth-credential";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.digest.clone()
    }

    fn indexes(&self) -> Vec<(&'static str, String)> {
        vec![("user", self.username.clone()), ("id", self.id.clone())]
    }
}

impl Credential {
    pub(crate) fn grants(&self) -> Vec<Grant> {
        read_grants(&self.grants)
    }

    pub(crate) fn set_grants(&mut self, grants: &[Grant]) {
        self.grants = stored_grants(grants);
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("id", &self.id)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

fn read_grants(stored: &[StoredGrant]) -> Vec<Grant> {
    let read = |grant: &StoredGrant| names::parse_grant(&grant.role, &grant.organisation).ok();
    stored.iter().filter_map(read).collect()
}

fn stored_grants(grants: &[Grant]) -> Vec<StoredGrant> {
    grants
        .iter()
        .map(|grant| StoredGrant {
            role: grant.role.name().into(),
            organisation: grant.organisation.clone(),
        })
        .collect()
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct JoinToken {
    /// SHA-256 of the token, hexadecimal.
    #[prost(string, tag = "1")]
    pub(crate) digest: String,
    #[prost(string, tag = "2")]
    pub(crate) machine: String,
    #[prost(int64, tag = "3")]
    pub(crate) created_at: i64,
    #[prost(int64, tag = "4")]
    pub(crate) expires_at: i64,
    #[prost(string, tag = "5")]
    pub(crate) created_by: String,
    /// 0: not yet.
    #[prost(int64, tag = "6")]
    pub(crate) used_at: i64,
    /// For which its certificate is good besides its own.
    #[prost(string, repeated, tag = "7")]
    pub(crate) names: Vec<String>,
}

impl Record for JoinToken {
    const KIND: &'static str = "auth-join-token";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.digest.clone()
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// The last certificate that a machine was given.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Issue {
    #[prost(string, tag = "1")]
    pub(crate) machine: String,
    #[prost(int64, tag = "2")]
    pub(crate) issued_at: i64,
    #[prost(int64, tag = "3")]
    pub(crate) not_after: i64,
    /// SHA-256 of the certificate's PEM, hexadecimal.
    #[prost(string, tag = "4")]
    pub(crate) certificate_digest: String,
    /// `join` or `renew`.
    #[prost(string, tag = "5")]
    pub(crate) by: String,
    /// SHA-256 of the authority that signed it. Empty: written by a release that
    /// knew one only.
    #[prost(string, tag = "6")]
    pub(crate) authority: String,
    /// The machine has shown it.
    #[prost(bool, tag = "7")]
    pub(crate) used: bool,
}

impl Record for Issue {
    const KIND: &'static str = "auth-certificate";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.machine.clone()
    }
}

/// A machine that has joined, or that a controller runs on.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Member {
    #[prost(string, tag = "1")]
    pub(crate) machine: String,
    /// host:port, empty until it reports.
    #[prost(string, tag = "2")]
    pub(crate) address: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(int64, tag = "4")]
    pub(crate) joined_at: i64,
    #[prost(int64, tag = "5")]
    pub(crate) last_seen: i64,
    #[prost(string, tag = "6")]
    pub(crate) version: String,
    /// Those of its join token.
    #[prost(string, repeated, tag = "7")]
    pub(crate) names: Vec<String>,
    /// The address that it joined from. Its certificates are good for it, and
    /// for none that it calls from later.
    #[prost(string, tag = "8")]
    pub(crate) joined_from: String,
    /// SHA-256 of the authorities that it believes.
    #[prost(string, repeated, tag = "9")]
    pub(crate) believes: Vec<String>,
    /// SHA-256 of the authority whose certificate it showed when it last reported.
    #[prost(string, tag = "10")]
    pub(crate) authority: String,
    /// When a certificate that it had replaced was renewed. 0: never.
    #[prost(int64, tag = "11")]
    pub(crate) copy_suspected_at: i64,
    /// Process that reported last. Empty: of a release that does not say.
    #[prost(string, tag = "12")]
    pub(crate) instance: String,
    /// The process that reported before it.
    #[prost(message, tag = "13")]
    pub(crate) before: Option<Reporter>,
    /// When the two last took turns. 0: never.
    #[prost(int64, tag = "14")]
    pub(crate) turns_at: i64,
}

/// A process that reported under a machine's name.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Reporter {
    #[prost(string, tag = "1")]
    pub(crate) instance: String,
    #[prost(string, tag = "2")]
    pub(crate) address: String,
    /// When it last reported, to the minute.
    #[prost(int64, tag = "3")]
    pub(crate) last_seen: i64,
}

impl Record for Member {
    const KIND: &'static str = "auth-machine";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.machine.clone()
    }
}

/// A machine that is not let in, whatever certificate it shows.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct BlockedMachine {
    #[prost(string, tag = "1")]
    pub(crate) machine: String,
    #[prost(int64, tag = "2")]
    pub(crate) blocked_at: i64,
    #[prost(string, tag = "3")]
    pub(crate) blocked_by: String,
}

impl Record for BlockedMachine {
    const KIND: &'static str = "auth-blocked-machine";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.machine.clone()
    }
}

impl BlockedMachine {
    pub(crate) fn to_wire(&self) -> wire::BlockedMachine {
        wire::BlockedMachine {
            machine: self.machine.clone(),
            blocked_at: Some(clock::to_wire(from_millis(self.blocked_at))),
            blocked_by: self.blocked_by.clone(),
        }
    }
}

/// An id that says nothing.
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

pub(crate) fn from_millis(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or_default()
}
