//! The nouns of the trait.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use crate::{Error, GRACE, Result};

/// A container as somebody sees who looks at the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// The namespace that was asked for.
    pub namespace: String,
    /// Name that people use: the runtime's id, `namespace/pod`, or
    /// `namespace/pod:container`.
    pub id: String,
    pub name: String,
    /// Equal to `id` unless this is a container in a pod.
    pub pod_id: String,
    /// The runtime's own id.
    pub runtime_id: String,
    pub kind: Kind,
    /// The name of the image, or its digest where no name is known.
    pub image: String,
    /// The first process as the host numbers it; none when it has ended.
    pub pid: Option<u32>,
    pub status: Status,
    /// Exit of its process, where that has ended and the runtime knows.
    pub exit: Option<Exit>,
    /// Exit of the last process of it that ended, also while another runs.
    /// None where the runtime does not know.
    pub last_exit: Option<Exit>,
    pub created: Option<Timestamp>,
    /// Number of times it was started again.
    pub restarts: u32,
    /// Somebody else starts it again when it ends.
    pub supervised: bool,
    /// The uid of the pod.
    pub uid: String,
    /// The path of its network namespace, where it has one of its own that
    /// has a path.
    pub network_namespace: Option<PathBuf>,
    pub labels: BTreeMap<String, String>,
    /// Why something above is missing.
    pub problem: Option<String>,
}

/// Role of a container in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// In no pod.
    Plain,
    /// Holds the namespaces of a pod.
    Sandbox,
    /// One of the containers of a pod.
    App,
}

/// The state of a container, in the words of the runtime that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    Created,
    Running,
    Stopped,
    Paused,
    Pausing,
    Unknown,
    SandboxReady,
    SandboxNotReady,
    ContainerCreated,
    ContainerRunning,
    ContainerExited,
    ContainerUnknown,
}

impl Status {
    /// As it stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Running => "RUNNING",
            Self::Stopped => "STOPPED",
            Self::Paused => "PAUSED",
            Self::Pausing => "PAUSING",
            Self::Unknown => "UNKNOWN",
            Self::SandboxReady => "SANDBOX_READY",
            Self::SandboxNotReady => "SANDBOX_NOTREADY",
            Self::ContainerCreated => "CONTAINER_CREATED",
            Self::ContainerRunning => "CONTAINER_RUNNING",
            Self::ContainerExited => "CONTAINER_EXITED",
            Self::ContainerUnknown => "CONTAINER_UNKNOWN",
        }
    }

    /// Returns whether its first process lives.
    pub fn is_running(self) -> bool {
        matches!(
            self,
            Self::Running
                | Self::Paused
                | Self::Pausing
                | Self::SandboxReady
                | Self::ContainerRunning
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Exit of a first process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, 128 + the signal for one that was killed. None when
    /// nobody was there to see it.
    pub code: Option<i32>,
    pub at: Option<Timestamp>,
    /// The kernel killed it, or a process of it, for want of memory. False
    /// where the runtime does not know.
    pub out_of_memory: bool,
}

/// Way of restarting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Send this signal and return at once; nothing is started.
    SignalOnly(i32),
    /// TERM, after `grace` KILL, and a new process from the same record. One
    /// that somebody else supervises is stopped, and that it came back with a
    /// new pid is waited for.
    Full { grace: Duration },
}

impl Default for Restart {
    fn default() -> Self {
        Self::Full { grace: GRACE }
    }
}

/// Outcome of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restarted {
    /// None when it did not run before.
    pub old_pid: Option<u32>,
    /// None when only a signal was sent.
    pub new_pid: Option<u32>,
}

/// Which part of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on with what is written from now on, until the log is removed.
    pub follow: bool,
    /// Only so many of the last lines; all where not given.
    pub tail: Option<u64>,
    /// Begin each line with the time at which it was written, or with `-` where
    /// nobody knows.
    pub timestamps: bool,
}

