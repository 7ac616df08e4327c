//! News from the agents themselves: streams of the machine's numbers, its
//! processes and its kernel's log, and containers asked for in turn. Every
//! machine is looked after by tasks of its own, so that one that is dead holds
//! up nobody else.

use std::{sync::Arc, time::Duration};

use prost_types::Duration as Period;
use selvage_api::{
    Code,
    common::{ContainerDriver, Metadata},
    machine::LogsRequest,
    os::{ContainersRequest, DmesgRequest, RestartRequest, StatsRequest},
    selvage::node::{WatchHostRequest, WatchProcessesRequest},
};
use tokio::{
    sync::{Mutex, mpsc},
    task::{AbortHandle, JoinSet},
};
use tonic::Streaming;

use super::source::{Container, Effect, Report, Source};
use crate::{
    Error,
    client::Client,
    commands::node::{
        Nodes,
        fleet::{self, Fleet, fault, machine_client, node_client, os_client},
        lines::Slicer,
    },
    session::Session,
    target::Target,
};

/// Interval between attempts at a machine that does not answer.
const PAUSE: Duration = Duration::from_secs(2);
/// A machine that says nothing for so long, beyond what was agreed, is dead.
const SILENCE: Duration = Duration::from_secs(5);
/// Records of the kernel's log to begin with.
const RECORDS: u32 = 200;
/// Interval at which to ask again for what the agent does not have.
const SELDOM: Duration = Duration::from_secs(30);
/// Stands for all namespaces of containers.
const EVERYWHERE: &str = "*";

type News = mpsc::Sender<(usize, Report)>;

/// The machines by way of one server.
pub(crate) struct Live {
    news: mpsc::Receiver<(usize, Report)>,
    sender: News,
    machines: Vec<Arc<Machine>>,
    tasks: JoinSet<()>,
    /// The task that follows a log.
    log: Option<AbortHandle>,
}

/// State that all tasks of a machine share.
struct Machine {
    at: usize,
    nodes: Nodes,
    connector: Arc<Connector>,
    interval: Duration,
}

/// The connection, made again when it broke.
struct Connector {
    target: Target,
    timeout: Option<Duration>,
    open: Mutex<Option<Arc<Client>>>,
}

impl Live {
    /// Begins to look, and tells the machines' names.
    pub(crate) async fn start(
        nodes: Nodes,
        interval: Duration,
        session: &mut Session<'_>,
    ) -> Result<(Self, Vec<String>), Error> {
        let target = session.target()?;
        let client = Arc::new(session.connect(&target).await?);
        let timeout = session.global.timeout;
        let fleet = Fleet::new(client.clone(), &target, nodes.clone(), timeout)?;
        let names = fleet.resolved().await?.names();
        let connector = Arc::new(Connector { target, timeout, open: Mutex::new(Some(client)) });
        let Nodes { nodes: named, selector, labelled, node_timeout } = nodes;
        let asked: Vec<Nodes> = if named.is_empty() && selector.is_none() && labelled.is_none() {
            vec![Nodes { node_timeout, ..Nodes::default() }]
        } else {
            let one = |name: &String| Nodes {
                nodes: vec![name.clone()],
                node_timeout,
                ..Nodes::default()
            };
            names.iter().map(one).collect()
        };
        Ok((Self::watch(asked, &connector, interval), names))
    }

    fn watch(asked: Vec<Nodes>, connector: &Arc<Connector>, interval: Duration) -> Self {
        let (sender, news) = mpsc::channel(1024);
        let machine =
            |(at, nodes)| Arc::new(Machine { at, nodes, connector: connector.clone(), interval });
        let machines: Vec<Arc<Machine>> = asked.into_iter().enumerate().map(machine).collect();
        let mut tasks = JoinSet::new();
        for machine in &machines {
            tasks.spawn(forever(machine.clone(), sender.clone(), hosts));
            tasks.spawn(forever(machine.clone(), sender.clone(), processes));
            tasks.spawn(forever(machine.clone(), sender.clone(), containers));
            tasks.spawn(forever(machine.clone(), sender.clone(), kernel));
        }
        Self { news, sender, machines, tasks, log: None }
    }

