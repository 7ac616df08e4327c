//! Containers of this machine, whoever runs them.
//!
//! One trait, [`Runtime`], and three who implement it:
//!
//! * [`containerd`]: over its socket, one connection that is kept and renewed;
//! * [`cri`]: any Kubernetes runtime over the container runtime interface;
//! * [`oci`]: no daemon at all. `crun`, `runc` or `youki` are driven directly,
//!   with an image store and overlay snapshots of our own; nothing stays
//!   resident beside a container.
//!
//! [`select`] finds the right one for a driver and a namespace; [`cgroup`]
//! reads what a container uses without asking anybody.
//!
//! There is no RPC here and no policy: which containers should run, and who
//! may touch them, is for those who call.

#![allow(
    clippy::disallowed_methods,
    reason = "records of containers have the time of this machine"
)]

pub mod cgroup;
pub mod containerd;
pub mod cri;
mod error;
pub mod identity;
mod image;
pub mod logs;
pub mod oci;
mod seccomp;
pub mod select;
mod spec;
mod types;

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;

pub use error::{Error, Result};
pub use image::ImageBuilder;
pub use types::*;

/// Time that connecting to a daemon, or a question to it, may take before it
/// counts as gone.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Time a container may take to end by itself before it is killed.
pub const GRACE: Duration = Duration::from_secs(10);

/// Bytes of a container's log, in pieces as they come; no piece promises to
/// end where a line ends.
pub type LogStream = BoxStream<'static, Result<bytes::Bytes>>;

/// Everything one can do with what runs on a machine.
///
/// `id` is any spelling that [`identity`] knows: the runtime's own id or a
/// unique prefix of it, `namespace/pod`, `namespace/pod:container` or
/// `namespace/pod:container:start-of-runtime-id`.
///
/// An implementation answers [`Error::Unsupported`] to what it cannot do.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Name in messages: `containerd`, `cri`, `oci`.
    fn name(&self) -> &'static str;

    /// Returns whether this machine has it, even if it does not answer just
    /// now. One that was never there is missed by nobody.
    fn is_installed(&self) -> bool {
        true
    }

    /// Returns its version, if it answers.
    async fn version(&self) -> Result<String>;

    /// The namespaces that have something in them.
    async fn namespaces(&self) -> Result<Vec<String>>;

    /// All containers of a namespace that have, or had, a process; sorted by
    /// `id`. A container that cannot be looked at in full is still listed,
    /// with the reason in [`Container::problem`].
    async fn list(&self, namespace: &str) -> Result<Vec<Container>>;

    /// One container.
    async fn inspect(&self, namespace: &str, id: &str) -> Result<Container> {
        identity::find(self.list(namespace).await?, id)
    }

    /// A reader of what a running container uses.
    async fn metrics(&self, namespace: &str, id: &str) -> Result<cgroup::Reader> {
        let container = self.inspect(namespace, id).await?;
        let pid = container.pid.ok_or(Error::ProcessFinished)?;
        cgroup::Reader::of_pid(pid)
            .map_err(|error| Error::Io { doing: "opening the control group", error })
    }

    /// Bytes that a container holds on a disk of its own; none where it has
    /// none, see [`Limits::disk_bytes`].
    async fn disk(&self, _namespace: &str, _id: &str) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Sends a signal to the container's first process.
    async fn signal(&self, namespace: &str, id: &str, signal: i32) -> Result<()>;

    /// Restarts a container, see [`Restart`].
    async fn restart(&self, namespace: &str, id: &str, how: Restart) -> Result<Restarted>;

    /// The log of a container as it was written.
    async fn logs(&self, namespace: &str, id: &str, options: LogOptions) -> Result<LogStream>;

    /// Runs a program inside a container.
    async fn exec(&self, namespace: &str, id: &str, spec: ExecSpec) -> Result<Exec>;

    /// Changes as they happen, of all namespaces. Never ends by itself: after
    /// a gap comes [`EventKind::Resync`], which says "list again".
    async fn events(&self) -> Result<BoxStream<'static, Event>>;

    /// The images of a namespace, sorted by name.
    async fn images(&self, namespace: &str) -> Result<Vec<Image>>;

    /// Fetches an image from a registry.
    async fn pull(&self, namespace: &str, pull: Pull) -> Result<Image>;

    /// Takes in an OCI layout: a directory, or a tar of one. `name` is what
    /// to call the image when the layout does not say; with `name` given and
    /// one image in the layout, `name` wins.
    async fn import(&self, namespace: &str, path: &Path, name: Option<&str>) -> Result<Vec<Image>>;

    /// Forgets an image. Containers made from it keep running.
    async fn remove_image(&self, namespace: &str, name: &str) -> Result<()>;

    /// Makes a container that does not run yet.
    async fn create(&self, namespace: &str, spec: ContainerSpec) -> Result<Container>;

    /// Starts a container that was made, or has ended.
    async fn start(&self, namespace: &str, id: &str) -> Result<Container>;

    /// TERM, then after `grace` KILL; returns when it has ended. The restart
    /// policy does not start it again.
    async fn stop(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit>;

    /// Removes a container and everything of it; `force` kills it first.
    async fn delete(&self, namespace: &str, id: &str, force: bool) -> Result<()>;
}

/// Makes a directory for our eyes only, with those above it; one that is there
/// is made so. What containers write, and what they are told, is nobody's
/// business on this machine.
pub fn private_directory(path: &Path) -> std::io::Result<()> {
    use std::{
        fs,
        os::unix::fs::{DirBuilderExt, PermissionsExt},
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// A part of a name that nobody else on this machine uses.
pub(crate) fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = jiff::Timestamp::now().as_nanosecond();
    format!("{:x}-{now:x}-{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A descriptor that one can wait for. What kind it is does not matter to
/// waiting, and this is the one safe way to wait for any.
pub(crate) fn pollable(
    descriptor: std::os::fd::OwnedFd,
) -> std::io::Result<tokio::net::unix::pipe::Receiver> {
    tokio::net::unix::pipe::Receiver::from_file_unchecked(descriptor.into())
}
