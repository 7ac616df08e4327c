#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apps;
mod auto_clusters;
mod clusters;
mod crm;
mod failures;
mod flavors;
mod golden;
mod leftovers;
mod mended;
mod model;
mod overrides;
mod proofs;
mod revisions;
mod support;
mod texts;
mod upkeep;
