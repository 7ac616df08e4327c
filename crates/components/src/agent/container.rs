//! One component as a container: made, replaced when it has to be another, and
//! looked at.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use jiff::Timestamp;
use selvage_api::selvage::kubernetes::{ComponentState, MemberSpec, MissingArtifact};
use selvage_kit::pki::replace_private;
use selvage_runtime::{
    Container, ContainerSpec, Mount, Network, RestartPolicy, Status, select::SYSTEM,
};
use sha2::{Digest, Sha256};

use super::Inner;
use crate::{
    Error, Result,
    component::{Component, KINDS, Kind},
    images::EMPTY_IMAGE,
    status::ComponentStatus,
};

/// Tells by what a container was made.
const DIGEST: &str = "selvage.io/digest";
/// Tells which version runs.
const VERSION: &str = "selvage.io/version";
/// etcd writes down what it has, kubelet lets go of what it watches.
const GRACE: Duration = Duration::from_secs(20);

/// The runtime waits no longer before it starts again what has ended: what ended
/// before was stopped by somebody.
const FORGOTTEN: Duration = Duration::from_secs(75);

impl Inner {
    /// Brings one component closer to what it has to be; none where there is to
    /// be none.
    pub(super) async fn component(
        &self,
        kind: &Kind,
        spec: &MemberSpec,
    ) -> Option<ComponentStatus> {
        if !kind.is_wanted(spec, &self.paths) {
            return self.stop(kind.name).await;
        }
        Some(match self.bring_up(kind, spec).await {
            Ok(seen) => seen,
            Err(error) => {
                let mut seen =
                    ComponentStatus::new(kind.name, ComponentState::Failed, error.to_string());
                if let Error::Missing { name, folder, version } = error {
                    seen.state = ComponentState::Waiting;
                    let folder = folder.to_owned();
                    seen.missing = Some(MissingArtifact { name, folder, version });
                }
                seen
            }
        })
    }

    async fn bring_up(&self, kind: &Kind, spec: &MemberSpec) -> Result<ComponentStatus> {
        let component = (kind.make)(&self.member(spec))?;
        let found = self.find(kind.name).await?;
        let digest = digest(&component);
        let found = match found {
            Some(found) if found.labels.get(DIGEST) != Some(&digest) => {
                if is_other_version(&component, &found)
                    && let Some(first) = self.server_of(kind, spec)
                    && let Err(reason) = self.runs_version(first, spec).await?
                {
                    return Ok(seen(&component, ComponentState::Waiting, reason, found.restarts));
                }
                tracing::info!(component = kind.name, "is replaced: it has to be another");
                self.remove(kind.name).await?;
                None
            }
            other => other,
        };
        match found {
            Some(found) if found.status.is_running() => Ok(self.look_at(&component, &found).await),
            Some(found) => self.start_again(&component, &found).await,
            None => self.make(&component, digest).await,
        }
    }

