//! Containers without a daemon: `crun`, `runc` or `youki` started for each
//! step and gone again, with images, snapshots, logs and state of our own.
//!
//! Nothing stays resident beside a container. Its output goes straight into a
//! file, so that it can write whether we live or not. We are its reaper while
//! we live, by which we learn its exit code at once. When we die it runs on;
//! the next of us finds it by its pid and the time it was started. What is
//! lost then: the exit code of a container that ends while, or after, we were
//! away is unknown, because it has another parent by then.
//!
//! A log is bounded by punching out its beginning: the file keeps its offsets
//! and the writer notices nothing.

mod compiled;
mod disk;
mod driver;
mod entry;
mod exec;
#[doc(hidden)]
pub mod fuzz;
mod headers;
mod lifecycle;
mod making;
mod overlay;
mod process;
mod record;
mod sparse;
mod step;
mod store;
mod strays;
mod tidy;
mod tree;
mod unpack;
mod users;
mod watch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures::stream::BoxStream;
use sha2::Digest;

use crate::{
    Container, ContainerSpec, Error, Event, Exec, ExecSpec, Exit, Image, LogOptions, LogStream,
    Pull, Restart, Restarted, Result, Runtime, identity, logs,
};
pub(crate) use driver::search;
use lifecycle::Inner;
use store::Puller;

/// Options of a runtime without a daemon.
#[derive(Debug, Clone)]
pub struct Options {
    /// Images, layers, containers: what survives a reboot.
    pub root: PathBuf,
    /// Directory that the program keeps while containers run; gone after a
    /// reboot.
    pub state: PathBuf,
    /// `crun`, `runc` or `youki`; where not given the first that is found.
    pub program: Option<PathBuf>,
    /// The control group under which all are.
    pub cgroup: String,
    /// So many bytes of each log are kept, about.
    pub log_limit: u64,
    /// So many bytes an image may have, packed and unpacked.
    pub image_limit: u64,
    /// Starts containers again that should run and do not.
    pub supervise: bool,
}

impl Options {
    /// With everything under one directory but what belongs to `/run`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            state: "/run/selvage/containers".into(),
            program: None,
            cgroup: "/selvage".into(),
            log_limit: 16 << 20,
            image_limit: crate::image::LARGEST_IMAGE,
            supervise: true,
        }
    }
}

impl Options {
    /// Containers of the process with this data directory. Several processes
    /// may be on one machine, each with a data directory of its own.
    pub fn in_data(data: &Path) -> Self {
        let digest = sha2::Sha256::digest(data.as_os_str().as_encoded_bytes());
        let state = format!("/run/selvage/{}/containers", hex::encode(&digest[..8]));
        Self { state: state.into(), ..Self::new(data.join("containers")) }
    }
}

/// The runtime without a daemon.
pub struct Oci {
    inner: Arc<Inner>,
}

impl Oci {
    /// Opens what is there, finds containers that still run, and starts those
    /// again that should run and do not.
    pub async fn open(options: Options) -> Result<Self> {
        Ok(Self { inner: Inner::open(options).await? })
    }

    fn found(&self, namespace: &str, id: &str) -> Result<Container> {
        identity::check_namespace(namespace)?;
        identity::find(self.inner.list(namespace), id)
    }
}

impl Drop for Oci {
    fn drop(&mut self) {
        self.inner.close();
    }
}

