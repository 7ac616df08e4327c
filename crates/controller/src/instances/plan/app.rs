//! AppInsts.

use selvage_api::distributed_match_engine::Timestamp;
use selvage_api::edgeproto::{
    App, AppInst, AppInstKey, Cloudlet, CloudletInfo, ClusterInst, ClusterInstKey, ClusterKey,
    Flavor, FlavorKey, IpAccess, Liveness, TrackedState,
};
use selvage_api::object::{Mask, check_enums};

use super::{check_absent, check_ready, listed};
use crate::derive::ports::Exposure;
use crate::derive::{deployment, fqdn, names};
use crate::instances::error::{Error, Refusal};
use crate::instances::kind::Instance;
use crate::instances::state::{Override, Verb};
use crate::keys::{AppInstKeyParts, AppKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::StoredObject;

/// Input of the decision about a new AppInst. Everything is of the key that
/// [`settle_key`] gives.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) existing: Option<AppInst>,
    pub(crate) app: Option<App>,
    pub(crate) cloudlet: Option<Cloudlet>,
    pub(crate) info: Option<CloudletInfo>,
    pub(crate) cluster: Option<ClusterInst>,
    /// The flavor that [`flavor_key`] names.
    pub(crate) flavor: Option<Flavor>,
}

/// Step that has to happen before the AppInst can be requested.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Need {
    /// Nothing: it has a cluster that is ready, or needs none.
    Nothing,
    /// Its auto-cluster is being made by somebody.
    Await,
    /// This auto-cluster has to be made.
    Create(Box<ClusterInst>),
}

/// An AppInst that may be created; uri and ports are not chosen yet.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) inst: AppInst,
    pub(crate) app: App,
    pub(crate) flavor: Flavor,
    pub(crate) cluster: Option<ClusterInst>,
    pub(crate) info: Option<CloudletInfo>,
    pub(crate) need: Need,
}

/// The key under which the AppInst is going to be, and what the caller is
/// told about it.
pub(crate) fn settle_key(request: &AppInst) -> Result<(AppInstKey, Vec<String>), Error> {
    let mut key = request.object_key().clone();
    let mut notes = Vec::new();
    let app_developer = key.app_or_empty().developer_or_empty().name.clone();
    let mut cluster_key = key.cluster_inst_or_empty().clone();
    if cluster_key.developer.is_empty() && !app_developer.is_empty() {
        if !names::is_default_cloudlet(cluster_key.cloudlet_or_empty()) {
            notes.push("Setting ClusterInst developer to match App developer".to_owned());
        }
        cluster_key.developer.clone_from(&app_developer);
    }
    if !app_developer.is_empty()
        && app_developer != cluster_key.developer
        && !names::may_use_any_cluster(&app_developer)
    {
        let cluster = cluster_key.developer;
        return Err(Error::DeveloperMismatch { app: app_developer, cluster });
    }
    let name = &cluster_key.cluster_or_empty().name;
    if names::is_auto_cluster(name) {
        let name = names::kubernetes(name);
        cluster_key.cluster_key = Some(ClusterKey { name });
    }
    key.cluster_inst_key = Some(cluster_key);
    Ok((key, notes))
}

/// The key that a Delete or Update means: an empty developer of the cluster
/// is filled in where Create would have.
pub(crate) fn meant_key(request: &AppInst) -> AppInstKey {
    let mut key = request.object_key().clone();
    let app_developer = key.app_or_empty().developer_or_empty().name.clone();
    if let Some(cluster) = &mut key.cluster_inst_key
        && cluster.developer.is_empty()
    {
        cluster.developer = app_developer;
    }
    key
}

/// The flavor of an AppInst: its own, or the default of its App.
pub(crate) fn flavor_key(request: &AppInst, app: Option<&App>) -> FlavorKey {
    let named = |key: Option<&FlavorKey>| key.filter(|key| !key.name.is_empty()).cloned();
    named(request.flavor.as_ref())
        .or_else(|| named(app.and_then(|app| app.default_flavor.as_ref())))
        .unwrap_or_default()
}

