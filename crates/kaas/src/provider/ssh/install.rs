//! Installation of the agent on a machine, in the background: copying the
//! program takes longer than anybody who asks may wait.

use std::{collections::HashMap, io, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use selvage_kit::identity::Secret;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::OnceCell,
    task::JoinHandle,
    time::Instant,
};

use super::{
    Error, Observed, OperationId, State,
    options::Target,
    remote::{File, Probe, Remote, UNUSABLE_PROGRAM},
    session::Failure,
};
use crate::{members::artifacts::digest_of, provider::enrolment::Enrolment};

const SUPERVISOR: &str = include_str!("supervise.sh");
const UNIT: &str = include_str!("node.service");
/// Lifetime of a join token: it is used as soon as the agent starts.
const TOKEN_SECONDS: u32 = 15 * 60;
/// Timeout of an agent that was started; after it the installation is repeated.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
/// Control group of agents that have no other in their settings.
const CGROUP: &str = "/selvage-kaas";

/// Installs this program on machines as their agent.
pub(super) struct Installer {
    program: PathBuf,
    sha256: OnceCell<String>,
    /// `host:port` where agents reach this controller.
    controller: String,
    enrolment: Arc<Enrolment>,
}

/// An agent that is to be on a machine.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) target: Target,
    /// Name of this store on machines.
    pub(super) controller: String,
    pub(super) operation: String,
    /// Name that the agent joins by, without `node/`.
    pub(super) agent: String,
    pub(super) instance_type: String,
}

impl Installer {
    pub(super) fn new(program: PathBuf, controller: String, enrolment: Arc<Enrolment>) -> Self {
        Self { program, sha256: OnceCell::new(), controller, enrolment }
    }

    /// Takes a machine from wherever it is to an agent that runs.
    async fn install(&self, order: &Order, report: &Report) -> Result<(), Error> {
        report.say("connecting to the machine");
        let remote = Remote::connect(&order.target, &order.controller, &order.operation).await?;
        let gone = || Error::Refused("the machine is set aside for another operation".into());
        let probe = remote.probe().await?.ok_or_else(gone)?;
        self.put_program(&remote, &probe, report).await?;
        if probe.joined {
            report.say("starting its agent");
            remote.start().await?;
        } else {
            report.say("configuring its agent");
            let directory = &order.target.directory;
            let unit = UNIT.replace("DIRECTORY", directory);
            let token = self.enrolment.join_token(&order.agent, TOKEN_SECONDS).await?;
            for (file, content) in [
                (File::Supervisor, Secret::new(SUPERVISOR)),
                (File::Unit, Secret::new(unit)),
                (File::Config, Secret::new(self.config(order))),
                (File::JoinToken, token),
            ] {
                remote.put(file, &content).await?;
            }
            remote.restart().await?;
        }
        remote.close().await;
        Ok(())
    }

    async fn put_program(
        &self,
        remote: &Remote,
        probe: &Probe,
        report: &Report,
    ) -> Result<(), Error> {
        let own = std::env::consts::ARCH;
        if probe.architecture != own {
            return Err(Error::Refused(format!(
                "the machine is {}, and this program is for {own}",
                probe.architecture
            )));
        }
        let failed = |error: io::Error| Error::Unavailable(format!("the program: {error}"));
        let sha256 = self.sha256.get_or_try_init(|| digest_of(&self.program)).await;
        let sha256 = sha256.map_err(failed)?;
        if probe.sha256 == *sha256 {
            return Ok(());
        }
        let file = tokio::fs::File::open(&self.program).await.map_err(failed)?;
        let total = file.metadata().await.map_err(failed)?.len();
        let counted = Counted { file, done: 0, total, report: report.clone() };
        Ok(remote.put_program(sha256, counted).await?)
    }

    /// Configuration of the agent: what the inventory says of it, and how it
    /// joins.
    fn config(&self, order: &Order) -> String {
        let directory = &order.target.directory;
        let mut config = order.target.agent.clone();
        config.insert("data".into(), format!("{directory}/data").into());
        change_section(&mut config, "listen", |listen| {
            listen.entry("address").or_insert_with(|| "0.0.0.0".into());
        });
        change_section(&mut config, "node", |node| {
            node.insert("kubernetes".into(), true.into());
            node.entry("cgroup").or_insert_with(|| CGROUP.into());
        });
        change_section(&mut config, "join", |join| {
            join.insert("controller".into(), self.controller.clone().into());
            join.insert("token_file".into(), format!("{directory}/join-token").into());
            change_section(join, "labels", |labels| {
                labels.insert("instance-type".into(), order.instance_type.clone().into());
            });
        });
        config.to_string()
    }
}

