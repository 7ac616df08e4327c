//! Identity and access as callers see it: through the generated clients and
//! the HTTP routes, on the embedded store.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod abuse;
mod assertions;
mod credentials;
mod harness;
mod logins;
mod machines;
mod oidc;
mod oidc_real;
mod oidc_tls;
mod own_provider;
mod rotation;
mod secrecy;
mod sessions;
mod users;
