//! Lines for a caller whose cloudlet may go away while the call waits.
//!
//! The operation goes on: a cloudlet that was only cut off comes back and says
//! how far it got. But the caller need not sit through the whole time limit of
//! an agent that is not there.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use selvage_api::edgeproto::{CloudletInfo, CloudletKey, CloudletState};
use selvage_work::{Failure, Handle};
use tokio::time::Instant;

use super::core::Core;
use super::error::Error;
use crate::keys::CloudletKeyParts;

/// Number of checks in the time that a cloudlet may be away.
const CHECKS: u32 = 8;

impl Core {
    /// Lines of an operation, until it ends or its cloudlet has been away for
    /// too long.
    pub(super) fn lines(
        self: &Arc<Self>,
        handle: &Handle,
        cloudlet: CloudletKey,
    ) -> BoxStream<'static, Result<String, Failure>> {
        let (core, id) = (Arc::clone(self), handle.id().to_owned());
        let away = Box::pin(async move { core.until_away(&cloudlet, id).await });
        stream::unfold(Some((handle.lines(), away)), async |state| {
            let (mut lines, mut away) = state?;
            tokio::select! {
                biased;
                line = lines.next() => line.map(|line| (line, Some((lines, away)))),
                error = &mut away => Some((Err(error.into()), None)),
            }
        })
        .fuse()
        .boxed()
    }

    /// Returns when the agent of a cloudlet has been away for too long.
    async fn until_away(&self, key: &CloudletKey, operation: String) -> Error {
        let grace = self.settings.timeouts.away;
        let mut since = None;
        loop {
            tokio::time::sleep(grace / CHECKS).await;
            let info = self.tables.get::<CloudletInfo>(key);
            let state = info.map_or(CloudletState::NotPresent, |info| info.value.0.state());
            if !matches!(state, CloudletState::NotPresent | CloudletState::Offline) {
                since = None;
                continue;
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= grace {
                return Error::CloudletAway {
                    operator: key.operator_or_empty().name.clone(),
                    name: key.name.clone(),
                    state: state.as_str_name(),
                    operation,
                };
            }
        }
    }
}
