//! What is done about a cluster or an instance, by the state the controller
//! gives it and by what is there.

use std::{any::Any, collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_api::edgeproto::{
    App, AppInstKey, AppInstRuntime, ClusterInst, ClusterInstKey, Flavor, FlavorInfo, FlavorKey,
    TrackedState,
};
use selvage_api::selvage::flavors::FlavorSize;
use selvage_cloudlet::{Desk, Operation, What};
use selvage_notify::{NotifyClient, ObjectKey};
use tokio::time::Instant;

use crate::{
    Error, Result,
    books::{Books, Facts, Phase, Row},
    platform::{ClusterFacts, ClusterOrder, InstanceFacts, InstanceOrder, Platform, Restarts},
    publish::Publisher,
};

/// What needs no cluster.
const VM: &str = "vm";

/// An object as the controller sent it: the same for as long as it says nothing
/// new about it.
type Notice = Arc<dyn Any + Send + Sync>;

/// All that work on a cloudlet takes.
pub(crate) struct World {
    pub(crate) desk: Desk,
    pub(crate) books: Arc<Books>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) publisher: Publisher,
    pub(crate) client: NotifyClient,
    /// How long the controller must not have mentioned something that is
    /// there before it is removed.
    pub(crate) grace: Duration,
    pub(crate) unmentioned: Mutex<HashMap<(What, String), Instant>>,
    /// What failed, and when: whoever asked for it hears of that before it is
    /// begun again.
    pub(crate) failed: Mutex<HashMap<(What, String), (Operation, Instant)>>,
    /// Why instances that should run do not.
    pub(crate) troubles: Mutex<HashMap<String, String>>,
    /// How often instances were started again, and why.
    pub(crate) restarts: Mutex<HashMap<String, Restarts>>,
    /// What was updated, by what asked for it, and when: whoever asked hears of
    /// that before it is begun again.
    pub(crate) updated: Mutex<HashMap<(What, String), (Notice, Instant)>>,
}

/// Looks at an object once and does what is to be done. Calls for one object
/// never overlap.
pub(crate) async fn consider(world: Arc<World>, what: What, key: ObjectKey) {
    let Some(wanted) = world.desk.wanted(what, &key) else {
        world.failed.lock().remove(&(what, key.text().to_owned()));
        world.updated.lock().remove(&(what, key.text().to_owned()));
        return unmentioned(&world, what, &key).await;
    };
    world.unmentioned.lock().remove(&(what, key.text().to_owned()));
    let asked = Operation::asked_by(wanted);
    if world.has_just_failed(what, &key, asked.map(|(operation, _)| operation)) {
        return;
    }
    match asked {
        // Without its app an instance cannot be considered; the app's arrival
        // brings it back here.
        Some((Operation::Create | Operation::Update, _)) if !world.has_app(what, &key) => {}
        Some((Operation::Update, begun)) if world.is_updated(what, &key, begun) => {
            keep(&world, what, &key).await;
        }
        Some((operation, _)) => run(&world, what, operation, &key).await,
        None if wanted == TrackedState::Ready => {
            world.updated.lock().remove(&(what, key.text().to_owned()));
            keep(&world, what, &key).await;
        }
        None if wanted == TrackedState::UpdateError && what == What::Instance => {
            keep_serving(&world, &key).await;
        }
        None => {}
    }
}

async fn run(world: &World, what: What, operation: Operation, key: &ObjectKey) {
    let work = async {
        match (what, operation) {
            (_, Operation::Delete) => delete(world, what, key).await,
            (What::Cluster, Operation::Create) => create_cluster(world, key).await,
            (What::Cluster, Operation::Update) => update_cluster(world, key).await,
            (What::Instance, Operation::Create) => create_instance(world, key).await,
            (What::Instance, Operation::Update) => update_instance(world, key).await,
        }
    };
    let Err(error) = work.await else { return };
    let text = format!("{}: {}", operation.failure(what), with_sources(&error));
    tracing::warn!(key = key.text(), ?what, ?operation, error = text, "failed");
    world.failed.lock().insert((what, key.text().to_owned()), (operation, Instant::now()));
    if operation == Operation::Create
        && let Err(error) = remove(world, what, key).await
    {
        tracing::error!(key = key.text(), %error, "what a failure left could not be removed");
    }
    let runtime = match (what, operation) {
        // What was to be replaced runs on.
        (What::Instance, Operation::Update) => {
            let facts = world.books.instance(key.text());
            world.runtime(key, facts.map(|facts| facts.containers).unwrap_or_default())
        }
        _ => AppInstRuntime::default(),
    };
    world.desk.report(what, key, operation.failed(), vec![text], runtime);
}