    /// Component of this machine that has to be replaced before another one is.
    fn server_of(&self, kind: &Kind, spec: &MemberSpec) -> Option<&'static Kind> {
        let server = KINDS.iter().find(|other| Some(other.name) == kind.after)?;
        server.is_wanted(spec, &self.paths).then_some(server)
    }

    /// Sees whether a component runs in the version that it has to, and is well; says
    /// why not.
    async fn runs_version(&self, kind: &Kind, spec: &MemberSpec) -> Result<Result<(), String>> {
        let component = (kind.make)(&self.member(spec))?;
        let waits =
            |reason: &str| format!("waits for {} {}: {reason}", kind.name, component.version);
        Ok(match self.find(kind.name).await? {
            Some(found) if is_other_version(&component, &found) => Err(waits("it comes next")),
            Some(found) if found.status.is_running() => {
                self.prober.ask(&component.health).await.map_err(|reason| waits(&reason))
            }
            _ => Err(waits("it does not run")),
        })
    }

    async fn find(&self, name: &str) -> Result<Option<Container>> {
        let all = self.runtime.list(SYSTEM).await?;
        Ok(all.into_iter().find(|one| one.runtime_id == name))
    }

    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        if self.find(name).await?.is_none() {
            return Ok(());
        }
        match self.runtime.stop(SYSTEM, name, GRACE).await {
            Ok(_) | Err(selvage_runtime::Error::ProcessFinished) => {}
            Err(error) => tracing::warn!(component = name, %error, "cannot be stopped"),
        }
        Ok(self.runtime.delete(SYSTEM, name, true).await?)
    }

    /// Waits for what has to come first.
    async fn closed_gate(&self, component: &Component) -> Option<ComponentStatus> {
        let gate = component.gate.as_ref()?;
        let reason = self.prober.ask(&gate.probe).await.err()?;
        let message = format!("waits for {}: {reason}", gate.name);
        Some(seen(component, ComponentState::Waiting, message, 0))
    }

    async fn make(&self, component: &Component, digest: String) -> Result<ComponentStatus> {
        if let Some(closed) = self.closed_gate(component).await {
            return Ok(closed);
        }
        write_files(&self.paths.component(component.name), component)?;
        for mount in component.mounts.iter().filter(|mount| !mount.read_only) {
            selvage_runtime::private_directory(&mount.source)
                .map_err(Error::file(&mount.source))?;
        }
        self.runtime.create(SYSTEM, self.container(component, digest)).await?;
        self.runtime.start(SYSTEM, component.name).await?;
        tracing::info!(component = component.name, version = component.version, "started");
        Ok(seen(component, ComponentState::Starting, "was just started".into(), 0))
    }

    /// The runtime starts what ends; what somebody stopped is for us.
    async fn start_again(
        &self,
        component: &Component,
        found: &Container,
    ) -> Result<ComponentStatus> {
        let code = found.exit.and_then(|exit| exit.code);
        let ended = code.map_or_else(String::new, |code| format!(" with code {code}"));
        let message = format!("has ended{ended} and is started again");
        let since = found.exit.and_then(|exit| exit.at).unwrap_or(Timestamp::UNIX_EPOCH);
        let forgotten = Timestamp::now().duration_since(since).unsigned_abs() > FORGOTTEN;
        if matches!(found.status, Status::Created | Status::Stopped) && forgotten {
            match self.runtime.start(SYSTEM, component.name).await {
                Ok(_) | Err(selvage_runtime::Error::State { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(seen(component, ComponentState::Starting, message, found.restarts))
    }

    async fn look_at(&self, component: &Component, found: &Container) -> ComponentStatus {
        let (state, message) = match self.prober.ask(&component.health).await {
            Ok(()) => (ComponentState::Healthy, String::new()),
            Err(reason) if self.history.was_healthy(component.name) => {
                (ComponentState::Unhealthy, reason)
            }
            Err(reason) => (ComponentState::Starting, reason),
        };
        seen(component, state, message, found.restarts)
    }

    fn container(&self, component: &Component, digest: String) -> ContainerSpec {
        let target = PathBuf::from("/usr/local/bin").join(component.name);
        let folder = self.paths.component(component.name);
        let (program, mounts, image);
        if component.host {
            program = component.program.clone();
            mounts = self.top.folders.iter().map(|name| whole(name)).collect();
            image = self.top.image();
        } else {
            program = target.clone();
            let read_only = |source: PathBuf, target| Mount { source, target, read_only: true };
            let own =
                [read_only(component.program.clone(), target), read_only(folder.clone(), folder)];
            mounts = own.into_iter().chain(component.mounts.iter().cloned()).collect();
            image = EMPTY_IMAGE.to_owned();
        }
        let mut command = vec![program.display().to_string()];
        command.extend(component.arguments.iter().cloned());
        ContainerSpec {
            id: component.name.to_owned(),
            image,
            command,
            mounts,
            network: Network::Host,
            restart: RestartPolicy::Always,
            host: component.host,
            labels: BTreeMap::from([
                (DIGEST.to_owned(), digest),
                (VERSION.to_owned(), component.version.clone()),
            ]),
            ..ContainerSpec::default()
        }
    }
}

fn is_other_version(component: &Component, found: &Container) -> bool {
    found.labels.get(VERSION).is_some_and(|version| *version != component.version)
}

fn whole(name: &str) -> Mount {
    let path = PathBuf::from("/").join(name);
    Mount { source: path.clone(), target: path, read_only: false }
}

fn seen(
    component: &Component,
    state: ComponentState,
    message: String,
    restarts: u32,
) -> ComponentStatus {
    let version = component.version.clone();
    ComponentStatus { name: component.name, version, state, message, restarts, missing: None }
}

/// Of everything that a container is made of.
fn digest(component: &Component) -> String {
    let mut digest = Sha256::new();
    let mut add = |bytes: &[u8]| {
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    };
    add(component.program.as_os_str().as_encoded_bytes());
    add(component.version.as_bytes());
    add(&[u8::from(component.host)]);
    for argument in &component.arguments {
        add(argument.as_bytes());
    }
    for file in &component.files {
        add(file.name.as_bytes());
        add(&file.content);
    }
    hex::encode(digest.finalize())
}

/// Writes the files of a component, and nothing else stays in its folder.
fn write_files(folder: &std::path::Path, component: &Component) -> Result<()> {
    selvage_runtime::private_directory(folder).map_err(Error::file(folder))?;
    for file in &component.files {
        replace_private(&folder.join(&file.name), &file.content)?;
    }
    for entry in fs::read_dir(folder).map_err(Error::file(folder))?.flatten() {
        let name = entry.file_name();
        if !component.files.iter().any(|file| name == file.name.as_str()) {
            fs::remove_file(entry.path()).map_err(Error::file(entry.path()))?;
        }
    }
    Ok(())
}
