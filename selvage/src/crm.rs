//! The agent of one cloudlet: in the process of a controller, or joined to
//! one.

use std::{
    net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, process::ExitCode, sync::Arc,
};

use anyhow::{Context, bail};
use selvage_api::edgeproto::{CloudletKey, OperatorKey};
use selvage_crm::{Crm, Forwarding, ImageFolders, Settings, Site};
use selvage_kit::{
    identity::Machine,
    serve::{Server, Services},
    tasks::Tasks,
    telemetry::{self, Metrics},
};
use selvage_memory::Frugal;
use selvage_node::member::Kind;
use selvage_notify::ClientOptions;
use selvage_runtime::{Runtime, containerd, oci, select::EMBEDDED};

use crate::{
    agent,
    args::{Join, Serve},
    assemble,
    config::{self, Config, CrmForwarding, CrmRuntime},
    demo,
    part::Part,
    peers::Peers,
    system::System,
    up,
};

/// Runs the agent of a cloudlet alone.
pub(crate) async fn run(
    serve: &Serve,
    join: &Join,
    ca: Option<&Path>,
    frugal: Option<Frugal>,
) -> ExitCode {
    let config = match agent::configured(serve, join, ca).and_then(checked) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let ran = Box::pin(joined(&config, serve, join, frugal)).await;
    ran.unwrap_or_else(|error| up::fail(&error))
}

/// What the cloudlet is made of.
fn site(config: &Config) -> anyhow::Result<Site> {
    let given = &config.crm;
    let mut site = match &given.site {
        Some(path) => Site::read(path).with_context(|| path.display().to_string())?,
        None => Site::default(),
    };
    site.kubeconfig.clone_from(&given.kubeconfig);
    Ok(site)
}

/// A configuration whose cloudlet can be run. One that cannot is told of before
/// anything is made and before a token is spent.
pub(crate) fn checked(config: Config) -> Result<Config, ExitCode> {
    match site(&config) {
        Ok(site) => {
            if let (Some(path), Some(_)) = (&config.crm.site, &site.registry)
                && std::fs::metadata(path).is_ok_and(|of| exposed(of.permissions().mode()))
            {
                let path = path.display();
                tracing::warn!(%path, "everybody may read the password in crm.site: chmod 600");
            }
            Ok(config)
        }
        Err(error) => {
            up::fail(&error);
            Err(ExitCode::from(config::BAD_CONFIG))
        }
    }
}

/// Whether a file is for more than its owner and its group.
fn exposed(mode: u32) -> bool {
    mode & 0o007 != 0
}

/// Reads `operator/name`.
fn cloudlet(text: &str) -> anyhow::Result<(CloudletKey, Machine)> {
    let machine = Machine::parse(&format!("cloudlet/{text}"));
    let Ok(Machine::Cloudlet { operator, name }) = machine else {
        bail!("crm.cloudlet: {text:?} is not OPERATOR/NAME");
    };
    let operator_key = Some(OperatorKey { name: operator.clone() });
    let key = CloudletKey { operator_key, name: name.clone() };
    Ok((key, Machine::Cloudlet { operator, name }))
}

/// Whether containers run without containerd.
pub(crate) fn drives_containers(config: &Config) -> bool {
    match config.crm.runtime {
        CrmRuntime::Containerd => false,
        CrmRuntime::Oci => true,
        CrmRuntime::Auto => !config.node.containerd.exists(),
    }
}

/// Whether the agent of this machine and the crm have containers in common.
pub(crate) fn shares_containers(config: &Config) -> bool {
    !config.crm.cloudlet.is_empty() && drives_containers(config)
}

/// What runs containers; `shared` is what this process has already. Where none
/// are run nothing is made that could fail.
async fn runtime(
    config: &Config,
    kind: selvage_crm::Kind,
    shared: Option<Arc<dyn Runtime>>,
) -> anyhow::Result<Arc<dyn Runtime>> {
    if kind != selvage_crm::Kind::Containers || !drives_containers(config) {
        let options = containerd::Options::new(&config.node.containerd);
        return Ok(Arc::new(containerd::Containerd::new(options)));
    }
    if let Some(shared) = shared {
        return Ok(shared);
    }
    let options = assemble::own_containers(config);
    Ok(Arc::new(oci::Oci::open(options).await.context("containers")?))
}

/// Where files may be images: folders that were named, and our own with the
/// demonstration's.
fn images(config: &Config) -> ImageFolders {
    let own = [config.data.join("images"), demo::image(config)];
    ImageFolders::new(own.into_iter().chain(config.crm.image_folders.iter().cloned()))
}