    fn restart(&mut self, node: usize, request: RestartRequest) {
        let Some(machine) = self.machines.get(node).cloned() else { return };
        let sender = self.sender.clone();
        self.tasks.spawn(async move {
            let id = request.id.clone();
            let result = machine.restart(request).await.map_err(|failure| failure.text);
            // Nobody listens any more when the screen is gone.
            let _ = sender.send((machine.at, Report::Restarted { id, result })).await;
        });
    }

    fn close_log(&mut self) {
        if let Some(log) = self.log.take() {
            log.abort();
        }
    }
}

impl Source for Live {
    async fn next(&mut self) -> Option<(usize, Report)> {
        self.news.recv().await
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Restart { node, namespace, id, driver } => {
                self.restart(node, RestartRequest { namespace, id, driver, ..Default::default() });
            }
            Effect::End { node, namespace, id, driver } => {
                let signal_only = true;
                let request =
                    RestartRequest { namespace, id, driver, signal_only, ..Default::default() };
                self.restart(node, request);
            }
            Effect::FollowLog { node, namespace, id, driver } => {
                let request = LogsRequest { namespace, driver, id, follow: true };
                self.close_log();
                let Some(machine) = self.machines.get(node).cloned() else { return };
                self.log = Some(self.tasks.spawn(follow(machine, request, self.sender.clone())));
            }
            Effect::CloseLog => self.close_log(),
            // The screen's owner does it.
            Effect::Shell { .. } => {}
        }
    }
}

/// Why a task ended.
struct Failure {
    text: String,
    /// True if the machine is to blame: it does not answer, or refuses. If not,
    /// it only lacks something that others may have.
    dead: bool,
    /// True if the connection itself may have broken.
    broken: bool,
}

impl Failure {
    fn of(error: &Error) -> Self {
        let dead = !matches!(
            error.code(),
            Code::Unimplemented | Code::FailedPrecondition | Code::NotFound | Code::InvalidArgument
        );
        Self { text: error.to_string(), dead, broken: error.code() == Code::Unavailable }
    }

    fn dead(text: &str) -> Self {
        Self { text: text.to_owned(), dead: true, broken: false }
    }

    fn of_metadata(metadata: Option<&Metadata>) -> Option<Self> {
        let (code, words) = fleet::parse(fault(metadata)?);
        let error = Error::Status { code, message: words.to_owned(), hints: Vec::new() };
        Some(Self { broken: false, ..Self::of(&error) })
    }
}

impl Connector {
    async fn client(&self) -> Result<Arc<Client>, Error> {
        let mut open = self.open.lock().await;
        if let Some(client) = &*open {
            return Ok(client.clone());
        }
        let client = Arc::new(Client::connect(&self.target, self.timeout).await?);
        *open = Some(client.clone());
        Ok(client)
    }

    /// Forgets a connection that broke; another may be there already.
    async fn forget(&self, broken: &Arc<Client>) {
        let mut open = self.open.lock().await;
        if open.as_ref().is_some_and(|client| Arc::ptr_eq(client, broken)) {
            *open = None;
        }
    }
}

impl Machine {
    async fn fleet(&self) -> Result<Fleet, Failure> {
        let client = self.connector.client().await.map_err(|error| Failure::of(&error))?;
        Fleet::new(client, &self.connector.target, self.nodes.clone(), self.connector.timeout)
            .map_err(|error| Failure::of(&error))
    }

    fn period(&self) -> Option<Period> {
        let seconds = i64::try_from(self.interval.as_secs()).unwrap_or(1);
        Some(Period { seconds, nanos: 0 })
    }

