//! Revisions of instances: the App as each creation, update and rollback made
//! an instance run it. Written in the same transaction as the instance; read
//! from the store, because an App may be large and few ask for its past.

use selvage_api::distributed_match_engine::Timestamp;
use selvage_api::edgeproto::{App, AppInst, AppInstKey, TrackedState};
use selvage_api::object::changed_fields;
use selvage_api::selvage::revisions as wire;
use selvage_store::{Record, Transaction};
use selvage_work::{Failure, Scope};

use super::core::Core;
use super::error::Error;
use super::kind::Instance;
use super::usage;
use crate::controller::Mode;
use crate::keys::{AppInstKeyParts, KeyText};
use crate::row::StoredObject;

/// Revisions that are kept of an instance, beside the one that it runs.
const KEPT: usize = 5;

/// Reason of a revision whose operation was taken over by another one.
const GIVEN_UP: &str = "another operation took over";

/// All revisions of one instance, oldest first.
#[derive(Clone, PartialEq, prost::Message)]
struct Revisions {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, repeated, tag = "2")]
    list: Vec<Revision>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Revision {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(message, optional, tag = "2")]
    app: Option<App>,
    #[prost(string, tag = "3")]
    started_by: String,
    #[prost(message, optional, tag = "4")]
    started_at: Option<Timestamp>,
    #[prost(enumeration = "wire::State", tag = "5")]
    state: i32,
    #[prost(string, tag = "6")]
    error: String,
    #[prost(uint64, tag = "7")]
    rollback_of: u64,
}

impl Record for Revisions {
    const KIND: &'static str = "instance-revisions";
    const VERSION: u32 = 1;

    fn key(&self) -> String {
        self.key.clone()
    }
}

/// Origin of a revision.
pub(super) struct Cause<'a> {
    pub(super) who: &'a str,
    pub(super) at: Timestamp,
    /// Revision to go back to: 0 for the one of before, none for an update.
    pub(super) back_to: Option<u64>,
}

impl Revisions {
    fn find(&self, number: u64) -> Option<&Revision> {
        self.list.iter().find(|revision| revision.number == number)
    }

    /// Ends what is pending: the instance runs it if it was ready with it.
    fn settle(&mut self, running: u64, state: TrackedState) {
        for revision in &mut self.list {
            if revision.state() != wire::State::Pending {
                continue;
            }
            if revision.number == running && state == TrackedState::Ready {
                revision.set_state(wire::State::Deployed);
            } else {
                revision.set_state(wire::State::Failed);
                revision.error = GIVEN_UP.into();
            }
        }
    }

    /// Newest revision below a number that was run.
    fn deployed_before(&self, number: u64) -> Option<&Revision> {
        let below = self.list.iter().rev().filter(|revision| revision.number < number);
        below.into_iter().find(|revision| revision.state() == wire::State::Deployed)
    }

    /// Revision that a rollback means.
    fn target(&self, inst: &AppInst, state: TrackedState, wanted: u64) -> Result<&Revision, Error> {
        let found = match wanted {
            // The version of before serves already, and is to be what is wanted.
            0 if state == TrackedState::UpdateError => self.find(inst.revision),
            0 => self.deployed_before(inst.revision),
            number => return self.find(number).ok_or(Error::RevisionNotFound(number)),
        };
        found.ok_or(Error::NoEarlierRevision)
    }

    fn push(&mut self, revision: Revision, running: u64) {
        self.list.push(revision);
        while self.list.len() > KEPT {
            let oldest = self.list.iter().position(|old| old.number != running);
            let Some(oldest) = oldest else { return };
            self.list.remove(oldest);
        }
    }
}

async fn load(tx: &Transaction, key: &AppInstKey) -> Result<Revisions, Error> {
    let key = key.text();
    Ok(tx.get::<Revisions>(&key).await?.unwrap_or(Revisions { key, list: Vec::new() }))
}

/// Begins a revision of an instance that is about to be written in another
/// state than `before`, and lets the instance run its App.
pub(super) async fn begin(
    tx: &Transaction,
    inst: &mut AppInst,
    before: TrackedState,
    cause: &Cause<'_>,
) -> Result<(), Error> {
    let mut revisions = load(tx, inst.object_key()).await?;
    revisions.settle(inst.revision, before);
    let now = current_app(tx, inst).await?;
    let (app, rollback_of) = match cause.back_to {
        None => (now.clone(), 0),
        Some(wanted) => {
            let target = revisions.target(inst, before, wanted)?;
            (target.app.clone().unwrap_or_default(), target.number)
        }
    };
    inst.pinned_app = (app != now).then(|| app.clone());
    let number = revisions.list.last().map_or(1, |last| last.number + 1);
    let revision = Revision {
        number,
        app: Some(app),
        started_by: cause.who.to_owned(),
        started_at: Some(cause.at),
        state: wire::State::Pending.into(),
        error: String::new(),
        rollback_of,
    };
    revisions.push(revision, inst.revision);
    inst.revision = number;
    Ok(tx.put(&revisions)?)
}

