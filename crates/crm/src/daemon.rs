//! The crm as a part of a daemon: beside its controller, or joined to one.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use selvage_api::edgeproto::{CloudletKey, OperatorKey};
use selvage_kit::{identity::Machine, tasks::Tasks};
use selvage_notify::ClientOptions;
use selvage_part::{Context, Mount, OpenPart, Part, Process, Result};
use selvage_runtime::{Runtime, containerd, oci, select::EMBEDDED};

use crate::{
    Crm, Egress, Footprint, ImageFolders, Kind, Options, RuntimeKind, Settings, Site,
    claim::{Claim, Claims},
    platform::network,
    teardown,
};

/// The part `crm`.
pub struct CrmPart;

#[async_trait]
impl Part for CrmPart {
    const NAME: &'static str = "crm";
    const JOINS: Option<selvage_part::Kind> = Some(selvage_part::Kind::Cloudlet);
    const FRUGAL: bool = true;
    type Options = Options;

    fn check(process: &Process, options: &Options) -> Result<()> {
        if process.runs_only(Self::NAME) && !process.joined {
            bail!(
                "a crm needs a controller: give --controller HOST:PORT and the token that \
                 `selvage join-token create cloudlet/OPERATOR/NAME` prints, or run both with \
                 `selvage up --set crm.cloudlet=OPERATOR/NAME`"
            );
        }
        let site = site(options)?;
        if let (Some(path), Some(_)) = (&options.site, &site.registry)
            && std::fs::metadata(path).is_ok_and(|of| exposed(of.permissions().mode()))
        {
            let path = path.display();
            tracing::warn!(%path, "everybody may read the password in crm.site: chmod 600");
        }
        if site.kaas.is_some() && options.kubeconfig.is_some() {
            bail!(
                "crm.kubeconfig: the clusters of this cloudlet are made by kaas, as crm.site \
                 says: leave out one of the two"
            );
        }
        if !options.cloudlet.is_empty() {
            cloudlet(&options.cloudlet)?;
            if options.https && process.insecure {
                bail!("crm.https: there is no certificate with --insecure");
            }
        }
        Ok(())
    }

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        if context.member.is_none() && options.cloudlet.is_empty() {
            return Ok(None);
        }
        let (context, options) = (Arc::clone(context), options.clone());
        Ok(Some(Box::new(Opened { context, options })))
    }
}

/// The crm looks at what runs when it is opened, and may need volumes for
/// that: so it is opened when everything else is served.
struct Opened {
    context: Arc<Context>,
    options: Options,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, _: &mut Mount) {}

    async fn spawn(self: Box<Self>, _: &Tasks) -> Result<()> {
        let settings = self.settings().await?;
        let containerd = Some(self.options.containerd());
        let containerd = containerd.filter(|_| !self.options.drives_containers());
        let footprint = Footprint::of(&settings, containerd);
        let claim = match settings.site.kind {
            Kind::Containers | Kind::Machines => Some(claim(&settings, &footprint).await?),
            Kind::Kubernetes => None,
        };
        footprint.write(&settings.data)?;
        let crm = Arc::new(Crm::open(settings).await.context("crm")?);
        crm.keep_claim(claim);
        self.context.shared.offer(crm.instances());
        crm.spawn_among(&self.context.reconcilers);
        Ok(())
    }
}

impl Opened {
    async fn settings(&self) -> Result<Settings> {
        let (context, options) = (&self.context, &self.options);
        let (cloudlet, notify) = self.controller()?;
        let site = site(options)?;
        let runtime = self.runtime(site.kind).await?;
        Ok(Settings {
            cloudlet,
            node: context.host.clone(),
            site,
            data: context.data.clone(),
            notify,
            runtime,
            namespace: EMBEDDED.into(),
            images: self.images(),
            pull_secrets: self.options.pull_secrets.clone(),
            private_hosts: self.options.private_hosts.clone(),
            lvmd: options.lvmd.clone().unwrap_or_else(|| context.socket_path("lvmd")),
            addresses: options.addresses.clone(),
            forwarding: options.forwarding,
            users: options.user_namespaces.users(),
            egress: Egress::parse(&options.egress)?,
            tls: context.server_tls.clone().filter(|_| options.https),
            start_timeout: options.start_timeout.0,
            grace: options.grace.0,
            resync_interval: options.resync_interval.0,
            samples: options.samples.0,
        })
    }

