//! Reports of agents about their cloudlets.
//!
//! A CloudletInfo hangs on the lease of the controller that the agent is
//! connected to. What this controller wrote it remembers, so that it can write
//! it again should its lease be lost.

use selvage_api::edgeproto as wire;
use selvage_api::object::Mask;
use selvage_notify::Stream;
use selvage_store::Revision;

use super::{Summary, check_object, summary};
use crate::controller::Mode;
use crate::error::{Error, Result};
use crate::row::{Row, StoredObject};
use crate::state::ControllerState;

impl ControllerState {
    /// Writes a CloudletInfo as if an agent had sent it to this controller,
    /// which owns it from then on; onto one that is there only what `fields`
    /// names.
    pub async fn inject_cloudlet_info(
        &self,
        mut info: wire::CloudletInfo,
        mode: Mode,
    ) -> Result<Summary> {
        check_object(&info)?;
        let mask = Mask::of(&info)?;
        info.fields.clear();
        info.controller = self.settings.controller_id();
        let (key, lease) = (info.key_text(), self.lease());
        let (info, mask, place) = (&info, &mask, &key);
        let done = self
            .transact(mode, |tx| async move {
                let merged = match tx.get::<Row<wire::CloudletInfo>>(place).await? {
                    None => info.clone(),
                    Some(Row(mut stored)) => {
                        mask.apply(&mut stored, info)?;
                        if stored.controller != info.controller {
                            // No connection of ours brought it.
                            stored.notify_id = 0;
                            stored.controller.clone_from(&info.controller);
                        }
                        stored
                    }
                };
                tx.put_with_lease(&Row(merged.clone()), lease)?;
                Ok::<_, Error>(merged)
            })
            .await?;
        if mode == Mode::Real {
            self.memory.own_infos.lock().insert(key.clone(), done.value);
        }
        self.settle::<wire::CloudletInfo>(mode, done.revision).await?;
        Ok(summary::<wire::CloudletInfo>(mode, "inject", &key))
    }

    pub async fn evict_cloudlet_info(
        &self,
        info: &wire::CloudletInfo,
        mode: Mode,
    ) -> Result<Summary> {
        let key = info.key_text();
        let place = &key;
        let done = self
            .transact(mode, |tx| async move {
                tx.get::<Row<wire::CloudletInfo>>(place).await?.ok_or(Error::KeyNotFound)?;
                tx.delete::<Row<wire::CloudletInfo>>(place).await?;
                Ok::<_, Error>(())
            })
            .await?;
        if mode == Mode::Real {
            self.memory.own_infos.lock().remove(&key);
        }
        self.settle::<wire::CloudletInfo>(mode, done.revision).await?;
        Ok(summary::<wire::CloudletInfo>(mode, "evict", &key))
    }

    /// An agent says how its cloudlet is.
    pub(crate) async fn receive_cloudlet_info(
        &self,
        mut info: wire::CloudletInfo,
        stream: &Stream,
    ) -> Result<()> {
        check_object(&info)?;
        info.fields.clear();
        info.notify_id = stream.id;
        info.controller = self.settings.controller_id();
        let key = info.key_text();
        {
            // Whoever sees this connection among the speakers sees that it has
            // spoken, too.
            let mut own = self.memory.own_infos.lock();
            if self.has_successor(&key, stream.id) {
                tracing::debug!(cloudlet = key, "a late report of a replaced connection");
                return Ok(());
            }
            own.insert(key.clone(), info.clone());
            self.note_speaker(&key, stream);
        }
        self.write_info(&key, &info).await
    }

    /// Returns whether a newer connection speaks for the cloudlet.
    fn has_successor(&self, key: &str, notify_id: i64) -> bool {
        let speakers = self.memory.speakers.lock();
        speakers.get(key).is_some_and(|of_key| of_key.keys().any(|id| *id > notify_id))
    }

    fn note_speaker(&self, key: &str, stream: &Stream) {
        let mut speakers = self.memory.speakers.lock();
        let of_key = speakers.entry(key.to_owned()).or_default();
        let is_new = of_key.insert(stream.id, stream.clone()).is_none();
        if is_new && of_key.len() > 1 {
            tracing::warn!(
                cloudlet = key,
                connections = of_key.len(),
                "another agent speaks for a cloudlet whose agent is connected: either it lost \
                 that connection, or two have one identity, as with a copied data directory"
            );
        }
    }

