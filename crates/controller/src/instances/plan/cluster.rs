//! ClusterInsts.

use selvage_api::edgeproto::{
    Cloudlet, CloudletInfo, CloudletKey, CloudletState, Cluster, ClusterInst, DeveloperKey, Flavor,
    FlavorKey, IpAccess, Liveness, TrackedState,
};
use selvage_api::object::{Key, Mask, check_enums};

use super::{Origin, check_absent, check_ready, listed};
use crate::derive::{deployment, flavors, ips, names};
use crate::instances::error::{Error, MAX_NODES, Refusal};
use crate::instances::kind::Instance;
use crate::instances::state::Override;
use crate::keys::{CloudletKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::StoredObject;
use crate::settings::Settings;

/// Input of the decision about a new ClusterInst.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(crate) existing: Option<ClusterInst>,
    pub(crate) cloudlet: Option<Cloudlet>,
    pub(crate) info: Option<CloudletInfo>,
    /// The definition of the same name, which may give a default flavor.
    pub(crate) cluster: Option<Cluster>,
    /// The flavor that [`flavor_key`] names.
    pub(crate) flavor: Option<Flavor>,
}

/// A ClusterInst that may be created; its address is not chosen yet.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) inst: ClusterInst,
    pub(crate) flavor: Flavor,
    pub(crate) cloudlet: Cloudlet,
    pub(crate) info: CloudletInfo,
}

/// The flavor of a ClusterInst: its own, or the default of its definition.
pub(crate) fn flavor_key(request: &ClusterInst, cluster: Option<&Cluster>) -> FlavorKey {
    let named = |key: Option<&FlavorKey>| key.filter(|key| !key.name.is_empty()).cloned();
    named(request.flavor.as_ref())
        .or_else(|| named(cluster.and_then(|cluster| cluster.default_flavor.as_ref())))
        .unwrap_or_default()
}

pub(crate) fn create(
    request: &ClusterInst,
    origin: Origin,
    world: Inputs,
    settings: &Settings,
) -> Result<Planned, Refusal> {
    let over = Override::of(request.crm_override);
    let key = request.object_key();
    check_ready(key.cloudlet_or_empty(), world.info.as_ref(), over)?;
    check_enums(request)?;
    let mut inst = fresh(request, origin);
    check_named(&inst)?;
    deployment::settle_cluster(&mut inst)?;
    if inst.num_nodes > MAX_NODES {
        return Err(Error::TooManyNodes(inst.num_nodes).into());
    }
    check_absent(world.existing.as_ref(), over)?;
    key.check()?;
    if origin == Origin::Api {
        names::check_cluster_not_reserved(&key.cluster_or_empty().name)?;
    }
    names::check_cluster_inst(key, &settings.root_domain)?;
    let cloudlet = world.cloudlet.ok_or(Error::ClusterCloudletNotFound)?;
    let info = world.info.ok_or_else(|| Error::NoCloudletInfo {
        operator: key.cloudlet_or_empty().operator_or_empty().name.clone(),
        name: key.cloudlet_or_empty().name.clone(),
    })?;
    let flavor_key = flavor_key(request, world.cluster.as_ref());
    if flavor_key.name.is_empty() {
        return Err(Error::Invalid("No Flavor specified and no default Flavor for Cluster").into());
    }
    let flavor =
        world.flavor.ok_or_else(|| Error::ClusterFlavorNotFound(flavor_key.name.clone()))?;
    inst.flavor = Some(flavor_key);
    inst.node_flavor = node_flavor(key.cloudlet_or_empty(), &flavor, &info)?;
    let access = IpAccess::try_from(inst.ip_access).unwrap_or_default();
    inst.ip_access = ips::settle_access(key.cloudlet_or_empty(), access).into();
    let state =
        if over.ignores_crm() { TrackedState::Ready } else { TrackedState::CreateRequested };
    inst.set_state(state);
    Ok(Planned { inst, flavor, cloudlet, info })
}

/// Flavor of the cloudlet that carries a node. A cloudlet with errors offers
/// nothing, and no smaller flavor would help there.
fn node_flavor(key: &CloudletKey, flavor: &Flavor, info: &CloudletInfo) -> Result<String, Error> {
    let has_errors = info.state() == CloudletState::Errors && !info.errors.is_empty();
    if has_errors && info.flavors.is_empty() {
        return Err(Error::CloudletUnusable {
            operator: key.operator_or_empty().name.clone(),
            name: key.name.clone(),
            reason: info.errors.join(", "),
        });
    }
    Ok(flavors::closest(flavor, &info.flavors)?)
}

