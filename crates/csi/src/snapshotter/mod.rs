//! Snapshots for the objects of a cluster: what external-snapshotter and its
//! controller do elsewhere, for the volumes of this machine.
//!
//! As with claims, every machine serves what is on it, so there is no leader. A
//! VolumeSnapshot of a claim gets a VolumeSnapshotContent, which names the
//! machine; that machine takes the snapshot, and removes it when the
//! VolumeSnapshot is gone. Objects are those that other controllers of this API
//! make too, so that one of them may run beside this one.

pub(crate) mod object;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use selvage_api::Code;
use selvage_kube::{
    Connection, Context, Objects,
    kube::{
        Api, Client, ResourceExt,
        api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    },
};
use selvage_work::{Failure, Reconcile, Summary};
use serde_json::{Value, json};

use self::object::{Content, FINALIZER, Verdict, View, kind};
use crate::{Error, Result, TOPOLOGY, driver::Shared};

/// Between two tries of what has failed: a try may be a copy.
const AGAIN: Duration = Duration::from_secs(10);

/// Takes and removes snapshots of the volumes of this machine.
pub(crate) struct Snapshotter {
    shared: Shared,
    cluster: Arc<Connection>,
}

/// Lists objects of a kind; none where the cluster has no such kind, or its controller is
/// older and gives no right to it.
pub(crate) async fn list(client: &Client, name: &str) -> Result<Vec<DynamicObject>> {
    let any = ListParams::default().match_any();
    match Objects::all(client, &kind(name)).list(&any).await {
        Err(error) if is_unknown(&error) => Ok(Vec::new()),
        listed => Ok(listed?),
    }
}

/// Returns whether a cluster knows nothing of snapshots.
pub(crate) fn is_unknown(error: &selvage_kube::Error) -> bool {
    matches!(error.code(), Code::NotFound | Code::PermissionDenied)
}

async fn read(client: &Client) -> Result<View> {
    let any = ListParams::default().match_any();
    let snapshots = list(client, object::SNAPSHOT).await?;
    let contents = list(client, object::CONTENT).await?;
    // Most clusters have none most of the time.
    if snapshots.is_empty() && contents.is_empty() {
        return Ok(View {
            snapshots,
            contents,
            classes: Default::default(),
            claims: Vec::new(),
            volumes: Vec::new(),
        });
    }
    let classes = list(client, &object::classes().kind).await?;
    let claims = Api::all(client.clone()).list(&any).await.context("listing claims")?.items;
    let volumes = Api::all(client.clone()).list(&any).await.context("listing volumes")?.items;
    let classes = classes.into_iter().map(|class| (class.name_any(), class)).collect();
    Ok(View { snapshots, contents, classes, claims, volumes })
}

impl Snapshotter {
    pub(crate) fn new(shared: Shared, cluster: Arc<Connection>) -> Self {
        Self { shared, cluster }
    }

    async fn pass(&self) -> Result<Summary> {
        let client = self.cluster.client().await?;
        let view = read(&client).await?;
        let mut summary = Summary::default();
        let unbound = view.snapshots.iter().filter(|snapshot| {
            object::bound(snapshot).is_none() && snapshot.metadata.deletion_timestamp.is_none()
        });
        for snapshot in unbound {
            note(&mut summary, snapshot, self.bind(&client, &view, snapshot).await);
        }
        for content in view.contents.iter().map(Content).filter(Content::is_ours) {
            if view.node_of(&content) == Some(self.shared.node.as_str()) {
                note(&mut summary, content.0, self.serve(&client, &view, &content).await);
            }
        }
        Ok(summary)
    }

    /// Gives a snapshot its content, if it is for this machine to do.
    async fn bind(&self, client: &Client, view: &View, snapshot: &DynamicObject) -> Result<bool> {
        match view.judge(snapshot, &self.shared.node) {
            Verdict::NotOurs => Ok(false),
            Verdict::Wrong(reason) if object::error(snapshot) == Some(&reason) => Ok(false),
            Verdict::Wrong(reason) => {
                tracing::warn!(reason, snapshot = snapshot.name_any(), "cannot be taken");
                let status = object::failed(&reason);
                set_status(client, object::SNAPSHOT, snapshot, &status).await?;
                Ok(true)
            }
            Verdict::Take(content) => {
                let contents: Api<DynamicObject> =
                    Api::all_with(client.clone(), &kind(object::CONTENT));
                let content: DynamicObject = serde_json::from_value(*content)
                    .map_err(|error| Error::Precondition(error.to_string()))?;
                let made = contents.create(&PostParams::default(), &content).await;
                match made.context("making the content") {
                    // An earlier pass did.
                    Err(error) if error.code() == Code::Aborted => Ok(false),
                    made => Ok(made.map(|_| true)?),
                }
            }
            Verdict::Bind(name) => {
                let patch = json!({ "spec": { "volumeSnapshotRef": { "uid": snapshot.uid() } } });
                Objects::all(client, &kind(object::CONTENT)).merge(&name, &patch).await?;
                Ok(true)
            }
        }
    }

    /// Does what a content of this machine asks for.
    async fn serve(&self, client: &Client, view: &View, content: &Content<'_>) -> Result<bool> {
        let snapshot = view.snapshot_of(content);
        let is_over = snapshot.is_none() && self.is_gone(client, content).await?;
        if content.0.metadata.deletion_timestamp.is_some() {
            // It stays for as long as its snapshot does.
            let unbound = content.uid().is_none();
            return if is_over || unbound { self.remove(client, content).await } else { Ok(false) };
        }
        if is_over {
            if content.is_deleted_with() {
                let contents = Objects::all(client, &kind(object::CONTENT));
                contents.delete(&content.0.name_any(), &DeleteParams::default()).await?;
            }
            return Ok(content.is_deleted_with());
        }
        let changed = self.adopt(client, content).await?;
        // One that somebody made is taken up when there is a snapshot for it.
        let Some(snapshot) = snapshot else { return Ok(changed) };
        let (status, outcome) = match object::is_ready(content.0) {
            true => (content.0.data["status"].clone(), Ok(changed)),
            false => self.take(client, content).await?,
        };
        let mirrored = object::mirrored(&content.0.name_any(), &status);
        if !object::says(snapshot, &mirrored) {
            set_status(client, object::SNAPSHOT, snapshot, &mirrored).await?;
        }
        outcome
    }