pub(crate) fn with_sources(error: &Error) -> String {
    selvage_api::chain(error)
}

impl World {
    /// Whether this is what failed a moment ago; anything else makes that
    /// forgotten.
    fn has_just_failed(&self, what: What, key: &ObjectKey, asked: Option<Operation>) -> bool {
        let mut failed = self.failed.lock();
        let key = (what, key.text().to_owned());
        let just = failed
            .get(&key)
            .is_some_and(|(operation, at)| Some(*operation) == asked && at.elapsed() < self.grace);
        if !just {
            failed.remove(&key);
        }
        just
    }

    fn notice(&self, what: What, key: &ObjectKey) -> Option<Notice> {
        match what {
            What::Cluster => self.desk.clusters.object(key).map(|object| object as Notice),
            What::Instance => self.desk.instances.object(key).map(|object| object as Notice),
        }
    }

    /// Whether the update that is asked for is made, and the controller has not
    /// heard of that yet. One that it knows to have begun was written down
    /// before it was told.
    fn is_updated(&self, what: What, key: &ObjectKey, begun: bool) -> bool {
        let row = self.books.get(what, key.text());
        if row.is_none_or(|row| row.phase != Phase::Made) {
            return false;
        }
        if begun {
            return true;
        }
        let now = self.notice(what, key);
        let mut updated = self.updated.lock();
        let Some((notice, at)) = updated.get_mut(&(what, key.text().to_owned())) else {
            return false;
        };
        if !self.client.status().in_sync {
            *at = Instant::now();
        }
        // Two that look alike are told apart by time alone.
        now.is_some_and(|now| Arc::ptr_eq(&now, notice)) && at.elapsed() < self.grace
    }

    /// Writes down that something is updated, and tells of it.
    async fn begin_update(&self, what: What, key: &ObjectKey) -> Result<Option<Notice>> {
        let notice = self.notice(what, key);
        self.books.note(what, key.text(), Phase::Updating).await?;
        self.busy(what, Operation::Update, key);
        Ok(notice)
    }

    fn note_updated(&self, what: What, key: &ObjectKey, notice: Option<Notice>) {
        if let Some(notice) = notice {
            let key = (what, key.text().to_owned());
            self.updated.lock().insert(key, (notice, Instant::now()));
        }
    }

    fn busy(&self, what: What, operation: Operation, key: &ObjectKey) {
        self.desk.report(what, key, operation.busy(), Vec::new(), AppInstRuntime::default());
    }

    fn ready(&self, what: What, key: &ObjectKey, container_ids: Vec<String>) {
        let runtime = self.runtime(key, container_ids);
        self.desk.report(what, key, TrackedState::Ready, Vec::new(), runtime);
    }

    /// Reports an instance whose update failed in an earlier process: the version
    /// of before serves, and the reason stays as the controller knows it.
    fn report_failed_update(&self, key: &ObjectKey, facts: InstanceFacts) {
        let errors = self.desk.instances.object(key).map(|held| held.errors.clone());
        let runtime = self.runtime(key, facts.containers);
        let state = TrackedState::UpdateError;
        self.desk.report(What::Instance, key, state, errors.unwrap_or_default(), runtime);
    }

    fn runtime(&self, key: &ObjectKey, container_ids: Vec<String>) -> AppInstRuntime {
        let restarts = self.restarts.lock().get(key.text()).cloned().unwrap_or_default();
        AppInstRuntime {
            container_ids,
            addresses: self.publisher.addresses(key.text()),
            unhealthy: self.trouble(key.text()),
            restarts: restarts.count,
            last_reason: restarts.last_reason,
        }
    }

    /// Reports instances anew that have begun to answer, or ceased to.
    pub(crate) fn tell_health(&self) {
        for info in self.desk.instance_infos.list() {
            let (Ok(key), Some(told)) = (ObjectKey::of(info.as_ref()), &info.runtime_info) else {
                continue;
            };
            let state = info.state();
            let serves = matches!(state, TrackedState::Ready | TrackedState::UpdateError);
            let runtime = self.runtime(&key, told.container_ids.clone());
            if serves && *told != runtime {
                self.desk.report(What::Instance, &key, state, info.errors.clone(), runtime);
            }
        }
    }