    /// Waits for no longer than a machine takes that lives.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.interval + SILENCE, answer).await {
            Err(_) => Err(Failure::dead("it does not answer")),
            Ok(result) => result.map_err(|error| Failure::of(&error)),
        }
    }

    /// The next of a stream that speaks once an interval.
    async fn next<R>(&self, stream: &mut Streaming<R>, fleet: &Fleet) -> Result<R, Failure> {
        match tokio::time::timeout(self.interval + SILENCE, stream.message()).await {
            Err(_) => Err(Failure::dead("it fell silent")),
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err(Failure::dead("it ended the connection")),
            Ok(Err(status)) => Err(Failure::of(&fleet.client.refused(&status))),
        }
    }

    async fn restart(&self, request: RestartRequest) -> Result<String, Failure> {
        let fleet = self.fleet().await?;
        let done = if request.signal_only { "was told to end" } else { "is restarted" };
        let answers = fleet
            .ask(
                request,
                |channel, request| async move { os_client(channel).restart(request).await },
            )
            .await
            .map_err(|error| Failure::of(&error))?;
        match answers.reply.messages.first() {
            None => Ok(done.into()),
            Some(answer) => match Failure::of_metadata(answer.metadata.as_ref()) {
                Some(failure) => Err(failure),
                None if answer.new_pid == 0 => Ok(done.into()),
                None => {
                    Ok(format!("is restarted: pid {} is {} now", answer.old_pid, answer.new_pid))
                }
            },
        }
    }
}

