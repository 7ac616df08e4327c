//! Pods and containers as this crate has them.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_cri::v1;
use parking_lot::Mutex;
use serde::Deserialize;

use super::connection::Connection;
use crate::{
    Container, Event, EventKind, Exit, Image, Kind, REPLY_TIMEOUT, Result, Status, identity, select,
};

/// Questions about single containers that are under way at once.
const AT_ONCE: usize = 16;

/// Cache of what was asked for once: it stays as it is while the container
/// runs.
#[derive(Default)]
pub(super) struct Pids {
    known: Mutex<HashMap<String, Inner>>,
}

#[derive(Debug, Clone, Default)]
struct Inner {
    pid: Option<u32>,
    network_namespace: Option<PathBuf>,
}

pub(super) async fn list(
    connection: &Connection,
    pids: &Pids,
    namespace: &str,
) -> Result<Vec<Container>> {
    let state = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() };
    let filter = v1::PodSandboxFilter { state: Some(state), ..Default::default() };
    let pods = v1::ListPodSandboxRequest { filter: Some(filter) };
    let all = v1::ListContainersRequest::default();
    let (pods, containers, images) = tokio::try_join!(
        connection.call::<_, v1::ListPodSandboxResponse>("ListPodSandbox", pods, REPLY_TIMEOUT),
        connection.call::<_, v1::ListContainersResponse>("ListContainers", all, REPLY_TIMEOUT),
        names(connection),
    )?;
    let pods: BTreeMap<String, v1::PodSandbox> =
        pods.items.into_iter().map(|pod| (pod.id.clone(), pod)).collect();
    let mut found: Vec<Container> = pods.values().map(|pod| sandbox(namespace, pod)).collect();
    found.extend(containers.containers.into_iter().filter_map(|container| {
        Some(app(namespace, pods.get(&container.pod_sandbox_id)?, container, &images))
    }));
    pids.fill(connection, &mut found).await;
    identity::sort(&mut found);
    Ok(found)
}

