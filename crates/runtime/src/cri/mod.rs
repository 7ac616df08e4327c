//! Any Kubernetes runtime, over the container runtime interface.
//!
//! Version 1 is spoken, and its forerunner v1alpha2 where there is no other:
//! their messages are the same on the wire. Pods and containers are listed
//! with three calls; a container's pid, which never changes here, is asked
//! for once.
//!
//! Limits of the interface: it sends no signals (we do, to the pid), it
//! starts nothing again (whoever made the pod does), and it makes containers
//! only in pods, which is a kubelet's work and not ours.

mod connection;
mod describe;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use k8s_cri::v1;
use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;

use crate::{
    Container, ContainerSpec, Error, Event, EventKind, Exec, ExecOutput, ExecSpec, Exit, Image,
    Kind, LogOptions, LogStream, Pull, REPLY_TIMEOUT, Restart, Restarted, Result, Runtime,
    identity, logs, select,
};
use connection::Connection;
use describe::Pids;

/// Time that a container may take after its grace to be reported as ended, and
/// its supervisor to start another.
const MARGIN: Duration = Duration::from_secs(10);
const EXEC: Duration = Duration::from_secs(600);
const PULLING: Duration = Duration::from_secs(1800);
/// A runtime that has no events says so at once; one that has says nothing
/// until there is one.
const NO_EVENTS: Duration = Duration::from_millis(500);

/// A runtime that speaks CRI.
pub struct Cri {
    connection: Connection,
    pids: Pids,
}