#[async_trait]
impl Runtime for Oci {
    fn name(&self) -> &'static str {
        "oci"
    }

    async fn version(&self) -> Result<String> {
        self.inner.driver.version().await
    }

    async fn namespaces(&self) -> Result<Vec<String>> {
        Ok(self.inner.namespaces())
    }

    async fn list(&self, namespace: &str) -> Result<Vec<Container>> {
        identity::check_namespace(namespace)?;
        Ok(self.inner.list(namespace))
    }

    async fn disk(&self, namespace: &str, id: &str) -> Result<Option<u64>> {
        let id = self.found(namespace, id)?.runtime_id;
        self.inner.disk(namespace, &id)
    }

    async fn signal(&self, namespace: &str, id: &str, signal: i32) -> Result<()> {
        let container = self.found(namespace, id)?;
        self.inner.signal(namespace, &container.runtime_id, signal)
    }

    async fn restart(&self, namespace: &str, id: &str, how: Restart) -> Result<Restarted> {
        let container = self.found(namespace, id)?;
        match how {
            Restart::SignalOnly(signal) => {
                self.inner.signal(namespace, &container.runtime_id, signal)?;
                Ok(Restarted { old_pid: container.pid, new_pid: None })
            }
            Restart::Full { grace } => {
                self.inner.restart(namespace, &container.runtime_id, grace).await
            }
        }
    }

    async fn logs(&self, namespace: &str, id: &str, options: LogOptions) -> Result<LogStream> {
        let container = self.found(namespace, id)?;
        let path = self.inner.log_path(namespace, &container.runtime_id);
        logs::follow_file(path, options).await
    }

    async fn exec(&self, namespace: &str, id: &str, spec: ExecSpec) -> Result<Exec> {
        crate::spec::check_argv(&spec.argv)?;
        let container = self.found(namespace, id)?;
        if !container.status.is_running() {
            return Err(Error::ProcessFinished);
        }
        exec::run(&self.inner, namespace, &container.runtime_id, spec).await
    }

    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        Ok(self.inner.hub.stream())
    }

    async fn images(&self, namespace: &str) -> Result<Vec<Image>> {
        identity::check_namespace(namespace)?;
        Ok(self.inner.store.images(namespace))
    }

    async fn pull(&self, namespace: &str, pull: Pull) -> Result<Image> {
        identity::check_namespace(namespace)?;
        let store = &self.inner.store;
        let _coming = store.coming();
        let own = |digest: &str| store.has_for(&pull.scope, digest);
        let limit = pull.limit.unwrap_or(u64::MAX).min(store.limit());
        let named = crate::image::pull(store.blobs(), &pull, limit, &own).await?;
        self.inner.take(namespace, named, Some(Puller { scope: pull.scope, limit })).await
    }

    async fn import(&self, namespace: &str, path: &Path, name: Option<&str>) -> Result<Vec<Image>> {
        identity::check_namespace(namespace)?;
        let _coming = self.inner.store.coming();
        let blobs = self.inner.store.blobs().clone();
        let (path, name) = (path.to_owned(), name.map(str::to_owned));
        let named =
            lifecycle::blocking(move || crate::image::import(&path, &blobs, name.as_deref()))
                .await?;
        let mut images = Vec::new();
        for named in named {
            images.push(self.inner.take(namespace, named, None).await?);
        }
        Ok(images)
    }

    async fn remove_image(&self, namespace: &str, name: &str) -> Result<()> {
        identity::check_namespace(namespace)?;
        self.inner.remove_image(namespace, name).await
    }

    async fn create(&self, namespace: &str, spec: ContainerSpec) -> Result<Container> {
        identity::check_namespace(namespace)?;
        spec.check()?;
        let id = spec.id.clone();
        self.inner.create(namespace, spec).await?;
        self.found(namespace, &id)
    }

    async fn start(&self, namespace: &str, id: &str) -> Result<Container> {
        let id = self.found(namespace, id)?.runtime_id;
        self.inner.start(namespace, &id).await?;
        self.found(namespace, &id)
    }

    async fn stop(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit> {
        let id = self.found(namespace, id)?.runtime_id;
        self.inner.stop(namespace, &id, grace).await
    }

    async fn delete(&self, namespace: &str, id: &str, force: bool) -> Result<()> {
        let id = self.found(namespace, id)?.runtime_id;
        self.inner.delete(namespace, &id, force).await
    }
}