/// A program to run in a container that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecSpec {
    /// The program and its arguments; never a line for a shell.
    pub argv: Vec<String>,
    /// Variables beside those of the container.
    pub env: BTreeMap<String, String>,
    /// That of the container where not given.
    pub cwd: Option<String>,
    /// A terminal of this size; none where not given.
    pub tty: Option<TerminalSize>,
    /// True when there will be input.
    pub stdin: bool,
}

/// Columns and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { width: 80, height: 24 }
    }
}

/// A program that runs in a container. Dropping it ends the program.
#[derive(Debug)]
pub struct Exec {
    /// Input. Dropping it closes the program's input.
    pub input: mpsc::Sender<ExecInput>,
    /// Output; the last is always [`ExecOutput::Exited`] or
    /// [`ExecOutput::Failed`].
    pub output: mpsc::Receiver<ExecOutput>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecInput {
    Stdin(Bytes),
    CloseStdin,
    Resize(TerminalSize),
    Signal(i32),
}

#[derive(Debug)]
pub enum ExecOutput {
    /// With a terminal, everything comes here.
    Stdout(Bytes),
    Stderr(Bytes),
    Exited(i32),
    Failed(Error),
}

/// Something changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Empty for [`EventKind::Lost`] and [`EventKind::Resync`].
    pub namespace: String,
    /// Empty for the same; of images it is the name.
    pub runtime_id: String,
    pub kind: EventKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    Created,
    Started {
        pid: u32,
    },
    Exited {
        code: Option<i32>,
    },
    Deleted,
    Paused,
    Resumed,
    OutOfMemory,
    /// The record changed: labels, limits.
    Updated,
    ImageChanged,
    ImageRemoved,
    /// The runtime cannot be reached.
    Lost,
    /// It can be, (again) and what happened in between is unknown.
    Resync,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    /// Of the manifest.
    pub digest: String,
    /// Of all blobs, compressed; 0 where the runtime does not say.
    pub size: u64,
    pub created: Option<Timestamp>,
}

/// Image to fetch from a registry.
#[derive(Debug, Clone, Default)]
pub struct Pull {
    /// `registry/repository:tag` or `registry/repository@sha256:…`.
    pub reference: String,
    pub credentials: Option<Credentials>,
    /// Over plain HTTP, for a registry on this machine.
    pub plain_http: bool,
    /// Whoever the image is for: layers that came for others are fetched
    /// again, so that to name one is not enough to have it.
    pub scope: String,
    /// Hosts that it may come from.
    pub policy: selvage_fetch::Policy,
    /// So many bytes it may have, packed and unpacked, if fewer than the runtime
    /// takes.
    pub limit: Option<u64>,
}

/// A registry's user. The password is never shown.
#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    pub password: Zeroizing<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A container to make.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Letters, digits, `.`, `_` and `-`; at most 76, as containerd has it.
    pub id: String,
    /// The name of an image the runtime has.
    pub image: String,
    /// The program and its arguments; the image's own where empty.
    pub command: Vec<String>,
    /// Beside the image's, and before them. May hold secrets: never shown.
    pub env: BTreeMap<String, String>,
    /// The image's own where not given.
    pub cwd: Option<String>,
    /// That of the container's id where not given.
    pub hostname: Option<String>,
    pub mounts: Vec<Mount>,
    pub limits: Limits,
    /// The control group that the container's is in, from the top; the
    /// runtime's own where not given.
    #[serde(default)]
    pub group: Option<String>,
    pub network: Network,
    pub restart: RestartPolicy,
    pub labels: BTreeMap<String, String>,
    pub read_only_root: bool,
    /// A part of the machine itself, as a kubelet is: it sees the machine's
    /// processes and devices, may do whatever root may, and what it mounts
    /// below its mounts is mounted on the machine. Only the runtime without a
    /// daemon has such.
    #[serde(default)]
    pub host: bool,
    #[serde(default)]
    pub users: Users,
}

/// Users of a container, as the machine sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Users {
    /// The same as outside: root is the machine's, without its rights.
    #[default]
    Machine,
    /// A range that no account and no other container has, where the runtime
    /// and the kernel can; else the machine's, which the log says once. Only
    /// the runtime without a daemon can.
    OwnIfPossible,
    /// The same, or the container is not made.
    Own,
}