    /// Returns the cloudlet's key, and how its controllers are reached.
    fn controller(&self) -> Result<(CloudletKey, ClientOptions)> {
        let context = &self.context;
        if let Some(member) = &context.member {
            let (key, _) = cloudlet(member.name())?;
            let tls = context.controller_tls.clone();
            let addresses = member.controllers();
            return Ok((key, ClientOptions { addresses, tls, ..ClientOptions::default() }));
        }
        let (key, machine) = cloudlet(&self.options.cloudlet)?;
        let issued = context.issue(machine, CrmPart::NAME)?;
        let addresses = vec![context.local_address()?.to_string()];
        let tls = issued.map(|issued| issued.controller_tls());
        Ok((key, ClientOptions { addresses, tls, ..ClientOptions::default() }))
    }

    /// Runtime of containers: the one of this process, or a new one. On a
    /// cloudlet without containers nothing is made that could fail.
    async fn runtime(&self, kind: Kind) -> Result<Arc<dyn Runtime>> {
        if kind != Kind::Containers || !self.options.drives_containers() {
            let options = containerd::Options::new(self.options.containerd());
            return Ok(Arc::new(containerd::Containerd::new(options)));
        }
        if let Some(shared) = self.context.shared.find::<Arc<dyn Runtime>>() {
            return Ok(shared);
        }
        let options = oci::Options::in_data(&self.context.data);
        Ok(Arc::new(oci::Oci::open(options).await.context("containers")?))
    }

    /// Folders whose files may be images: `images` in the data directory, and
    /// those that were named.
    fn images(&self) -> ImageFolders {
        let data = &self.context.data;
        let named = self.options.image_folders.iter().cloned();
        ImageFolders::new(std::iter::once(data.join("images")).chain(named)).without(data)
    }
}

impl Options {
    /// Socket of the containerd that runs containers.
    pub fn containerd(&self) -> PathBuf {
        self.containerd.clone().unwrap_or_else(|| containerd::DEFAULT_SOCKET.into())
    }

    /// Returns whether containers run without containerd.
    pub fn drives_containers(&self) -> bool {
        match self.runtime {
            RuntimeKind::Containerd => false,
            RuntimeKind::Oci => true,
            RuntimeKind::Auto => !self.containerd().exists(),
        }
    }
}

/// Claims this machine's part of a cloudlet, and removes what an earlier crm
/// left there that lost its data.
async fn claim(settings: &Settings, footprint: &Footprint) -> Result<Claim> {
    let (claims, range) = (Claims::here()?, settings.site.range);
    let claim = claims.take(footprint, &settings.data)?;
    claims.check_range(footprint, range)?;
    let survey = network::survey(&settings.cloudlet, range).await?;
    teardown::remove_orphans(&claim, &settings.data, !survey.bridges.is_empty()).await?;
    match survey.collision {
        Some(network) if survey.bridges.is_empty() => bail!(
            "network_scheme: {range} meets {network} of this machine: name another range in \
             crm.site (common: {{network_scheme: 10.x.0.0/16}})"
        ),
        Some(network) => {
            tracing::warn!(%range, network, "network_scheme meets a network of this machine");
        }
        None => {}
    }
    Ok(claim)
}

/// Description of the cloudlet.
fn site(options: &Options) -> Result<Site> {
    let mut site = match &options.site {
        Some(path) => Site::read(path).with_context(|| path.display().to_string())?,
        None => Site::default(),
    };
    site.kubeconfig.clone_from(&options.kubeconfig);
    Ok(site)
}

/// Returns whether a file is for more than its owner and its group.
fn exposed(mode: u32) -> bool {
    mode & 0o007 != 0
}

/// Reads `operator/name`.
fn cloudlet(text: &str) -> Result<(CloudletKey, Machine)> {
    let machine = Machine::parse(&format!("cloudlet/{text}"));
    let Ok(Machine::Cloudlet { operator, name }) = machine else {
        bail!("crm.cloudlet: {text:?} is not OPERATOR/NAME");
    };
    let operator_key = Some(OperatorKey { name: operator.clone() });
    let key = CloudletKey { operator_key, name: name.clone() };
    Ok((key, Machine::Cloudlet { operator, name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_everybody_may_read_is_exposed() {
        assert!(exposed(0o100_644));
        assert!(!exposed(0o100_640) && !exposed(0o100_600));
    }

    #[test]
    fn a_crm_without_a_controller_is_refused_before_anything_is_made() {
        let alone = Process { running: vec!["crm"], ..Process::default() };
        let refused = CrmPart::check(&alone, &Options::default()).map_err(|e| e.to_string());
        assert!(refused.is_err_and(|text| text.contains("--controller HOST:PORT")));
        let joined = Process { joined: true, ..alone };
        assert!(CrmPart::check(&joined, &Options::default()).is_ok());
    }
}
