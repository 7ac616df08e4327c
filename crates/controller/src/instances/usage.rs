//! Usage records: what is used on cloudlets and in clusters, kept in the same
//! transaction as the instance that uses it. At any revision the refs are the
//! sum of the instances, because an instance is counted when its row is
//! written and given back when its row is removed, never in between.

use selvage_api::edgeproto::{
    App, AppInst, Cloudlet, CloudletInfo, CloudletKey, CloudletRefs, ClusterInst, ClusterInstKey,
    ClusterRefs, Flavor, FlavorKey, IpAccess,
};
use selvage_api::selvage::flavors::FlavorSize;
use selvage_store::Transaction;

use super::error::Error;
use super::revisions;
use crate::derive::ports::{self, Exposure, TakenPorts};
use crate::derive::resources::{self, Amount};
use crate::derive::{deployment, flavors, fqdn, ips, names, volumes};
use crate::guard;
use crate::keys::{AppInstKeyParts, ClusterInstKeyParts, KeyText};
use crate::row::{Row, StoredObject};

/// Most http paths that are tried before an instance is refused.
const PATH_ATTEMPTS: usize = 32;

pub(super) async fn get<M: StoredObject>(tx: &Transaction, key: &str) -> Result<Option<M>, Error> {
    Ok(tx.get::<Row<M>>(key).await?.map(|row| row.0))
}

pub(super) fn put<M: StoredObject>(tx: &Transaction, object: M) -> Result<(), Error> {
    Ok(tx.put(&Row(object))?)
}

/// Returns what is used on a cloudlet; nothing if nothing was ever used.
pub(super) async fn cloudlet_refs(
    tx: &Transaction,
    key: &CloudletKey,
) -> Result<CloudletRefs, Error> {
    let found = get::<CloudletRefs>(tx, &key.text()).await?;
    Ok(found.unwrap_or_else(|| CloudletRefs { key: Some(key.clone()), ..Default::default() }))
}

pub(super) async fn cluster_refs(
    tx: &Transaction,
    key: &ClusterInstKey,
) -> Result<ClusterRefs, Error> {
    let found = get::<ClusterRefs>(tx, &key.text()).await?;
    Ok(found.unwrap_or_else(|| ClusterRefs { key: Some(key.clone()), ..Default::default() }))
}

async fn flavor(tx: &Transaction, key: Option<&FlavorKey>) -> Result<Option<Flavor>, Error> {
    get(tx, &key.unwrap_or(FlavorKey::empty()).text()).await
}

/// The flavor of something that is counted already.
async fn counted_flavor(
    tx: &Transaction,
    key: Option<&FlavorKey>,
    size: Option<&FlavorSize>,
) -> Result<Option<Flavor>, Error> {
    Ok(flavor(tx, key).await?.map(|flavor| resources::as_made(flavor, size)))
}

/// Takes what a ClusterInst needs; gives its address.
pub(super) fn take_cluster(
    refs: &mut CloudletRefs,
    inst: &ClusterInst,
    flavor: &Flavor,
    cloudlet: &Cloudlet,
    limits: Option<&CloudletInfo>,
) -> Result<String, Error> {
    resources::take(refs, Amount::of_cluster(flavor, inst), limits)?;
    let access = IpAccess::try_from(inst.ip_access).unwrap_or_default();
    let address = ips::allocate(cloudlet, access, refs)?;
    refs.clusters.push(inst.object_key().cluster_or_empty().clone());
    Ok(address)
}

/// Counts a new ClusterInst, giving it an address, and writes it.
pub(super) async fn reserve_cluster(
    tx: &Transaction,
    mut inst: ClusterInst,
    flavor: &Flavor,
    cloudlet: &Cloudlet,
    limits: Option<&CloudletInfo>,
) -> Result<ClusterInst, Error> {
    let key = inst.object_key().clone();
    for (space, name) in cluster_names(&key, inst.ip_access()) {
        let holder = key.text();
        if !guard::claim(tx, &space, &name, &holder, &holder).await? {
            let (name, label) = (key.cluster_or_empty().name.clone(), fqdn::cluster_claim(&key));
            return Err(Error::NameTaken { noun: "ClusterInst", name, label });
        }
    }
    let mut refs = cloudlet_refs(tx, key.cloudlet_or_empty()).await?;
    inst.allocated_ip = take_cluster(&mut refs, &inst, flavor, cloudlet, limits)?;
    put(tx, refs)?;
    put(tx, inst.clone())?;
    Ok(inst)
}