async fn current_app(tx: &Transaction, inst: &AppInst) -> Result<App, Error> {
    let key = inst.object_key().app_or_empty().text();
    Ok(usage::get::<App>(tx, &key).await?.unwrap_or_default())
}

/// Forgets the revisions of an instance that goes.
pub(super) async fn forget(tx: &Transaction, key: &AppInstKey) -> Result<(), Error> {
    let key = key.text();
    if tx.get::<Revisions>(&key).await?.is_some() {
        tx.delete::<Revisions>(&key).await?;
    }
    Ok(())
}

/// Ends the revision that an instance was to run and does not: it is to run
/// the one of before. Returns false when there is nothing to end.
async fn fail(tx: &Transaction, inst: &mut AppInst, reason: &str) -> Result<bool, Error> {
    let mut revisions = load(tx, inst.object_key()).await?;
    let wanted = inst.revision;
    let pending = |revision: &&mut Revision| {
        revision.number == wanted && revision.state() == wire::State::Pending
    };
    let Some(revision) = revisions.list.iter_mut().find(pending) else { return Ok(false) };
    revision.set_state(wire::State::Failed);
    revision.error = reason.to_owned();
    if let Some(running) = revisions.deployed_before(wanted) {
        let now = current_app(tx, inst).await?;
        inst.revision = running.number;
        inst.pinned_app = running.app.clone().filter(|app| *app != now);
    }
    tx.put(&revisions)?;
    Ok(true)
}

impl Core {
    /// Notes that an update failed, unless the instance is ready or belongs to
    /// another operation by now.
    pub(super) async fn fail_revision(
        &self,
        scope: &Scope,
        key: &AppInstKey,
    ) -> Result<(), Failure> {
        if self.is_taken_over(scope.id()) {
            return Ok(());
        }
        let reason = scope.reason().map(|reason| reason.message().to_owned()).unwrap_or_default();
        let (key, reason) = (&key.text(), &reason);
        let cloudlet = match self.stored::<AppInst>(key).await? {
            Some(inst) => inst.cloudlet_key().clone(),
            None => return Ok(()),
        };
        let committed = self
            .count(Mode::Real, &cloudlet, |tx| async move {
                let Some(mut inst) = usage::get::<AppInst>(&tx, key).await? else { return Ok(()) };
                if inst.state() != TrackedState::Ready && fail(&tx, &mut inst, reason).await? {
                    usage::resize_volumes(&tx, &mut inst, None).await?;
                    usage::put(&tx, inst)?;
                }
                Ok::<_, Error>(())
            })
            .await?;
        Ok(self.caught_up::<AppInst>(committed.revision).await?)
    }

    /// Revisions of an instance, newest first.
    pub(super) async fn revisions(&self, key: &AppInstKey) -> Result<Vec<wire::Revision>, Error> {
        let read = self
            .transact(Mode::DryRun, |tx| async move {
                let inst = usage::get::<AppInst>(&tx, &key.text()).await?;
                let inst = inst.ok_or(Error::KeyNotFound)?;
                let mut revisions = load(&tx, key).await?;
                if inst.state() == TrackedState::Ready {
                    revisions.settle(inst.revision, inst.state());
                }
                Ok::<_, Error>((inst, revisions))
            })
            .await?;
        let (inst, revisions) = read.value;
        let runs =
            if inst.state() == TrackedState::Ready || inst.state() == TrackedState::UpdateError {
                inst.revision
            } else {
                revisions.deployed_before(inst.revision).map_or(0, |running| running.number)
            };
        let mut before = None;
        let mut described = Vec::with_capacity(revisions.list.len());
        for revision in &revisions.list {
            described.push(describe(revision, before, runs)?);
            before = revision.app.as_ref();
        }
        described.reverse();
        Ok(described)
    }
}

fn describe(revision: &Revision, before: Option<&App>, runs: u64) -> Result<wire::Revision, Error> {
    let app = revision.app.clone().unwrap_or_default();
    let changed = match before {
        Some(before) => changed_fields(before, &app)?,
        None => Vec::new(),
    };
    let at = revision.started_at.unwrap_or_default();
    Ok(wire::Revision {
        number: revision.number,
        state: revision.state,
        current: revision.number == runs,
        started_by: revision.started_by.clone(),
        started_at: Some(prost_types::Timestamp { seconds: at.seconds, nanos: at.nanos }),
        image_path: app.image_path,
        changed,
        rollback_of: revision.rollback_of,
        error: revision.error.clone(),
    })
}
