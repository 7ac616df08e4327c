//! The cluster service as a part of a process.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use async_trait::async_trait;
use selvage_kit::{config::SecretFile, tasks::Tasks};
use selvage_part::{Context, Mount, OpenPart, Part, Process, Result};
use selvage_restic::{Backend, Directory, S3, Secret, StoreOptions};
use selvage_store::{SharedStore, Table, clock::SystemClock};
use selvage_work::Reconcilers;
use zeroize::Zeroizing;

use crate::{
    Dependencies, Kaas, Keyring, Manager, Members, Options, ProviderKind,
    catalogue::Catalogue,
    driver::Driver,
    members::{
        artifacts::{Artifacts, Source},
        mirror::Mirror,
        official::Official,
    },
    options::RepositoryOptions,
    pki::{Seal, create_secret},
    provider::{Provider, agents::Agents, local::Local, maas::Maas, sim::Sim, ssh::Ssh},
    record::Machine,
    vault::Vault,
};

/// File in the folder of keys that seals the keys of clusters.
const SEAL: &str = "pki/kaas.key";
/// Folder with programs that came from a mirror or their projects.
const FETCHED: &str = "kaas/artifacts";
/// Folder with the repository of backups, where no other one is set.
const REPOSITORY: &str = "kaas/repository";
/// Folder with backups that are on their way.
const SCRATCH: &str = "kaas/scratch";
/// File with the password of the repository, where no other one is set.
const PASSWORD: &str = "pki/kaas-backup.password";

/// Description of the cluster service.
pub struct KaasPart;

#[async_trait]
impl Part for KaasPart {
    const NAME: &'static str = "kaas";
    type Options = Options;

    fn validate(options: &Options) -> Result<()> {
        options.validate().map_err(anyhow::Error::msg)
    }

    fn check(process: &Process, _: &Options) -> Result<()> {
        let here = process.runs(Self::NAME) && process.joined;
        anyhow::ensure!(!here, "kaas runs where the store is: start it without --controller");
        Ok(())
    }

    async fn open(context: &Arc<Context>, options: &Options) -> Result<Option<Box<dyn OpenPart>>> {
        let kaas = open(context, options).await.context("kaas")?;
        Ok(Some(Box::new(Opened { kaas, reconcilers: context.reconcilers.clone() })))
    }
}

async fn open(context: &Context, options: &Options) -> Result<Kaas> {
    let store = context.store()?;
    let catalogue = Catalogue::load(options.catalogue.as_deref()).context("kaas.catalogue")?;
    let seal = Seal::load(&context.data.join(SEAL))?;
    let vault = Arc::new(vault(&context.data, &options.backup)?);
    let clock = Arc::new(SystemClock::new());
    let keyring =
        Keyring::open(Arc::clone(&store), seal, Arc::<SystemClock>::clone(&clock)).await?;
    let source = artifacts(context, options, &catalogue)?;
    let artifacts = Artifacts::new(source, catalogue.sha256.clone());
    let endpoint = options.endpoint().map_err(anyhow::Error::msg)?;
    let members = |provider: Arc<dyn Provider>| -> Arc<dyn Driver> {
        let clock = Arc::<SystemClock>::clone(&clock);
        let members = Members::new(provider, keyring.clone(), catalogue.clone(), clock);
        let members = members.with_vault(Arc::clone(&vault)).with_artifacts(artifacts);
        Arc::new(members.with_endpoint(endpoint))
    };
    let (provider, driver): (Arc<dyn Provider>, Arc<dyn Driver>) = match options.provider {
        ProviderKind::Sim => {
            let machines: Arc<Table<Machine>> = Table::open(Arc::clone(&store)).await?;
            let sim = Sim::default();
            sim.resume(machines.list().iter().map(|stored| stored.value.clone()));
            (Arc::new(sim.clone()), Arc::new(sim))
        }
        ProviderKind::Agents => {
            let auth = context.auth.clone().context("the users' store is not here")?;
            let machines = move || auth.machines();
            let tls = context.client_tls.clone();
            let agents = Arc::new(Agents::open(Arc::clone(&store), machines, tls).await?);
            (agents.clone(), members(agents))
        }
        ProviderKind::Maas => {
            let maas = Arc::new(maas(context, options, &store, &clock).await?);
            (maas.clone(), members(maas))
        }
        ProviderKind::Ssh => {
            let ssh = Arc::new(ssh(context, options, &store).await?);
            (ssh.clone(), members(ssh))
        }
        ProviderKind::Auto | ProviderKind::Local => {
            let local = Arc::new(local(context, options, &catalogue)?);
            (local.clone(), members(local))
        }
    };
    let dependencies = Dependencies { provider, driver, catalogue, keyring, clock, vault };
    let manager = Manager::open(store, options.settings(), dependencies).await?;
    let compat = options.compat().map_err(anyhow::Error::msg)?;
    Ok(Kaas::new(manager, compat))
}