const NO_CLUSTER_NAME: &str = "No cluster name specified. Create one first or use \"autocluster\" as the name to automatically create a ClusterInst";

/// `key` is what [`settle_key`] gave. `deferred` says that the need of an
/// auto-cluster has been met.
pub(crate) fn create(
    request: &AppInst,
    key: &AppInstKey,
    created_at: Timestamp,
    deferred: bool,
    world: Inputs,
) -> Result<Planned, Refusal> {
    let over = Override::of(request.crm_override);
    let cluster_key = key.cluster_inst_or_empty();
    let cloudlet_key = cluster_key.cloudlet_or_empty();
    let by_himself = names::is_default_cloudlet(cloudlet_key);
    check_ready(cloudlet_key, world.info.as_ref(), over)?;
    check_enums(request)?;
    check_absent(world.existing.as_ref(), over)?;
    check_key(key, world.app.as_ref())?;
    if !by_himself && world.cloudlet.is_none() {
        return Err(Error::CloudletNotFound.into());
    }
    let app = world.app.ok_or(Error::AppNotFound)?;
    let wanted = flavor_key(request, Some(&app));
    let in_cluster = !by_himself && deployment::needs_cluster(&app.deployment);
    let cluster = world.cluster.filter(|_| in_cluster);
    let need = match in_cluster {
        true => need(request, key, &app, &wanted, cluster.as_ref(), deferred)?,
        false => Need::Nothing,
    };
    let exposure = if by_himself { Exposure::DefaultCloudlet } else { Exposure::SharedBalancer };
    fqdn::check_given(exposure, &request.uri)?;
    let flavor = world.flavor.ok_or_else(|| Error::FlavorNotFound(wanted.name.clone()))?;
    let cloudlet_loc = world.cloudlet.and_then(|cloudlet| cloudlet.location).unwrap_or_default();
    let ready = by_himself || over.ignores_crm();
    let inst = AppInst {
        fields: Vec::new(),
        key: Some(key.clone()),
        cloudlet_loc: Some(cloudlet_loc),
        uri: request.uri.clone(),
        liveness: Liveness::Static.into(),
        mapped_ports: Vec::new(),
        flavor: Some(wanted),
        state: if ready { TrackedState::Ready } else { TrackedState::CreateRequested }.into(),
        errors: Vec::new(),
        crm_override: 0,
        runtime_info: Some(Default::default()),
        created_at: Some(created_at),
        auto_cluster_ip_access: request.auto_cluster_ip_access,
        size: None,
        volumes_gb: 0,
        revision: 0,
        pinned_app: None,
        progress: String::new(),
    };
    Ok(Planned { inst, app, flavor, cluster, info: world.info, need })
}

/// Checks the names of a key. A cluster need not be named for a virtual
/// machine, which runs in none.
fn check_key(key: &AppInstKey, app: Option<&App>) -> Result<(), Error> {
    let cluster_key = key.cluster_inst_or_empty();
    if !cluster_key.cluster_or_empty().name.is_empty() {
        return Ok(key.check()?);
    }
    key.app_or_empty().check()?;
    cluster_key.cloudlet_or_empty().check()?;
    let machine = app.is_some_and(|app| !deployment::needs_cluster(&app.deployment));
    if machine { Ok(()) } else { Err(Error::Invalid(NO_CLUSTER_NAME)) }
}

fn need(
    request: &AppInst,
    key: &AppInstKey,
    app: &App,
    flavor: &FlavorKey,
    cluster: Option<&ClusterInst>,
    deferred: bool,
) -> Result<Need, Error> {
    let cluster_key = key.cluster_inst_or_empty();
    let auto = names::is_auto_cluster(&cluster_key.cluster_or_empty().name);
    let Some(cluster) = cluster else {
        return match (auto, deferred) {
            (true, false) => Ok(Need::Create(Box::new(auto_cluster(request, key, app, flavor)))),
            (true, true) => Err(Error::NoClusterForApp),
            (false, _) => Err(Error::ClusterInstNotFound),
        };
    };
    deployment::check_fits(&app.deployment, &cluster.deployment)?;
    match cluster.state() {
        TrackedState::Ready => Ok(Need::Nothing),
        state if cluster.auto && !deferred && Verb::of(state) == Some(Verb::Create) => {
            Ok(Need::Await)
        }
        _ => Err(Error::ClusterInstNotReady(cluster_key.text())),
    }
}

