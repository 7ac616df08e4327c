//! A part of Selvage: one service of the system, which runs alone or beside
//! the others in one process.
//!
//! A part goes through three steps, and the process takes all its parts
//! through each step before the next begins:
//!
//! 1. [`Part::open`] claims what may fail for reasons outside: files, sockets,
//!    other programs. Nothing is served yet.
//! 2. [`OpenPart::mount`] adds services, pages, web sockets, metrics and
//!    readiness to what the process serves. It cannot fail.
//! 3. [`OpenPart::spawn`] starts what the part does by itself. By now the
//!    process listens, so that parts may call each other.
//!
//! A part finds what surrounds it in its [`Context`]. Parts never depend on
//! each other as crates: they call each other's contract through a client.

mod context;
mod mount;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use selvage_kit::tasks::Tasks;
pub use selvage_membership::Kind;
use serde::{Serialize, de::DeserializeOwned};

pub use self::{
    context::{Context, Process, Shared, host_name},
    mount::{Mount, UnixSocket},
};

/// Result of what a part does at its start. The error is printed once, to
/// whoever started the process.
pub type Result<T, E = anyhow::Error> = std::result::Result<T, E>;

/// Description of a part: what can be configured, and how it is opened.
#[async_trait]
pub trait Part: Send + Sync + 'static {
    /// Name of the part: of its command, of its section in the configuration,
    /// and of the `part` that the methods of its contract carry.
    const NAME: &'static str;

    /// Kind of machine as which the part joins a controller when it runs alone;
    /// `None` for one that has the store.
    const JOINS: Option<Kind> = None;

    /// Runs on machines that have better things to do: the process gives
    /// memory back that it does not use.
    const FRUGAL: bool = false;

    /// Number of worker threads of a process that runs it alone; as many as
    /// there are cores where not given.
    const THREADS: Option<usize> = None;

    /// This build has more of the part than its contract.
    const BUILT: bool = true;

    /// The part's section of the configuration, `[NAME]`. Doc comments of its
    /// fields are the documentation of the keys.
    type Options: Options;

    /// Finds what no single key shows to be wrong. Pure: called whenever a
    /// configuration is loaded.
    fn validate(_options: &Self::Options) -> Result<()> {
        Ok(())
    }

    /// Finds out, before anything is made and before a join token is spent,
    /// that the part cannot run with these options in this process.
    fn check(_process: &Process, _options: &Self::Options) -> Result<()> {
        Ok(())
    }

    /// Returns whether the part is opened in this process. One that gives
    /// something to others may be, although it was not asked for.
    fn is_needed(process: &Process) -> bool {
        process.runs(Self::NAME)
    }

    /// Opens the part; `None` where it has nothing to do here.
    async fn open(
        context: &Arc<Context>,
        options: &Self::Options,
    ) -> Result<Option<Box<dyn OpenPart>>>;
}

/// A section of the configuration.
pub trait Options:
    Serialize + DeserializeOwned + Default + Clone + Debug + Send + Sync + 'static
{
}

impl<T: Serialize + DeserializeOwned + Default + Clone + Debug + Send + Sync + 'static> Options
    for T
{
}

/// A part that is open.
#[async_trait]
pub trait OpenPart: Send {
    /// Adds what the part serves.
    fn mount(&mut self, mount: &mut Mount);

    /// Starts what the part does by itself; it ends with the tasks. Returns
    /// when the part can do its work, or will soon.
    async fn spawn(self: Box<Self>, tasks: &Tasks) -> Result<()>;
}

/// A part with its options, as a process handles all parts alike.
#[async_trait]
pub trait ConfiguredPart: Send + Sync {
    /// See [`Part::NAME`].
    fn name(&self) -> &'static str;
    /// See [`Part::check`].
    fn check(&self, process: &Process) -> Result<()>;
    /// See [`Part::is_needed`].
    fn is_needed(&self, process: &Process) -> bool;
    /// See [`Part::open`].
    async fn open(&self, context: &Arc<Context>) -> Result<Option<Box<dyn OpenPart>>>;
}

/// The options of a part, bound to it.
pub struct Configured<P: Part>(pub P::Options);

#[async_trait]
impl<P: Part> ConfiguredPart for Configured<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn check(&self, process: &Process) -> Result<()> {
        P::check(process, &self.0)
    }

    fn is_needed(&self, process: &Process) -> bool {
        P::is_needed(process)
    }

    async fn open(&self, context: &Arc<Context>) -> Result<Option<Box<dyn OpenPart>>> {
        P::open(context, &self.0).await
    }
}