impl Cri {
    /// Connects when it is first used. Must be called inside a tokio runtime.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { connection: Connection::new(socket.into()), pids: Pids::default() }
    }

    async fn found(&self, namespace: &str, id: &str) -> Result<Container> {
        identity::find(self.list(namespace).await?, id)
    }

    async fn halt(&self, container: &Container, grace: Duration) -> Result<()> {
        let id = container.runtime_id.clone();
        let timeout = grace + MARGIN;
        if container.kind == Kind::Sandbox {
            let request = v1::StopPodSandboxRequest { pod_sandbox_id: id };
            let _: v1::StopPodSandboxResponse =
                self.connection.call("StopPodSandbox", request, timeout).await?;
        } else {
            let seconds = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
            let request = v1::StopContainerRequest { container_id: id, timeout: seconds };
            let _: v1::StopContainerResponse =
                self.connection.call("StopContainer", request, timeout).await?;
        }
        Ok(())
    }

    /// Waits for another by the same name that runs.
    async fn came_back(&self, old: &Container, timeout: Duration) -> Result<u32> {
        const LOOK_AGAIN: Duration = Duration::from_millis(200);
        let looking = async {
            loop {
                let new = self.list(&old.namespace).await?.into_iter().find(|new| {
                    new.id == old.id && new.status.is_running() && new.runtime_id != old.runtime_id
                });
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

    fn unsupported<T>(what: &'static str) -> Result<T> {
        Err(Error::Unsupported { runtime: "cri", what })
    }
}

fn check(namespace: &str) -> Result<()> {
    if namespace == select::KUBERNETES { Ok(()) } else { Err(Error::NotKubernetes) }
}

#[async_trait]
impl Runtime for Cri {
    fn name(&self) -> &'static str {
        "cri"
    }

    async fn version(&self) -> Result<String> {
        let answer: v1::VersionResponse =
            self.connection.call("Version", v1::VersionRequest::default(), REPLY_TIMEOUT).await?;
        Ok(format!("{} {}", answer.runtime_name, answer.runtime_version))
    }

    async fn namespaces(&self) -> Result<Vec<String>> {
        Ok(vec![select::KUBERNETES.to_owned()])
    }

    async fn list(&self, namespace: &str) -> Result<Vec<Container>> {
        check(namespace)?;
        describe::list(&self.connection, &self.pids, namespace).await
    }

    async fn signal(&self, namespace: &str, id: &str, signal: i32) -> Result<()> {
        let signal = Signal::from_named_raw(signal)
            .ok_or_else(|| Error::invalid("signal", "must be from 1 to 31"))?;
        let pid = self.found(namespace, id).await?.pid.ok_or(Error::ProcessFinished)?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::ProcessFinished)?;
        rustix::process::kill_process(pid, signal).map_err(|_| Error::ProcessFinished)
    }

    async fn restart(&self, namespace: &str, id: &str, how: Restart) -> Result<Restarted> {
        let container = self.found(namespace, id).await?;
        let grace = match how {
            Restart::SignalOnly(_) => crate::GRACE,
            Restart::Full { grace } => grace,
        };
        self.halt(&container, grace).await?;
        let new_pid = match how {
            Restart::SignalOnly(_) => None,
            Restart::Full { .. } => Some(self.came_back(&container, grace + MARGIN).await?),
        };
        Ok(Restarted { old_pid: container.pid, new_pid })
    }

    async fn logs(&self, namespace: &str, id: &str, options: LogOptions) -> Result<LogStream> {
        let container = self.found(namespace, id).await?;
        if container.kind == Kind::Sandbox {
            return Err(Error::NoLog);
        }
        let status = describe::container_status(&self.connection, &container.runtime_id).await?;
        let path = status.status.map(|status| status.log_path).filter(|path| !path.is_empty());
        logs::follow_file(path.ok_or(Error::NoLog)?.into(), options).await
    }

    async fn exec(&self, namespace: &str, id: &str, spec: ExecSpec) -> Result<Exec> {
        crate::spec::check_argv(&spec.argv)?;
        if spec.tty.is_some() || spec.stdin || !spec.env.is_empty() || spec.cwd.is_some() {
            return Self::unsupported("exec with input, a terminal, variables or a directory");
        }
        let container = self.found(namespace, id).await?;
        if container.kind == Kind::Sandbox || container.pid.is_none() {
            return Err(Error::ProcessFinished);
        }
        let request =
            v1::ExecSyncRequest { container_id: container.runtime_id, cmd: spec.argv, timeout: 0 };
        let answer: v1::ExecSyncResponse = self.connection.call("ExecSync", request, EXEC).await?;
        let (input, _) = mpsc::channel(1);
        let (outputs, output) = mpsc::channel(3);
        // There is room for all three.
        let _ = outputs.try_send(ExecOutput::Stdout(Bytes::from(answer.stdout)));
        let _ = outputs.try_send(ExecOutput::Stderr(Bytes::from(answer.stderr)));
        let _ = outputs.try_send(ExecOutput::Exited(answer.exit_code));
        Ok(Exec { input, output })
    }

    async fn events(&self) -> Result<BoxStream<'static, Event>> {
        let starting = self.connection.stream::<_, v1::ContainerEventResponse>(
            "GetContainerEvents",
            v1::GetEventsRequest::default(),
        );
        let mut starting = Box::pin(starting);
        let started = match tokio::time::timeout(NO_EVENTS, &mut starting).await {
            Ok(Err(Error::Unsupported { .. })) => return Self::unsupported("events"),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(stream)) => futures::future::Either::Left(std::future::ready(Ok(stream))),
            Err(_) => futures::future::Either::Right(starting),
        };
        let (sender, receiver) = mpsc::channel(256);
        let pump = async move {
            let Ok(mut stream) = started.await else { return };
            while let Some(Ok(event)) = stream.next().await {
                if sender.send(describe::event(&event)).await.is_err() {
                    return;
                }
            }
            let lost = Event {
                namespace: String::new(),
                runtime_id: String::new(),
                kind: EventKind::Lost,
            };
            let _ = sender.send(lost).await;
        };
        tokio::spawn(pump);
        Ok(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver)))
    }

    async fn images(&self, namespace: &str) -> Result<Vec<Image>> {
        check(namespace)?;
        describe::images(&self.connection).await
    }

    async fn pull(&self, namespace: &str, pull: Pull) -> Result<Image> {
        check(namespace)?;
        let auth = pull.credentials.map(|own| v1::AuthConfig {
            username: own.user,
            password: own.password.as_str().to_owned(),
            ..Default::default()
        });
        let image = v1::ImageSpec { image: pull.reference.clone(), ..Default::default() };
        let request = v1::PullImageRequest { image: Some(image), auth, sandbox_config: None };
        let answer: v1::PullImageResponse =
            self.connection.call("PullImage", request, PULLING).await?;
        let images = describe::images(&self.connection).await?;
        let found = images
            .into_iter()
            .find(|image| image.name == pull.reference || image.digest == answer.image_ref);
        found.ok_or(Error::ImageNotFound { name: pull.reference })
    }

    async fn import(&self, _: &str, _: &Path, _: Option<&str>) -> Result<Vec<Image>> {
        Self::unsupported("importing images")
    }

    async fn remove_image(&self, namespace: &str, name: &str) -> Result<()> {
        check(namespace)?;
        if !describe::images(&self.connection).await?.iter().any(|image| image.name == name) {
            return Err(Error::ImageNotFound { name: name.to_owned() });
        }
        let image = v1::ImageSpec { image: name.to_owned(), ..Default::default() };
        let request = v1::RemoveImageRequest { image: Some(image) };
        let _: v1::RemoveImageResponse =
            self.connection.call("RemoveImage", request, MARGIN).await?;
        Ok(())
    }

    async fn create(&self, _: &str, _: ContainerSpec) -> Result<Container> {
        Self::unsupported("making containers")
    }

    async fn start(&self, _: &str, _: &str) -> Result<Container> {
        Self::unsupported("starting containers")
    }

    async fn stop(&self, namespace: &str, id: &str, grace: Duration) -> Result<Exit> {
        let container = self.found(namespace, id).await?;
        self.halt(&container, grace).await?;
        if container.kind == Kind::Sandbox {
            return Ok(Exit::default());
        }
        let status = describe::container_status(&self.connection, &container.runtime_id).await?;
        Ok(describe::exit(&status.status.unwrap_or_default()))
    }

    async fn delete(&self, namespace: &str, id: &str, force: bool) -> Result<()> {
        let container = self.found(namespace, id).await?;
        if container.status.is_running() {
            if !force {
                return Err(Error::state(format!("container {id:?} runs: stop it first")));
            }
            self.halt(&container, Duration::ZERO).await?;
        }
        if container.kind == Kind::Sandbox {
            let request = v1::RemovePodSandboxRequest { pod_sandbox_id: container.runtime_id };
            let _: v1::RemovePodSandboxResponse =
                self.connection.call("RemovePodSandbox", request, MARGIN).await?;
        } else {
            let request = v1::RemoveContainerRequest { container_id: container.runtime_id };
            let _: v1::RemoveContainerResponse =
                self.connection.call("RemoveContainer", request, MARGIN).await?;
        }
        Ok(())
    }
}
