//! Ctrl-C: the first ends the work in good order, the second at once.

use tokio::{signal::ctrl_c, sync::oneshot};

use crate::Error;

/// Exit code that a shell gives to a process that SIGINT ended.
const KILLED_BY_INTERRUPT: i32 = 130;

/// Does the work until it ends or somebody interrupts it. Dropped work cancels
/// its calls.
pub(crate) async fn or_interrupted<T>(
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let (interrupt, interrupted) = oneshot::channel();
    // A task of its own: the work may hang in a write to a pipe that nobody
    // reads, and the second Ctrl-C is meant for just that.
    let listener = tokio::spawn(async move {
        if ctrl_c().await.is_ok() && interrupt.send(()).is_ok() && ctrl_c().await.is_ok() {
            std::process::exit(KILLED_BY_INTERRUPT);
        }
    });
    tokio::select! {
        result = work => {
            listener.abort();
            result
        }
        Ok(()) = interrupted => Err(Error::Interrupted),
    }
}