impl Pids {
    /// Adds what only a question about the single container tells. One that
    /// cannot be answered leaves its row, with the reason.
    async fn fill(&self, connection: &Connection, containers: &mut [Container]) {
        let unknown: Vec<(String, Kind)> = {
            let mut known = self.known.lock();
            let running: Vec<&Container> =
                containers.iter().filter(|container| container.status.is_running()).collect();
            known.retain(|id, _| running.iter().any(|container| container.runtime_id == *id));
            running
                .into_iter()
                .filter(|container| !known.contains_key(&container.runtime_id))
                .map(|container| (container.runtime_id.clone(), container.kind))
                .collect()
        };
        let asked: Vec<(String, Result<Inner>)> = futures::stream::iter(unknown)
            .map(|(id, kind)| async move {
                let inner = inner(connection, &id, kind).await;
                (id, inner)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut known = self.known.lock();
        let mut problems = HashMap::new();
        for (id, inner) in asked {
            match inner {
                Ok(inner) => drop(known.insert(id, inner)),
                Err(error) => drop(problems.insert(id, error.to_string())),
            }
        }
        for container in containers.iter_mut().filter(|container| container.status.is_running()) {
            if let Some(inner) = known.get(&container.runtime_id) {
                container.pid = inner.pid;
                container.network_namespace = inner.network_namespace.clone();
            }
            container.problem = problems.remove(&container.runtime_id);
        }
    }
}

/// Details that the runtime tells beside the interface, as JSON in a map.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Info {
    pid: u32,
    runtime_spec: Option<RuntimeSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeSpec {
    linux: Linux,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Namespace {
    r#type: String,
    path: PathBuf,
}

fn read_info(info: &HashMap<String, String>) -> Inner {
    let info: Info =
        info.get("info").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let namespaces = info.runtime_spec.unwrap_or_default().linux.namespaces;
    Inner {
        pid: Some(info.pid).filter(|pid| *pid > 0),
        network_namespace: namespaces
            .into_iter()
            .find(|namespace| namespace.r#type == "network")
            .map(|namespace| namespace.path)
            .filter(|path| !path.as_os_str().is_empty()),
    }
}

async fn inner(connection: &Connection, id: &str, kind: Kind) -> Result<Inner> {
    if kind == Kind::Sandbox {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        let answer: v1::PodSandboxStatusResponse =
            connection.call("PodSandboxStatus", request, REPLY_TIMEOUT).await?;
        return Ok(read_info(&answer.info));
    }
    Ok(read_info(&container_status(connection, id).await?.info))
}

pub(super) async fn container_status(
    connection: &Connection,
    id: &str,
) -> Result<v1::ContainerStatusResponse> {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    connection.call("ContainerStatus", request, REPLY_TIMEOUT).await
}

fn sandbox(namespace: &str, pod: &v1::PodSandbox) -> Container {
    let metadata = pod.metadata.clone().unwrap_or_default();
    let id = format!("{}/{}", metadata.namespace, metadata.name);
    Container {
        namespace: namespace.to_owned(),
        name: id.clone(),
        pod_id: id.clone(),
        id,
        runtime_id: pod.id.clone(),
        kind: Kind::Sandbox,
        image: String::new(),
        pid: None,
        status: match pod.state() {
            v1::PodSandboxState::SandboxReady => Status::SandboxReady,
            v1::PodSandboxState::SandboxNotready => Status::SandboxNotReady,
        },
        exit: None,
        last_exit: None,
        created: time(pod.created_at),
        restarts: metadata.attempt,
        supervised: true,
        uid: metadata.uid,
        network_namespace: None,
        labels: pod.labels.clone().into_iter().collect(),
        problem: None,
    }
}

fn app(
    namespace: &str,
    pod: &v1::PodSandbox,
    container: v1::Container,
    images: &HashMap<String, String>,
) -> Container {
    let pod = pod.metadata.clone().unwrap_or_default();
    let metadata = container.metadata.clone().unwrap_or_default();
    let pod_id = format!("{}/{}", pod.namespace, pod.name);
    let image = images.get(&container.image_ref).unwrap_or(&container.image_ref).clone();
    Container {
        namespace: namespace.to_owned(),
        id: format!("{pod_id}:{}", metadata.name),
        name: metadata.name,
        pod_id,
        kind: Kind::App,
        image,
        pid: None,
        status: match container.state() {
            v1::ContainerState::ContainerCreated => Status::ContainerCreated,
            v1::ContainerState::ContainerRunning => Status::ContainerRunning,
            v1::ContainerState::ContainerExited => Status::ContainerExited,
            v1::ContainerState::ContainerUnknown => Status::ContainerUnknown,
        },
        exit: None,
        last_exit: None,
        created: time(container.created_at),
        restarts: metadata.attempt,
        supervised: true,
        uid: pod.uid,
        network_namespace: None,
        labels: container.labels.into_iter().collect(),
        problem: None,
        runtime_id: container.id,
    }
}

fn time(nanoseconds: i64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(nanoseconds.into()).ok().filter(|_| nanoseconds > 0)
}

pub(super) fn exit(status: &v1::ContainerStatus) -> Exit {
    let ended = status.finished_at > 0;
    Exit {
        code: ended.then_some(status.exit_code),
        at: time(status.finished_at),
        out_of_memory: ended && status.reason == "OOMKilled",
    }
}

/// The first name of every image, by its id and by its digests.
async fn names(connection: &Connection) -> Result<HashMap<String, String>> {
    let mut names = HashMap::new();
    for image in image_list(connection).await? {
        let Some(tag) = image.repo_tags.first() else { continue };
        for reference in image.repo_digests.iter().chain([&image.id]) {
            names.insert(reference.clone(), tag.clone());
        }
    }
    Ok(names)
}

async fn image_list(connection: &Connection) -> Result<Vec<v1::Image>> {
    let request = v1::ListImagesRequest::default();
    let answer: v1::ListImagesResponse =
        connection.call("ListImages", request, REPLY_TIMEOUT).await?;
    Ok(answer.images)
}

pub(super) async fn images(connection: &Connection) -> Result<Vec<Image>> {
    let mut images: Vec<Image> = image_list(connection)
        .await?
        .into_iter()
        .flat_map(|image| {
            let tags = if image.repo_tags.is_empty() {
                vec![image.id.clone()]
            } else {
                image.repo_tags.clone()
            };
            tags.into_iter().map(move |name| Image {
                name,
                digest: image.id.clone(),
                size: image.size,
                created: None,
            })
        })
        .collect();
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(images)
}

pub(super) fn event(event: &v1::ContainerEventResponse) -> Event {
    let kind = match event.container_event_type() {
        v1::ContainerEventType::ContainerCreatedEvent => EventKind::Created,
        v1::ContainerEventType::ContainerStartedEvent => EventKind::Started { pid: 0 },
        v1::ContainerEventType::ContainerStoppedEvent => EventKind::Exited { code: None },
        v1::ContainerEventType::ContainerDeletedEvent => EventKind::Deleted,
    };
    let runtime_id = event.container_id.clone();
    Event { namespace: select::KUBERNETES.to_owned(), runtime_id, kind }
}
