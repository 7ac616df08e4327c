//! The two shapes of long work; there is no third.
//!
//! An **operation** ([`Operation`], run by the [`Engine`]) is a list of steps
//! with undo that is kept in the store: creating an instance, upgrading a
//! cluster. It belongs to nobody's connection. Callers start it and follow it;
//! when they go away it goes on, and when the process dies it is continued by
//! the next one, or by another process on the same store. It ends in one of
//! two ways: all steps done, or everything undone.
//!
//! A **reconciler** ([`Reconcile`], run by [`Reconcilers`]) has no input and
//! no memory: it looks at what is wanted and at what is, makes a difference
//! smaller, and may be run at any time by anyone. A [`KeyedReconcile`] does so
//! for one of many objects, those that a [`KeyQueue`] has to look at.
//! [`Reconcilers::list`] shows how all of a process are doing.
//!
//! [`OperationsApi`] shows operations to clients; [`testing`] proves an
//! operation: repeated, failing and crashing at every step.
//!
//! It is no scheduler and no queue: operations start at once, and whoever
//! wants a limit sets it before starting one. It keeps no results either: what
//! an operation makes, its steps write where it belongs.
//!
//! # Writing an operation
//!
//! ```
//! use selvage_work::{Failure, Next, Operation, Scope, Subject};
//!
//! #[derive(Clone, PartialEq, prost::Message)]
//! struct Publish {
//!     #[prost(string, tag = "1")]
//!     name: String,
//!     /// Decided by the first step, used by the second.
//!     #[prost(uint32, tag = "2")]
//!     port: u32,
//! }
//!
//! impl Subject for Publish {
//!     fn key(&self) -> String {
//!         self.name.clone()
//!     }
//! }
//!
//! struct PublishApp;
//!
//! #[async_trait::async_trait]
//! impl Operation for PublishApp {
//!     const KIND: &'static str = "PublishApp";
//!     type State = Publish;
//!
//!     fn steps(&self, _: &Publish) -> Vec<&'static str> {
//!         vec!["reserve", "publish"]
//!     }
//!
//!     async fn run(&self, step: &str, state: &mut Publish, scope: &Scope) -> Result<Next, Failure> {
//!         match step {
//!             "reserve" => state.port = 8080,
//!             _ => scope.say(format!("published on {}", state.port)),
//!         }
//!         Ok(Next::Done)
//!     }
//!
//!     async fn undo(&self, _: &str, _: &mut Publish, _: &Scope) -> Result<(), Failure> {
//!         Ok(())
//!     }
//! }
//! ```

mod engine;
mod error;
mod execution;
mod failure;
mod follow;
mod keyed;
mod live;
mod operation;
mod options;
mod reconcile;
mod record;
mod replace;
mod run;
mod scope;
mod service;
mod start;
mod telemetry;
pub mod testing;
mod write;

pub use engine::Engine;
pub use error::{Error, Running};
pub use failure::{Failure, Interrupt};
pub use follow::{Event, Follow, Handle};
pub use keyed::{KeyQueue, KeyedReconcile, QueueKey};
pub use operation::{Next, Operation, Subject};
pub use options::Options;
pub use reconcile::{Reconcile, ReconcilerStatus, Reconcilers, Schedule, Summary, Trigger};
pub use scope::Scope;
pub use selvage_store::clock;
pub use service::OperationsApi;
pub use start::Prepared;
