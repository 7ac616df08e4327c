//! Starting, ending and starting again.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use containerd_client::{
    services::v1::{
        Container as Record, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest,
        DeleteTaskRequest, GetContainerRequest, GetRequest, KillRequest, StartRequest,
        UpdateContainerRequest, WaitRequest,
        container::Runtime as RecordRuntime,
        containers_client::ContainersClient,
        snapshots::{
            MountsRequest, PrepareSnapshotRequest, RemoveSnapshotRequest,
            snapshots_client::SnapshotsClient,
        },
        tasks_client::TasksClient,
    },
    types::v1::{Process, Status as TaskStatus},
};
use futures::FutureExt;
use prost_types::Any;
use selvage_api::Code;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{
    Inner,
    connection::{is_collision, is_missing, refused, within},
    images::LEASE,
    inventory::timestamp,
};
use crate::{
    Container, ContainerSpec, Error, Exit, Kind, RestartPolicy, Restarted, Result, Users, cgroup,
    error::During, identity, image, logs::times, private_directory, spec,
};

/// Work that containerd does itself, where waiting 2 s would be impatient.
pub(super) const WORK: Duration = Duration::from_secs(20);

/// Time for which two who start the same container may be in each other's way.
const COLLISION: Duration = Duration::from_secs(5);
const TERM: i32 = 15;
const KILL: i32 = 9;

/// Time a killed process may take until the kernel lets go of it.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
const RUNTIME: &str = "io.containerd.runc.v2";

const RESTART_STATUS: &str = "containerd.io/restart.status";
const RESTART_POLICY: &str = "containerd.io/restart.policy";
const RESTART_LOG: &str = "containerd.io/restart.loguri";

