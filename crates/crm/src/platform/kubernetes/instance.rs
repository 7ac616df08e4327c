//! An instance, from its app to its pods.

use std::time::Duration;

use selvage_api::edgeproto::App;
use selvage_kube::{Nodes, Outcome, Pods, Reference, Rollout, is_running, main_container, name};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Kubernetes,
    apply::{Objects, Record},
    fetch,
    helm::Helm,
    manifest::{self, Additions, Object},
    names::{InstanceNames, REVISION, of_instance},
    ports::{self, Found},
    shell,
};
use crate::{
    Error, Result,
    platform::{InstanceFacts, InstanceOrder, Platform},
};

const KUBERNETES: &str = "kubernetes";
const HELM: &str = "helm";
const LOOK: Duration = Duration::from_millis(100);
/// Kinds that have pods in the end.
const WORK: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Pod"];

/// Refuses what is none of ours.
pub(super) fn check_deployment(app: &App) -> Result<()> {
    match app.deployment.as_str() {
        KUBERNETES | HELM => Ok(()),
        other => Err(Error::state(format!(
            "deployment {other:?} cannot run on a cloudlet of kind kubernetes: it takes \
             {KUBERNETES} and {HELM}"
        ))),
    }
}

/// Those that are waited for.
fn work(references: &[Reference]) -> Vec<Reference> {
    let waits = |reference: &&Reference| WORK.contains(&reference.kind.kind.as_str());
    references.iter().filter(waits).cloned().collect()
}

/// The revision that the pods of these bear.
fn revision(objects: &[Object]) -> Option<String> {
    objects.iter().find_map(|object| {
        let labels = object.value.pointer("/spec/template/metadata/labels")?;
        labels[REVISION].as_str().map(str::to_owned)
    })
}

impl Kubernetes {
    /// Makes an instance as it should be and waits until it runs.
    pub(super) async fn make(&self, order: &InstanceOrder) -> Result<()> {
        check_deployment(&order.app)?;
        let names = self.namer.instance(&order.key)?;
        if order.app.deployment == HELM {
            return self.make_release(order, &names).await;
        }
        let text = fetch::manifest(&order.app).await?;
        let mut wanted = manifest::read(&text)?;
        wanted.iter().try_for_each(|object| object.check(&names.namespace))?;
        let secret = self.options.registry.as_ref().map(|registry| registry.secret.as_str());
        let additions = Additions {
            namespace: &names.namespace,
            labels: self.namer.labels(&names.id).into_iter().collect(),
            variables: manifest::variables(&order.app)?,
            secret,
        };
        manifest::complete(&mut wanted, &additions);
        let objects = self.objects(&names).await?;
        let made = objects.apply(&wanted).await?;
        let selectors = [of_instance(&names.id)];
        let revision = revision(&wanted);
        let revision = revision.as_deref().map(|value| (REVISION, value));
        self.until_it_runs(&objects, &selectors, &made, revision).await?;
        self.until_it_answers(order).await
    }

    /// Returns when all pods run. Those that run and are not ready in time
    /// count as made; the balancer says how they are.
    async fn until_it_runs(
        &self,
        objects: &Objects<'_>,
        selectors: &[String],
        made: &[Reference],
        revision: Option<(&str, &str)>,
    ) -> Result<()> {
        let rollout = Rollout {
            client: &objects.client,
            namespace: &objects.names.namespace,
            objects: &work(made),
            selectors,
            revision,
            ready_timeout: self.options.patience,
        };
        if rollout.wait().await? == Outcome::Running {
            tracing::warn!(instance = objects.names.id, "runs and is not ready yet");
        }
        Ok(())
    }

