//! containerd, over its socket.
//!
//! One connection is kept. The inventory of a namespace is read with three
//! calls, however many containers it has, and then kept until an event says
//! that it is out of date; while the stream of events is down, every question
//! asks containerd again, and says UNAVAILABLE when it does not answer.

pub(crate) mod connection;
mod control;
pub(crate) mod events;
pub(crate) mod exec;
mod images;
mod inventory;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use containerd_client::services::v1 as api;
use futures::stream::BoxStream;
use serde_json::Value;
use tokio::{sync::OnceCell, task::AbortHandle};

use crate::{
    Container, ContainerSpec, Error, Event, Exec, ExecSpec, Exit, Image, LogOptions, LogStream,
    Pull, REPLY_TIMEOUT, Restart, Restarted, Result, Runtime, identity, logs, oci, seccomp,
};
use connection::Connection;

/// Socket of containerd when nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/containerd/containerd.sock";

/// Interval of looking how long logs are.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Options of a containerd.
#[derive(Debug, Clone)]
pub struct Options {
    pub socket: PathBuf,
    /// Folder of the logs of containers made here.
    pub logs: PathBuf,
    /// Which snapshotter containers made here use.
    pub snapshotter: String,
}

impl Options {
    /// With the rest as it is usual.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            logs: "/var/log/selvage/containers".into(),
            snapshotter: "overlayfs".into(),
        }
    }
}

/// One containerd.
pub struct Containerd {
    inner: Arc<Inner>,
    subscription: AbortHandle,
    log_times: AbortHandle,
    /// Set once it was said that disks have no limit.
    warned: AtomicBool,
}

struct Inner {
    options: Options,
    connection: Connection,
    inventory: inventory::Inventory,
    hub: events::Hub,
    seccomp: OnceCell<Option<&'static Value>>,
}

impl Inner {
    /// containerd uses the program that its machine has, and so this one.
    async fn seccomp(&self) -> Option<&'static Value> {
        let asking = async || seccomp::profile_of(oci::search(&["runc"]).as_deref()).await;
        *self.seccomp.get_or_init(asking).await
    }
}

impl Containerd {
    /// Starts to watch; a containerd that is not there yet is waited for.
    /// Must be called inside a tokio runtime.
    pub fn new(options: Options) -> Self {
        let inner = Arc::new(Inner {
            connection: Connection::new(options.socket.clone()),
            inventory: inventory::Inventory::default(),
            hub: events::Hub::new(),
            seccomp: OnceCell::new(),
            options,
        });
        let subscription = tokio::spawn(events::subscribe(Arc::downgrade(&inner))).abort_handle();
        let folder = inner.options.logs.clone();
        let log_times = tokio::spawn(note_log_times(folder)).abort_handle();
        Self { inner, subscription, log_times, warned: AtomicBool::new(false) }
    }

    async fn found(&self, namespace: &str, id: &str) -> Result<Container> {
        identity::find(self.list(namespace).await?, id)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.subscription.abort();
        self.log_times.abort();
    }
}

/// Notes how long the logs of containers made here are, again and again: those
/// who ask for times of lines are told by that.
async fn note_log_times(folder: PathBuf) {
    loop {
        tokio::time::sleep(LOG_INTERVAL).await;
        let folder = folder.clone();
        let noted = tokio::task::spawn_blocking(move || {
            let inside = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
            let all = inside(&folder).flat_map(|namespace| inside(&namespace.path()));
            let logs = all.map(|file| file.path());
            for log in logs.filter(|path| path.extension().is_some_and(|end| end == "log")) {
                if let Err(error) = logs::times::note(&log) {
                    tracing::debug!(log = %log.display(), %error, "its lines have no times");
                }
            }
        });
        if let Err(error) = noted.await {
            tracing::warn!(%error, "times of logs are not noted");
        }
    }
}

