//! One environment, one run of the operation, as many processes as it takes.

use std::sync::Arc;
use std::time::Duration;

use selvage_api::selvage::operations as wire;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::faulty::{Fault, Faulty, Moment, Script};
use super::{Environment, Violation};
use crate::{Engine, Error, Failure, Handle};

/// Time after which an operation counts as one that never ends.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Success,
    Failure,
    Either,
}

pub(super) struct Bench<M> {
    make: M,
    /// Description of an environment after the operation, if all goes well.
    after: String,
    pub(super) tried: Vec<String>,
}

impl<W, M, F> Bench<M>
where
    W: Environment,
    M: Fn() -> F,
    F: Future<Output = W>,
{
    pub(super) fn new(make: M) -> Self {
        Self { make, after: String::new(), tried: Vec::new() }
    }

    /// The run in which nothing goes wrong. Gives the steps that were taken.
    pub(super) async fn reference(&mut self) -> Result<Vec<String>, Violation> {
        let environment = (self.make)().await;
        let script = Script::new(&[]);
        let name = "nothing goes wrong";
        let outcome = within(name, run(&environment, &script)).await?;
        outcome.map_err(|failure| violation(name, format!("it failed: {failure}")))?;
        self.after = environment.residue().await;
        self.tried.push(name.to_owned());
        let steps = script.seen.lock().clone();
        Ok(steps)
    }

    pub(super) async fn case(
        &mut self,
        moments: &[Moment],
        expect: Expect,
    ) -> Result<(), Violation> {
        let texts: Vec<String> = moments.iter().map(Moment::to_string).collect();
        let name = texts.join(", then ");
        let environment = (self.make)().await;
        let before = environment.residue().await;
        let script = Script::new(moments);
        let outcome = within(&name, run(&environment, &script)).await?;
        if let Some(moment) = script.left().first() {
            return Err(violation(&name, format!("it ended {outcome:?} without {moment}")));
        }
        let now = environment.residue().await;
        match (&outcome, expect) {
            (Ok(()), Expect::Failure) => {
                return Err(violation(&name, "it succeeded all the same"));
            }
            (Err(failure), Expect::Success) => {
                return Err(violation(&name, format!("it failed: {failure}")));
            }
            (Err(failure), _) if failure.message().contains("; stuck: ") => {
                return Err(violation(&name, format!("it got stuck: {failure}")));
            }
            (Ok(()), _) if now != self.after => {
                let text = format!("it left {now:?} instead of {:?}", self.after);
                return Err(violation(&name, text));
            }
            (Err(_), _) if !environment.is_undone(&before, &now) => {
                let text = format!("it left {now:?}, there was {before:?} before");
                return Err(violation(&name, text));
            }
            _ => {}
        }
        self.tried.push(name);
        Ok(())
    }
}

fn violation(case: &str, detail: impl Into<String>) -> Violation {
    Violation { case: case.to_owned(), detail: detail.into() }
}

async fn within<T>(
    case: &str,
    running: impl Future<Output = Result<T, Error>>,
) -> Result<T, Violation> {
    match tokio::time::timeout(OPERATION_TIMEOUT, running).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(violation(case, format!("the engine failed: {error}"))),
        Err(_) => Err(violation(case, "it does not end")),
    }
}

/// A process that drives operations.
struct Process {
    engine: Engine,
    token: CancellationToken,
    running: JoinHandle<Result<(), Error>>,
}

impl Process {
    async fn start<W: Environment>(environment: &W, script: &Arc<Script>) -> Result<Self, Error> {
        let engine = Engine::open(environment.store(), "testing", environment.options()).await?;
        engine
            .register(Faulty { operation: environment.operation(), script: Arc::clone(script) })?;
        environment.register_others(&engine)?;
        let token = CancellationToken::new();
        let running = tokio::spawn({
            let (engine, token) = (engine.clone(), token.clone());
            async move { engine.run(token).await }
        });
        Ok(Self { engine, token, running })
    }

    /// Waits for operations that another has started and left to themselves, as one
    /// does that is cancelled.
    async fn settle(&self) {
        let is_active = |one: &wire::Operation| {
            matches!(one.state(), wire::State::Running | wire::State::Undoing)
        };
        while let Some(active) = self.engine.list().into_iter().find(is_active) {
            if let Ok(handle) = self.engine.attach(&active.id) {
                let _ = handle.ended().await;
            }
            // The list may be behind by a moment.
            tokio::task::yield_now().await;
        }
    }

    async fn end(self, how: Fault) -> Result<(), Error> {
        if how == Fault::Crash {
            self.running.abort();
        } else {
            self.token.cancel();
        }
        match self.running.await {
            Ok(ended) => ended,
            // Aborted, as a crash is.
            Err(_) => Ok(()),
        }
    }
}

/// Starts the operation and goes on, process after process, until it ends.
async fn run<W: Environment>(
    environment: &W,
    script: &Arc<Script>,
) -> Result<Result<(), Failure>, Error> {
    let mut process = Process::start(environment, script).await?;
    let mut handle: Handle = environment.start(&process.engine).await?;
    loop {
        let outcome = tokio::select! {
            outcome = handle.ended() => Some(outcome),
            () = script.ending.notified() => None,
        };
        let how = script.end.lock().take();
        if outcome.is_some() && how.is_none() {
            process.settle().await;
        }
        process.end(how.unwrap_or(Fault::Stop)).await?;
        if let Some(outcome) = outcome {
            return Ok(outcome);
        }
        let id = handle.id().to_owned();
        process = Process::start(environment, script).await?;
        handle = process.engine.attach_stored(&id).await?;
    }
}
