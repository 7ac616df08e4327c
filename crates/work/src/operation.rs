//! Contract of a kind of operation.

use std::time::Duration;

use async_trait::async_trait;
use prost::Message;

use crate::{Failure, Scope};

/// Outcome of a step that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The step is done, go to the next.
    Done,
    /// The step is done, go to that later one; those between are left out and
    /// never undone.
    Jump(&'static str),
    /// The step is done and the rest is not needed.
    Finish,
    /// Not finished: run the step again after this time, or on the next
    /// [`crate::Engine::signal`].
    Wait(Duration),
}

/// Stored state of an operation and its object: the same for all kinds of
/// operations on one kind of object.
pub trait Subject: Message + Default + Clone + Send + Sync + 'static {
    /// The object it works on, canonical JSON where the object has a key
    /// message. At most one operation, of whatever kind, runs on an object.
    /// Empty for none, then any number run.
    fn key(&self) -> String;

    /// The organisation that owns the object.
    fn organisation(&self) -> String {
        String::new()
    }
}

/// A kind of operation.
///
/// The rules, which [`crate::testing::check`] proves:
///
/// * A step may be run again after it was run in whole or in part, by this or
///   another process, with the state as it was before: it finds its own traces
///   and goes on. A choice that cannot be found again (a port, a name) is
///   made in one step and used in the next, or kept by
///   [`Scope::checkpoint`] before it is used.
/// * `undo` takes away what a step left behind, whether the step ran wholly,
///   partly or not at all, and may be run again. A failed operation undoes the
///   step that failed first, then those that were done, last one first.
/// * A step waits only through [`Scope::until`] and its relatives, so that it
///   can be interrupted, and gives on the [`crate::Interrupt`] it gets.
#[async_trait]
pub trait Operation: Send + Sync + 'static {
    /// Names the kind: `CreateAppInst`. Never change it while operations of
    /// it are stored.
    const KIND: &'static str;

    /// State stored between steps: the input, and what steps decided. A step that
    /// fails keeps what it wrote here, so that undo knows. Forgotten when the
    /// operation ends.
    type State: Subject;

    /// The steps in their order, each name once. Asked anew after every step:
    /// the next one is the first that was neither done nor jumped over.
    fn steps(&self, state: &Self::State) -> Vec<&'static str>;

    /// Time limit of the operation from its start to its last step, restarts
    /// included; after that it is undone.
    fn time_limit(&self, state: &Self::State) -> Option<Duration> {
        let _ = state;
        None
    }

    /// Returns true if cancelling and the time limit have an effect during this
    /// step. Say no from the step on that cannot be undone.
    fn cancellable(&self, step: &str, state: &Self::State) -> bool {
        let _ = (step, state);
        true
    }

    /// Takes a step.
    async fn run(
        &self,
        step: &str,
        state: &mut Self::State,
        scope: &Scope,
    ) -> Result<Next, Failure>;

    /// Undoes a step.
    async fn undo(&self, step: &str, state: &mut Self::State, scope: &Scope)
    -> Result<(), Failure>;
}

/// Description of an operation to the engine, besides its steps' work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) key: String,
    pub(crate) organisation: String,
    pub(crate) steps: Vec<&'static str>,
    pub(crate) time_limit: Option<Duration>,
}

/// An operation whose state is bytes.
#[async_trait]
pub(crate) trait Erased: Send + Sync + 'static {
    fn plan(&self, data: &[u8]) -> Result<Plan, prost::DecodeError>;
    fn cancellable(&self, step: &str, data: &[u8]) -> Result<bool, prost::DecodeError>;
    async fn run(&self, step: &str, data: &mut Vec<u8>, scope: &Scope) -> Result<Next, Failure>;
    async fn undo(&self, step: &str, data: &mut Vec<u8>, scope: &Scope) -> Result<(), Failure>;
}

pub(crate) struct Registered<O>(pub(crate) O);

impl<O: Operation> Registered<O> {
    fn decode(data: &[u8]) -> Result<O::State, Failure> {
        O::State::decode(data).map_err(|error| {
            Failure::new(
                selvage_api::Code::DataLoss,
                format!("the state of the {} cannot be read: {error}", O::KIND),
            )
        })
    }
}

#[async_trait]
impl<O: Operation> Erased for Registered<O> {
    fn plan(&self, data: &[u8]) -> Result<Plan, prost::DecodeError> {
        let state = O::State::decode(data)?;
        Ok(Plan {
            key: state.key(),
            organisation: state.organisation(),
            steps: self.0.steps(&state),
            time_limit: self.0.time_limit(&state),
        })
    }

    fn cancellable(&self, step: &str, data: &[u8]) -> Result<bool, prost::DecodeError> {
        Ok(self.0.cancellable(step, &O::State::decode(data)?))
    }

    async fn run(&self, step: &str, data: &mut Vec<u8>, scope: &Scope) -> Result<Next, Failure> {
        let mut state = Self::decode(data)?;
        let result = self.0.run(step, &mut state, scope).await;
        *data = state.encode_to_vec();
        result
    }

    async fn undo(&self, step: &str, data: &mut Vec<u8>, scope: &Scope) -> Result<(), Failure> {
        let mut state = Self::decode(data)?;
        let result = self.0.undo(step, &mut state, scope).await;
        *data = state.encode_to_vec();
        result
    }
}