/// Counts a ClusterInst that changed its number of nodes, and writes it. It
/// takes the amounts that its flavor has now.
pub(super) async fn resize_cluster(
    tx: &Transaction,
    before: &ClusterInst,
    mut after: ClusterInst,
    info: Option<&CloudletInfo>,
    limits: Option<&CloudletInfo>,
) -> Result<(), Error> {
    if let Some(flavor) = flavor(tx, after.flavor.as_ref()).await? {
        let mut refs = cloudlet_refs(tx, after.object_key().cloudlet_or_empty()).await?;
        let made = resources::as_made(flavor.clone(), before.size.as_ref());
        let (old, new) = (Amount::of_cluster(&made, before), Amount::of_cluster(&flavor, &after));
        resources::change(&mut refs, old, new, limits)?;
        put(tx, refs)?;
        if before.size.is_some() {
            after.size = Some(resources::size_of(&flavor));
            if let Some(info) = info {
                after.node_flavor = flavors::closest(&flavor, &info.flavors)?;
            }
        }
    }
    put(tx, after)
}

/// Counts an AppInst that takes the amounts that its flavor has now, and writes
/// it.
pub(super) async fn resize_app(
    tx: &Transaction,
    mut inst: AppInst,
    limits: Option<&CloudletInfo>,
) -> Result<(), Error> {
    let flavor = flavor(tx, inst.flavor.as_ref()).await?;
    if let (Some(size), Some(flavor)) = (inst.size, flavor) {
        let made = resources::as_made(flavor.clone(), Some(&size));
        let key = inst.object_key();
        let cluster_key = key.cluster_inst_or_empty();
        let app = get::<App>(tx, &key.app_or_empty().text()).await?.unwrap_or_default();
        if exposure_of(&app, None, cluster_key.cloudlet_or_empty()) == Exposure::Machine {
            let mut refs = cloudlet_refs(tx, cluster_key.cloudlet_or_empty()).await?;
            let (old, new) = (Amount::of_machine(&made), Amount::of_machine(&flavor));
            resources::change(&mut refs, old, new, limits)?;
            put(tx, refs)?;
        }
        if let Some(mut refs) = get::<ClusterRefs>(tx, &cluster_key.text()).await?
            && refs.apps.contains(key.app_or_empty())
        {
            uncount(&mut refs, &made);
            count(&mut refs, &flavor);
            put(tx, refs)?;
        }
        inst.size = Some(resources::size_of(&flavor));
    }
    put(tx, inst)
}

fn count(refs: &mut ClusterRefs, flavor: &Flavor) {
    refs.used_ram = refs.used_ram.saturating_add(flavor.ram);
    refs.used_vcores = refs.used_vcores.saturating_add(flavor.vcpus);
    refs.used_disk = refs.used_disk.saturating_add(flavor.disk);
}

fn uncount(refs: &mut ClusterRefs, flavor: &Flavor) {
    refs.used_ram = refs.used_ram.saturating_sub(flavor.ram);
    refs.used_vcores = refs.used_vcores.saturating_sub(flavor.vcpus);
    refs.used_disk = refs.used_disk.saturating_sub(flavor.disk);
}

/// Removes a ClusterInst and what is counted for it.
pub(super) async fn release_cluster(tx: &Transaction, inst: &ClusterInst) -> Result<(), Error> {
    let key = inst.object_key().text();
    if get::<ClusterRefs>(tx, &key).await?.is_some() {
        tx.delete::<Row<ClusterRefs>>(&key).await?;
    }
    release_cluster_but_apps(tx, inst).await
}

/// The same for a ClusterInst that is about to be written anew: what runs in
/// it stays counted.
pub(super) async fn release_cluster_but_apps(
    tx: &Transaction,
    inst: &ClusterInst,
) -> Result<(), Error> {
    let key = inst.object_key();
    let mut refs = cloudlet_refs(tx, key.cloudlet_or_empty()).await?;
    match counted_flavor(tx, inst.flavor.as_ref(), inst.size.as_ref()).await? {
        Some(flavor) => resources::give_back(&mut refs, Amount::of_cluster(&flavor, inst)),
        None => tracing::warn!(cluster = key.text(), "flavor is gone, its resources stay counted"),
    }
    ips::release(inst, &mut refs);
    if let Some(index) = refs.clusters.iter().position(|name| name == key.cluster_or_empty()) {
        refs.clusters.remove(index);
    }
    // Without a cloudlet there is nothing to count on.
    if get::<Cloudlet>(tx, &key.cloudlet_or_empty().text()).await?.is_some() {
        put(tx, refs)?;
    }
    for (space, name) in cluster_names(key, IpAccess::Dedicated) {
        guard::release(tx, &space, &name, &key.text()).await?;
    }
    tx.delete::<Row<ClusterInst>>(&key.text()).await?;
    Ok(())
}

