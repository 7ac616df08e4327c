//! The original's end-to-end scenarios, as far as they need neither agent nor
//! match engine: each cloudlet is spoken for, and instances ignore the crm.
//!
//! Data sets and what they show are in `edge/`, in the form of the original.
//! Of what is shown everything is compared but the time of creation.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod auto_clusters;
mod made_and_gone;
mod references;
mod scene;