/// Control group of a machine's agent.
pub(super) fn cgroup(target: &Target) -> &str {
    let node = target.agent.get("node").and_then(toml::Value::as_table);
    node.and_then(|node| node.get("cgroup")?.as_str()).unwrap_or(CGROUP)
}

/// Changes a section of a configuration; anything else of that name is replaced.
fn change_section(config: &mut toml::Table, name: &str, change: impl FnOnce(&mut toml::Table)) {
    let mut section = match config.remove(name) {
        Some(toml::Value::Table(section)) => section,
        _ => toml::Table::new(),
    };
    change(&mut section);
    config.insert(name.to_owned(), section.into());
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Exit { code: UNUSABLE_PROGRAM, text } => Self::Refused(text),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

/// Progress of an installation.
#[derive(Clone, Default)]
struct Report(Arc<Mutex<String>>);

impl Report {
    fn say(&self, text: impl Into<String>) {
        *self.0.lock() = text.into();
    }
}

/// The program as it is copied.
struct Counted {
    file: tokio::fs::File,
    done: u64,
    total: u64,
    report: Report,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = std::pin::Pin::new(&mut self.file).poll_read(context, buffer);
        self.done += (buffer.filled().len() - before) as u64;
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        let (done, total) = (megabytes(self.done), megabytes(self.total));
        self.report.say(format!("copying the program, {done} of {total} MB"));
        polled
    }
}

/// An installation that was begun.
struct Installation {
    report: Report,
    task: JoinHandle<Result<(), Error>>,
    /// When it was first seen that the agent had been started.
    started: Option<Instant>,
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Installations of this process. Those of a process that ended are repeated:
/// each step finds what was done.
#[derive(Default)]
pub(super) struct Installations(Mutex<HashMap<String, Installation>>);

impl Installations {
    /// Begins an installation unless it was, and tells how far it is.
    pub(super) async fn advance(
        &self,
        installer: &Arc<Installer>,
        order: Order,
    ) -> Result<Observed, Error> {
        let operation = order.operation.clone();
        let ended = {
            let mut running = self.0.lock();
            let one = running.entry(operation.clone()).or_insert_with(|| begin(installer, order));
            if !one.task.is_finished() {
                return Ok(deploying(one.report.0.lock().clone()));
            }
            if let Some(started) = one.started {
                if started.elapsed() > JOIN_TIMEOUT {
                    running.remove(&operation);
                }
                return Ok(deploying("its agent was started and has not joined yet".into()));
            }
            running.remove(&operation)
        };
        let Some(mut ended) = ended else { return Ok(deploying(String::new())) };
        match (&mut ended.task).await {
            Ok(Ok(())) => {
                ended.started = Some(Instant::now());
                self.0.lock().insert(operation, ended);
                Ok(deploying("its agent was started".into()))
            }
            Ok(Err(Error::Refused(text))) => {
                let detail = text.clone();
                Ok(Observed { state: State::Failed(text), detail })
            }
            Ok(Err(error)) => Err(error),
            Err(error) => Err(Error::Unavailable(error.to_string())),
        }
    }

    /// Ends an installation.
    pub(super) async fn cancel(&self, operation: &OperationId) {
        let found = self.0.lock().remove(&operation.0);
        if let Some(mut found) = found {
            found.task.abort();
            if found.started.is_none() {
                // Cancelled or done, both will do.
                let _ = (&mut found.task).await;
            }
        }
    }

    pub(super) fn forget(&self, operation: &OperationId) {
        self.0.lock().remove(&operation.0);
    }
}

fn begin(installer: &Arc<Installer>, order: Order) -> Installation {
    let (installer, report) = (Arc::clone(installer), Report::default());
    let said = report.clone();
    let task = tokio::spawn(async move { installer.install(&order, &said).await });
    Installation { report, task, started: None }
}

fn deploying(detail: String) -> Observed {
    Observed { state: State::Deploying, detail }
}