    /// Why an instance does not run or does not answer; empty when it does, or
    /// nobody can tell.
    pub(crate) fn trouble(&self, key: &str) -> String {
        let found = self.troubles.lock().get(key).cloned();
        found.unwrap_or_else(|| self.publisher.trouble(key))
    }

    fn note_trouble(&self, key: &str, trouble: String) {
        let mut troubles = self.troubles.lock();
        if trouble.is_empty() {
            troubles.remove(key);
        } else {
            troubles.insert(key.to_owned(), trouble);
        }
    }

    /// Notes how often an instance was started again. The last line of a log may
    /// be another one each time: the reason is that of when the number changed.
    fn note_restarts(&self, key: &str, now: Restarts) {
        let mut restarts = self.restarts.lock();
        let known = restarts.get(key);
        if known.is_none_or(|known| known.count != now.count || known.last_reason.is_empty()) {
            restarts.insert(key.to_owned(), now);
        }
    }

    fn has_app(&self, what: What, key: &ObjectKey) -> bool {
        what == What::Cluster || self.app_of(key).is_some()
    }

    fn app_of(&self, key: &ObjectKey) -> Option<Arc<App>> {
        let key: AppInstKey = key.decode().ok()?;
        self.desk.apps.find(&key.app_key.unwrap_or_default())
    }

    /// The order of an instance as it was made, whatever its App is by now.
    fn order_as_made(&self, key: &ObjectKey) -> Result<InstanceOrder> {
        let order = self.instance_order(key)?;
        let made = self.books.get(What::Instance, key.text()).and_then(|row| row.app());
        Ok(match made {
            Some(app) => InstanceOrder { app, ..order },
            None => order,
        })
    }

    /// The flavor as it counts for something: with the amounts that it was made
    /// with, if the flavor was changed since.
    fn flavor(&self, key: Option<&FlavorKey>, made: Option<&FlavorSize>) -> Result<Flavor> {
        let key = key.cloned().unwrap_or_default();
        let found = self.desk.flavors.find(&key);
        let found = found.ok_or_else(|| Error::missing(format!("Flavor {}", key.name)))?;
        let flavor = found.as_ref().clone();
        Ok(match made {
            Some(made) => Flavor { ram: made.ram, vcpus: made.vcpus, disk: made.disk, ..flavor },
            None => flavor,
        })
    }