async fn open(
    config: &Config,
    cloudlet: CloudletKey,
    notify: ClientOptions,
    tls: Option<Arc<rustls::ServerConfig>>,
    shared: Option<Arc<dyn Runtime>>,
) -> anyhow::Result<Arc<Crm>> {
    let given = &config.crm;
    let site = site(config)?;
    let kind = site.kind;
    let settings = Settings {
        cloudlet,
        node: assemble::host_name(),
        site,
        data: config.data.clone(),
        notify,
        runtime: runtime(config, kind, shared).await?,
        namespace: EMBEDDED.into(),
        images: images(config),
        lvmd: given.lvmd.clone().unwrap_or_else(|| config.lvmd_socket()),
        addresses: given.addresses.clone(),
        forwarding: match given.forwarding {
            CrmForwarding::Auto => Forwarding::Auto,
            CrmForwarding::Kernel => Forwarding::Kernel,
            CrmForwarding::Proxy => Forwarding::Proxy,
        },
        tls,
        patience: given.patience.0,
        grace: given.grace.0,
        look: given.look.0,
        samples: given.samples.0,
    };
    Ok(Arc::new(Crm::open(settings).await.context("crm")?))
}

/// The crm of a process that has the controller too.
pub(crate) struct Beside {
    crm: Arc<Crm>,
    peers: Option<Arc<Peers>>,
}

/// Opens the crm beside its controller, if a cloudlet is named.
pub(crate) async fn beside(
    config: &Config,
    keys: Option<&assemble::Keys>,
    address: SocketAddr,
    shared: Option<Arc<dyn Runtime>>,
) -> anyhow::Result<Option<Beside>> {
    if config.crm.cloudlet.is_empty() {
        return Ok(None);
    }
    let (key, machine) = cloudlet(&config.crm.cloudlet)?;
    let peers = match keys {
        Some(keys) => Some(Arc::new(Peers::open(&config.data, Arc::clone(&keys.ca), machine)?)),
        None => None,
    };
    let notify = ClientOptions {
        addresses: vec![assemble::near(address).to_string()],
        tls: peers.as_ref().map(|peers| peers.tls()),
        ..ClientOptions::default()
    };
    let tls = match (config.crm.https, keys) {
        (true, None) => bail!("crm.https: there is no certificate with --insecure"),
        (https, keys) => keys.filter(|_| https).map(|keys| Arc::clone(&keys.server)),
    };
    Ok(Some(Beside { crm: open(config, key, notify, tls, shared).await?, peers }))
}

impl Beside {
    pub(crate) fn spawn(self, tasks: &Tasks) {
        self.crm.spawn(tasks);
        if let Some(peers) = self.peers {
            tasks.spawn("crm's certificate", peers.run(tasks.token().clone()));
        }
    }
}

async fn server(config: &Config, tasks: &Tasks) -> anyhow::Result<Server> {
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    telemetry::install_panic_hook(&metrics);
    metrics.watch_tasks(tasks);
    let mut services = Services::default();
    services.add(System::service(&[Part::Crm], None, false));
    let server = Server::new(services, metrics, assemble::limits(config)).await;
    Ok(server.context("server")?.origins(config.listen.origins.clone()))
}

/// Runs a crm that belongs to a controller until a signal comes.
async fn joined(
    config: &Config,
    serve: &Serve,
    join: &Join,
    frugal: Option<Frugal>,
) -> anyhow::Result<ExitCode> {
    if !agent::belongs(config, Kind::Cloudlet) {
        bail!(
            "a crm needs a controller: give --controller HOST:PORT and the token that `selvage \
             join-token create cloudlet/OPERATOR/NAME` prints, or run both with `selvage up --set \
             crm.cloudlet=OPERATOR/NAME`"
        );
    }
    agent::belong(config, serve, join, Kind::Cloudlet, async |member, tasks| {
        let (key, _) = cloudlet(member.name())?;
        let notify = ClientOptions {
            addresses: member.controllers(),
            tls: Some(member.client_tls()?),
            ..ClientOptions::default()
        };
        let tls = if config.crm.https { Some(member.server_tls()?) } else { None };
        let crm = open(config, key, notify, tls, None).await?;
        let server = server(config, tasks).await?;
        crm.spawn(tasks);
        if let Some(frugal) = frugal {
            tasks.spawn("memory", agent::stay_small(frugal, tasks.token().clone()));
        }
        Ok(server)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_everybody_may_read_is_exposed() {
        assert!(exposed(0o100_644));
        assert!(!exposed(0o100_640) && !exposed(0o100_600));
    }
}