/// Does the work again and again until nobody wants its news.
async fn forever<F>(
    machine: Arc<Machine>,
    news: News,
    work: impl Fn(Arc<Machine>, Fleet, News) -> F,
) where
    F: Future<Output = Result<(), Failure>>,
{
    while !news.is_closed() {
        let fleet = match machine.fleet().await {
            Ok(fleet) => fleet,
            Err(failure) => {
                let _ = news.send((machine.at, Report::Failed(failure.text))).await;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let client = fleet.client.clone();
        let Err(failure) = work(machine.clone(), fleet, news.clone()).await else { return };
        if failure.broken {
            machine.connector.forget(&client).await;
        }
        if failure.dead {
            let _ = news.send((machine.at, Report::Failed(failure.text))).await;
        }
        let soon = failure.dead || failure.broken;
        tokio::time::sleep(if soon { PAUSE } else { SELDOM }).await;
    }
}

/// Nothing to be said: whoever listened is gone.
fn gone<T>(_: T) -> Failure {
    Failure { text: String::new(), dead: false, broken: false }
}

async fn hosts(machine: Arc<Machine>, fleet: Fleet, news: News) -> Result<(), Failure> {
    let request = WatchHostRequest { period: machine.period() };
    let asked = fleet.stream(request, |channel, request| async move {
        node_client(channel).watch_host(request).await
    });
    let mut stream = machine.in_time(asked).await?;
    loop {
        let host = machine.next(&mut stream, &fleet).await?;
        if let Some(failure) = Failure::of_metadata(host.metadata.as_ref()) {
            return Err(failure);
        }
        news.send((machine.at, Report::Host(Box::new(host)))).await.map_err(gone)?;
    }
}

async fn processes(machine: Arc<Machine>, fleet: Fleet, news: News) -> Result<(), Failure> {
    let request = WatchProcessesRequest { period: machine.period() };
    let asked = fleet.stream(request, |channel, request| async move {
        node_client(channel).watch_processes(request).await
    });
    let mut stream = machine.in_time(asked).await?;
    let mut first = true;
    loop {
        let update = machine.next(&mut stream, &fleet).await?;
        if let Some(failure) = Failure::of_metadata(update.metadata.as_ref()) {
            return Err(failure);
        }
        let report = Report::Processes { first, update };
        news.send((machine.at, report)).await.map_err(gone)?;
        first = false;
    }
}

async fn containers(machine: Arc<Machine>, fleet: Fleet, news: News) -> Result<(), Failure> {
    loop {
        let report = match look(&fleet).await {
            Ok(found) => Report::Containers(found),
            // A machine without containers.
            Err(failure) if !failure.dead => Report::Containers(Vec::new()),
            // A runtime that is away is not the machine.
            Err(failure) => {
                let report = Report::NoContainers(failure.text.clone());
                news.send((machine.at, report)).await.map_err(gone)?;
                tokio::time::sleep(PAUSE).await;
                return Err(Failure { dead: false, ..failure });
            }
        };
        news.send((machine.at, report)).await.map_err(gone)?;
        tokio::time::sleep(machine.interval).await;
    }
}

/// Follows a log until whoever asked for it has seen enough.
async fn follow(machine: Arc<Machine>, request: LogsRequest, news: News) {
    let id = request.id.clone();
    let failed = match follow_lines(&machine, request, &news).await {
        Ok(()) => "-- the log ended --".to_owned(),
        Err(failure) => format!("-- {} --", failure.text),
    };
    let _ = news.send((machine.at, Report::Log { id, lines: vec![failed] })).await;
}

async fn follow_lines(machine: &Machine, request: LogsRequest, news: &News) -> Result<(), Failure> {
    let fleet = machine.fleet().await?;
    let id = request.id.clone();
    let asked = fleet.stream(request, |channel, request| async move {
        machine_client(channel).logs(request).await
    });
    let mut stream = machine.in_time(asked).await?;
    let mut slicer = Slicer::default();
    while let Some(data) =
        stream.message().await.map_err(|status| Failure::of(&fleet.client.refused(&status)))?
    {
        if let Some(failure) = Failure::of_metadata(data.metadata.as_ref()) {
            return Err(failure);
        }
        let lines = slicer.feed("", &data.bytes);
        let lines = lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        let report = Report::Log { id: id.clone(), lines };
        news.send((machine.at, report)).await.map_err(gone)?;
    }
    Ok(())
}

async fn look(fleet: &Fleet) -> Result<Vec<Container>, Failure> {
    let driver = ContainerDriver::Containerd.into();
    let request = ContainersRequest { namespace: EVERYWHERE.to_owned(), driver };
    let listed = fleet
        .ask(
            request,
            |channel, request| async move { os_client(channel).containers(request).await },
        )
        .await
        .map_err(|error| Failure::of(&error))?;
    let request = StatsRequest { namespace: EVERYWHERE.to_owned(), driver };
    let measured = fleet
        .ask(request, |channel, request| async move { os_client(channel).stats(request).await })
        .await
        .map_err(|error| Failure::of(&error))?;
    let mut all = Vec::new();
    // One runtime of several may be dead: the containers of the others count.
    let (failed, good): (Vec<_>, Vec<_>) = listed
        .reply
        .messages
        .into_iter()
        .partition(|answer| fault(answer.metadata.as_ref()).is_some());
    let failure = failed.first().and_then(|answer| Failure::of_metadata(answer.metadata.as_ref()));
    if let (Some(failure), true) = (failure, good.is_empty()) {
        return Err(failure);
    }
    for answer in good {
        all.extend(answer.containers.into_iter().map(|info| Container {
            info,
            driver,
            stat: None,
        }));
    }
    for stat in measured.reply.messages.into_iter().flat_map(|answer| answer.stats) {
        let same =
            |one: &&mut Container| one.info.id == stat.id && one.info.namespace == stat.namespace;
        if let Some(container) = all.iter_mut().find(same) {
            container.stat = Some(stat);
        }
    }
    all.sort_by(|a, b| (&a.info.namespace, &a.info.id).cmp(&(&b.info.namespace, &b.info.id)));
    Ok(all)
}

async fn kernel(machine: Arc<Machine>, fleet: Fleet, news: News) -> Result<(), Failure> {
    let request = DmesgRequest { follow: true, last: RECORDS, ..DmesgRequest::default() };
    let mut stream = fleet
        .stream(request, |channel, request| async move { os_client(channel).dmesg(request).await })
        .await
        .map_err(|error| Failure::of(&error))?;
    // The kernel may say nothing for days.
    while let Some(data) =
        stream.message().await.map_err(|status| Failure::of(&fleet.client.refused(&status)))?
    {
        if let Some(failure) = Failure::of_metadata(data.metadata.as_ref()) {
            // The log alone; the machine's numbers say whether it lives.
            return Err(Failure { dead: false, ..failure });
        }
        let record = String::from_utf8_lossy(&data.bytes).into_owned();
        news.send((machine.at, Report::Kernel(record))).await.map_err(gone)?;
    }
    Err(Failure::dead("it ended the log"))
}

#[cfg(test)]
mod tests;