    /// All flavors of the controller, as a cloudlet offers them.
    pub(crate) fn offered_flavors(&self) -> Vec<FlavorInfo> {
        let offer = |of: Arc<Flavor>| FlavorInfo {
            name: of.key.clone().unwrap_or_default().name,
            vcpus: of.vcpus,
            ram: of.ram,
            disk: of.disk,
        };
        let mut all: Vec<FlavorInfo> = self.desk.flavors.list().into_iter().map(offer).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn cluster_order(&self, key: &ObjectKey) -> Result<ClusterOrder> {
        let cluster = self.desk.clusters.object(key);
        let cluster = cluster.ok_or_else(|| Error::missing("the cluster"))?;
        let flavor = self.flavor(cluster.flavor.as_ref(), cluster.size.as_ref())?;
        Ok(ClusterOrder { cluster: cluster.as_ref().clone(), flavor })
    }

    fn cluster_of(&self, key: &AppInstKey) -> Result<(ClusterInstKey, String)> {
        let cluster = key.cluster_inst_key.clone().unwrap_or_default();
        let named = ClusterInst { key: Some(cluster.clone()), ..ClusterInst::default() };
        let text = ObjectKey::of(&named)?.text().to_owned();
        Ok((cluster, text))
    }

    pub(crate) fn instance_order(&self, key: &ObjectKey) -> Result<InstanceOrder> {
        let instance = self.desk.instances.object(key);
        let instance = instance.ok_or_else(|| Error::missing("the instance"))?;
        let app = match &instance.pinned_app {
            Some(pinned) => pinned.clone(),
            None => {
                let app = self.app_of(key).ok_or_else(|| Error::missing("the App"))?;
                app.as_ref().clone()
            }
        };
        let flavor = self.flavor(instance.flavor.as_ref(), instance.size.as_ref())?;
        let parsed: AppInstKey = key.decode()?;
        let (cluster, text) = self.cluster_of(&parsed)?;
        let cluster_facts = self.books.cluster(&text);
        if cluster_facts.is_none() && app.deployment != VM {
            let name = cluster.cluster_key.unwrap_or_default().name;
            return Err(Error::missing(format!("Cluster instance {name}")));
        }
        Ok(InstanceOrder {
            key: parsed,
            app,
            instance: instance.as_ref().clone(),
            flavor,
            cluster,
            cluster_facts,
        })
    }

    async fn publish(
        &self,
        key: &ObjectKey,
        order: &InstanceOrder,
        facts: &InstanceFacts,
    ) -> Result<()> {
        let cluster = self.desk.clusters.find(&order.cluster);
        self.publisher.publish(key.text(), order, cluster.as_deref(), facts).await
    }

    /// The instances in a cluster.
    fn instances_in(&self, cluster: &ClusterInstKey) -> Vec<(String, Row)> {
        let of = |row: &Row| -> Option<ClusterInstKey> {
            <AppInstKey as prost::Message>::decode(row.key.as_slice()).ok()?.cluster_inst_key
        };
        let mut all = self.books.all(What::Instance);
        all.retain(|(_, row)| of(row).as_ref() == Some(cluster));
        all
    }
}

async fn create_cluster(world: &World, key: &ObjectKey) -> Result<()> {
    if world.books.cluster(key.text()).is_some() {
        world.ready(What::Cluster, key, Vec::new());
        return Ok(());
    }
    let order = world.cluster_order(key)?;
    world.busy(What::Cluster, Operation::Create, key);
    let plan = |others: Vec<(String, Facts)>| {
        let others: Vec<ClusterFacts> =
            others.into_iter().filter_map(|(_, facts)| facts.cluster()).collect();
        Ok(Facts::Cluster(world.platform.plan_cluster(&order, &others)?))
    };
    let facts = world.books.begin(What::Cluster, key, plan).await?;
    let facts = facts.cluster().ok_or_else(|| Error::state("the books are damaged"))?;
    world.platform.create_cluster(&order, &facts).await?;
    world.books.note(What::Cluster, key.text(), Phase::Made).await?;
    world.ready(What::Cluster, key, Vec::new());
    Ok(())
}

async fn update_cluster(world: &World, key: &ObjectKey) -> Result<()> {
    let facts = world.books.cluster(key.text());
    let facts = facts.ok_or_else(|| Error::missing("the cluster"))?;
    let notice = world.begin_update(What::Cluster, key).await?;
    let order = world.cluster_order(key)?;
    let facts = world.platform.update_cluster(&order, &facts).await?;
    let row = Row::new(key, Phase::Made, Facts::Cluster(facts));
    world.books.put(What::Cluster, key.text(), row).await?;
    world.note_updated(What::Cluster, key, notice);
    world.ready(What::Cluster, key, Vec::new());
    Ok(())
}

async fn create_instance(world: &World, key: &ObjectKey) -> Result<()> {
    if let Some(facts) = world.books.instance(key.text()) {
        let order = world.order_as_made(key)?;
        let facts = settle(world, key, &order, &facts).await?;
        world.ready(What::Instance, key, facts.containers);
        return Ok(());
    }
    let order = world.instance_order(key)?;
    world.busy(What::Instance, Operation::Create, key);
    let neighbours: Vec<String> =
        world.instances_in(&order.cluster).into_iter().map(|(key, _)| key).collect();
    let plan = |others: Vec<(String, Facts)>| {
        // What is in no cluster has the whole cloudlet beside it.
        let alone = order.cluster_facts.is_none();
        let near = others.into_iter().filter(|(key, _)| alone || neighbours.contains(key));
        let near: Vec<InstanceFacts> = near.filter_map(|(_, facts)| facts.instance()).collect();
        Ok(Facts::Instance(world.platform.plan_instance(&order, &near)?))
    };
    let facts = world.books.begin(What::Instance, key, plan).await?;
    let facts = facts.instance().ok_or_else(|| Error::state("the books are damaged"))?;
    world.platform.create_instance(&order, &facts).await?;
    let facts = look_at(world, key, &order, &facts).await?;
    world.publish(key, &order, &facts).await?;
    let row = Row::new(key, Phase::Made, Facts::Instance(facts.clone())).made_of(&order.app);
    world.books.put(What::Instance, key.text(), row).await?;
    world.ready(What::Instance, key, facts.containers);
    Ok(())
}

/// What an instance turned out to have, written down.
async fn look_at(
    world: &World,
    key: &ObjectKey,
    order: &InstanceOrder,
    facts: &InstanceFacts,
) -> Result<InstanceFacts> {
    let found = world.platform.look_at_instance(order, facts).await?;
    if let Some(row) = world.books.get(What::Instance, key.text())
        && found != *facts
    {
        let row = Row { facts: Facts::Instance(found.clone()), ..row };
        world.books.put(What::Instance, key.text(), row).await?;
    }
    Ok(found)
}

/// Makes sure of an instance that an earlier process made, before anybody is
/// told of it. What is to be updated is not told to be ready: that would say
/// that the update is made.
pub(crate) async fn rediscover(world: &World, key: &ObjectKey) {
    let Some(facts) = world.books.instance(key.text()) else { return };
    let settled = match world.order_as_made(key) {
        Ok(order) => settle(world, key, &order, &facts).await,
        Err(error) => Err(error),
    };
    let wanted = world.desk.wanted(What::Instance, key);
    let asked = wanted.and_then(Operation::asked_by);
    match settled {
        Ok(_) if matches!(asked, Some((Operation::Update, _))) => {}
        Ok(facts) if wanted == Some(TrackedState::UpdateError) => {
            world.report_failed_update(key, facts);
        }
        Ok(facts) => world.ready(What::Instance, key, facts.containers),
        Err(error) => {
            let error = with_sources(&error);
            tracing::warn!(key = key.text(), error, "is not as it should be");
        }
    }
}

/// Makes sure of an instance that was made.
async fn settle(
    world: &World,
    key: &ObjectKey,
    order: &InstanceOrder,
    facts: &InstanceFacts,
) -> Result<InstanceFacts> {
    if world.platform.keep_instance(order, facts).await? {
        tracing::info!(key = key.text(), "an instance was started again");
    }
    world.note_trouble(key.text(), world.platform.trouble(&order.key).await?);
    world.note_restarts(key.text(), world.platform.restarts(&order.key).await?);
    let facts = look_at(world, key, order, facts).await?;
    world.publish(key, order, &facts).await?;
    Ok(facts)
}

/// Replaces an instance by one as it should be now. The old one serves until
/// the new one does, and goes on if it does not.
async fn update_instance(world: &World, key: &ObjectKey) -> Result<()> {
    let before = world.books.instance(key.text());
    let before = before.ok_or_else(|| Error::missing("the instance"))?;
    let notice = world.begin_update(What::Instance, key).await?;
    let order = world.instance_order(key)?;
    let beside: Vec<InstanceFacts> = world
        .instances_in(&order.cluster)
        .into_iter()
        .filter_map(|(_, row)| row.facts.instance())
        .collect();
    let facts = match world.platform.replace_instance(&order, &before, &beside).await {
        Ok(facts) => facts,
        Err(error) => {
            go_back(world, key, &order.app, &before).await;
            return Err(error);
        }
    };
    let facts = world.platform.look_at_instance(&order, &facts).await?;
    world.publish(key, &order, &facts).await?;
    let row = Row::new(key, Phase::Made, Facts::Instance(facts.clone())).made_of(&order.app);
    world.books.put(What::Instance, key.text(), row).await?;
    world.note_trouble(key.text(), String::new());
    world.restarts.lock().remove(key.text());
    world.note_updated(What::Instance, key, notice);
    world.ready(What::Instance, key, facts.containers.clone());
    if facts.containers != before.containers
        && let Err(error) = world.platform.retire_instance(&order.key, &before).await
    {
        tracing::warn!(key = key.text(), error = with_sources(&error), "the old version is left");
    }
    Ok(())
}

/// Lets an instance run again as it was made, after an update that failed. The
/// platform may have replaced it in place.
async fn go_back(world: &World, key: &ObjectKey, failed: &App, facts: &InstanceFacts) {
    let restored = match world.order_as_made(key) {
        Ok(order) if order.app == *failed => return,
        Ok(order) => world.platform.restore_instance(&order, facts).await,
        Err(error) => Err(error),
    };
    if let Err(error) = restored {
        let error = with_sources(&error);
        tracing::warn!(key = key.text(), error, "the version of before could not be restored");
        world.note_trouble(key.text(), error);
    }
}

/// Looks after an instance whose update failed: the version of before serves.
async fn keep_serving(world: &World, key: &ObjectKey) {
    let (Some(facts), Ok(order)) = (world.books.instance(key.text()), world.order_as_made(key))
    else {
        return;
    };
    if let Err(error) = settle(world, key, &order, &facts).await {
        let error = with_sources(&error);
        tracing::warn!(key = key.text(), error, "is not as it should be");
        world.note_trouble(key.text(), error);
    }
}

async fn delete(world: &World, what: What, key: &ObjectKey) -> Result<()> {
    world.busy(what, Operation::Delete, key);
    remove(world, what, key).await?;
    world.desk.withdraw(what, key);
    Ok(())
}

/// Removes whatever there is of an object.
async fn remove(world: &World, what: What, key: &ObjectKey) -> Result<()> {
    world.books.note(what, key.text(), Phase::Removing).await?;
    match what {
        What::Instance => {
            world.note_trouble(key.text(), String::new());
            world.restarts.lock().remove(key.text());
            world.publisher.withdraw(key.text()).await;
            world.platform.delete_instance(&key.decode()?).await?;
        }
        What::Cluster => {
            let cluster: ClusterInstKey = key.decode()?;
            // What bears the name of a cluster that was never begun is a
            // machine of its own, and stays.
            let begun = world.books.get(what, key.text()).is_some();
            let inside = if begun { world.instances_in(&cluster) } else { Vec::new() };
            for (text, row) in inside {
                let inside: AppInstKey = prost::Message::decode(row.key.as_slice())
                    .map_err(|error| Error::state(format!("the books are damaged: {error}")))?;
                world.books.note(What::Instance, &text, Phase::Removing).await?;
                world.publisher.withdraw(&text).await;
                if !world.platform.instances_go_with_cluster() {
                    world.platform.delete_instance(&inside).await?;
                }
                world.books.remove(What::Instance, &text).await?;
            }
            world.platform.delete_cluster(&cluster).await?;
        }
    }
    world.books.remove(what, key.text()).await
}

/// Sees to it that what should run runs.
async fn keep(world: &World, what: What, key: &ObjectKey) {
    let kept = async {
        if world.books.get(what, key.text()).is_some_and(|row| row.phase == Phase::Updating) {
            // Nobody waits for an update any more.
            world.books.note(what, key.text(), Phase::Made).await?;
        }
        match what {
            What::Cluster => keep_cluster(world, key).await,
            What::Instance => create_instance(world, key).await,
        }
    };
    if let Err(error) = kept.await {
        let error = with_sources(&error);
        tracing::warn!(key = key.text(), ?what, error, "is not as it should be");
        if what == What::Instance {
            world.note_trouble(key.text(), error);
        }
    }
}

async fn keep_cluster(world: &World, key: &ObjectKey) -> Result<()> {
    let Some(facts) = world.books.cluster(key.text()) else {
        return create_cluster(world, key).await;
    };
    world.platform.keep_cluster(&key.decode()?, &facts).await?;
    world.ready(What::Cluster, key, Vec::new());
    Ok(())
}

/// The controller does not know of it. It may be about to tell: what is
/// there is removed only when it has not for a while.
async fn unmentioned(world: &World, what: What, key: &ObjectKey) {
    let text = key.text().to_owned();
    if world.books.get(what, &text).is_none() {
        world.desk.withdraw(what, key);
        world.unmentioned.lock().remove(&(what, text));
        return;
    }
    if !world.client.status().in_sync {
        world.unmentioned.lock().remove(&(what, text));
        return;
    }
    let since = *world.unmentioned.lock().entry((what, text.clone())).or_insert_with(Instant::now);
    if since.elapsed() < world.grace {
        return;
    }
    match remove(world, what, key).await {
        Ok(()) => {
            tracing::info!(key = text, ?what, "removed, as the controller does not know of it");
            world.desk.withdraw(what, key);
            world.unmentioned.lock().remove(&(what, text));
        }
        Err(error) => tracing::warn!(key = text, %error, "not removed"),
    }
}
