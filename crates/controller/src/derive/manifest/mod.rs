//! Manifests, configs and the files that customise a deployment: made, split,
//! read and checked.

mod basic;
mod files;
mod services;
mod yaml;

pub(crate) use basic::{KUBERNETES_BASIC, kubernetes_basic};
pub(crate) use files::{check_cloud_config, check_config_files, parse_config};
pub(crate) use services::{check_ports_served, service_of, services};
