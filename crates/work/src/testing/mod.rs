//! Proof that an operation keeps the rules of [`Operation`], written once for
//! all of them.
//!
//! [`check`] runs an operation again and again, each time in a fresh environment
//! with one thing going wrong at one step, and looks at what is left:
//!
//! * every step run twice, the second time without what the first wrote into
//!   the state: the end is the same;
//! * a failure before and after the work of every step: nothing is left, also
//!   when every undo is run twice or fails once;
//! * a cancellation, and an orderly stop of the process, at every step;
//! * a crash before and after the work of every step, and of every undo: the
//!   next process brings it to the same end.
//!
//! A environment must be able to do the operation without further help: whatever
//! answers a step in reality answers it there as well.

mod case;
mod faulty;

use async_trait::async_trait;
use selvage_store::SharedStore;

use self::case::{Bench, Expect};
use self::faulty::{Fault, Moment, When};
use crate::{Engine, Error, Handle, Operation, Options};

/// Environment in which an operation is proved.
#[async_trait]
pub trait Environment: Send + Sync + 'static {
    /// The operation that is proved.
    type Operation: Operation;

    /// The store of this environment, used by no other.
    fn store(&self) -> SharedStore;

    /// The operation, acting on this environment. Asked once for every process that
    /// is started.
    fn operation(&self) -> Self::Operation;

    /// Makes other operations known that this one starts.
    fn register_others(&self, _: &Engine) -> Result<(), Error> {
        Ok(())
    }

    /// State to start it with.
    fn state(&self) -> <Self::Operation as Operation>::State;

    /// Starts it; environments whose operations are started together with a write
    /// of their own do it themselves.
    async fn start(&self, engine: &Engine) -> Result<Handle, Error> {
        engine.start::<Self::Operation>(self.state(), "testing").await
    }

    /// Returns all that the operation could leave behind, as text that is the
    /// same in every fresh environment: without ids, times and the like.
    async fn residue(&self) -> String;

    /// Returns true if `now` is what a failed operation may leave, `before`
    /// having been there before it. Operations that delete something cannot
    /// always bring it back.
    fn is_undone(&self, before: &str, now: &str) -> bool {
        before == now
    }

    /// Settings of the engine.
    fn options(&self) -> Options {
        Options::default()
    }
}

/// A rule that the operation broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{case}: {detail}")]
pub struct Violation {
    /// Fault that was injected: `crash after step create`.
    pub case: String,
    /// Result of it.
    pub detail: String,
}

impl Violation {
    /// Returns the code that a caller gets.
    pub fn code(&self) -> selvage_api::Code {
        selvage_api::Code::Internal
    }
}

/// Proves an operation. Gives the names of the cases that were tried.
pub async fn check<W, M, F>(make: M) -> Result<Vec<String>, Violation>
where
    W: Environment,
    M: Fn() -> F,
    F: Future<Output = W>,
{
    let mut bench = Bench::new(make);
    let steps = bench.reference().await?;
    for step in &steps {
        let at = |when, fault| Moment { step: step.clone(), undo: false, when, fault };
        bench.case(&[at(When::Before, Fault::Repeat)], Expect::Success).await?;
        bench.case(&[at(When::Before, Fault::Fail)], Expect::Failure).await?;
        bench.case(&[at(When::Before, Fault::Cancel)], Expect::Either).await?;
        bench.case(&[at(When::Before, Fault::Stop)], Expect::Success).await?;
        bench.case(&[at(When::Before, Fault::Crash)], Expect::Either).await?;
        bench.case(&[at(When::After, Fault::Crash)], Expect::Either).await?;
        let failed = at(When::After, Fault::Fail);
        bench.case(std::slice::from_ref(&failed), Expect::Failure).await?;
        check_undo(&mut bench, &steps, &failed).await?;
    }
    Ok(bench.tried)
}

/// Undo gone wrong, after a failure at one step.
async fn check_undo<W, M, F>(
    bench: &mut Bench<M>,
    steps: &[String],
    failed: &Moment,
) -> Result<(), Violation>
where
    W: Environment,
    M: Fn() -> F,
    F: Future<Output = W>,
{
    let begun = steps.iter().take_while(|step| **step != failed.step).chain([&failed.step]);
    for step in begun {
        let at = |when, fault| Moment { step: step.clone(), undo: true, when, fault };
        for moment in [
            at(When::Before, Fault::Repeat),
            at(When::After, Fault::Fail),
            at(When::Before, Fault::Crash),
            at(When::After, Fault::Crash),
        ] {
            bench.case(&[failed.clone(), moment], Expect::Failure).await?;
        }
    }
    Ok(())
}
