//! Rotation of the certificate authorities: old and new are believed, everything
//! is signed anew, the old one is dropped.
//!
//! The stage is in the store, with the certificates of the authorities and, for
//! the other controllers, the next one's key sealed with that of the one before.
//! Each process brings its own files and what it believes to that stage
//! ([`Auth::follow_authorities`]); one that was killed in between does so when it
//! starts again. The next authority signs once every process that is up believes
//! it. Machines need not be waited for there: certificates of the next authority
//! are shown with one that the old authority signed for it. They are waited for
//! before the old one is dropped.

mod records;
mod service;
mod stage;
mod waiting;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::pki::{Authorities, Ca};
use selvage_store::{LeaseId, SharedStore, Table, transact};

pub use self::service::PkiApi;
pub(crate) use self::{
    records::{Generation, Process, Region},
    stage::{Phase, Stage},
};
use crate::{
    Auth, audit,
    caller::Caller,
    error::{Error, Result},
    records::new_id,
};

/// Time after which a process that was killed is not waited for any more.
const PROCESS_TTL: Duration = Duration::from_secs(30);
/// Interval at which a process says that it is up.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// State of the rotation, as this process knows it.
pub(crate) struct Rotation {
    pub(crate) region: Arc<Table<Region>>,
    pub(crate) processes: Arc<Table<Process>>,
    id: String,
    name: Mutex<String>,
    /// With the time at which it was last kept alive.
    lease: Mutex<Option<(LeaseId, Duration)>>,
}

impl Rotation {
    pub(crate) async fn open(store: &SharedStore) -> Result<Self> {
        Ok(Self {
            region: Table::open(Arc::clone(store)).await?,
            processes: Table::open(Arc::clone(store)).await?,
            id: new_id(),
            name: Mutex::default(),
            lease: Mutex::default(),
        })
    }

    /// The region's record; `None` where no authority was ever replaced.
    fn current(&self) -> Option<Region> {
        self.region.get(records::REGION).map(|region| region.value.clone())
    }
}

impl Auth {
    /// Authorities of this process, where they can be replaced.
    pub(crate) fn authorities(&self) -> Result<Authorities> {
        self.authority()?.authorities().ok_or(Error::NoAuthority)
    }

    /// Name of this process for people who look at a rotation.
    pub fn name_process(&self, name: &str) {
        name.clone_into(&mut self.inner.rotation.name.lock());
    }

    /// Brings the authorities of this process to the stage of the region, says so
    /// in the store, and counts the stage up where nobody has to be waited for.
    /// To be called before the process serves, and every few seconds.
    pub async fn follow_authorities(&self) -> Result<()> {
        let Ok(authorities) = self.authorities() else { return Ok(()) };
        let region = self.inner.rotation.current();
        if let Some(region) = &region {
            adopt(&authorities, region)?;
        }
        self.say_stage(region.as_ref().map_or(0, |region| region.stage)).await?;
        match region {
            Some(region) if region.stage().phase() == Phase::Introduced => {
                self.let_the_next_sign(&region).await
            }
            _ => Ok(()),
        }
    }

    /// Keeps the record of this process, which the others wait for.
    async fn say_stage(&self, stage: u64) -> Result<()> {
        if !self.inner.options.shares_store {
            return Ok(());
        }
        let rotation = &self.inner.rotation;
        let now = self.inner.options.clock.elapsed();
        let known = *rotation.lease.lock();
        let kept = match known {
            Some((lease, at)) if now.saturating_sub(at) < KEEP_ALIVE => Some(lease),
            Some((lease, _)) => {
                let kept = self.inner.store.lease_keep_alive(lease).await.ok();
                *rotation.lease.lock() = kept.map(|kept| (kept.id, now));
                kept.map(|kept| kept.id)
            }
            None => None,
        };
        let said = rotation.processes.get(&rotation.id);
        if kept.is_some() && said.is_some_and(|said| said.value.stage == stage) {
            return Ok(());
        }
        let lease = match kept {
            Some(lease) => lease,
            None => self.inner.store.lease_grant(PROCESS_TTL).await?.id,
        };
        *rotation.lease.lock() = Some((lease, now));
        let name = rotation.name.lock().clone();
        let process = Process { id: rotation.id.clone(), name, stage };
        rotation.processes.put_with_lease(process, lease).await?;
        Ok(())
    }

    /// Counts the stage up once every process that is up believes the next
    /// authority.
    async fn let_the_next_sign(&self, region: &Region) -> Result<()> {
        if !self.processes_behind(region.stage()).is_empty() {
            return Ok(());
        }
        let next = Region { stage: region.stage().next().0, ..region.clone() };
        self.advance(region, next).await?;
        tracing::info!(stage = region.stage().next().0, "the next authority signs from now on");
        Ok(())
    }

