//! From what the controller wants to what a runtime is told.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use selvage_api::edgeproto::App;
use selvage_runtime::{ContainerSpec, Limits, Mount, Network, RestartPolicy};
use serde::Deserialize;

use crate::{
    Error, Result,
    platform::{ClusterSize, InstanceOrder, network::rules::NAME_SERVERS},
};

/// Variables of containers, in the contract's word for it.
const VARIABLES: &str = "envVarsYaml";
/// More processes than any service needs, and less than it takes to stop the
/// machine.
const PROCESSES: u64 = 4096;
/// The contract's GB, of virtual machines as well.
const GIB: u64 = 1 << 30;

/// Surroundings that a container is put into.
pub(super) struct Placement {
    /// Its network namespace.
    pub(super) namespace: PathBuf,
    /// The control group of its cluster.
    pub(super) group: String,
    /// Its volumes and the files of its app.
    pub(super) mounts: Vec<Mount>,
    /// File that it reads as `/etc/hosts`.
    pub(super) hosts: PathBuf,
}

pub(super) fn spec(
    order: &InstanceOrder,
    id: &str,
    image: String,
    place: Placement,
) -> Result<ContainerSpec> {
    let command = shell_words::split(&order.app.command)
        .map_err(|_| Error::invalid("command", "has a quote that is not closed"))?;
    let flavor = &order.flavor;
    let limits = Limits {
        cpu_millis: (flavor.vcpus > 0).then_some(flavor.vcpus * 1000),
        memory_bytes: (flavor.ram > 0).then_some(flavor.ram << 20),
        pids: Some(PROCESSES),
        disk_bytes: (flavor.disk > 0).then_some(flavor.disk.saturating_mul(GIB)),
    };
    let resolver = NAME_SERVERS.iter().map(Path::new).find(|path| path.exists());
    let mut mounts = place.mounts;
    let file = |source: &Path, target: &str| Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only: true,
    };
    mounts.extend(resolver.map(|source| file(source, "/etc/resolv.conf")));
    mounts.push(file(&place.hosts, "/etc/hosts"));
    Ok(ContainerSpec {
        id: id.to_owned(),
        image,
        command,
        env: variables(&order.app)?,
        hostname: None,
        mounts,
        limits,
        group: Some(place.group),
        network: Network::Path(place.namespace),
        restart: RestartPolicy::Always,
        ..ContainerSpec::default()
    })
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Those of later files win.
fn variables(app: &App) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for config in app.configs.iter().filter(|config| config.kind == VARIABLES) {
        let read: Vec<Variable> = serde_saphyr::from_str(&config.config)
            .map_err(|error| Error::invalid(format!("configs ({VARIABLES})"), error.to_string()))?;
        all.extend(read.into_iter().map(|variable| (variable.name, variable.value)));
    }
    Ok(all)
}

/// Limits of all containers of a cluster together.
pub(super) fn cluster_limits(size: ClusterSize) -> Limits {
    Limits {
        cpu_millis: (size.vcores > 0).then_some(size.vcores * 1000),
        memory_bytes: (size.ram > 0).then_some(size.ram << 20),
        pids: None,
        disk_bytes: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use selvage_api::edgeproto::ConfigFile;

    use super::*;

    fn config(text: &str) -> App {
        let config = ConfigFile { kind: VARIABLES.into(), config: text.into() };
        App { configs: vec![config], ..App::default() }
    }

    #[test]
    fn variables_come_from_configs() {
        let read = variables(&config("- name: A\n  value: one\n- name: B\n")).unwrap();
        assert_eq!(read, BTreeMap::from([("A".into(), "one".into()), ("B".into(), String::new())]));
        let error = variables(&config("a: [")).unwrap_err().to_string();
        assert!(error.starts_with("configs (envVarsYaml): "), "{error}");
    }
}
