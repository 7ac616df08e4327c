//! Containers followed to their end, and started again where that is wanted.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;
use tracing::warn;

use super::{entry::Entry, lifecycle::Inner, process::exit_code, record::Phase, strays};
use crate::{EventKind, Result, cgroup::group};

/// Exit code of what the kernel killed.
const KILLED: i32 = 137;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// One that ran so long before it ended is started again without a pause.
const HEALTHY: Duration = Duration::from_secs(10);

impl Inner {
    /// Follows a container to its end, and starts it again if that is wanted.
    pub(super) fn watch_over(self: &Arc<Self>, entry: Arc<Entry>, pidfd: Option<OwnedFd>) {
        let (inner, closed) = (Arc::downgrade(self), self.closed.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = closed.cancelled() => {}
                () = watch_over(inner, entry, pidfd) => {}
            }
        });
    }

    pub(super) async fn has_ended(&self, entry: &Arc<Entry>, code: Option<i32>) {
        let (name, log) = (entry.runtime_name(), entry.directory.join("runtime.log"));
        // Its group goes with it.
        let kills = group::oom_kills(&self.group(&entry.namespace, &entry.record));
        let out_of_memory =
            kills.is_some_and(|kills| kills > 0) && code.is_none_or(|code| code == KILLED);
        if let Err(error) = entry.driver(&self.driver).delete(&name, &log).await {
            warn!(namespace = entry.namespace, id = entry.id(), %error, "cannot tidy up");
        }
        let written = entry.update(|state| {
            state.phase = Phase::Stopped;
            state.exit_code = code;
            state.exited = Some(Timestamp::now().as_millisecond());
            state.out_of_memory = out_of_memory;
        });
        if let Err(error) = written {
            warn!(namespace = entry.namespace, id = entry.id(), %error, "cannot note an end");
        }
        self.tell(entry, EventKind::Exited { code });
    }

    /// Starts one again that should run; none when somebody else has.
    async fn start_again(&self, entry: &Arc<Entry>) -> Result<Option<OwnedFd>> {
        let _step = entry.step.lock().await;
        if entry.phase() == Phase::Running || !entry.should_restart() {
            return Ok(None);
        }
        let run = self.run(entry, true).await;
        entry.has_problem(run.as_ref().err());
        Ok(Some(run?.1))
    }
}

async fn watch_over(inner: Weak<Inner>, entry: Arc<Entry>, mut pidfd: Option<OwnedFd>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(pidfd) = pidfd.take() {
            let since = Instant::now();
            let code = exit_code(pidfd).await;
            let Some(inner) = inner.upgrade() else { return };
            inner.has_ended(&entry, code).await;
            if since.elapsed() >= HEALTHY {
                pause = FIRST_PAUSE;
            }
        }
        if !entry.should_restart() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let Some(inner) = inner.upgrade() else { return };
        match inner.start_again(&entry).await {
            Ok(Some(new)) => pidfd = Some(new),
            Ok(None) => return,
            Err(error) => {
                warn!(namespace = entry.namespace, id = entry.id(), %error, "cannot start it again");
            }
        }
    }
}

/// Takes away, again and again, what keeps a first process from ending.
pub(super) async fn keep_reaping() -> std::convert::Infallible {
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        strays::reap_unborn();
        tokio::time::sleep(PAUSE).await;
    }
}