#[async_trait]
impl Runtime for Containerd {
    fn name(&self) -> &'static str {
        "containerd"
    }

    fn is_installed(&self) -> bool {
        self.inner.connection.is_known()
    }

    async fn version(&self) -> Result<String> {
        let mut client = api::version_client::VersionClient::new(self.inner.connection.channel());
        let answer = self.inner.connection.ask(REPLY_TIMEOUT, client.version(())).await?;
        Ok(answer.into_inner().version)
    }

    async fn namespaces(&self) -> Result<Vec<String>> {
        let connection = &self.inner.connection;
        let mut client = api::namespaces_client::NamespacesClient::new(connection.channel());
        let request = api::ListNamespacesRequest::default();
        let answer = connection.ask(REPLY_TIMEOUT, client.list(request)).await?.into_inner();
        let mut names: Vec<String> = answer.namespaces.into_iter().map(|n| n.name).collect();
        names.sort();
        Ok(names)
    }

    async fn list(&self, namespace: &str) -> Result<Vec<Container>> {
        identity::check_namespace(namespace)?;
        let known = self.inner.list(namespace).await?;
        Ok(known.iter().map(|known| known.container.clone()).collect())
    }

    async fn signal(&self, namespace: &str, id: &str, signal: i32) -> Result<()> {
        let container = self.found(namespace, id).await?;
        self.inner.kill(namespace, &container.runtime_id, signal).await
    }

    async fn restart(&self, namespace: &str, id: &str, how: Restart) -> Result<Restarted> {
        let container = self.found(namespace, id).await?;
        // What is known may be older than what keeps containerd from
        // answering. If it hangs, it would end the container whenever it wakes
        // up, and nobody would be left to start it again.
        self.version().await?;
        match how {
            Restart::SignalOnly(signal) => {
                self.inner.kill(namespace, &container.runtime_id, signal).await?;
                Ok(Restarted { old_pid: container.pid, new_pid: None })
            }
            Restart::Full { grace } => self.inner.restart(namespace, &container, grace).await,
        }
    }

    async fn logs(&self, namespace: &str, id: &str, options: LogOptions) -> Result<LogStream> {
        let container = self.found(namespace, id).await?;
        let path = self.inner.log_path(namespace, &container).await?;
        logs::follow_file(path, options).await
    }

    async fn exec(&self, namespace: &str, id: &str, spec: ExecSpec) -> Result<Exec> {
        crate::spec::check_argv(&spec.argv)?;
        let container = self.found(namespace, id).await?;
        if !container.status.is_running() {
            return Err(Error::ProcessFinished);
        }
        exec::run(self.inner.clone(), namespace, &container.runtime_id, spec).await
    }

    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        Ok(self.inner.hub.stream())
    }

    async fn images(&self, namespace: &str) -> Result<Vec<Image>> {
        identity::check_namespace(namespace)?;
        self.inner.image_list(namespace).await
    }

    async fn pull(&self, namespace: &str, pull: Pull) -> Result<Image> {
        identity::check_namespace(namespace)?;
        self.inner.pull(namespace, pull).await
    }

    async fn import(&self, namespace: &str, path: &Path, name: Option<&str>) -> Result<Vec<Image>> {
        identity::check_namespace(namespace)?;
        self.inner.import(namespace, path, name).await
    }

    async fn remove_image(&self, namespace: &str, name: &str) -> Result<()> {
        identity::check_namespace(namespace)?;
        self.inner.remove_image(namespace, name).await
    }

    async fn create(&self, namespace: &str, spec: ContainerSpec) -> Result<Container> {
        identity::check_namespace(namespace)?;
        spec.check()?;
        if spec.host {
            let what = "containers that are a part of the machine";
            return Err(Error::Unsupported { runtime: "containerd", what });
        }
        if spec.limits.disk_bytes.is_some() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("with containerd, containers write to their disks without a limit");
        }
        self.inner.create(namespace, spec).await
    }

    async fn start(&self, namespace: &str, id: &str) -> Result<Container> {
        let runtime_id = self.inner.record_id(namespace, id).await?;
        self.inner.start(namespace, &runtime_id).await?;
        self.found(namespace, &runtime_id).await
    }

    async fn stop(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit> {
        let container = self.found(namespace, id).await?;
        self.inner.stop(namespace, &container.runtime_id, grace).await
    }

    async fn delete(&self, namespace: &str, id: &str, force: bool) -> Result<()> {
        let runtime_id = self.inner.record_id(namespace, id).await?;
        self.inner.delete(namespace, &runtime_id, force).await
    }
}

/// Labels as the rest of this crate has them.
fn sorted(labels: std::collections::HashMap<String, String>) -> BTreeMap<String, String> {
    labels.into_iter().collect()
}