/// The request for the cluster of an AppInst.
fn auto_cluster(request: &AppInst, key: &AppInstKey, app: &App, flavor: &FlavorKey) -> ClusterInst {
    let deployment = deployment::of_cluster(&app.deployment).to_owned();
    let docker = deployment == deployment::DOCKER;
    let access = match request.auto_cluster_ip_access {
        // A docker host is never shared, whatever was asked for.
        _ if docker => IpAccess::Dedicated.into(),
        access => access,
    };
    ClusterInst {
        key: Some(ClusterInstKey { ..key.cluster_inst_or_empty().clone() }),
        flavor: Some(flavor.clone()),
        crm_override: request.crm_override,
        ip_access: access,
        liveness: Liveness::Dynamic.into(),
        auto: true,
        num_masters: u32::from(!docker),
        num_nodes: u32::from(!docker),
        deployment,
        ..Default::default()
    }
}

/// The AppInst as it is to be, and what the caller is told first. Nothing of
/// it can be changed but by applying its App anew.
pub(crate) fn update(
    request: &AppInst,
    key: &AppInstKey,
    existing: Option<AppInst>,
    info: Option<&CloudletInfo>,
) -> Result<(AppInst, Vec<String>), Refusal> {
    let over = Override::of(request.crm_override);
    check_enums(request)?;
    let located = |path: &String| path == "3" || path.starts_with("3.");
    if request.fields.iter().any(located) {
        let text =
            "Cannot specify cloudlet location fields as they are inherited from specified cloudlet";
        return Err(Error::Invalid(text).into());
    }
    Mask::of(request)?.allow_only(&["2", "16"])?;
    let cloudlet_key = key.cluster_inst_or_empty().cloudlet_or_empty();
    check_ready(cloudlet_key, info, over)?;
    let mut inst = existing.ok_or(Error::KeyNotFound)?;
    let mut notes = Vec::new();
    match inst.state() {
        TrackedState::Ready => {}
        TrackedState::UpdateError => {
            notes.push(format!("previous update failed, {}, trying again", listed(inst.errors())));
        }
        state if over.takes_over(state) => {}
        _ => return Err(Error::AppInstBusyUpdate.into()),
    }
    inst.set_errors(Vec::new());
    let ready = over.ignores_crm() || names::is_default_cloudlet(cloudlet_key);
    inst.set_state(if ready { TrackedState::Ready } else { TrackedState::UpdateRequested });
    Ok((inst, notes))
}

/// Checks that an AppInst may be deleted.
pub(crate) fn delete(
    request: &AppInst,
    key: &AppInstKey,
    existing: Option<&AppInst>,
    cloudlet: Option<&Cloudlet>,
    info: Option<&CloudletInfo>,
) -> Result<(), Refusal> {
    let over = Override::of(request.crm_override);
    check_enums(request)?;
    let cloudlet_key = key.cluster_inst_or_empty().cloudlet_or_empty();
    check_ready(cloudlet_key, info, over)?;
    let state = existing.ok_or(Error::KeyNotFound)?.state();
    let deletable = matches!(
        state,
        TrackedState::Ready
            | TrackedState::CreateError
            | TrackedState::UpdateError
            | TrackedState::DeleteError
    );
    if !deletable && !over.takes_over(state) {
        return Err(Error::AppInstBusyDelete.into());
    }
    if cloudlet.is_none() && !names::is_default_cloudlet(cloudlet_key) {
        return Err(Error::CloudletNotFound.into());
    }
    Ok(())
}
