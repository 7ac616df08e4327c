//! Objects that an instance is made of: applied, written down, and removed when
//! they are not wanted any more. Nothing that bears another's label is touched.

use std::time::Duration;

use selvage_kube::{
    Objects as OfKind, Reference,
    kube::{
        Client,
        api::{ApiResource, DeleteParams, DynamicObject, ListParams},
    },
    resource,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    manifest::Object,
    names::{INSTANCE, InstanceNames, Namer, RECORD, of_instance},
    policy::{self, KINDS, Kind},
};
use crate::{Error, Result};

/// Time that what is removed may take to go.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Key of the objects of an instance in its record.
const OBJECTS: &str = "objects";
const BY_HELM: &str = "meta.helm.sh/release-name";
const CLAIM: &str = "PersistentVolumeClaim";
/// Kinds that earlier versions made; they are removed still.
const FORMER: [(&str, &str, &str); 1] = [("networking.k8s.io", "v1", "Ingress")];

/// All kinds that are looked through for what an instance left: what is made
/// may make more, and a record may be lost.
fn kinds() -> impl Iterator<Item = ApiResource> {
    let former = FORMER.iter().map(|(group, version, kind)| resource(group, version, kind));
    KINDS.iter().map(Kind::resource).chain(former)
}

/// References to objects whose kinds an app may make.
fn references(wanted: &[Object]) -> Result<Vec<Reference>> {
    let reference = |object: &Object| {
        let kind = policy::kind_of(object)?.resource();
        Ok(Reference { kind, name: object.name.clone() })
    };
    wanted.iter().map(reference).collect()
}

/// Record of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) objects: Vec<Reference>,
}

/// The objects of one instance.
pub(super) struct Objects<'a> {
    /// With all the rights of the crm.
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
    let found = OfKind::namespaced(client, namespace, &records()).list(&wanted).await?;
    let label = |object: DynamicObject| object.metadata.labels?.remove(INSTANCE);
    Ok(found.into_iter().filter_map(label).collect())
}

impl Objects<'_> {
    /// Makes everything as wanted and removes what is not wanted any more.
    ///
    /// `tenant` has the rights of an app; what it may not change stays.
    pub(super) async fn apply(&self, tenant: &Client, wanted: &[Object]) -> Result<Vec<Reference>> {
        let references = references(wanted)?;
        for reference in &references {
            self.check_owner(reference).await?;
        }
        for (object, reference) in wanted.iter().zip(&references) {
            self.try_one(tenant, object, reference).await?;
        }
        let mut known = self.record().await?.unwrap_or_default();
        let fresh = references.iter().filter(|wanted| !known.objects.contains(wanted));
        let fresh: Vec<Reference> = fresh.cloned().collect();
        known.objects.extend(fresh);
        self.write(&known).await?;
        for (object, reference) in wanted.iter().zip(&references) {
            self.put(tenant, object, reference).await?;
        }
        self.prune(&known.objects, &references).await?;
        self.write(&Record { objects: references.clone() }).await?;
        Ok(references)
    }

    /// Refuses to change what is there under a name and is not ours.
    async fn check_owner(&self, reference: &Reference) -> Result<()> {
        let found = self.of_kind(&reference.kind).get_metadata(&reference.name).await?;
        let Some(found) = found else { return Ok(()) };
        let labels = found.metadata.labels.unwrap_or_default();
        let annotations = found.metadata.annotations.unwrap_or_default();
        // Earlier versions had helm make the objects of charts.
        let by_helm = annotations.get(BY_HELM) == Some(&self.names.release);
        if labels.get(INSTANCE) == Some(&self.names.id) || by_helm {
            return Ok(());
        }
        let reason = "is in the cluster already and belongs to something else";
        Err(Error::state(format!("{} {reason}", reference.title())))
    }

    /// Asks whether an object would be taken, before any is changed.
    async fn try_one(&self, tenant: &Client, object: &Object, reference: &Reference) -> Result<()> {
        let kind = OfKind::namespaced(tenant, &self.names.namespace, &reference.kind);
        match kind.apply_dry_run(&object.value).await {
            Err(error) if error.is_immutable() => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    async fn put(&self, tenant: &Client, object: &Object, reference: &Reference) -> Result<()> {
        let kind = OfKind::namespaced(tenant, &self.names.namespace, &reference.kind);
        match kind.apply(&object.value).await {
            // Some fields are for life: it is made anew.
            Err(error) if error.is_immutable() => {
                kind.delete_and_wait(&reference.name, REMOVAL_TIMEOUT).await?;
                kind.apply(&object.value).await?;
            }
            answer => drop(answer?),
        }
        Ok(())
    }

    fn of_kind(&self, kind: &ApiResource) -> OfKind {
        OfKind::namespaced(&self.client, &self.names.namespace, kind)
    }

    /// Removes all that bears the instance's label and is not wanted.
    async fn prune(&self, known: &[Reference], wanted: &[Reference]) -> Result<()> {
        let mut going = Vec::new();
        for kind in kinds() {
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
            self.of_kind(&reference.kind).delete_and_wait(&reference.name, REMOVAL_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Removes the instance, and waits until its pods are gone.
    pub(super) async fn remove_all(&self) -> Result<()> {
        let known = self.record().await?.unwrap_or_default();
        self.prune(&known.objects, &[]).await?;
        let pods = self.of_kind(&resource("", "v1", "Pod"));
        let ours = ListParams::default().labels(&of_instance(&self.names.id));
        let until = Instant::now() + REMOVAL_TIMEOUT;
        while !pods.list_metadata(&ours).await?.is_empty() {
            if Instant::now() >= until {
                return Err(Error::state("pods of the instance do not go"));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.forget().await
    }

    /// Returns whether everything that was made is there.
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
        let listed: Vec<Reference> = serde_json::from_str(&text(OBJECTS)).unwrap_or_default();
        // Pods of the instance may be able to write here: only what we could
        // have made ourselves is believed.
        let objects = listed.into_iter().filter(|of| kinds().any(|kind| kind == of.kind));
        Ok(Some(Record { objects: objects.collect() }))
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
            "data": { OBJECTS: listed },
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
