//! Asking many machines at once by way of one, and sorting their answers.

use std::{io::Write, sync::Arc, time::Duration};

use selvage_api::{Code, common::Metadata, machine, network, os, selvage::node, time};
use selvage_kit::labels::Selector;
use tonic::{Request, Response, Status, Streaming, metadata::MetadataValue, transport::Channel};

use super::args::Nodes;
use crate::{
    Error, Format, client::Client, endpoint::Endpoint, error::printable, io::Io, output,
    session::Session, target::Target,
};

/// A hundred machines with a thousand processes each are a fair question.
pub(crate) const LARGEST_ANSWER: usize = 256 << 20;
/// Time that a call waits beyond the timeout of each machine.
const GRACE: Duration = Duration::from_secs(20);
/// Timeout of each machine to say that it is there.
const ROLL_CALL: Duration = Duration::from_secs(2);

/// The machines a command is about, and the connection that leads to them.
pub(crate) struct Fleet {
    pub(crate) client: Arc<Client>,
    nodes: Vec<String>,
    node_timeout: Option<Duration>,
    timeout: Option<Duration>,
    /// Name of the machine that answers when none is named.
    here: String,
}

impl Fleet {
    pub(crate) async fn connect(nodes: Nodes, session: &mut Session<'_>) -> Result<Self, Error> {
        // Before anything is sent anywhere.
        chosen(nodes.clone())?;
        let target = session.target()?;
        let client = session.connect(&target).await?;
        let fleet = Self::new(Arc::new(client), &target, nodes, session.global.timeout)?;
        fleet.resolved().await
    }

    /// The same with the names of those whom `all` or labels stand for. Only
    /// the entry knows them: it tells when it is asked for something small.
    pub(crate) async fn resolved(mut self) -> Result<Self, Error> {
        if !self.nodes.iter().any(|name| stands_for_many(name)) {
            return Ok(self);
        }
        let each = self.node_timeout.unwrap_or(ROLL_CALL).min(ROLL_CALL);
        let asked = self.of(self.nodes.clone(), Some(each));
        let answers = asked
            .ask(
                (),
                |channel, request| async move { machine_client(channel).version(request).await },
            )
            .await?;
        let parts = answers.reply.messages.iter();
        self.nodes = names(parts.map(|part| asked.name(part.metadata()).to_owned()).collect())?;
        Ok(self)
    }

    pub(crate) fn new(
        client: Arc<Client>,
        target: &Target,
        nodes: Nodes,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let node_timeout = nodes.node_timeout;
        Ok(Self {
            client,
            nodes: names(chosen(nodes)?)?,
            node_timeout,
            timeout,
            here: here(&target.endpoint),
        })
    }

    /// The machines by the names that answers carry.
    pub(crate) fn names(&self) -> Vec<String> {
        if self.nodes.is_empty() { vec![self.here.clone()] } else { self.nodes.clone() }
    }

    /// The machines as they were named; none where the entry answers for itself.
    pub(crate) fn named(&self) -> Vec<String> {
        self.nodes.clone()
    }