    /// Returns whether the snapshot of a content was removed. Asked anew, not from
    /// memory: what is deleted then is gone.
    async fn is_gone(&self, client: &Client, content: &Content<'_>) -> Result<bool> {
        let Some(uid) = content.uid() else { return Ok(false) };
        let (namespace, name) = content.snapshot();
        let snapshots = Objects::namespaced(client, namespace, &kind(object::SNAPSHOT));
        let found = snapshots.get(name).await?;
        Ok(found.is_none_or(|found| found.uid().as_deref() != Some(uid)))
    }

    /// Names the machine in a content that another controller made, and keeps the
    /// object until the snapshot is removed.
    async fn adopt(&self, client: &Client, content: &Content<'_>) -> Result<bool> {
        let mut finalizers = content.0.finalizers().to_vec();
        if content.node().is_some() && finalizers.iter().any(|one| one == FINALIZER) {
            return Ok(false);
        }
        finalizers.retain(|one| one != FINALIZER);
        finalizers.push(FINALIZER.to_owned());
        let patch = json!({ "metadata": {
            "resourceVersion": content.0.resource_version(),
            "labels": { TOPOLOGY: self.shared.node },
            "finalizers": finalizers,
        }});
        let contents = Objects::all(client, &kind(object::CONTENT));
        contents.merge(&content.0.name_any(), &patch).await?;
        Ok(true)
    }

    /// Takes a snapshot; returns the status of its content, and how it went.
    async fn take(&self, client: &Client, content: &Content<'_>) -> Result<(Value, Result<bool>)> {
        let (status, outcome) = match self.taken(content).await {
            Ok(status) => (status, Ok(true)),
            Err(error) if object::error(content.0) == Some(error.to_string().as_str()) => {
                // When it happened first is told already.
                return Ok((content.0.data["status"].clone(), Err(error)));
            }
            Err(error) => (object::failed(&error.to_string()), Err(error)),
        };
        set_status(client, object::CONTENT, content.0, &status).await?;
        Ok((status, outcome))
    }

    async fn taken(&self, content: &Content<'_>) -> Result<Value> {
        let snapshot = match (content.given(), content.volume(), content.uid()) {
            (Some(handle), ..) => {
                let found = self.shared.find_snapshot(&handle.parse()?).await?;
                found.ok_or_else(|| Error::NoSnapshot(handle.to_owned()))?
            }
            (None, Some(volume), Some(uid)) => {
                self.shared.snapshot(&volume.parse()?, &object::name_for(uid)).await?
            }
            _ => return Err(Error::invalid("source", "volumeHandle or snapshotHandle is needed")),
        };
        Ok(object::taken(&snapshot))
    }

    /// Removes a snapshot from the disk, and lets its object go.
    async fn remove(&self, client: &Client, content: &Content<'_>) -> Result<bool> {
        if let Some(id) = content.id().filter(|_| content.is_deleted_with()) {
            self.shared.remove_snapshot(&id).await?;
            tracing::info!(snapshot = %id, "was removed");
        }
        let left: Vec<&String> =
            content.0.finalizers().iter().filter(|one| *one != FINALIZER).collect();
        if left.len() == content.0.finalizers().len() {
            return Ok(false);
        }
        let patch = json!({ "metadata": { "finalizers": left } });
        let contents = Objects::all(client, &kind(object::CONTENT));
        match contents.merge(&content.0.name_any(), &patch).await {
            Err(error) if error.code() == Code::NotFound => Ok(true),
            patched => Ok(patched.map(|_| true)?),
        }
    }
}

/// Counts what was done, and says what was not.
fn note(summary: &mut Summary, about: &DynamicObject, outcome: Result<bool>) {
    match outcome {
        Ok(changed) => summary.changes += u64::from(changed),
        Err(error) => {
            tracing::warn!(%error, name = about.name_any(), "snapshot of a volume");
            summary.again = Some(AGAIN);
        }
    }
}

/// Writes the status of an object that is as it was read. Somebody who was faster may
/// have said the same.
async fn set_status(
    client: &Client,
    name: &str,
    about: &DynamicObject,
    status: &Value,
) -> Result<()> {
    let kind = kind(name);
    let objects: Api<DynamicObject> = match about.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let metadata = match name {
        // Many machines may say what no machine can do.
        object::SNAPSHOT => json!({ "resourceVersion": about.resource_version() }),
        _ => json!({}),
    };
    let patch = Patch::Merge(json!({ "metadata": metadata, "status": status }));
    let patched = objects.patch_status(&about.name_any(), &PatchParams::default(), &patch).await;
    match patched.context("the status of a snapshot") {
        Err(error) if matches!(error.code(), Code::Aborted | Code::NotFound) => Ok(()),
        patched => Ok(patched.map(drop)?),
    }
}

#[async_trait]
impl Reconcile for Snapshotter {
    fn name(&self) -> &str {
        "snapshots of volumes"
    }

    async fn run(&self) -> Result<Summary, Failure> {
        self.pass().await.map_err(|error| Failure::new(error.code(), error.to_string()))
    }
}
