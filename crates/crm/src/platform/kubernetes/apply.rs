//! What an instance is made of: applied, written down, and removed when it is
//! not wanted any more. Nothing that bears another's label is touched.

use std::{collections::BTreeSet, time::Duration};

use selvage_kube::{
    Context, Objects as Kind, Reference,
    kube::{
        self, Client,
        api::{ApiResource, DeleteParams, DynamicObject, ListParams},
        core::discovery::Scope,
    },
    resource,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    manifest::Object,
    names::{INSTANCE, InstanceNames, Namer, RECORD, of_instance},
};
use crate::{Error, Result};

/// How long what is removed may take to go.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(200);
/// Where the objects of an instance are listed in its record.
const OBJECTS: &str = "objects";
/// Where helm's name for it is.
const RELEASE: &str = "release";
const CLAIM: &str = "PersistentVolumeClaim";
/// Kinds that are looked through beside those in the record: what is made may
/// make more, and a record may be lost.
const USUAL: [(&str, &str, &str); 16] = [
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "DaemonSet"),
    ("batch", "v1", "CronJob"),
    ("batch", "v1", "Job"),
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("networking.k8s.io", "v1", "Ingress"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("", "v1", "ConfigMap"),
    ("", "v1", "Secret"),
    ("", "v1", CLAIM),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("", "v1", "ServiceAccount"),
];

/// What was written down of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) objects: Vec<Reference>,
    pub(super) release: Option<String>,
}

/// The objects of one instance.
pub(super) struct Objects<'a> {
    pub(super) client: Client,
    pub(super) namer: &'a Namer,
    pub(super) names: &'a InstanceNames,
}

fn records() -> ApiResource {
    resource("", "v1", "ConfigMap")
}

/// The records of a namespace, by the instances they are of.
pub(super) async fn all_records(
    client: &Client,
    namespace: &str,
    ours: &str,
) -> Result<Vec<String>> {
    let wanted = ListParams::default().labels(&format!("{ours},{RECORD}"));
    let found = Kind::namespaced(client, namespace, &records()).list(&wanted).await?;
    let label = |object: DynamicObject| object.metadata.labels?.remove(INSTANCE);
    Ok(found.into_iter().filter_map(label).collect())
}