    /// Returns whether more than one was asked for.
    pub(crate) fn is_many(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Says which machines it is about where they are more than one.
    pub(crate) fn announce(&self, action: &str, session: &mut Session<'_>) -> Result<(), Error> {
        if !self.is_many() {
            return Ok(());
        }
        let names = self.names();
        let text = format!("{action} on {} machines: {}", names.len(), names.join(", "));
        session.io.say(&printable(&text))
    }

    /// Returns whether the person has said how long each machine may take.
    pub(crate) fn has_node_timeout(&self) -> bool {
        self.node_timeout.is_some()
    }

    /// The same connection for these machines.
    pub(crate) fn of(&self, nodes: Vec<String>, node_timeout: Option<Duration>) -> Self {
        Self {
            client: Arc::clone(&self.client),
            nodes,
            node_timeout,
            timeout: self.timeout,
            here: self.here.clone(),
        }
    }

    /// The name of whoever sent a message.
    pub(crate) fn name<'a>(&'a self, metadata: Option<&'a Metadata>) -> &'a str {
        match metadata {
            Some(metadata) if !metadata.hostname.is_empty() => &metadata.hostname,
            _ => &self.here,
        }
    }

    /// One question, an answer of each.
    pub(crate) async fn ask<Q, R, F>(
        &self,
        message: Q,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<Answers<'_, R>, Error>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        self.ask_patiently(Duration::ZERO, message, send).await
    }

    /// The same where the answer may take its time.
    pub(crate) async fn ask_patiently<Q, R, F>(
        &self,
        expected: Duration,
        message: Q,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<Answers<'_, R>, Error>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let each = self.node_timeout.unwrap_or_default().max(expected);
        let limit = match (self.timeout, self.client.limit(false)) {
            (None, Some(usual)) => Some(usual.max(each + GRACE)),
            (_, limit) => limit,
        };
        let request = self.request(message, limit)?;
        let answer = send(self.client.channel(), request);
        let answer = match limit {
            Some(limit) => {
                tokio::time::timeout(limit, answer).await.map_err(|_| Error::Deadline(limit))?
            }
            None => answer.await,
        };
        let reply = answer.map_err(|status| self.client.refused(&status))?.into_inner();
        Ok(Answers { fleet: self, reply })
    }

    /// One question, a stream of what all of them say.
    pub(crate) async fn stream<Q, R, F>(
        &self,
        message: Q,
        send: impl FnOnce(Channel, Request<Q>) -> F,
    ) -> Result<Streaming<R>, Error>
    where
        F: Future<Output = Result<Response<Streaming<R>>, Status>>,
    {
        let request = self.request(message, self.client.limit(true))?;
        let answer = send(self.client.channel(), request).await;
        Ok(answer.map_err(|status| self.client.refused(&status))?.into_inner())
    }

    /// The next piece of a stream.
    pub(crate) async fn next<R>(&self, stream: &mut Streaming<R>) -> Result<Option<R>, Error> {
        stream.message().await.map_err(|status| self.client.refused(&status))
    }

    fn request<Q>(&self, message: Q, limit: Option<Duration>) -> Result<Request<Q>, Error> {
        let mut request = self.client.request(message, limit)?;
        for node in &self.nodes {
            request.metadata_mut().append("nodes", ascii(node)?);
        }
        if let (Some(each), false) = (self.node_timeout, self.nodes.is_empty()) {
            // As gRPC writes time.
            request.metadata_mut().insert("node-timeout", ascii(&format!("{}S", each.as_secs()))?);
        }
        Ok(request)
    }
}

fn ascii(text: &str) -> Result<MetadataValue<tonic::metadata::Ascii>, Error> {
    text.parse().map_err(|_| Error::invalid(format!("--nodes {text:?}: not a host's name")))
}

fn stands_for_many(name: &str) -> bool {
    name == "all" || Selector::is_one(name)
}

/// The machines once each, in the order they were named.
fn names(given: Vec<String>) -> Result<Vec<String>, Error> {
    let mut names: Vec<String> = Vec::with_capacity(given.len());
    for name in given {
        let name = name.trim();
        if name.is_empty() {
            return Err(Error::invalid("--nodes: a name is empty"));
        }
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn here(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Https { host, .. } | Endpoint::Http { host, .. } => {
            host.trim_matches(['[', ']']).to_owned()
        }
        Endpoint::Unix(_) => "localhost".to_owned(),
    }
}

/// A message of one machine, inside a reply of many.
pub(crate) trait Part {
    fn metadata(&self) -> Option<&Metadata>;
}

/// Reply of all of them.
pub(crate) trait Reply: prost::Name {
    type Part: Part;
    fn parts(&self) -> &[Self::Part];
    fn retain(&mut self, keep: impl FnMut(&Self::Part) -> bool);
}

macro_rules! replies {
    ($($reply:ty: $part:ty),* $(,)?) => {$(
        impl Part for $part {
            fn metadata(&self) -> Option<&Metadata> {
                self.metadata.as_ref()
            }
        }
        impl Reply for $reply {
            type Part = $part;
            fn parts(&self) -> &[$part] {
                &self.messages
            }
            fn retain(&mut self, keep: impl FnMut(&$part) -> bool) {
                self.messages.retain(keep);
            }
        }
    )*};
}

replies! {
    os::ContainersResponse: os::Container,
    os::StatsResponse: os::Stats,
    os::ProcessesResponse: os::Process,
    os::MemoryResponse: os::Memory,
    os::RestartResponse: os::Restart,
    machine::RebootResponse: machine::Reboot,
    machine::ShutdownResponse: machine::Shutdown,
    machine::ResetResponse: machine::Reset,
    machine::UpgradeResponse: machine::Upgrade,
    machine::MountsResponse: machine::Mounts,
    machine::VersionResponse: machine::Version,
    machine::ServiceListResponse: machine::ServiceList,
    machine::ServiceStartResponse: machine::ServiceStart,
    machine::ServiceStopResponse: machine::ServiceStop,
    machine::ServiceRestartResponse: machine::ServiceRestart,
    network::InterfacesResponse: network::Interfaces,
    network::RoutesResponse: network::Routes,
    time::TimeResponse: time::Time,
    node::GetHostResponse: node::Host,
}

/// The answers to one question.
pub(crate) struct Answers<'a, R> {
    fleet: &'a Fleet,
    pub(crate) reply: R,
}

impl<R: Reply> Answers<'_, R> {
    /// Returns the answers, by machine.
    pub(crate) fn good(&self) -> Vec<(&str, &R::Part)> {
        let parts = self.reply.parts().iter().filter(|part| fault(part.metadata()).is_none());
        parts.map(|part| (self.fleet.name(part.metadata()), part)).collect()
    }

