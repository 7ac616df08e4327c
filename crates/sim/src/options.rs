//! Options of a simulated crm.

use std::time::Duration;

use selvage_api::edgeproto::{CloudletKey, FlavorInfo};
use selvage_notify::ClientOptions;

/// Way in which a simulated crm advances an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Automatically: the work takes `latency` and up to `jitter` more.
    Auto {
        /// Latency of every operation.
        latency: Duration,
        /// Random addition to it, at most.
        jitter: Duration,
    },
    /// Explicitly, step by step: see [`crate::SimCrm::step`].
    Explicit,
}

/// Resources of a cloudlet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory in MB.
    pub ram: u64,
    /// Processors.
    pub vcores: u64,
    /// Disk in GB.
    pub volume: u64,
}

impl Default for Limits {
    /// Returns the limits of the original's fake platform.
    fn default() -> Self {
        Self { ram: 500, vcores: 50, volume: 5000 }
    }
}

/// Outcome of updates of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClusterUpdate {
    /// Well.
    #[default]
    Works,
    /// Fails with UPDATE_ERROR.
    Fails,
    /// Fails as in the original: with DELETE_ERROR, which no controller
    /// expects.
    FailsAsTheOriginal,
}

/// Reaction to an object that is under way according to the controller while the
/// crm knows of no such work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resync {
    /// Does as the original: reports an error, or nothing for a delete.
    #[default]
    Original,
    /// Repeats the work.
    Redo,
}

/// Answer to requests to run a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Exec {
    /// Answers as the original's fake platform: a client that connects by the
    /// offer or the relay gets the command itself, or the output of `echo`.
    /// Nothing is run. An invalid offer is answered with `sim-answer: ` and the
    /// command.
    #[default]
    Answer,
    /// Answers with this error.
    Error(String),
    /// Gives no answer.
    Silent,
}

/// Options of a simulated crm.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Addresses of the controllers and connection to them.
    pub client: ClientOptions,
    /// The cloudlet it is the crm of.
    pub cloudlet: CloudletKey,
    /// Suffix after `sim-` in the name of its node.
    pub node: String,
    /// Way in which it advances operations.
    pub mode: Mode,
    /// Resources of the cloudlet.
    pub limits: Limits,
    /// The flavors that the cloudlet has.
    pub flavors: Vec<FlavorInfo>,
    /// Outcome of updates of clusters.
    pub cluster_update: ClusterUpdate,
    /// Reaction to work it knows nothing of.
    pub resync: Resync,
    /// Answer to requests to run a command.
    pub exec: Exec,
    /// True if it sends the number of such a request back; the original's does
    /// not know that there is one.
    pub numbers: bool,
    /// True if it reports READY and its node from the start.
    pub announce: bool,
}

impl SimOptions {
    /// The original's fake platform at these controllers: everything succeeds
    /// at once.
    pub fn new(addresses: Vec<String>, cloudlet: CloudletKey) -> Self {
        let node = cloudlet.name.clone();
        Self {
            client: ClientOptions { addresses, ..ClientOptions::default() },
            cloudlet,
            node,
            mode: Mode::Auto { latency: Duration::ZERO, jitter: Duration::ZERO },
            limits: Limits::default(),
            flavors: vec![FlavorInfo {
                name: "flavor1".into(),
                vcpus: 10,
                ram: 101_024,
                disk: 500,
            }],
            cluster_update: ClusterUpdate::default(),
            resync: Resync::default(),
            exec: Exec::default(),
            numbers: true,
            announce: true,
        }
    }
}