/// Claims of a ClusterInst: the name that its developer knows it by, and one in
/// DNS if it has an address of its own. Giving back what it does not have is
/// harmless.
fn cluster_names(key: &ClusterInstKey, access: IpAccess) -> Vec<(String, String)> {
    let cloudlet = key.cloudlet_or_empty();
    let mut names =
        vec![(format!("cluster-name/{}", cloudlet.text()), fqdn::cluster_name_claim(key))];
    if access == IpAccess::Dedicated {
        names.push((label_space(cloudlet), fqdn::cluster_claim(key)));
    }
    names
}

fn label_space(cloudlet: &CloudletKey) -> String {
    format!("dns-label/{}", cloudlet.text())
}

fn path_space(uri: &str) -> String {
    format!("http-path/{uri}")
}

/// Exposure of an AppInst, from what it runs in.
pub(super) fn exposure_of(app: &App, cluster: Option<&ClusterInst>, key: &CloudletKey) -> Exposure {
    let access = cluster.map_or(IpAccess::Unknown, |cluster| {
        IpAccess::try_from(cluster.ip_access).unwrap_or_default()
    });
    ports::exposure(key, &app.deployment, access)
}

/// Location of a new AppInst.
pub(super) struct Placement<'a> {
    pub(super) app: &'a App,
    pub(super) cluster: Option<&'a ClusterInst>,
    pub(super) flavor: &'a Flavor,
    pub(super) limits: Option<&'a CloudletInfo>,
    pub(super) root_domain: &'a str,
}

/// Counts a new AppInst, giving it its uri and its ports, and writes it.
pub(super) async fn reserve_app(
    tx: &Transaction,
    mut inst: AppInst,
    placement: &Placement<'_>,
) -> Result<(), Error> {
    let Placement { app, cluster, flavor, limits, root_domain } = *placement;
    let key = inst.object_key().clone();
    let cloudlet_key = key.cluster_inst_or_empty().cloudlet_or_empty();
    let exposure = exposure_of(app, cluster, cloudlet_key);
    inst.uri = fqdn::app_inst(&key, exposure, &inst.uri, root_domain)?;
    claim_label(tx, &inst, exposure).await?;
    let mut refs = cloudlet_refs(tx, cloudlet_key).await?;
    inst.mapped_ports = allocate_ports(tx, &inst, app, exposure, &mut refs).await?;
    if exposure == Exposure::Machine {
        resources::take(&mut refs, Amount::of_machine(flavor), limits)?;
    }
    inst.volumes_gb = take_volumes(&mut refs, app, limits)?;
    if !names::is_default_cloudlet(cloudlet_key) {
        put(tx, refs)?;
    }
    if cluster.is_some() {
        let mut refs = cluster_refs(tx, key.cluster_inst_or_empty()).await?;
        refs.apps.push(key.app_or_empty().clone());
        count(&mut refs, flavor);
        put(tx, refs)?;
    }
    put(tx, inst)
}

async fn claim_label(tx: &Transaction, inst: &AppInst, exposure: Exposure) -> Result<(), Error> {
    let key = inst.object_key();
    let Some(label) = fqdn::app_inst_claim(key, exposure) else { return Ok(()) };
    let (space, holder) =
        (label_space(key.cluster_inst_or_empty().cloudlet_or_empty()), key.text());
    if guard::claim(tx, &space, &label, &holder, &holder).await? {
        return Ok(());
    }
    let name = key.app_or_empty().name.clone();
    Err(Error::NameTaken { noun: "AppInst", name, label })
}

/// Takes the volumes of one more instance; how much that is, in GB.
pub(super) fn take_volumes(
    refs: &mut CloudletRefs,
    app: &App,
    limits: Option<&CloudletInfo>,
) -> Result<u64, Error> {
    let disk = volumes::total_gb(app)?;
    resources::change_volumes(refs, 0, disk, limits)?;
    Ok(disk)
}

/// Counts the volumes of an instance as the App that it is to run asks for them.
pub(super) async fn resize_volumes(
    tx: &Transaction,
    inst: &mut AppInst,
    limits: Option<&CloudletInfo>,
) -> Result<(), Error> {
    let key = inst.object_key().clone();
    let cloudlet_key = key.cluster_inst_or_empty().cloudlet_or_empty();
    let app = match inst.pinned_app.clone() {
        Some(pinned) => pinned,
        None => get::<App>(tx, &key.app_or_empty().text()).await?.unwrap_or_default(),
    };
    let (before, after) = (inst.volumes_gb, volumes::total_gb(&app)?);
    if before == after || names::is_default_cloudlet(cloudlet_key) {
        return Ok(());
    }
    let mut refs = cloudlet_refs(tx, cloudlet_key).await?;
    resources::change_volumes(&mut refs, before, after, limits)?;
    inst.volumes_gb = after;
    put(tx, refs)
}