    /// Writes the region's next stage unless somebody else was faster.
    async fn advance(&self, before: &Region, next: Region) -> Result<()> {
        let next = &next;
        let written = transact(&self.inner.store, |tx| async move {
            let now = tx.get::<Region>(records::REGION).await?;
            if now.is_some_and(|now| now.stage == before.stage) {
                tx.put(next)?;
            }
            Ok::<(), Error>(())
        });
        Ok(self.inner.rotation.region.wait_for(written.await?.revision).await?)
    }

    /// Starts a rotation, unless one is under way.
    pub(crate) async fn start_rotation(&self, caller: &Caller) -> Result<()> {
        let authorities = self.authorities()?;
        self.follow_authorities().await?;
        let signer = authorities.signer();
        let next = signer.next()?;
        let sealed_key = signer.seal_key_of(&next)?;
        let started = Region {
            started_at: self.now().as_millisecond(),
            started_by: caller.identity.name.clone(),
            ..Region::default()
        };
        let (signer, next, sealed_key, started) = (&signer, &next, &sealed_key, &started);
        let written = transact(&self.inner.store, |tx| async move {
            let before = tx.get::<Region>(records::REGION).await?;
            let stage = before.as_ref().map_or(Stage(0), Region::stage);
            if stage.phase() != Phase::Alone {
                return Ok(false);
            }
            let (number, stage) = (stage.generations()[0], stage.next().0);
            let old = generation(number, signer, Vec::new());
            // Another process was faster, twice, and ours is not the one that
            // signs any more.
            let known = before.iter().flat_map(Region::authorities).next();
            if known.is_some_and(|known| known.certificate_pem != old.certificate_pem) {
                return Err(Error::Contended);
            }
            let new = generation(number + 1, next, sealed_key.clone());
            tx.put(&Region { stage, generations: vec![old, new], ..started.clone() })?;
            Ok::<_, Error>(true)
        });
        let written = written.await?;
        self.inner.rotation.region.wait_for(written.revision).await?;
        if written.value {
            audit::done("pki.rotation.start", caller, &next.sha256());
        }
        self.follow_authorities().await
    }

    /// Drops the old authority.
    pub(crate) async fn finish_rotation(&self, caller: &Caller, force: bool) -> Result<()> {
        self.follow_authorities().await?;
        let Some(region) = self.inner.rotation.current() else { return Err(Error::NoRotation) };
        if region.stage().phase() == Phase::Alone {
            return Err(Error::NoRotation);
        }
        let waits: Vec<String> = match force && region.stage().phase() == Phase::Signing {
            true => self.processes_behind(region.stage()),
            false => self.waits_for(&region),
        };
        if !waits.is_empty() {
            return Err(Error::RotationWaits(waits));
        }
        let mut kept = region.authorities();
        kept.truncate(1);
        // Whoever has the old key must not find the new one.
        let kept = kept.into_iter().map(|one| Generation { sealed_key: Vec::new(), ..one.clone() });
        let next = Region {
            stage: region.stage().next().0,
            generations: kept.collect(),
            started_at: 0,
            started_by: String::new(),
        };
        self.advance(&region, next).await?;
        audit::done("pki.rotation.finish", caller, if force { "forced" } else { "" });
        self.follow_authorities().await
    }

    /// Certificates of the region's authorities; empty where none was replaced.
    pub async fn region_certificates(store: &SharedStore) -> Result<Vec<String>> {
        let read = transact(store, |tx| async move {
            Ok::<_, Error>(tx.get::<Region>(records::REGION).await?)
        });
        let region = read.await?.value.unwrap_or_default();
        Ok(region.authorities().into_iter().map(|one| one.certificate_pem.clone()).collect())
    }
}

fn generation(number: u64, ca: &Ca, sealed_key: Vec<u8>) -> Generation {
    Generation { number, certificate_pem: ca.pem().to_owned(), sealed_key }
}

/// Has the authorities of the region's stage: those that are here, and those
/// whose keys can be opened with one that is here.
fn adopt(authorities: &Authorities, region: &Region) -> Result<()> {
    let held = authorities.all();
    let wanted = region.authorities();
    let mut found: Vec<(u64, Arc<Ca>)> = Vec::new();
    for one in &wanted {
        let here = held.iter().find(|ca| ca.pem() == one.certificate_pem);
        found.extend(here.map(|ca| (one.number, Arc::clone(ca))));
    }
    for one in &wanted {
        let before = found.iter().find(|(number, _)| number + 1 == one.number);
        let missing = found.iter().all(|(number, _)| *number != one.number);
        if let (true, Some((_, before))) = (missing && !one.sealed_key.is_empty(), before) {
            let opened = before.open_next(&one.certificate_pem, &one.sealed_key)?;
            found.push((one.number, Arc::new(opened)));
        }
    }
    let ordered = wanted.iter().map(|one| {
        let found = found.iter().find(|(number, _)| *number == one.number);
        found.map(|(_, ca)| Arc::clone(ca)).ok_or(Error::OtherAuthorities)
    });
    Ok(authorities.replace(ordered.collect::<Result<_>>()?)?)
}