impl Inner {
    pub(super) fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.connection.channel())
    }

    fn containers(&self) -> ContainersClient<Channel> {
        ContainersClient::new(self.connection.channel())
    }

    pub(super) fn snapshots(&self) -> SnapshotsClient<Channel> {
        SnapshotsClient::new(self.connection.channel())
    }

    pub(super) async fn kill(&self, namespace: &str, id: &str, signal: i32) -> Result<()> {
        self.kill_process(namespace, id, "", signal).await
    }

    pub(super) async fn kill_process(
        &self,
        namespace: &str,
        id: &str,
        exec_id: &str,
        signal: i32,
    ) -> Result<()> {
        let signal = u32::try_from(signal)
            .ok()
            .filter(|signal| (1..=64).contains(signal))
            .ok_or_else(|| Error::invalid("signal", "must be from 1 to 64"))?;
        let request = KillRequest {
            container_id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            signal,
            all: false,
        };
        let request = within(namespace, request)?;
        let answer = self.connection.ask(WORK, self.tasks().kill(request)).await;
        self.inventory.changed(namespace);
        match answer {
            Err(error) if is_missing(&error) => Err(Error::ProcessFinished),
            answer => answer.map(|_| ()),
        }
    }

    /// The task of a container, if it has one.
    async fn task(&self, namespace: &str, id: &str) -> Result<Option<Process>> {
        let request = GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        let request = within(namespace, request)?;
        match self.connection.ask(WORK, self.tasks().get(request)).await {
            Ok(answer) => Ok(answer.into_inner().process),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// TERM, then KILL; returns when the first process has ended.
    pub(super) async fn end(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit> {
        let request = WaitRequest { container_id: id.to_owned(), exec_id: String::new() };
        let mut tasks = self.tasks();
        let ended = tasks.wait(within(namespace, request)?).fuse();
        tokio::pin!(ended);
        for (signal, timeout) in [(TERM, grace), (KILL, KILL_TIMEOUT)] {
            match self.kill(namespace, id, signal).await {
                Ok(()) | Err(Error::ProcessFinished) => {}
                Err(error) => return Err(error),
            }
            if let Ok(answer) = tokio::time::timeout(timeout, &mut ended).await {
                self.inventory.changed(namespace);
                let answer = answer.map_err(|status| refused(&status))?.into_inner();
                return Ok(Exit {
                    code: i32::try_from(answer.exit_status).ok(),
                    at: answer.exited_at.and_then(timestamp),
                    ..Exit::default()
                });
            }
        }
        Err(Error::Timeout { what: "killing the container", after: KILL_TIMEOUT })
    }

    pub(super) async fn restart(
        &self,
        namespace: &str,
        container: &Container,
        grace: Duration,
    ) -> Result<Restarted> {
        let id = &container.runtime_id;
        let old_pid = container.pid;
        if container.supervised {
            if old_pid.is_some() {
                self.end(namespace, id, grace).await?;
            }
            let new_pid = self.came_back(namespace, container, grace + KILL_TIMEOUT).await?;
            return Ok(Restarted { old_pid, new_pid: Some(new_pid) });
        }
        if old_pid.is_some() {
            self.end(namespace, id, grace).await?;
        }
        let new_pid = self.start(namespace, id).await?;
        Ok(Restarted { old_pid, new_pid: Some(new_pid) })
    }

    /// Waits until whoever supervises the container has started it again. In
    /// a pod that is a new container by the same name.
    async fn came_back(&self, namespace: &str, old: &Container, timeout: Duration) -> Result<u32> {
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        let looking = async {
            loop {
                let known = self.list(namespace).await?;
                let new = known
                    .iter()
                    .map(|known| &known.container)
                    .find(|new| new.id == old.id && new.status.is_running() && new.pid != old.pid);
                if let Some(pid) = new.and_then(|new| new.pid) {
                    return Ok(pid);
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(timeout, looking).await.unwrap_or(Err(Error::Timeout {
            what: "waiting for the supervisor to start the container again",
            after: timeout,
        }))
    }

    /// Makes a task where there is none that could be started, and starts it.
    /// containerd starts a container that it looks after by itself when it
    /// ends. Whoever comes at the same moment is refused, and finds it running
    /// in the next.
    pub(super) async fn start(&self, namespace: &str, id: &str) -> Result<u32> {
        let until = Instant::now() + COLLISION;
        loop {
            match self.start_once(namespace, id).await {
                Err(error) if is_collision(&error) && Instant::now() < until => {
                    tokio::time::sleep(COLLISION / 50).await;
                    let task = self.task(namespace, id).await?;
                    if let Some(task) = task.filter(|task| task.status() == TaskStatus::Running) {
                        self.inventory.changed(namespace);
                        return Ok(task.pid);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    async fn start_once(&self, namespace: &str, id: &str) -> Result<u32> {
        let old = self.task(namespace, id).await?;
        let status = old.as_ref().map(Process::status);
        if matches!(status, Some(TaskStatus::Running | TaskStatus::Paused | TaskStatus::Pausing)) {
            return Err(Error::state(format!("container {id:?} runs already")));
        }
        let record = self.record(namespace, id).await?;
        if status != Some(TaskStatus::Created) {
            if old.is_some() {
                self.delete_task(namespace, id).await?;
            }
            let output = self.output(namespace, &record, old.as_ref());
            self.create_task(namespace, &record, output).await?;
        }
        let request = StartRequest { container_id: id.to_owned(), exec_id: String::new() };
        let request = within(namespace, request)?;
        let answer = self.connection.ask(WORK, self.tasks().start(request)).await?;
        if record.labels.contains_key(RESTART_STATUS) {
            self.supervise(namespace, record, "running").await?;
        }
        self.inventory.changed(namespace);
        Ok(answer.into_inner().pid)
    }

    /// File that the new task writes to: the one of the old task, if that is a
    /// file. Pipes have lost their reader with the old task.
    fn output(&self, namespace: &str, record: &Record, old: Option<&Process>) -> Output {
        if let Some(old) = old {
            let keep = |path: &String| {
                if path.starts_with("file://") || path.starts_with("binary://") {
                    path.clone()
                } else {
                    String::new()
                }
            };
            return Output { stdout: keep(&old.stdout), stderr: keep(&old.stderr) };
        }
        match record.labels.get(RESTART_LOG) {
            Some(log) => Output { stdout: log.clone(), stderr: log.clone() },
            None => {
                let log = log_uri(&self.log_file(namespace, &record.id));
                Output { stdout: log.clone(), stderr: log }
            }
        }
    }

    async fn create_task(&self, namespace: &str, record: &Record, output: Output) -> Result<()> {
        let mut rootfs = Vec::new();
        if !record.snapshot_key.is_empty() {
            let request = MountsRequest {
                snapshotter: record.snapshotter.clone(),
                key: record.snapshot_key.clone(),
            };
            let request = within(namespace, request)?;
            let answer = self.connection.ask(WORK, self.snapshots().mounts(request)).await?;
            rootfs = answer.into_inner().mounts;
        }
        let request = CreateTaskRequest {
            container_id: record.id.clone(),
            rootfs,
            stdout: output.stdout,
            stderr: output.stderr,
            ..CreateTaskRequest::default()
        };
        let request = within(namespace, request)?;
        self.connection.ask(WORK, self.tasks().create(request)).await?;
        Ok(())
    }

    async fn delete_task(&self, namespace: &str, id: &str) -> Result<()> {
        let request = within(namespace, DeleteTaskRequest { container_id: id.to_owned() })?;
        match self.connection.ask(WORK, self.tasks().delete(request)).await {
            Err(error) if !is_missing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    async fn record(&self, namespace: &str, id: &str) -> Result<Record> {
        let not_found = || Error::NotFound { id: id.to_owned() };
        let request = within(namespace, GetContainerRequest { id: id.to_owned() })?;
        match self.connection.ask(WORK, self.containers().get(request)).await {
            Ok(answer) => answer.into_inner().container.ok_or_else(not_found),
            Err(error) if is_missing(&error) => Err(not_found()),
            // An id that containerd would never have given out.
            Err(Error::Refused { code: Code::InvalidArgument, .. }) => Err(not_found()),
            Err(error) => Err(error),
        }
    }

    /// The runtime's id of a container, also of one that never had a task.
    pub(super) async fn record_id(&self, namespace: &str, id: &str) -> Result<String> {
        identity::check_namespace(namespace)?;
        let known = self.list(namespace).await?;
        let containers = known.iter().map(|known| known.container.clone()).collect();
        match identity::find(containers, id) {
            Ok(container) => Ok(container.runtime_id),
            Err(Error::NotFound { .. }) => Ok(self.record(namespace, id).await?.id),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create(&self, namespace: &str, spec: ContainerSpec) -> Result<Container> {
        if spec.users == Users::Own {
            let reason = "containers have users of their own only without containerd";
            return Err(Error::invalid("users", reason));
        }
        let resolved = self.resolve(namespace, &spec.image).await?;
        let config = &resolved.document.config;
        let place = spec::SpecPaths {
            rootfs: std::path::Path::new("rootfs"),
            cgroup: &match &spec.group {
                Some(group) => format!("{group}/{}", spec.id),
                None => format!("/{namespace}/{}", spec.id),
            },
            // Without the root file system only numbers mean something.
            user: spec::user(&config.user, "", "")?,
            unified: cgroup::Mounts::read().during("reading the mounts")?.is_unified(),
            seccomp: self.seccomp().await,
            users: None,
        };
        let document = spec::document(&spec, config, &place)?;
        let log = self.log_file(namespace, &spec.id);
        private_directory(&self.options.logs).during("making the directory of logs")?;
        if let Some(directory) = log.parent() {
            private_directory(directory).during("making the directory of logs")?;
        }
        times::begin(&log).during("making the log")?;
        let record = Record {
            id: spec.id.clone(),
            labels: labels(&spec, &log),
            image: spec.image.clone(),
            runtime: Some(RecordRuntime { name: RUNTIME.into(), options: None }),
            spec: Some(Any {
                type_url: SPEC_TYPE.into(),
                value: document.to_string().into_bytes(),
            }),
            snapshotter: self.options.snapshotter.clone(),
            snapshot_key: spec.id.clone(),
            ..Record::default()
        };
        let chain = image::chain_id(&resolved.document.rootfs.diff_ids).unwrap_or_default();
        // Until the record refers to it, nothing else keeps the snapshot.
        let lease = self.lease(namespace).await?;
        let made = self.prepare_and_make(namespace, &lease, &chain, record).await;
        self.give_back(namespace, &lease).await;
        made?;
        let known = self.list(namespace).await?;
        identity::find(known.iter().map(|known| known.container.clone()).collect(), &spec.id)
    }

    async fn prepare_and_make(
        &self,
        namespace: &str,
        lease: &str,
        parent: &str,
        record: Record,
    ) -> Result<()> {
        let id = record.id.clone();
        self.prepare(namespace, lease, &id, parent).await?;
        let made = self.make(namespace, record).await;
        if made.is_err() {
            // Whatever was made goes; what the caller hears is why.
            let _ = self.remove_record(namespace, &id).await;
            let _ = self.remove_snapshot(namespace, &self.options.snapshotter, &id).await;
        }
        made
    }

    async fn make(&self, namespace: &str, record: Record) -> Result<()> {
        let request = CreateContainerRequest { container: Some(record.clone()) };
        let request = within(namespace, request)?;
        self.connection.ask(WORK, self.containers().create(request)).await?;
        let output = self.output(namespace, &record, None);
        let made = self.create_task(namespace, &record, output).await;
        self.inventory.changed(namespace);
        made
    }

    async fn prepare(&self, namespace: &str, lease: &str, key: &str, parent: &str) -> Result<()> {
        let request = PrepareSnapshotRequest {
            snapshotter: self.options.snapshotter.clone(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            ..PrepareSnapshotRequest::default()
        };
        let mut request = within(namespace, request)?;
        if let Ok(lease) = lease.parse() {
            request.metadata_mut().insert(LEASE, lease);
        }
        match self.connection.ask(WORK, self.snapshots().prepare(request)).await {
            Ok(_) => Ok(()),
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => {
                Err(Error::Exists { id: key.to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn stop(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit> {
        let record = self.record(namespace, id).await?;
        // First of all, or the monitor would start it again.
        if record.labels.contains_key(RESTART_STATUS) {
            self.supervise(namespace, record, "stopped").await?;
        }
        self.end(namespace, id, grace).await
    }

    async fn supervise(&self, namespace: &str, mut record: Record, status: &str) -> Result<()> {
        record.labels.insert(RESTART_STATUS.into(), status.into());
        let mask = prost_types::FieldMask { paths: vec!["labels".into()] };
        let request = UpdateContainerRequest { container: Some(record), update_mask: Some(mask) };
        let request = within(namespace, request)?;
        self.connection.ask(WORK, self.containers().update(request)).await?;
        Ok(())
    }

    pub(super) async fn delete(&self, namespace: &str, id: &str, force: bool) -> Result<()> {
        let record = self.record(namespace, id).await?;
        let status = self.task(namespace, id).await?.map(|process| process.status());
        let lives =
            matches!(status, Some(TaskStatus::Running | TaskStatus::Paused | TaskStatus::Pausing));
        if lives && !force {
            return Err(Error::state(format!("container {id:?} runs: stop it first")));
        }
        if status.is_some_and(|status| status != TaskStatus::Stopped) {
            self.stop(namespace, id, Duration::ZERO).await?;
        }
        self.delete_task(namespace, id).await?;
        self.remove_record(namespace, id).await?;
        if !record.snapshot_key.is_empty() {
            self.remove_snapshot(namespace, &record.snapshotter, &record.snapshot_key).await?;
        }
        let log = self.log_file(namespace, id);
        let _ = tokio::fs::remove_file(&log).await;
        let _ = tokio::fs::remove_file(times::path(&log)).await;
        self.inventory.changed(namespace);
        Ok(())
    }

    async fn remove_record(&self, namespace: &str, id: &str) -> Result<()> {
        let request = within(namespace, DeleteContainerRequest { id: id.to_owned() })?;
        self.connection.ask(WORK, self.containers().delete(request)).await?;
        Ok(())
    }

    pub(super) async fn remove_snapshot(
        &self,
        namespace: &str,
        snapshotter: &str,
        key: &str,
    ) -> Result<()> {
        let request =
            RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.to_owned() };
        let request = within(namespace, request)?;
        match self.connection.ask(WORK, self.snapshots().remove(request)).await {
            Err(error) if !is_missing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn log_file(&self, namespace: &str, id: &str) -> PathBuf {
        self.options.logs.join(namespace).join(format!("{id}.log"))
    }

    /// Path of a container's log, if it is a file.
    pub(super) async fn log_path(&self, namespace: &str, container: &Container) -> Result<PathBuf> {
        let known = self.list(namespace).await?;
        let ours = known
            .iter()
            .find(|known| known.container.runtime_id == container.runtime_id)
            .ok_or_else(|| Error::NotFound { id: container.id.clone() })?;
        if container.kind == Kind::App {
            if let Some(file) = &ours.log_file {
                return Ok(file.clone());
            }
            let sandbox = known.iter().find(|other| {
                other.container.kind == Kind::Sandbox
                    && ours.sandbox_id.as_ref() == Some(&other.container.runtime_id)
            });
            let directory = sandbox.and_then(|sandbox| sandbox.log_directory.clone());
            let directory = directory.ok_or(Error::NoLog)?;
            let name = format!("{}.log", container.restarts);
            return Ok(directory.join(&container.name).join(name));
        }
        let plain = |uri: &String| uri.strip_prefix("file://").map(PathBuf::from);
        plain(&ours.process.stdout).or_else(|| plain(&ours.process.stderr)).ok_or(Error::NoLog)
    }
}

struct Output {
    stdout: String,
    stderr: String,
}

fn log_uri(path: &std::path::Path) -> String {
    format!("file://{}", path.display())
}

/// containerd's own monitor starts again what carries these.
fn labels(spec: &ContainerSpec, log: &std::path::Path) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> = spec.labels.clone().into_iter().collect();
    let policy = match spec.restart {
        RestartPolicy::Never => return labels,
        RestartPolicy::Always => "always".to_owned(),
        RestartPolicy::OnFailure { most: None } => "on-failure".to_owned(),
        RestartPolicy::OnFailure { most: Some(most) } => format!("on-failure:{most}"),
    };
    // Not "running" before it was started for the first time.
    labels.insert(RESTART_STATUS.into(), "stopped".into());
    labels.insert(RESTART_POLICY.into(), policy);
    labels.insert(RESTART_LOG.into(), log_uri(log));
    labels
}
