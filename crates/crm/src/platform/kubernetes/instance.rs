//! An instance, from its app to its pods.

use std::time::Duration;

use selvage_api::edgeproto::App;
use selvage_kube::{
    Context, Nodes, Outcome, Pods, Reference, Rollout, is_running, main_container, name,
};
use serde_json::Value;
use tokio::time::Instant;

use super::{
    Kubernetes,
    apply::Objects,
    chart::Charts,
    fetch,
    helm::Helm,
    manifest::{self, Additions, Object},
    names::{InstanceNames, REVISION, of_instance},
    policy,
    ports::{self, InstanceObjects},
    shell, tenant,
};
use crate::{
    Error, Result,
    platform::{InstanceFacts, InstanceOrder, Platform},
};

use selvage_edge::deployment::{HELM, KUBERNETES};
const POLL_INTERVAL: Duration = Duration::from_millis(100);
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
        let mut wanted = self.wanted(&order.app, &names).await?;
        wanted.iter().try_for_each(|object| policy::check(object, &names.namespace).map(drop))?;
        let secret = self.options.registries.secret_name();
        let additions = Additions {
            namespace: &names.namespace,
            labels: self.namer.labels(&names.id).into_iter().collect(),
            variables: manifest::variables(&order.app)?,
            secret,
        };
        manifest::complete(&mut wanted, &additions);
        let objects = self.objects(&names).await?;
        let tenant = self.connection.impersonate(&names.namespace, tenant::ACCOUNT).await?;
        let made = objects.apply(&tenant, &wanted).await?;
        let selectors = [of_instance(&names.id)];
        let revision = revision(&wanted);
        let revision = revision.as_deref().map(|value| (REVISION, value));
        order.progress.tell("Its objects are made. Waiting for its pods to be ready");
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
            ready_timeout: self.options.start_timeout,
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
        let until = Instant::now() + self.options.start_timeout;
        let nothing = self.plan_instance(order, &[])?;
        while !self.look_at(order, &nothing).await?.1 {
            if Instant::now() >= until {
                tracing::warn!(key = ?order.key, "runs and does not take connections yet");
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Returns the objects of an app, as its developer has them.
    async fn wanted(&self, app: &App, names: &InstanceNames) -> Result<Vec<Object>> {
        if app.deployment != HELM {
            return manifest::read(&fetch::manifest(&self.fetcher, app).await?);
        }
        let folder = self.options.data.join(HELM);
        let charts = Charts {
            folder: &folder.join("charts"),
            images: &self.options.images,
            fetcher: &self.fetcher,
        };
        let chart = charts.provide(&app.image_path).await?;
        let client = self.connection.client().await?;
        let version = client.apiserver_version().await.context("asking for the version")?;
        let helm = Helm {
            program: &self.options.helm,
            folder: &std::env::temp_dir(),
            names,
            version: version.git_version,
        };
        helm.render(app, &chart).await
    }

    /// Removes an instance and whatever half of it there is.
    pub(super) async fn unmake(&self, names: &InstanceNames) -> Result<()> {
        self.objects(names).await?.remove_all().await
    }

    pub(super) async fn pods(&self, names: &InstanceNames) -> Result<Vec<Value>> {
        let client = self.connection.client().await?;
        Ok(Pods::new(&client, &names.namespace).find(&[of_instance(&names.id)]).await?)
    }

    /// Returns the containers of an instance that was made, where it is
    /// reached, and whether it answers there.
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
        let found = InstanceObjects { pods, services, nodes };
        let places = ports::endpoints(&order.instance, &found, before).await?;
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
    ) -> Result<shell::PodContainer<'a>> {
        Ok(shell::PodContainer {
            pods: Pods::new(&self.connection.streams().await?, &names.namespace),
            pod: name(pod),
            container: main_container(pod),
        })
    }
}
