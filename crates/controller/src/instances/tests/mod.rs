#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apps;
mod auto_clusters;
mod clusters;
mod crm;
mod defects;
mod failures;
mod flavors;
mod golden;
mod model;
mod overrides;
mod proofs;
mod revisions;
mod support;
mod texts;
mod unused_clusters;
mod upkeep;