    /// Disconnects the other connections of a cloudlet after `left`, which
    /// spoke last, is gone, so that they report everything again. One that has
    /// spoken since is the successor of `left` and needs no reminder.
    pub(crate) fn ask_other_speakers(&self, key: &str, left: i64) {
        let others = {
            let own = self.memory.own_infos.lock();
            if own.get(key).is_some_and(|info| info.notify_id != left) {
                return;
            }
            self.memory.speakers.lock().get(key).cloned().unwrap_or_default()
        };
        for other in others.values() {
            tracing::info!(cloudlet = key, "another agent of the cloudlet is asked anew");
            other.disconnect();
        }
    }

    /// A connection does not speak for these any more.
    pub(crate) fn forget_speaker(&self, notify_id: i64, silent: impl Fn(&str) -> bool) {
        self.memory.speakers.lock().retain(|key, of_key| {
            if silent(key) {
                of_key.remove(&notify_id);
            }
            !of_key.is_empty()
        });
    }

    /// The agent of connection `notify_id` is gone. What has another owner by
    /// now, or is not there any more, stays as it is.
    pub(crate) async fn cloudlet_offline(&self, key: &str, notify_id: i64) -> Result<()> {
        let (mine, lease) = (self.settings.controller_id(), self.lease());
        let mine = &mine;
        let done = self
            .transact(Mode::Real, |tx| async move {
                let Some(Row(mut info)) = tx.get::<Row<wire::CloudletInfo>>(key).await? else {
                    return Ok(None);
                };
                if info.notify_id != notify_id || info.controller != *mine {
                    return Ok(None);
                }
                info.set_state(wire::CloudletState::Offline);
                tx.put_with_lease(&Row(info.clone()), lease)?;
                Ok::<_, Error>(Some(info))
            })
            .await?;
        let mut own = self.memory.own_infos.lock();
        // While the store wrote, the agent may have come back by another
        // connection: that entry is not ours to touch.
        if own.get(key).is_some_and(|known| known.notify_id == notify_id) {
            match done.value {
                Some(info) => own.insert(key.to_owned(), info),
                None => own.remove(key),
            };
        }
        Ok(())
    }

    /// Writes what an agent reported, unless another connection has spoken since: a
    /// write that takes long must not overtake that of its successor.
    async fn write_info(&self, key: &str, info: &wire::CloudletInfo) -> Result<()> {
        let lease = self.lease();
        let done = self
            .transact(Mode::Real, |tx| async move {
                // Read so that the commit fails if the successor's comes between.
                tx.get::<Row<wire::CloudletInfo>>(key).await?;
                let own = self.memory.own_infos.lock();
                if own.get(key).is_some_and(|newest| newest.notify_id == info.notify_id) {
                    tx.put_with_lease(&Row(info.clone()), lease)?;
                }
                Ok::<_, Error>(())
            })
            .await?;
        self.settle::<wire::CloudletInfo>(Mode::Real, done.revision).await
    }

    /// After the lease was lost: what this controller wrote hangs on nothing
    /// or is gone. Writes it again unless another controller has it by now.
    pub(crate) async fn restore_infos(&self) -> Result<Revision> {
        let own = self.memory.own_infos.lock().clone();
        let lease = self.lease();
        let mut newest = 0;
        for (key, info) in &own {
            let done = self
                .transact(Mode::Real, |tx| async move {
                    let stored = tx.get::<Row<wire::CloudletInfo>>(key).await?;
                    let ours = |stored: &wire::CloudletInfo| {
                        stored.controller == info.controller && stored.notify_id == info.notify_id
                    };
                    if stored.is_none_or(|Row(stored)| ours(&stored)) {
                        tx.put_with_lease(&Row(info.clone()), lease)?;
                    }
                    Ok::<_, Error>(())
                })
                .await?;
            newest = done.revision;
        }
        Ok(newest)
    }
}
