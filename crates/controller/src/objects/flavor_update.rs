//! Changing a flavor. What was made of it keeps the amounts that it has, and is
//! counted by them, until its own next update.

use std::collections::BTreeMap;
use std::sync::Arc;

use selvage_api::edgeproto as wire;
use selvage_api::object::Mask;
use selvage_api::selvage::flavors::FlavorSize;
use wire::CloudletKey;

use super::flavor::check_flavor;
use super::remove::{Hold, Removable, still_held};
use super::{Summary, detached, merge, same_key, summary};
use crate::controller::{Controller, Mode};
use crate::derive::flavors::closest;
use crate::derive::ports::Exposure;
use crate::derive::resources::{self, Amount, as_made, size_of};
use crate::error::{Error, Result};
use crate::instances::usage_check::exposure;
use crate::keys::{AppInstKeyParts, CloudletKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::{Row, StoredObject, index};
use crate::settings::Compat;
use crate::tables::HasTable;

/// Something that is made of a flavor.
trait OfFlavor: HasTable {
    fn size_mut(&mut self) -> &mut Option<FlavorSize>;
}

impl OfFlavor for wire::ClusterInst {
    fn size_mut(&mut self) -> &mut Option<FlavorSize> {
        &mut self.size
    }
}

impl OfFlavor for wire::AppInst {
    fn size_mut(&mut self) -> &mut Option<FlavorSize> {
        &mut self.size
    }
}

/// Usage of a flavor on a cloudlet, now and after the change.
#[derive(Default)]
struct Share {
    cloudlet: CloudletKey,
    instances: usize,
    clusters: usize,
    before: Amount,
    after: Amount,
}

impl Controller {
    /// Goes on when the caller goes away, for it may hold the flavor meanwhile.
    pub async fn update_flavor(
        self: &Arc<Self>,
        request: wire::Flavor,
        mode: Mode,
    ) -> Result<Summary> {
        let controller = Arc::clone(self);
        detached(async move { controller.change_flavor(&request, mode).await }).await
    }

    async fn change_flavor(&self, request: &wire::Flavor, mode: Mode) -> Result<Summary> {
        if self.settings.compat == Compat::EdgeCloud {
            return Err(Error::unsupported("Update flavor not supported"));
        }
        request.object_key().check()?;
        let mask = Mask::of(request)?;
        let key = request.key_text();
        let (before, after) = self.planned_flavor(&key, &mask, request)?;
        if mode == Mode::DryRun {
            self.check_room(&before, &after)?;
        } else if before != after {
            let hold = self.hold::<wire::Flavor>(&key).await?;
            let result = self.write_flavor(request, &mask, &key, &hold).await;
            self.let_go::<wire::Flavor>(&key, &hold.token).await;
            result?;
        }
        Ok(summary::<wire::Flavor>(mode, "update", &key))
    }

    /// The flavor as it is and as it is to be.
    fn planned_flavor(
        &self,
        key: &str,
        mask: &Mask,
        request: &wire::Flavor,
    ) -> Result<(wire::Flavor, wire::Flavor)> {
        let held = self.tables.of::<wire::Flavor>().get(key).ok_or(Error::KeyNotFound)?;
        let before = held.value.0.clone();
        let mut after = before.clone();
        mask.apply(&mut after, request)?;
        check_flavor(&after)?;
        same_key(&after, key)?;
        Ok((before, after))
    }

    /// Nobody begins to use the flavor while those who do are given the amounts
    /// that it has, as their own.
    async fn write_flavor(
        &self,
        request: &wire::Flavor,
        mask: &Mask,
        key: &str,
        hold: &Hold,
    ) -> Result<()> {
        self.tables.caught_up::<wire::Flavor>(hold.revision).await?;
        wire::Flavor::catch_up(&self.tables, hold.revision).await?;
        let (before, after) = self.planned_flavor(key, mask, request)?;
        self.check_room(&before, &after)?;
        self.keep_size::<wire::ClusterInst>(key, &before).await?;
        self.keep_size::<wire::AppInst>(key, &before).await?;
        let done = self
            .transact(Mode::Real, |tx| async move {
                still_held::<wire::Flavor>(&tx, key, &hold.token).await?;
                let (flavor, _) = merge(&tx, key, mask, request).await?;
                check_flavor(&flavor)?;
                tx.put(&Row(flavor))?;
                Ok::<_, Error>(())
            })
            .await?;
        self.settle::<wire::Flavor>(Mode::Real, done.revision).await
    }

    /// Writes the amounts of a flavor into what is made of it and has none of
    /// its own. Doing it twice, or for a change that fails then, is harmless.
    async fn keep_size<M: OfFlavor>(&self, flavor: &str, before: &wire::Flavor) -> Result<()> {
        let size = size_of(before);
        for held in self.tables.find::<M>(index::FLAVOR, flavor) {
            let key = &held.key;
            self.transact(Mode::Real, |tx| async move {
                if let Some(Row(mut made)) = tx.get::<Row<M>>(key).await?
                    && made.size_mut().is_none()
                {
                    *made.size_mut() = Some(size);
                    tx.put(&Row(made))?;
                }
                Ok::<_, Error>(())
            })
            .await?;
        }
        Ok(())
    }

    /// Refuses amounts that a cloudlet could not carry once all that it has of
    /// the flavor takes them.
    fn check_room(&self, before: &wire::Flavor, after: &wire::Flavor) -> Result<()> {
        for (text, share) in self.shares(before, after) {
            let Some(info) = self.tables.of::<wire::CloudletInfo>().get(&text) else { continue };
            let info = &info.value.0;
            let refs = self.tables.of::<wire::CloudletRefs>().get(&text);
            let mut refs = refs.map(|held| held.value.0.clone()).unwrap_or_default();
            let limits = Some(info).filter(|_| self.settings.enforce_resources);
            let fits = resources::change(&mut refs, share.before, share.after, limits);
            let offered = match share.clusters {
                0 => Ok(String::new()),
                _ => closest(after, &info.flavors),
            };
            if let Err(error) = fits.and(offered) {
                let (name, cloudlet) = (&after.object_key().name, &share.cloudlet);
                return Err(Error::in_use(format!(
                    "Flavor {name} cannot have these amounts: cloudlet {} of {} has {} made of \
                     it: {error}",
                    cloudlet.name,
                    cloudlet.operator_or_empty().name,
                    share.instances + share.clusters,
                )));
            }
        }
        Ok(())
    }

    /// Usage of a flavor on each cloudlet, by the text of the cloudlet's key.
    fn shares(&self, before: &wire::Flavor, after: &wire::Flavor) -> BTreeMap<String, Share> {
        let key = before.key_text();
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        let mut share = |cloudlet: &CloudletKey, old: Amount, new: Amount, machine: bool| {
            let share = shares.entry(cloudlet.text()).or_default();
            share.cloudlet = cloudlet.clone();
            share.instances += usize::from(machine);
            share.clusters += usize::from(!machine);
            share.before = share.before.plus(old);
            share.after = share.after.plus(new);
        };
        for held in self.tables.find::<wire::ClusterInst>(index::FLAVOR, &key) {
            let inst = &held.value.0;
            let made = as_made(before.clone(), inst.size.as_ref());
            let (old, new) = (Amount::of_cluster(&made, inst), Amount::of_cluster(after, inst));
            share(inst.object_key().cloudlet_or_empty(), old, new, false);
        }
        for held in self.tables.find::<wire::AppInst>(index::FLAVOR, &key) {
            let inst = &held.value.0;
            if exposure(&self.tables, inst) == Exposure::Machine {
                let made = as_made(before.clone(), inst.size.as_ref());
                let cloudlet = inst.object_key().cluster_inst_or_empty().cloudlet_or_empty();
                share(cloudlet, Amount::of_machine(&made), Amount::of_machine(after), true);
            }
        }
        shares
    }
}
