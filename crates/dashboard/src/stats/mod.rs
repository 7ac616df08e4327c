//! `stats.StatsService`, as existing dashboards know it.

mod cluster;
mod nodes;
mod service;

pub(crate) use cluster::cluster_stats;
pub(crate) use nodes::{nodes, resources};
pub(crate) use service::Stats;