impl Objects<'_> {
    /// What kind each object is; refuses those outside of namespaces.
    pub(super) async fn resolve(&self, wanted: &[Object]) -> Result<Vec<Reference>> {
        let mut references = Vec::new();
        for object in wanted {
            let found = kube::discovery::pinned_kind(&self.client, &object.gvk()).await;
            let (kind, abilities) = match found {
                Err(kube::Error::Discovery(_)) => return Err(unknown(object)),
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(unknown(object)),
                other => other.context("asking what kinds there are")?,
            };
            object.check_scope(abilities.scope == Scope::Namespaced)?;
            references.push(object.reference(&kind));
        }
        Ok(references)
    }

    /// Makes everything as wanted and removes what is not wanted any more.
    pub(super) async fn apply(&self, wanted: &[Object]) -> Result<Vec<Reference>> {
        let references = self.resolve(wanted).await?;
        for reference in &references {
            self.check_owner(reference).await?;
        }
        for (object, reference) in wanted.iter().zip(&references) {
            self.try_one(object, reference).await?;
        }
        let mut known = self.record().await?.unwrap_or_default();
        let fresh = references.iter().filter(|wanted| !known.objects.contains(wanted));
        let fresh: Vec<Reference> = fresh.cloned().collect();
        known.objects.extend(fresh);
        self.write(&known).await?;
        for (object, reference) in wanted.iter().zip(&references) {
            self.put(object, reference).await?;
        }
        self.prune(&known.objects, &references).await?;
        self.write(&Record { objects: references.clone(), release: None }).await?;
        Ok(references)
    }

    /// What is there under a name must be ours to be changed.
    async fn check_owner(&self, reference: &Reference) -> Result<()> {
        let found = self.of_kind(&reference.kind).get_metadata(&reference.name).await?;
        let Some(found) = found else { return Ok(()) };
        let labels = found.metadata.labels.unwrap_or_default();
        if labels.get(INSTANCE) == Some(&self.names.id) {
            return Ok(());
        }
        let reason = "is in the cluster already and belongs to something else";
        Err(Error::state(format!("{} {reason}", reference.title())))
    }

    /// Asks whether an object would be taken, before any is changed.
    async fn try_one(&self, object: &Object, reference: &Reference) -> Result<()> {
        match self.of_kind(&reference.kind).apply_dry_run(&object.value).await {
            Err(error) if error.is_immutable() => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    async fn put(&self, object: &Object, reference: &Reference) -> Result<()> {
        let kind = self.of_kind(&reference.kind);
        match kind.apply(&object.value).await {
            // Some fields are for life: it is made anew.
            Err(error) if error.is_immutable() => {
                kind.delete_and_wait(&reference.name, PATIENCE).await?;
                kind.apply(&object.value).await?;
            }
            answer => drop(answer?),
        }
        Ok(())
    }

    fn of_kind(&self, kind: &ApiResource) -> Kind {
        Kind::namespaced(&self.client, &self.names.namespace, kind)
    }

    /// Removes all that bears the instance's label and is not wanted.
    async fn prune(&self, known: &[Reference], wanted: &[Reference]) -> Result<()> {
        let mut kinds: Vec<ApiResource> = USUAL.iter().map(|(g, v, k)| resource(g, v, k)).collect();
        let usual: BTreeSet<String> = kinds.iter().map(|kind| kind.plural.clone()).collect();
        kinds.extend(
            known.iter().map(|of| &of.kind).filter(|of| !usual.contains(&of.plural)).cloned(),
        );
        let mut going = Vec::new();
        for kind in kinds {
            let objects = self.of_kind(&kind);
            let ours = ListParams::default().labels(&of_instance(&self.names.id));
            for object in objects.list_metadata(&ours).await? {
                let owned =
                    object.metadata.owner_references.is_some_and(|owners| !owners.is_empty());
                let name = object.metadata.name.unwrap_or_default();
                let reference = Reference { kind: kind.clone(), name };
                let is_record = reference.name == self.names.record;
                // Storage that a stateful set asked for outlives an update.
                let storage =
                    kind.kind == CLAIM && !wanted.is_empty() && !known.contains(&reference);
                if owned || is_record || storage || wanted.contains(&reference) {
                    continue;
                }
                objects.delete(&reference.name, &DeleteParams::foreground()).await?;
                going.push(reference);
            }
        }
        for reference in &going {
            self.of_kind(&reference.kind).delete_and_wait(&reference.name, PATIENCE).await?;
        }
        Ok(())
    }

    /// Removes the instance, and waits until its pods are gone.
    pub(super) async fn remove_all(&self) -> Result<()> {
        let known = self.record().await?.unwrap_or_default();
        self.prune(&known.objects, &[]).await?;
        let pods = self.of_kind(&resource("", "v1", "Pod"));
        let ours = ListParams::default().labels(&of_instance(&self.names.id));
        let until = Instant::now() + PATIENCE;
        while !pods.list_metadata(&ours).await?.is_empty() {
            if Instant::now() >= until {
                return Err(Error::state("pods of the instance do not go"));
            }
            tokio::time::sleep(LOOK).await;
        }
        self.forget().await
    }

    /// Whether everything that was made is there.
    pub(super) async fn is_whole(&self) -> Result<bool> {
        let Some(record) = self.record().await? else { return Ok(false) };
        for reference in &record.objects {
            let found = self.of_kind(&reference.kind).get_metadata(&reference.name).await?;
            if found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) async fn record(&self) -> Result<Option<Record>> {
        let found = self.of_kind(&records()).get(&self.names.record).await?;
        let Some(found) = found else { return Ok(None) };
        let text = |name: &str| found.data["data"][name].as_str().unwrap_or_default().to_owned();
        let objects = serde_json::from_str(&text(OBJECTS)).unwrap_or_default();
        let release = Some(text(RELEASE)).filter(|release| !release.is_empty());
        Ok(Some(Record { objects, release }))
    }

    pub(super) async fn write(&self, record: &Record) -> Result<()> {
        let mut labels = self.namer.labels(&self.names.id);
        labels.insert(RECORD, "true".into());
        let listed = serde_json::to_string(&record.objects)
            .map_err(|error| Error::state(format!("cannot be written down: {error}")))?;
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": self.names.record, "labels": labels },
            "data": { OBJECTS: listed, RELEASE: record.release.clone().unwrap_or_default() },
        });
        self.of_kind(&records()).apply(&object).await?;
        Ok(())
    }

    pub(super) async fn forget(&self) -> Result<()> {
        Ok(self.of_kind(&records()).delete(&self.names.record, &DeleteParams::default()).await?)
    }

    /// An object as it is; none when it is gone.
    pub(super) async fn now(&self, reference: &Reference) -> Result<Option<Value>> {
        Ok(self.of_kind(&reference.kind).get_value(&reference.name).await?)
    }
}

fn unknown(object: &Object) -> Error {
    let title = object.title();
    let reason = format!("{title}: the cluster knows no such kind in {}", object.api_version);
    Error::invalid("deployment_manifest", reason)
}