    /// Returns when the instance takes connections where its ports are led to,
    /// or has had its time: what a cluster says of its Services reaches its
    /// nodes a while later.
    async fn until_it_answers(&self, order: &InstanceOrder) -> Result<()> {
        let until = Instant::now() + self.options.patience;
        let nothing = self.plan_instance(order, &[])?;
        while !self.look_at(order, &nothing).await?.1 {
            if Instant::now() >= until {
                tracing::warn!(key = ?order.key, "runs and does not take connections yet");
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn make_release(&self, order: &InstanceOrder, names: &InstanceNames) -> Result<()> {
        let helm = self.helm(names);
        let objects = self.objects(names).await?;
        let rendered = helm.rendered(&order.app).await?;
        objects.resolve(&rendered).await?;
        let release = Some(names.release.clone());
        let begun = Record { objects: Vec::new(), release: release.clone() };
        objects.write(&begun).await?;
        helm.install(&order.app).await?;
        let made = objects.resolve(&helm.made().await?).await?;
        objects.write(&Record { objects: made.clone(), release }).await?;
        let selectors = self.selectors(names).await?;
        self.until_it_runs(&objects, &selectors, &made, None).await?;
        self.until_it_answers(order).await
    }

    fn helm<'a>(&'a self, names: &'a InstanceNames) -> Helm<'a> {
        Helm {
            program: &self.options.helm,
            kubeconfig: self.connection.path(),
            folder: self.options.data.join(HELM),
            names,
        }
    }

    /// Removes an instance and whatever half of it there is.
    pub(super) async fn unmake(&self, names: &InstanceNames) -> Result<()> {
        let objects = self.objects(names).await?;
        let record = objects.record().await?.unwrap_or_default();
        if let Some(release) = record.release {
            let names = InstanceNames { release, ..names.clone() };
            self.helm(&names).uninstall().await?;
        }
        objects.remove_all().await
    }

    /// By what the pods of an instance are found.
    async fn selectors(&self, names: &InstanceNames) -> Result<Vec<String>> {
        let objects = self.objects(names).await?;
        let record = objects.record().await?.unwrap_or_default();
        if record.release.is_none() {
            return Ok(vec![of_instance(&names.id)]);
        }
        let mut selectors = Vec::new();
        for reference in work(&record.objects) {
            let now = objects.now(&reference).await?.unwrap_or_default();
            selectors.extend(selector(&now));
        }
        Ok(selectors)
    }

    pub(super) async fn pods(&self, names: &InstanceNames) -> Result<Vec<Value>> {
        let client = self.connection.client().await?;
        let selectors = self.selectors(names).await?;
        Ok(Pods::new(&client, &names.namespace).find(&selectors).await?)
    }

    /// What an instance that was made is made of, where it is reached, and
    /// whether it answers there.
    pub(super) async fn look_at(
        &self,
        order: &InstanceOrder,
        before: &InstanceFacts,
    ) -> Result<(InstanceFacts, bool)> {
        let names = self.namer.instance(&order.key)?;
        let client = self.connection.client().await?;
        let pods = self.pods(&names).await?;
        let objects = self.objects(&names).await?;
        let record = objects.record().await?.unwrap_or_default();
        let mut services = Vec::new();
        for reference in record.objects.iter().filter(|of| of.kind.kind == "Service") {
            services.extend(objects.now(reference).await?);
        }
        let nodes = Nodes::new(&client).list().await?;
        let address = ports::first_address(&pods).unwrap_or(before.address);
        let containers = pods.iter().map(|pod| name(pod).to_owned()).collect();
        let found = Found { pods, services, nodes };
        let places = ports::places(&order.instance, &found, before).await?;
        Ok((InstanceFacts { containers, address, places: places.all }, places.answer))
    }

    /// The pod of an instance that is meant; others are none of the caller's
    /// business.
    pub(super) async fn one_of(&self, names: &InstanceNames, container: &str) -> Result<Value> {
        let mut pods = self.pods(names).await?.into_iter();
        let found = if container.is_empty() {
            pods.find(is_running)
        } else {
            pods.find(|pod| name(pod) == container)
        };
        found.ok_or_else(|| match container {
            "" => Error::missing("a pod of the instance that runs"),
            named => Error::missing(format!("container {named:?} of the instance")),
        })
    }

    pub(super) async fn place<'a>(
        &self,
        names: &InstanceNames,
        pod: &'a Value,
    ) -> Result<shell::Place<'a>> {
        Ok(shell::Place {
            pods: Pods::new(&self.connection.streams().await?, &names.namespace),
            pod: name(pod),
            container: main_container(pod),
        })
    }
}

/// What selects the pods of an object.
fn selector(object: &Value) -> Option<String> {
    if object["kind"] == "Pod" {
        let labels = object.pointer("/metadata/labels")?.as_object()?;
        return Some(joined(labels));
    }
    Some(joined(object.pointer("/spec/selector/matchLabels")?.as_object()?))
}

fn joined(labels: &serde_json::Map<String, Value>) -> String {
    let pairs =
        labels.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
    pairs.collect::<Vec<_>>().join(",")
}