    /// Returns the machines that did not answer, and why.
    pub(crate) fn failures(&self) -> Failures {
        let mut failures = Failures::default();
        for part in self.reply.parts() {
            if let Some(text) = fault(part.metadata()) {
                failures.push(self.fleet.name(part.metadata()), text);
            }
        }
        failures
    }

    /// Takes out those who did not answer in time, and returns their names.
    pub(crate) fn take_late(&mut self) -> Vec<String> {
        let fleet = self.fleet;
        let mut late = Vec::new();
        self.reply.retain(|part| {
            let fault = fault(part.metadata());
            let is_late = fault.is_some_and(|text| parse(text).0 == Code::DeadlineExceeded);
            if is_late {
                late.push(fleet.name(part.metadata()).to_owned());
            }
            !is_late
        });
        late
    }

    /// Prints the answers, those that failed among them, in a format for
    /// machines; not at all in one for people.
    pub(crate) fn print(&self, session: &mut Session<'_>) -> Result<bool, Error> {
        match session.global.output {
            None | Some(Format::Table | Format::Wide) => Ok(false),
            Some(_) => {
                let message = output::dynamic(&R::full_name(), &self.reply)?;
                session.printer().message(&message)?;
                Ok(true)
            }
        }
    }
}

/// Why the sender of a message could not answer.
pub(crate) fn fault(metadata: Option<&Metadata>) -> Option<&str> {
    metadata.map(|metadata| metadata.error.as_str()).filter(|text| !text.is_empty())
}

/// Machines that failed.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    all: Vec<(String, String)>,
    warned: bool,
}

