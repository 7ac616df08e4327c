//! A hostile tenant: the developer of `evil` against `acme`, against the
//! operator and against the machine, on a real cloudlet with real containers.
//! Charts and manifests are tried on a real Kubernetes in the crm's own tests
//! (`kubernetes::hostile`), images from registries and the network as an instance
//! sees it there too (`registry`, `egress`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod api;
mod asking;
mod site;