/// The request without what only the controller may set.
fn fresh(request: &ClusterInst, origin: Origin) -> ClusterInst {
    let (liveness, auto) = match origin {
        Origin::Api => (Liveness::Static, false),
        Origin::Internal => (Liveness::Dynamic, request.auto),
    };
    ClusterInst {
        fields: Vec::new(),
        state: 0,
        errors: Vec::new(),
        crm_override: 0,
        allocated_ip: String::new(),
        liveness: liveness.into(),
        auto,
        node_flavor: String::new(),
        progress: String::new(),
        size: None,
        ..request.clone()
    }
}

fn check_named(inst: &ClusterInst) -> Result<(), Error> {
    if let Some((_, text)) = inst.names().into_iter().find(|(part, _)| part.is_empty()) {
        return Err(Error::Invalid(text));
    }
    let developer = DeveloperKey { name: inst.object_key().developer.clone() };
    Ok(Key::from_message(&developer).and_then(|key| key.check())?)
}

/// The ClusterInst as it is to be, and what the caller is told first.
pub(crate) fn update(
    request: &ClusterInst,
    existing: Option<ClusterInst>,
    info: Option<&CloudletInfo>,
) -> Result<(ClusterInst, Vec<String>), Refusal> {
    let over = Override::of(request.crm_override);
    check_enums(request)?;
    let asked = Mask::of(request)?.without(&["2", "6"]);
    asked.require_some()?;
    if !asked.without(&["14"]).is_empty() {
        return Err(Error::Invalid("some specified fields cannot be modified").into());
    }
    check_ready(request.object_key().cloudlet_or_empty(), info, over)?;
    let mut inst = existing.ok_or(Error::KeyNotFound)?;
    if inst.num_masters == 0 {
        return Err(Error::Invalid("cannot modify single node clusters").into());
    }
    if request.num_nodes == 0 {
        return Err(crate::Error::unsupported("Zero NumNodes not supported yet").into());
    }
    if request.num_nodes > MAX_NODES {
        return Err(Error::TooManyNodes(request.num_nodes).into());
    }
    let mut notes = Vec::new();
    match inst.state() {
        TrackedState::Ready => {}
        TrackedState::UpdateError => {
            notes.push(format!("previous update failed, {}, trying again", listed(inst.errors())));
        }
        state if over.takes_over(state) => {}
        TrackedState::CreateRequested
        | TrackedState::Creating
        | TrackedState::CreateError
        | TrackedState::DeleteError => return Err(Error::ClusterNotReady.into()),
        _ => return Err(Error::ClusterInstBusyUpdate.into()),
    }
    inst.num_nodes = request.num_nodes;
    inst.set_errors(Vec::new());
    inst.set_state(match over.ignores_crm() {
        true => TrackedState::Ready,
        false => TrackedState::UpdateRequested,
    });
    Ok((inst, notes))
}

/// Checks that a ClusterInst may be deleted. `in_use` says whether Apps that
/// are not to be deleted with it run in it.
pub(crate) fn delete(
    request: &ClusterInst,
    existing: Option<&ClusterInst>,
    info: Option<&CloudletInfo>,
    in_use: bool,
) -> Result<(), Refusal> {
    let over = Override::of(request.crm_override);
    check_enums(request)?;
    if in_use {
        return Err(Error::ClusterInUse.into());
    }
    check_ready(request.object_key().cloudlet_or_empty(), info, over)?;
    let inst = existing.ok_or(Error::KeyNotFound)?;
    let state = inst.state();
    let deletable = matches!(
        state,
        TrackedState::Ready
            | TrackedState::CreateError
            | TrackedState::UpdateError
            | TrackedState::DeletePrepare
    );
    if deletable || over.takes_over(state) {
        return Ok(());
    }
    let mut notes = Vec::new();
    if state == TrackedState::DeleteError {
        notes.push(format!("Previous delete failed, {}", listed(inst.errors())));
        notes.push("Use CreateClusterInst to rebuild, and try again".to_owned());
    }
    Err(Refusal { notes, error: Error::ClusterInstBusyDelete })
}
