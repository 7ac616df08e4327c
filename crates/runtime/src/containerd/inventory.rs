//! Inventory of containerd, read with three calls and kept while it is true.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use containerd_client::{
    services::v1::{
        Container as Record, ListContainersRequest, ListImagesRequest, ListTasksRequest,
        containers_client::ContainersClient, images_client::ImagesClient,
        tasks_client::TasksClient,
    },
    types::v1::{Process, Status as TaskStatus},
};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;

use super::{Inner, connection::within, sorted};
use crate::{
    Container, Exit, REPLY_TIMEOUT, Result, Status,
    identity::{self, Names},
};

/// containerd restarts what carries this.
const RESTART_LABEL: &str = "containerd.io/restart.status";
const LOG_DIRECTORY: &str = "io.kubernetes.cri.sandbox-log-directory";
const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";

/// Extension in which the part of containerd that serves Kubernetes keeps what
/// it was told of a container. Of that only some is in the specification.
const KUBERNETES_RECORD: &str = "io.cri-containerd.container.metadata";

/// A container, and what only this runtime needs to know of it.
#[derive(Debug, Clone)]
pub(super) struct KnownContainer {
    pub(super) container: Container,
    /// Of a sandbox: where logs of its containers are.
    pub(super) log_directory: Option<PathBuf>,
    /// Of a container in a pod: its log, where it is known.
    pub(super) log_file: Option<PathBuf>,
    pub(super) sandbox_id: Option<String>,
    pub(super) process: Process,
}

/// Namespaces that are remembered; beyond it somebody is making them up.
const MOST_NAMESPACES: usize = 64;

#[derive(Default)]
pub(super) struct Inventory {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Grows with every change; a namespace that did not change since it was
    /// read is as it was read.
    clock: u64,
    everything_changed: u64,
    changed: HashMap<String, u64>,
    read: HashMap<String, Slot>,
}

struct Slot {
    at: u64,
    containers: Arc<Vec<KnownContainer>>,
}

impl Inventory {
    pub(super) fn changed(&self, namespace: &str) {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        state.changed.insert(namespace.to_owned(), clock);
    }

    pub(super) fn all_changed(&self) {
        let mut state = self.state.lock();
        state.clock += 1;
        state.everything_changed = state.clock;
        state.changed.clear();
    }

    fn clock(&self) -> u64 {
        self.state.lock().clock
    }

    fn current(&self, namespace: &str) -> Option<Arc<Vec<KnownContainer>>> {
        let state = self.state.lock();
        let slot = state.read.get(namespace)?;
        let changed = state.changed.get(namespace).copied().unwrap_or(0);
        (slot.at >= changed.max(state.everything_changed)).then(|| slot.containers.clone())
    }

    fn keep(&self, namespace: &str, at: u64, containers: Arc<Vec<KnownContainer>>) {
        let mut state = self.state.lock();
        if state.read.len() >= MOST_NAMESPACES && !state.read.contains_key(namespace) {
            state.read.clear();
        }
        state.read.insert(namespace.to_owned(), Slot { at, containers });
    }
}

impl Inner {
    /// Containers of a namespace, sorted.
    pub(super) async fn list(&self, namespace: &str) -> Result<Arc<Vec<KnownContainer>>> {
        if self.hub.is_live()
            && let Some(known) = self.inventory.current(namespace)
        {
            return Ok(known);
        }
        // Read before the calls: a change amid them makes the answer old.
        let at = self.inventory.clock();
        let known = Arc::new(self.read(namespace).await?);
        self.inventory.keep(namespace, at, known.clone());
        Ok(known)
    }

    async fn read(&self, namespace: &str) -> Result<Vec<KnownContainer>> {
        let mut containers = ContainersClient::new(self.connection.channel())
            .max_decoding_message_size(LARGEST_ANSWER);
        let mut tasks =
            TasksClient::new(self.connection.channel()).max_decoding_message_size(LARGEST_ANSWER);
        let records = within(namespace, ListContainersRequest::default())?;
        let processes = within(namespace, ListTasksRequest::default())?;
        let (records, processes, images) = tokio::try_join!(
            self.connection.ask(REPLY_TIMEOUT, containers.list(records)),
            self.connection.ask(REPLY_TIMEOUT, tasks.list(processes)),
            self.tags(namespace),
        )?;
        let processes: HashMap<String, Process> = processes
            .into_inner()
            .tasks
            .into_iter()
            .map(|process| {
                let id = if process.container_id.is_empty() {
                    process.id.clone()
                } else {
                    process.container_id.clone()
                };
                (id, process)
            })
            .collect();
        let mut known: Vec<KnownContainer> = records
            .into_inner()
            .containers
            .into_iter()
            .filter_map(|record| {
                let process = processes.get(&record.id)?;
                Some(describe(namespace, record, process.clone(), &images))
            })
            .collect();
        known.sort_by(|a, b| {
            (&a.container.id, &a.container.runtime_id)
                .cmp(&(&b.container.id, &b.container.runtime_id))
        });
        Ok(known)
    }