impl fmt::Debug for ContainerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSpec")
            .field("id", &self.id)
            .field("image", &self.image)
            .field("command", &self.command)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("mounts", &self.mounts)
            .field("limits", &self.limits)
            .field("network", &self.network)
            .field("restart", &self.restart)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

/// A directory or file of the host in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

/// Limits of a container; what is not given has no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Thousandths of a core.
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub pids: Option<u64>,
    /// Bytes it may write to its root, beside what the image has. Kept by the
    /// runtime without a daemon, where the machine has loop devices and ext4;
    /// others say once in the log that it is no limit with them.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
}

/// Which network a container is in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// One of its own with nothing in it but a loopback that is down.
    #[default]
    None,
    /// That of the host.
    Host,
    /// One that somebody made, by its path.
    Path(PathBuf),
}

/// Policy for a container that ends by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    #[default]
    Never,
    /// When the code is not 0, so many times; without end where not given.
    OnFailure {
        most: Option<u32>,
    },
    Always,
}

impl ContainerSpec {
    /// Refuses what no runtime would take.
    pub fn check(&self) -> Result<()> {
        check_new_id(&self.id)?;
        let invalid = |field: &str, reason: &str| {
            Err(Error::Invalid { field: field.into(), reason: reason.into() })
        };
        if self.image.is_empty() {
            return invalid("image", "may not be empty");
        }
        if self.command.iter().any(|argument| argument.contains('\0')) {
            return invalid("command", "may not contain a zero byte");
        }
        if self.command.first().is_some_and(String::is_empty) {
            return invalid("command", "the program may not be empty");
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return invalid("env", "a name may not be empty or contain '=', nor zero bytes");
            }
        }
        for mount in &self.mounts {
            if !mount.source.is_absolute() || !mount.target.is_absolute() {
                return invalid("mounts", "source and target must be absolute paths");
            }
            if mount.target.components().any(|part| part.as_os_str() == "..") {
                return invalid("mounts", "the target may not contain '..'");
            }
        }
        if let Network::Path(path) = &self.network
            && !path.is_absolute()
        {
            return invalid("network", "the path of a network namespace must be absolute");
        }
        self.limits.check()
    }
}

impl Limits {
    fn check(&self) -> Result<()> {
        /// Less cannot even start: the kernel refuses or kills.
        const LEAST_MEMORY: u64 = 4 << 20;
        /// Of less, little would be left for files.
        const LEAST_DISK: u64 = 16 << 20;
        let invalid = |field: &str, reason: &str| {
            Err(Error::Invalid { field: field.into(), reason: reason.into() })
        };
        if self.cpu_millis.is_some_and(|millis| !(10..=1_000_000).contains(&millis)) {
            return invalid("limits.cpu_millis", "must be from 10 to 1000000");
        }
        if self
            .memory_bytes
            .is_some_and(|bytes| bytes < LEAST_MEMORY || i64::try_from(bytes).is_err())
        {
            return invalid("limits.memory_bytes", "must be at least 4194304");
        }
        if self.pids.is_some_and(|pids| pids == 0 || pids > 4_194_304) {
            return invalid("limits.pids", "must be from 1 to 4194304");
        }
        if self.disk_bytes.is_some_and(|bytes| bytes < LEAST_DISK) {
            return invalid("limits.disk_bytes", "must be at least 16777216");
        }
        Ok(())
    }
}

/// An id that a new container may have; it becomes a file's name.
pub(crate) fn check_new_id(id: &str) -> Result<()> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let edges = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.ends_with(|c: char| c.is_ascii_alphanumeric());
    if id.len() > 76 || !edges || !id.chars().all(fine) {
        return Err(Error::Invalid {
            field: "id".into(),
            reason: "must be 1 to 76 letters, digits, '.', '_' or '-', and start and end with a \
                     letter or digit"
                .into(),
        });
    }
    Ok(())
}
