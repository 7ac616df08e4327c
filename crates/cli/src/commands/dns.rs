//! Questions to the name server of the system.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, MessageType, Query, ResponseCode},
    rr::{Name, RecordType},
};
use selvage_api::{
    Code,
    selvage::system::{GetStatusRequest, system_service_client::SystemServiceClient},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use crate::{Error, session::Session};

/// Time for an answer to one packet, and how often one is sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const TRIES: usize = 3;
/// Largest answer by UDP.
const PAYLOAD: u16 = 1232;

// No doc comment: it would speak for whatever this is flattened into.
#[derive(clap::Subcommand, Debug)]
pub enum DnsCommand {
    /// Print the addresses of a name, one a line
    #[command(after_help = "\
Examples:
  selvage dns lookup autoclusterhello.here.demo.selvage.internal
  selvage dns lookup --type srv _demohello1._tcp.autoclusterhello.here.demo.selvage.internal
  curl --resolve NAME:80:$(selvage dns lookup NAME) http://NAME/")]
    Lookup(Lookup),
}

/// `selvage dns lookup`
#[derive(clap::Args, Debug)]
pub struct Lookup {
    /// Name to look up
    name: String,
    /// Name server; the system's own where not given
    #[arg(long, value_name = "IP:PORT")]
    server: Option<SocketAddr>,
    /// Kind of the records: a, aaaa, srv, ns or soa; both kinds of addresses
    /// where not given
    #[arg(long = "type", value_name = "TYPE", ignore_case = true)]
    wanted: Option<QueryType>,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum QueryType {
    A,
    Aaaa,
    Srv,
    Ns,
    Soa,
}

impl QueryType {
    fn record_type(self) -> RecordType {
        match self {
            Self::A => RecordType::A,
            Self::Aaaa => RecordType::AAAA,
            Self::Srv => RecordType::SRV,
            Self::Ns => RecordType::NS,
            Self::Soa => RecordType::SOA,
        }
    }
}

pub(crate) async fn run(command: DnsCommand, session: &mut Session<'_>) -> Result<(), Error> {
    let DnsCommand::Lookup(args) = command;
    let name = name(&args.name)?;
    let server = match args.server {
        Some(server) => server,
        None => server(session).await?,
    };
    let types = match args.wanted {
        Some(wanted) => vec![wanted.record_type()],
        None => vec![RecordType::A, RecordType::AAAA],
    };
    let mut found = BTreeSet::new();
    for wanted in types {
        let answer = ask(server, &name, wanted).await.map_err(|error| silent(server, &error))?;
        match answer.metadata.response_code {
            ResponseCode::NoError => {}
            code => return Err(refused(&args.name, server, code)),
        }
        let matching = answer.answers.iter().filter(|record| record.record_type() == wanted);
        found.extend(matching.map(|record| record.data.to_string()));
    }
    if found.is_empty() {
        let message = format!("{} has no such records, says {server}", args.name);
        return Err(Error::Status { code: Code::NotFound, message, hints: Vec::new() });
    }
    if !session.printer().is_table() {
        return session.printer().record(&json!({ "name": args.name, "records": found }));
    }
    for line in found {
        writeln!(session.io.out, "{line}").map_err(Error::Output)?;
    }
    Ok(())
}

fn name(text: &str) -> Result<Name, Error> {
    let parsed = Name::from_ascii(text).ok().filter(|_| !text.is_empty());
    let Some(mut name) = parsed else {
        let message = format!("{text:?} is not the name of a domain");
        return Err(Error::Invalid { message, hints: Vec::new() });
    };
    name.set_fqdn(true);
    Ok(name)
}

/// The name server of the system.
async fn server(session: &mut Session<'_>) -> Result<SocketAddr, Error> {
    let client = session.client().await?;
    let status = client
        .call(GetStatusRequest {}, |channel, request| async move {
            SystemServiceClient::new(channel).get_status(request).await
        })
        .await?;
    let own = status.parts.iter().find(|part| part.name == "dns");
    own.and_then(|part| part.address.parse().ok()).ok_or_else(|| Error::Status {
        code: Code::FailedPrecondition,
        message: "the system has no name server".into(),
        hints: vec![
            "start it with `--set dns.listen=ADDRESS:PORT`, or name one with --server".into(),
        ],
    })
}

fn silent(server: SocketAddr, error: &io::Error) -> Error {
    let message = format!("the name server {server} does not answer: {error}");
    let hints = vec!["`selvage status` shows where the system's own is".into()];
    Error::Status { code: Code::Unavailable, message, hints }
}

fn refused(name: &str, server: SocketAddr, code: ResponseCode) -> Error {
    let (code, message) = match code {
        ResponseCode::NXDomain => {
            (Code::NotFound, format!("there is nothing by the name {name}, says {server}"))
        }
        ResponseCode::Refused => {
            (Code::InvalidArgument, format!("{server} does not answer for {name}"))
        }
        other => (Code::Unavailable, format!("{server} answers: {}", other.to_str())),
    };
    let hints = vec![
        "names are those of instances that are READY and healthy: `selvage appinst show`".into(),
    ];
    Error::Status { code, message, hints }
}

/// Asks by UDP, and by TCP what does not fit.
async fn ask(server: SocketAddr, name: &Name, wanted: RecordType) -> io::Result<Message> {
    let mut question = Message::query();
    question.add_query(Query::query(name.clone(), wanted));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    question.set_edns(edns);
    let answer = by_udp(server, &question).await?;
    if answer.metadata.truncation {
        return timeout(ANSWER_TIMEOUT, by_tcp(server, &question)).await?;
    }
    Ok(answer)
}

async fn by_udp(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let mut last = io::ErrorKind::TimedOut.into();
    for _ in 0..TRIES {
        socket.send(&bytes).await?;
        match timeout(ANSWER_TIMEOUT, received(&socket, question)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

/// Waits for what answers the question; anything else is somebody else's.
async fn received(socket: &UdpSocket, question: &Message) -> io::Result<Message> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Ok(message) = Message::from_vec(&buffer[..length])
            && answers(&message, question)
        {
            return Ok(message);
        }
    }
}

fn answers(message: &Message, question: &Message) -> bool {
    message.metadata.message_type == MessageType::Response
        && message.metadata.id == question.metadata.id
        && message.queries == question.queries
}

async fn by_tcp(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Message::from_vec(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_answer_to_ones_own_question_counts() {
        let mut question = Message::query();
        question.add_query(Query::query(name("a.example").unwrap(), RecordType::A));
        let mut answer = question.clone().into_response();
        assert!(answers(&answer, &question));
        answer.metadata.id = answer.metadata.id.wrapping_add(1);
        assert!(!answers(&answer, &question), "another number");
        let mut other = question.clone().into_response();
        other.queries[0].set_name(name("b.example").unwrap());
        assert!(!answers(&other, &question), "another name");
        assert!(!answers(&question, &question), "a question");
    }

    #[test]
    fn names_are_checked_before_anybody_is_asked() {
        assert_eq!(name("a.example").unwrap().to_ascii(), "a.example.");
        for bad in ["", "a..b", &"x".repeat(64)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
