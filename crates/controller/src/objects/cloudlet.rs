//! Cloudlets.

use std::sync::Arc;

use async_trait::async_trait;
use selvage_api::Code;
use selvage_api::distributed_match_engine::Loc;
use selvage_api::edgeproto as wire;
use selvage_api::object::{Mask, check_enums};
use selvage_store::{Revision, Transaction};

use super::remove::{Cascade, Removable};
use super::{Summary, insert, merge, same_key, summary};
use crate::controller::{Controller, Mode, Progress};
use crate::derive;
use crate::error::{Error, Result};
use crate::guard::{claim, refer, release};
use crate::keys::{AppInstKeyParts, CloudletKeyParts, KeyText};
use crate::row::{Row, StoredObject, index};
use crate::tables::Tables;

const HOST_NAMES: &str = "cloudlet-host";

#[async_trait]
impl Removable for wire::Cloudlet {
    async fn catch_up(tables: &Tables, revision: Revision) -> Result<()> {
        tables.caught_up::<wire::AppInst>(revision).await?;
        tables.caught_up::<wire::ClusterInst>(revision).await?;
        Ok(())
    }

    fn users(&self, tables: &Tables) -> Result<Cascade> {
        let key = self.key_text();
        let app_insts = tables.find::<wire::AppInst>(index::CLOUDLET, &key);
        if app_insts.iter().any(|inst| keeps_cloudlet(tables, &inst.value.0)) {
            return Err(Error::in_use("Cloudlet in use by static Application Instance"));
        }
        let cluster_insts = tables.find::<wire::ClusterInst>(index::CLOUDLET, &key);
        if cluster_insts.iter().any(|inst| inst.value.0.liveness() != wire::Liveness::Dynamic) {
            return Err(Error::in_use("Cloudlet in use by static Cluster Instance"));
        }
        Ok(Cascade {
            app_insts: app_insts.iter().map(|inst| inst.value.0.object_key().clone()).collect(),
            cluster_insts: cluster_insts
                .iter()
                .map(|inst| inst.value.0.object_key().clone())
                .collect(),
            apps: Vec::new(),
        })
    }

    /// The CloudletInfo stays: it belongs to the agent and goes with it.
    async fn finish(&self, tx: &Transaction) -> Result<()> {
        let key = self.key_text();
        if tx.get::<Row<wire::CloudletRefs>>(&key).await?.is_some() {
            tx.delete::<Row<wire::CloudletRefs>>(&key).await?;
        }
        release(tx, HOST_NAMES, &host_name(self), &key).await
    }
}

/// Static instances do, unless their app goes by itself; one whose app is not
/// known does too.
fn keeps_cloudlet(tables: &Tables, inst: &wire::AppInst) -> bool {
    let app = tables.get::<wire::App>(inst.object_key().app_or_empty());
    let goes_by_itself =
        app.is_some_and(|app| app.value.0.del_opt() == wire::DeleteType::AutoDelete);
    inst.liveness() != wire::Liveness::Dynamic && !goes_by_itself
}

/// Below the root domain.
fn host_name(cloudlet: &wire::Cloudlet) -> String {
    let key = cloudlet.object_key();
    format!(
        "{}.{}",
        derive::names::dns(&key.name),
        derive::names::dns(&key.operator_or_empty().name)
    )
}

fn check_ip_support(cloudlet: &wire::Cloudlet) -> Result<()> {
    match cloudlet.ip_support() {
        wire::IpSupport::Dynamic if cloudlet.num_dynamic_ips < 1 => {
            Err(Error::invalid("Must specify at least one dynamic public IP available"))
        }
        wire::IpSupport::Dynamic => Ok(()),
        wire::IpSupport::Static if !cloudlet.static_ips.is_empty() => {
            Ok(derive::ips::check_static_ips(&cloudlet.static_ips)?)
        }
        _ => Err(Error::unsupported("Only dynamic IPs are supported currently")),
    }
}

fn check_range(location: &Loc) -> Result<()> {
    if !(-90.0..=90.0).contains(&location.latitude) {
        return Err(Error::invalid("Invalid latitude value"));
    }
    if !(-180.0..=180.0).contains(&location.longitude) {
        return Err(Error::invalid("Invalid longitude value"));
    }
    Ok(())
}

fn is_nowhere(location: &Loc) -> bool {
    location.latitude == 0.0 && location.longitude == 0.0
}

/// Refuses fields that an update may not name, in the order of the contract.
fn check_update(request: &wire::Cloudlet, mask: &Mask) -> Result<()> {
    let becomes_static = mask.touches("6") && request.ip_support() == wire::IpSupport::Static;
    if mask.touches("8") && request.num_dynamic_ips < 1 && !becomes_static {
        return Err(Error::invalid(
            "Cannot specify less than one dynamic IP unless Ip Support Static is specified",
        ));
    }
    let location = request.location.unwrap_or_default();
    if mask.touches("5.1") && location.latitude == 0.0 {
        return Err(Error::invalid("Invalid latitude value of 0"));
    }
    if mask.touches("5.2") && location.longitude == 0.0 {
        return Err(Error::invalid("Invalid longitude value of 0"));
    }
    Ok(())
}