/// Ports, and http paths that nobody else has on the same domain name.
async fn allocate_ports(
    tx: &Transaction,
    inst: &AppInst,
    app: &App,
    exposure: Exposure,
    refs: &mut CloudletRefs,
) -> Result<Vec<selvage_api::distributed_match_engine::AppPort>, Error> {
    let key = inst.object_key();
    let neighbours = match exposure {
        Exposure::DedicatedBalancer => neighbours(tx, inst).await?,
        _ => Vec::new(),
    };
    let mut taken = TakenPorts::by(&neighbours);
    let holder = key.text();
    for _ in 0..PATH_ATTEMPTS {
        let mut bitmap = refs.root_lb_ports.clone();
        let mapped = ports::allocate(app, key, exposure, &mut bitmap, &taken)?;
        let mut refused = false;
        for path in mapped.iter().map(|port| &port.path_prefix).filter(|path| !path.is_empty()) {
            if !guard::claim(tx, &path_space(&inst.uri), path, &holder, &holder).await? {
                refused |= taken.paths.insert(path.clone());
            }
        }
        if !refused {
            refs.root_lb_ports = bitmap;
            return Ok(mapped);
        }
    }
    Err(Error::NameTaken {
        noun: "AppInst",
        name: app.object_key().name.clone(),
        label: "path".into(),
    })
}

/// The other AppInsts of the same cluster.
pub(super) async fn neighbours(tx: &Transaction, inst: &AppInst) -> Result<Vec<AppInst>, Error> {
    let mut key = inst.object_key().clone();
    let own = key.app_key.clone();
    let refs = cluster_refs(tx, key.cluster_inst_or_empty()).await?;
    let mut found = Vec::new();
    for app in refs.apps.into_iter().filter(|app| Some(app) != own.as_ref()) {
        key.app_key = Some(app);
        found.extend(get::<AppInst>(tx, &key.text()).await?);
    }
    Ok(found)
}

/// Removes an AppInst and what is counted for it.
pub(super) async fn release_app(tx: &Transaction, inst: &AppInst) -> Result<(), Error> {
    let key = inst.object_key();
    let cluster_key = key.cluster_inst_or_empty();
    let cloudlet_key = cluster_key.cloudlet_or_empty();
    let app = get::<App>(tx, &key.app_or_empty().text()).await?.unwrap_or_default();
    let cluster = match deployment::needs_cluster(&app.deployment) {
        true => get::<ClusterInst>(tx, &cluster_key.text()).await?,
        false => None,
    };
    let exposure = exposure_of(&app, cluster.as_ref(), cloudlet_key);
    let flavor = counted_flavor(tx, inst.flavor.as_ref(), inst.size.as_ref()).await?;
    if get::<Cloudlet>(tx, &cloudlet_key.text()).await?.is_some() {
        let mut refs = cloudlet_refs(tx, cloudlet_key).await?;
        ports::release(&inst.mapped_ports, exposure, &mut refs.root_lb_ports);
        if let (Exposure::Machine, Some(flavor)) = (exposure, &flavor) {
            resources::give_back(&mut refs, Amount::of_machine(flavor));
        }
        resources::give_back(&mut refs, Amount::of_volumes(inst.volumes_gb));
        put(tx, refs)?;
    }
    if let Some(mut refs) = get::<ClusterRefs>(tx, &cluster_key.text()).await?
        && let Some(index) = refs.apps.iter().position(|app| app == key.app_or_empty())
    {
        refs.apps.remove(index);
        uncount(&mut refs, &flavor.unwrap_or_default());
        if refs.apps.is_empty() {
            tx.delete::<Row<ClusterRefs>>(&cluster_key.text()).await?;
        } else {
            put(tx, refs)?;
        }
    }
    release_names(tx, inst, exposure).await?;
    revisions::forget(tx, key).await?;
    tx.delete::<Row<AppInst>>(&key.text()).await?;
    Ok(())
}

async fn release_names(tx: &Transaction, inst: &AppInst, exposure: Exposure) -> Result<(), Error> {
    let key = inst.object_key();
    let holder = key.text();
    if let Some(label) = fqdn::app_inst_claim(key, exposure) {
        let space = label_space(key.cluster_inst_or_empty().cloudlet_or_empty());
        guard::release(tx, &space, &label, &holder).await?;
    }
    for path in inst.mapped_ports.iter().map(|port| &port.path_prefix) {
        if !path.is_empty() {
            guard::release(tx, &path_space(&inst.uri), path, &holder).await?;
        }
    }
    Ok(())
}