/// The repository of backups. Nothing is asked of it yet.
fn vault(data: &Path, options: &RepositoryOptions) -> Result<Vault> {
    let file = match &options.password_file {
        Some(file) => file.clone(),
        None => {
            let path = data.join(PASSWORD);
            let fresh = Zeroizing::new(hex::encode(rand::random::<[u8; 32]>()));
            create_secret(&path, fresh.as_bytes()).context(PASSWORD)?;
            SecretFile(path)
        }
    };
    let password = Secret::new(file.read().context("kaas.backup.password_file")?.expose());
    let backend: Arc<dyn Backend> = match options.location().map_err(anyhow::Error::msg)? {
        Some(location) => {
            let secret = options.secret_access_key_file.as_ref().map(SecretFile::read);
            let secret = secret.transpose().context("kaas.backup.secret_access_key_file")?;
            let secret = secret.as_ref().map_or("", |secret| secret.expose());
            let place = StoreOptions::new(options.endpoint.clone(), location);
            let access_key = options.access_key_id.clone();
            let s3 = S3::new(StoreOptions { access_key, secret_key: Secret::new(secret), ..place });
            Arc::new(s3.context("kaas.backup")?)
        }
        None if options.repository.is_empty() => Arc::new(Directory::new(data.join(REPOSITORY))),
        None => Arc::new(Directory::new(&options.repository)),
    };
    Ok(Vault::new(backend, password, data.join(SCRATCH)))
}

/// Programs that machines are sent. Those of this host see the folder themselves.
fn artifacts(
    context: &Context,
    options: &Options,
    catalogue: &Catalogue,
) -> Result<Option<Source>> {
    let ca = match &options.artifacts_ca {
        Some(path) => std::fs::read(path).context("kaas.artifacts_ca")?,
        None => Vec::new(),
    };
    if options.is_official() {
        let (addresses, own) = (catalogue.official.clone(), catalogue.has_own_addresses);
        let official = Official::new(addresses, own, &ca, context.data.join(FETCHED));
        return Ok(Some(Source::Official(official.map_err(anyhow::Error::msg)?)));
    }
    if let Some(address) = options.mirror() {
        let mirror = Mirror::new(address, &ca, context.data.join(FETCHED));
        return Ok(Some(Source::Mirror(mirror.map_err(anyhow::Error::msg)?)));
    }
    let remote = [ProviderKind::Agents, ProviderKind::Maas, ProviderKind::Ssh];
    let folder = options.artifacts_folder().filter(|_| remote.contains(&options.provider));
    Ok(folder.cloned().map(Source::Folder))
}

/// Machines of a MaaS, whose agents join this controller.
async fn maas(
    context: &Context,
    options: &Options,
    store: &SharedStore,
    clock: &Arc<SystemClock>,
) -> Result<Maas> {
    let auth = context.auth.clone().context("the users' store is not here")?;
    let tls = context.client_tls.clone();
    let clock = Arc::<SystemClock>::clone(clock);
    let settings = options.maas.clone();
    Maas::open(Arc::clone(store), auth, settings, &context.advertise, tls, clock).await
}

/// Machines by SSH, with this program as their agent.
async fn ssh(context: &Context, options: &Options, store: &SharedStore) -> Result<Ssh> {
    let auth = context.auth.clone().context("the users' store is not here")?;
    let tls = context.client_tls.clone();
    let settings = options.ssh.clone();
    // As it is in memory, also after a newer one was put in its place.
    let program = PathBuf::from("/proc/self/exe");
    Ssh::open(Arc::clone(store), auth, settings, &context.advertise, tls, program).await
}

/// Machines of this host, with this program as their agent.
fn local(context: &Context, options: &Options, catalogue: &Catalogue) -> Result<Local> {
    let program = std::env::current_exe().context("the path of this program")?;
    // The machines' folders are named in full.
    let absolute = |path: &Path| std::path::absolute(path).context("kaas.artifacts");
    let artifacts = options.artifacts_folder().map(|path| absolute(path)).transpose()?;
    let data = std::path::absolute(&context.data).context("data")?;
    // What others have is seen when they are asked.
    let is_remote = options.mirror().is_some() || options.is_official();
    let releases = if is_remote { Vec::new() } else { catalogue.releases().to_vec() };
    let local = Local::new(&data, options.local.machines, artifacts, program, releases);
    Ok(local.with_trusted(options.local.trusted()))
}

struct Opened {
    kaas: Kaas,
    reconcilers: Reconcilers,
}

#[async_trait]
impl OpenPart for Opened {
    fn mount(&mut self, mount: &mut Mount) {
        self.kaas.add_to(mount.services());
    }

    async fn spawn(self: Box<Self>, _: &Tasks) -> Result<()> {
        self.kaas.spawn(&self.reconcilers);
        Ok(())
    }
}