impl Controller {
    pub async fn create_cloudlet(
        &self,
        mut cloudlet: wire::Cloudlet,
        mode: Mode,
    ) -> Result<Summary> {
        if cloudlet.ip_support() == wire::IpSupport::Unknown && cloudlet.ip_support == 0 {
            cloudlet.set_ip_support(wire::IpSupport::Dynamic);
        }
        check_enums(&cloudlet)?;
        check_ip_support(&cloudlet)?;
        let location = cloudlet.location.unwrap_or_default();
        if is_nowhere(&location) {
            return Err(Error::invalid("location is missing; 0,0 is not a valid location"));
        }
        cloudlet.object_key().check()?;
        if derive::names::is_default_cloudlet(cloudlet.object_key()) {
            return Err(Error::invalid(
                "Cannot create cloudlet developer/default: it is always there",
            ));
        }
        check_range(&location)?;
        derive::names::check_cloudlet(cloudlet.object_key(), &self.settings.root_domain)?;
        cloudlet.fields.clear();
        let cloudlet = &cloudlet;
        let done = self
            .transact(mode, |tx| async move {
                self.check_operator(&tx, cloudlet).await?;
                claim_host_name(&tx, cloudlet).await?;
                insert(&tx, cloudlet).await
            })
            .await?;
        self.settle::<wire::Cloudlet>(mode, done.revision).await?;
        Ok(summary::<wire::Cloudlet>(mode, "create", &cloudlet.key_text()))
    }

    async fn check_operator(&self, tx: &Transaction, cloudlet: &wire::Cloudlet) -> Result<()> {
        let operator = cloudlet.object_key().operator_or_empty().text();
        let found = refer::<wire::Operator>(tx, &operator).await?;
        if found.is_none() && self.settings.strict {
            return Err(Error::missing("Specified operator not found"));
        }
        Ok(())
    }

    pub async fn update_cloudlet(&self, request: wire::Cloudlet, mode: Mode) -> Result<Summary> {
        let mask = Mask::of(&request)?;
        check_update(&request, &mask)?;
        let key = request.key_text();
        let (request, mask, place) = (&request, &mask, &key);
        let done = self
            .transact(mode, |tx| async move {
                let (cloudlet, changes) = merge(&tx, place, mask, request).await?;
                check_merged(&tx, place, &cloudlet).await?;
                if changes > 0 {
                    tx.put(&Row(cloudlet))?;
                }
                Ok::<_, Error>(())
            })
            .await?;
        self.settle::<wire::Cloudlet>(mode, done.revision).await?;
        if mode == Mode::Real && mask.touches("5") {
            self.tables.caught_up::<wire::AppInst>(done.revision).await?;
            super::location::follow_cloudlet(&self.tables, &key).await?;
        }
        Ok(summary::<wire::Cloudlet>(mode, "update", &key))
    }

    pub async fn delete_cloudlet(
        self: &Arc<Self>,
        request: &wire::Cloudlet,
        mode: Mode,
        progress: Progress,
    ) -> Result<Summary> {
        self.remove::<wire::Cloudlet>(request.object_key(), mode, progress).await
    }
}

/// Checks the cloudlet as it is after an update.
async fn check_merged(tx: &Transaction, key: &str, cloudlet: &wire::Cloudlet) -> Result<()> {
    same_key(cloudlet, key)?;
    check_enums(cloudlet)?;
    check_range(&cloudlet.location.unwrap_or_default())?;
    check_ip_support(cloudlet)?;
    let refs = tx.get::<Row<wire::CloudletRefs>>(key).await?.unwrap_or_default().0;
    if cloudlet.ip_support() == wire::IpSupport::Dynamic
        && refs.used_dynamic_ips > 0
        && refs.used_dynamic_ips >= cloudlet.num_dynamic_ips
    {
        let used = refs.used_dynamic_ips;
        return Err(Error::in_use(format!(
            "num_dynamic_ips cannot be {}: {used} are in use, and one is the load balancer's",
            cloudlet.num_dynamic_ips
        )));
    }
    Ok(())
}

/// Two cloudlets whose names become the same host name cannot both be.
async fn claim_host_name(tx: &Transaction, cloudlet: &wire::Cloudlet) -> Result<()> {
    let (host, key) = (host_name(cloudlet), cloudlet.key_text());
    if claim(tx, HOST_NAMES, &host, &key, &key).await? {
        return Ok(());
    }
    let text = format!("Cloudlet name gives the host name {host}, which another Cloudlet has");
    Err(Error::refused(Code::AlreadyExists, text))
}