    async fn tags(&self, namespace: &str) -> Result<Tags> {
        let mut images =
            ImagesClient::new(self.connection.channel()).max_decoding_message_size(LARGEST_ANSWER);
        let request = within(namespace, ListImagesRequest::default())?;
        let answer = self.connection.ask(REPLY_TIMEOUT, images.list(request)).await?.into_inner();
        let pairs = answer.images.into_iter().map(|image| {
            (image.name, image.target.map(|target| target.digest).unwrap_or_default())
        });
        Ok(Tags { digests: pairs.collect() })
    }
}

/// As large as the service that answers will make it.
pub(super) const LARGEST_ANSWER: usize = 16 << 20;

/// Names of images and what they stand for.
struct Tags {
    digests: BTreeMap<String, String>,
}

impl Tags {
    /// Name and digest to show for an image that a container names.
    fn shown(&self, image: &str) -> (String, Option<String>) {
        let Some(digest) = self.digests.get(image) else {
            let problem = (!image.is_empty()).then(|| format!("image {image:?} not found"));
            return (image.to_owned(), problem);
        };
        if !image.starts_with("sha256:") {
            return (image.to_owned(), None);
        }
        let tag = self
            .digests
            .iter()
            .find(|(name, target)| *target == digest && !name.starts_with("sha256:"));
        (tag.map_or(digest, |(name, _)| name).clone(), None)
    }
}

/// Fields that we read of a container's specification.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Specification {
    annotations: Option<BTreeMap<String, String>>,
    linux: Option<Linux>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Option<Vec<LinuxNamespace>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LinuxNamespace {
    r#type: String,
    path: Option<PathBuf>,
}

