//! Identity and access for people and machines: users with passwords or from
//! an OpenID Connect provider, their sessions, and the one-time tokens with
//! which machines get their first certificate, tokens and certificates that people
//! hand to programs, where machines are, and which of
//! them are blocked.
//!
//! [`Auth`] serves `services.auth.AuthService` and
//! `selvage.identity.IdentityService` and tells the listener whose
//! credentials it was shown. Which method needs which role is not decided
//! here: the listener has the table. What no table can see is: one's own
//! password or another's, the last administrator, a machine's own name.
//!
//! All state is in the store, except the counts of failed logins, the places
//! of late ones and the OpenID Connect logins under way, all bounded and kept
//! in memory.

mod assertions;
mod audit;
mod auth;
mod auth_service;
mod authority;
mod blocking;
mod caller;
mod clock;
mod cookie;
mod credentials;
mod error;
mod hash_memory;
mod http_routes;
mod identity_service;
mod inventory;
mod limits;
mod login;
mod machines;
mod names;
mod oidc;
mod options;
mod password;
mod records;
mod rotation;
mod secrets;
mod sessions;
mod users;

pub use assertions::Issued;
pub use auth::{Auth, FIRST_USER, Swept};
pub use auth_service::AuthApi;
pub use authority::{CertificateAuthority, SignError, Signed};
pub use error::{Error, Result};
pub use identity_service::IdentityApi;
pub use inventory::Report;
pub use options::{GroupGrant, HashCost, OidcProvider, Options, RateLimits, WrittenGrant};
pub use rotation::PkiApi;
pub use secrets::{GeneratedPassword, TOKEN_PREFIXES};