impl Failures {
    pub(crate) fn push(&mut self, node: &str, text: &str) {
        self.all.push((node.to_owned(), text.to_owned()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn has(&self, node: &str) -> bool {
        self.all.iter().any(|(failed, _)| failed == node)
    }

    /// Number of machines that failed.
    pub(crate) fn machines(&self) -> usize {
        let mut names: Vec<&str> = self.all.iter().map(|(node, _)| node.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Warned of already.
    pub(crate) fn warned(self) -> Self {
        Self { warned: true, ..self }
    }

    /// Looking at machines succeeds when one of them answered; the rest are
    /// warned of.
    pub(crate) fn looked(self, answered: usize, io: &mut Io) -> Result<(), Error> {
        if answered > 0 { self.warn(io) } else { self.acted(0, io) }
    }

    /// Something was to be done: it is, on all machines, or it is a failure.
    pub(crate) fn acted(self, answered: usize, io: &mut Io) -> Result<(), Error> {
        let Some((node, text)) = self.all.first() else { return Ok(()) };
        let (code, _) = parse(text);
        let (failed, all) = (self.machines(), self.machines() + answered);
        let message = if all == 1 && self.all.len() == 1 {
            format!("{node}: {text}")
        } else {
            self.warn(io)?;
            format!("{failed} of {all} machines failed")
        };
        Err(Error::Status { code, message, hints: Vec::new() })
    }

    fn warn(&self, io: &mut Io) -> Result<(), Error> {
        if self.warned {
            return Ok(());
        }
        self.all.iter().try_for_each(|(node, text)| warn(io, node, text))
    }
}

/// The failure with the advice where containers may be, if it is that there is
/// none of this name.
pub(crate) fn in_namespace<T>(result: Result<T, Error>, namespace: &str) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Status { code: Code::NotFound, message, mut hints } => {
            hints.push(format!(
                "this looked in the namespace {namespace}: `selvage node containers --namespace \
                 '*'` shows all, and --namespace says which is meant"
            ));
            Error::Status { code: Code::NotFound, message, hints }
        }
        other => other,
    })
}

/// A line about one machine for the person, not for the pipe.
pub(crate) fn warn(io: &mut Io, node: &str, text: &str) -> Result<(), Error> {
    writeln!(io.err, "warning: {}", printable(&format!("{node}: {text}"))).map_err(Error::Output)
}

/// The code and the words of a failure as a proxy writes them:
/// `rpc error: code = NAME desc = WORDS`.
pub(crate) fn parse(text: &str) -> (Code, &str) {
    let parts =
        text.strip_prefix("rpc error: code = ").and_then(|rest| rest.split_once(" desc = "));
    let Some((name, words)) = parts else { return (Code::Internal, text) };
    let spelt = |code: &Code| code.name().replace('_', "").eq_ignore_ascii_case(name);
    let code = selvage_api::code::ALL.into_iter().find(spelt).or(match name {
        "Canceled" => Some(Code::Cancelled),
        "OutOfRange" => Some(Code::InvalidArgument),
        _ => None,
    });
    (code.unwrap_or(Code::Internal), words)
}

pub(crate) fn os_client(channel: Channel) -> os::os_service_client::OsServiceClient<Channel> {
    os::os_service_client::OsServiceClient::new(channel).max_decoding_message_size(LARGEST_ANSWER)
}

pub(crate) fn machine_client(
    channel: Channel,
) -> machine::machine_service_client::MachineServiceClient<Channel> {
    machine::machine_service_client::MachineServiceClient::new(channel)
        .max_decoding_message_size(LARGEST_ANSWER)
}

pub(crate) fn network_client(
    channel: Channel,
) -> network::network_service_client::NetworkServiceClient<Channel> {
    network::network_service_client::NetworkServiceClient::new(channel)
        .max_decoding_message_size(LARGEST_ANSWER)
}

pub(crate) fn time_client(
    channel: Channel,
) -> time::time_service_client::TimeServiceClient<Channel> {
    time::time_service_client::TimeServiceClient::new(channel)
}

pub(crate) fn node_client(
    channel: Channel,
) -> node::node_service_client::NodeServiceClient<Channel> {
    node::node_service_client::NodeServiceClient::new(channel)
        .max_decoding_message_size(LARGEST_ANSWER)
}

/// The machines that the selectors mean. The command line cannot refuse two of
/// them by itself where one stands before the command and the other behind it.
fn chosen(nodes: Nodes) -> Result<Vec<String>, Error> {
    let Nodes { nodes, selector, labelled, .. } = nodes;
    let given = [!nodes.is_empty(), selector.is_some(), labelled.is_some()];
    if given.into_iter().filter(|given| *given).count() > 1 {
        let mut said = Vec::new();
        if !nodes.is_empty() {
            said.push(format!("-n {} (or SELVAGE_NODES)", nodes.join(",")));
        }
        said.extend(selector.map(|labels| format!("--selector {labels}")));
        said.extend(labelled.map(|labels| format!("-l {labels}")));
        return Err(Error::Invalid {
            message: format!("{} say which machines are meant: give one", said.join(" and ")),
            hints: vec!["`-n` names machines, `-l` means all that have the labels".into()],
        });
    }
    let Some(labels) = selector.or(labelled) else { return Ok(nodes) };
    let checked = Selector::parse(&labels);
    checked.map_err(|error| Error::invalid(format!("--selector: {error}")))?;
    // Commas stand between machines there.
    Ok(vec![labels.replace(',', "&")])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn machines_are_chosen_in_one_way() {
        let nodes = |names: &[&str], selector: Option<&str>, labelled: Option<&str>| Nodes {
            nodes: names.iter().map(|&name| name.to_owned()).collect(),
            selector: selector.map(str::to_owned),
            labelled: labelled.map(str::to_owned),
            node_timeout: None,
        };
        assert_eq!(chosen(nodes(&["a", "b"], None, None)).unwrap(), ["a", "b"]);
        assert_eq!(chosen(nodes(&[], None, Some("rack=3,x=1"))).unwrap(), ["rack=3&x=1"]);
        assert_eq!(chosen(nodes(&[], Some("rack=3"), None)).unwrap(), ["rack=3"]);
        for both in [
            nodes(&["rack9"], None, Some("rack=3")),
            nodes(&["rack9"], Some("rack=3"), None),
            nodes(&[], Some("rack=3"), Some("rack=4")),
        ] {
            let warned = chosen(both).unwrap_err().to_string();
            assert!(warned.contains("rack=3") && warned.contains("give one"), "{warned}");
        }
    }

    #[test]
    fn machines_are_asked_once_each_in_the_order_they_were_named() {
        let given = ["b", " a", "b"].map(str::to_owned).to_vec();
        assert_eq!(names(given).unwrap(), ["b", "a"]);
        assert!(names(vec!["a".into(), " ".into()]).is_err());
    }

    #[test]
    fn the_code_of_a_machines_failure_is_in_its_text() {
        let text = "rpc error: code = Unavailable desc = nobody there";
        assert_eq!(parse(text), (Code::Unavailable, "nobody there"));
        assert_eq!(parse("rpc error: code = NotFound desc = ").0, Code::NotFound);
        assert_eq!(parse("rpc error: code = Canceled desc = x").0, Code::Cancelled);
        assert_eq!(parse("it broke"), (Code::Internal, "it broke"));
    }
}