/// Fields that we read of what Kubernetes asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Kubernetes {
    log_path: Option<PathBuf>,
    config: KubernetesConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KubernetesConfig {
    metadata: KubernetesMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KubernetesMetadata {
    attempt: u32,
}

impl Kubernetes {
    /// Nothing where there is none, or another than is known.
    fn of(record: &Record) -> Self {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Versioned {
            metadata: Kubernetes,
        }
        let kept = record.extensions.get(KUBERNETES_RECORD);
        let kept = kept.and_then(|any| serde_json::from_slice::<Versioned>(&any.value).ok());
        kept.map(|kept| kept.metadata).unwrap_or_default()
    }
}

fn describe(namespace: &str, record: Record, process: Process, tags: &Tags) -> KnownContainer {
    let spec = record.spec.as_ref().map_or(&b"{}"[..], |any| &any.value);
    let (spec, mut problem) = match serde_json::from_slice::<Specification>(spec) {
        Ok(spec) => (spec, None),
        Err(error) => {
            (Specification::default(), Some(format!("its specification is damaged: {error}")))
        }
    };
    let annotations = spec.annotations.unwrap_or_default();
    let kubernetes = Kubernetes::of(&record);
    let (image, image_problem) = tags.shown(&record.image);
    problem = problem.or(image_problem);
    let labels = sorted(record.labels);
    let Names { id, name, pod_id, kind } = Names::new(&record.id, &labels);
    let status = status(process.status());
    let network = spec.linux.and_then(|linux| linux.namespaces).unwrap_or_default();
    let container = Container {
        namespace: namespace.to_owned(),
        id,
        name,
        pod_id,
        runtime_id: record.id,
        kind,
        image,
        pid: Some(process.pid).filter(|pid| *pid > 0 && status != Status::Stopped),
        status,
        exit: (status == Status::Stopped).then(|| exit(&process)),
        last_exit: (status == Status::Stopped).then(|| exit(&process)),
        created: record.created_at.and_then(timestamp),
        restarts: annotations
            .get(RESTART_COUNT)
            .and_then(|count| count.parse().ok())
            .unwrap_or(kubernetes.config.metadata.attempt),
        supervised: labels.contains_key(identity::POD_NAME) || labels.contains_key(RESTART_LABEL),
        uid: labels.get(identity::POD_UID).cloned().unwrap_or_default(),
        network_namespace: network
            .into_iter()
            .find(|namespace| namespace.r#type == "network")
            .and_then(|namespace| namespace.path)
            .filter(|path| !path.as_os_str().is_empty()),
        labels,
        problem,
    };
    KnownContainer {
        container,
        log_directory: annotations.get(LOG_DIRECTORY).map(PathBuf::from),
        log_file: kubernetes.log_path.filter(|path| !path.as_os_str().is_empty()),
        sandbox_id: annotations.get(SANDBOX_ID).cloned(),
        process,
    }
}

fn status(status: TaskStatus) -> Status {
    match status {
        TaskStatus::Unknown => Status::Unknown,
        TaskStatus::Created => Status::Created,
        TaskStatus::Running => Status::Running,
        TaskStatus::Stopped => Status::Stopped,
        TaskStatus::Paused => Status::Paused,
        TaskStatus::Pausing => Status::Pausing,
    }
}

fn exit(process: &Process) -> Exit {
    Exit {
        code: i32::try_from(process.exit_status).ok(),
        at: process.exited_at.and_then(timestamp),
        ..Exit::default()
    }
}

pub(super) fn timestamp(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn tags() -> Tags {
        let pairs = [
            ("docker.io/library/busybox:1", "sha256:aa"),
            ("sha256:config", "sha256:aa"),
            ("sha256:lonely", "sha256:bb"),
        ];
        Tags { digests: pairs.map(|(n, d)| (n.to_owned(), d.to_owned())).into() }
    }

    #[test]
    fn images_are_shown_by_name_where_one_is_known() {
        assert_eq!(tags().shown("sha256:config").0, "docker.io/library/busybox:1");
        assert_eq!(tags().shown("sha256:lonely").0, "sha256:bb");
        assert_eq!(tags().shown("docker.io/library/busybox:1").1, None);
        let (name, problem) = tags().shown("gone:1");
        assert_eq!(
            (name.as_str(), problem.unwrap().as_str()),
            ("gone:1", "image \"gone:1\" not found")
        );
    }

    #[test]
    fn a_damaged_specification_keeps_the_row() {
        let any = prost_types::Any { type_url: String::new(), value: b"{".to_vec() };
        let record = Record { id: "c1".into(), spec: Some(any), ..Record::default() };
        let process = Process { pid: 7, status: TaskStatus::Running as i32, ..Process::default() };
        let known = describe("system", record, process, &tags());
        assert_eq!(known.container.pid, Some(7));
        assert!(known.container.problem.unwrap().starts_with("its specification is damaged"));
    }

    #[test]
    fn a_container_in_a_pod_is_as_kubernetes_asked_for_it() {
        let kept = br#"{"Version":"v1","Metadata":{"ID":"c1","LogPath":"/logs/app/3.log",
            "Config":{"metadata":{"name":"app","attempt":3},"log_path":"app/3.log"}}}"#;
        let known = |kept: &[u8]| {
            let any = prost_types::Any { type_url: String::new(), value: kept.to_vec() };
            let extensions = [(KUBERNETES_RECORD.to_owned(), any)].into();
            let record = Record { id: "c1".into(), extensions, ..Record::default() };
            describe("k8s.io", record, Process::default(), &tags())
        };
        let third = known(kept);
        assert_eq!(third.container.restarts, 3);
        assert_eq!(third.log_file, Some(PathBuf::from("/logs/app/3.log")));
        for other in [&b"{"[..], b"{}", br#"{"Metadata":{"LogPath":"","Config":{}}}"#] {
            let known = known(other);
            assert_eq!((known.container.restarts, known.log_file), (0, None));
        }
    }

    #[test]
    fn what_was_read_is_kept_until_it_changes() {
        let inventory = Inventory::default();
        assert!(inventory.current("a").is_none());
        inventory.keep("a", inventory.clock(), Arc::default());
        inventory.keep("b", inventory.clock(), Arc::default());
        inventory.changed("a");
        assert!(inventory.current("a").is_none());
        assert!(inventory.current("b").is_some());
        let before = inventory.clock();
        inventory.changed("b");
        inventory.keep("b", before, Arc::default());
        assert!(inventory.current("b").is_none(), "changed while it was read");
        inventory.all_changed();
        inventory.keep("b", inventory.clock(), Arc::default());
        assert!(inventory.current("b").is_some());
    }
}
