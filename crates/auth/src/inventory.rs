//! Inventory of machines: what they report of themselves, and what of that goes
//! into their certificates.
//!
//! A report is believed for what it says of the reporter alone. Names in a
//! certificate come from an administrator, or are what the machine is called
//! or where its call came from; never from what it asks for.

use std::collections::BTreeMap;

use jiff::Timestamp;
use selvage_api::selvage::identity as wire;
use selvage_kit::{
    identity::{Kind, Machine, Peer, ShownCertificate},
    labels::{self, Selector},
    pki,
};
use selvage_store::{Transaction, transact};

use crate::{
    Auth, audit,
    caller::Caller,
    clock,
    error::{Error, Result},
    names,
    records::{JoinToken, Member, Reporter, from_millis},
};

const MOST_NAMES: usize = 16;
const LONGEST_VERSION: usize = 64;
const MOST_AUTHORITIES: usize = 8;
/// Machines report several times a minute; that they did is written once.
const SEEN_EVERY: i64 = 60_000;
/// Two processes take turns if one reports again within this time: three reports
/// that were written.
const TAKES_TURNS: i64 = 3 * SEEN_EVERY;
const LONGEST_INSTANCE: usize = 64;
/// A machine reaches itself by these, whatever else it is called.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// An agent's report of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// host:port where it answers.
    pub address: String,
    /// By which it can be chosen.
    pub labels: BTreeMap<String, String>,
    /// Of the agent.
    pub version: String,
    /// SHA-256 of the authorities that it believes.
    pub believes: Vec<String>,
    /// SHA-256 of the authority of the certificate that it shows.
    pub authority: String,
    /// Random text of the process.
    pub instance: String,
}

impl Auth {
    /// Writes down what the agent of a machine tells of itself.
    pub async fn report(&self, machine: &Machine, report: Report) -> Result<()> {
        let name = machine.to_string();
        let now = self.now().as_millisecond();
        if let Some(known) = self.inner.members.get(&name)
            && is_same(&known.value, &report)
            && now - known.value.last_seen < SEEN_EVERY
        {
            return Ok(());
        }
        let (name, report) = (&name, &report);
        let written = transact(&self.inner.store, |tx| async move {
            let known = tx.get::<Member>(name).await?;
            let mut member = known.unwrap_or_else(|| new_member(name, now));
            let news = note_reporter(&mut member, report, now);
            member.address.clone_from(&report.address);
            member.labels.clone_from(&report.labels);
            member.version.clone_from(&report.version);
            member.believes.clone_from(&report.believes);
            member.authority.clone_from(&report.authority);
            member.last_seen = now;
            tx.put(&member)?;
            Ok::<_, Error>(news.then_some(member))
        });
        let written = written.await?;
        if let Some(member) = written.value {
            audit::two_agents(&member.machine, &rivals(&member, now));
        }
        Ok(self.inner.members.wait_for(written.revision).await?)
    }

    /// All machines that are known, sorted by name.
    pub fn machines(&self) -> Vec<wire::Machine> {
        self.inner.members.list().iter().map(|member| self.describe(&member.value)).collect()
    }

    /// The machine of that name.
    pub fn machine(&self, machine: &Machine) -> Option<wire::Machine> {
        let member = self.inner.members.get(&machine.to_string())?;
        Some(self.describe(&member.value))
    }

    fn describe(&self, member: &Member) -> wire::Machine {
        let time = |millis: i64| (millis != 0).then(|| clock::to_wire(from_millis(millis)));
        let issue = self.inner.issues.get(&member.machine);
        wire::Machine {
            machine: member.machine.clone(),
            address: member.address.clone(),
            labels: member.labels.clone().into_iter().collect(),
            joined_at: time(member.joined_at),
            last_seen: time(member.last_seen),
            certificate_ends: issue.and_then(|issue| time(issue.value.not_after)),
            blocked: self.inner.blocked.get(&member.machine).is_some(),
            version: member.version.clone(),
            copy_suspected_at: time(member.copy_suspected_at),
            rivals: rivals(member, self.now().as_millisecond()),
        }
    }

    /// SHA-256 of the authority of a certificate, if it is one of ours.
    fn authority_of(&self, shown: &ShownCertificate) -> Option<String> {
        let authorities = self.authorities().ok()?.all();
        let signed = authorities.iter().find(|ca| ca.is_named(&shown.issuer))?;
        Some(signed.sha256())
    }

    /// A report as it came in, and what its sender should know.
    pub(crate) async fn take_report(
        &self,
        caller: &Caller,
        asked: wire::ReportRequest,
    ) -> Result<wire::ReportResponse> {
        let Kind::Machine(machine) = &caller.identity.kind else {
            return Err(Error::NotAnAgent);
        };
        // A crm works for one operator and calls no other machine: where they
        // are is none of its business.
        let calls_others = match machine {
            Machine::Node { .. } | Machine::Dme { .. } => true,
            Machine::Cloudlet { .. } => false,
            Machine::Controller => return Err(Error::NotAnAgent),
        };
        let mut report = read(asked, caller.peer.as_ref())?;
        if let Some(shown) = &caller.certificate {
            report.authority = self.authority_of(shown).unwrap_or_default();
            self.note_used(&machine.to_string(), &shown.pem_sha256).await?;
        }
        self.report(machine, report).await?;
        let reachable = |machine: &wire::Machine| {
            calls_others
                && machine.machine.starts_with("node/")
                && !machine.address.is_empty()
                && !machine.blocked
        };
        Ok(wire::ReportResponse {
            machines: self.machines().into_iter().filter(reachable).collect(),
            blocked: self.blocked_names(),
            ca: self.authority().map_or_else(|_| String::new(), |authority| authority.ca_pem()),
            signing_authority: self
                .authority()
                .map_or_else(|_| String::new(), |authority| authority.ca_sha256()),
        })
    }

    pub(crate) fn list_machines(&self, selector: &str) -> Result<Vec<wire::Machine>> {
        let mut machines = self.machines();
        if !selector.is_empty() {
            let selector = Selector::parse(selector)
                .map_err(|error| Error::invalid("selector", error.to_string()))?;
            machines
                .retain(|machine| selector.matches(&machine.labels.clone().into_iter().collect()));
        }
        Ok(machines)
    }

    pub(crate) async fn remove_machine(&self, machine: &str) -> Result<()> {
        let machine = names::check_machine("machine", machine)?.to_string();
        match self.inner.members.delete(&machine).await {
            Ok(_) => Ok(()),
            Err(selvage_store::Error::NotFound { .. }) => Err(Error::MachineNotFound(machine)),
            Err(error) => Err(error.into()),
        }
    }
}

fn new_member(machine: &str, now: i64) -> Member {
    Member { machine: machine.to_owned(), joined_at: now, ..Member::default() }
}

/// Notes which process reports. Returns whether it is news that two take turns: a
/// process that ended does not come back, so one that does is not alone.
fn note_reporter(member: &mut Member, report: &Report, now: i64) -> bool {
    if member.instance == report.instance {
        return false;
    }
    let returns = member.before.as_ref().is_some_and(|before| {
        before.instance == report.instance && now - before.last_seen < TAKES_TURNS
    });
    let before = Reporter {
        instance: std::mem::replace(&mut member.instance, report.instance.clone()),
        address: member.address.clone(),
        last_seen: member.last_seen,
    };
    // Processes of earlier releases cannot be told apart.
    let known = !before.instance.is_empty() && !report.instance.is_empty();
    member.before = known.then_some(before);
    let had_rivals = now - member.turns_at < TAKES_TURNS;
    if returns && known {
        member.turns_at = now;
    }
    returns && known && !had_rivals
}

/// Addresses of two processes that take turns to report; else none.
fn rivals(member: &Member, now: i64) -> Vec<String> {
    match &member.before {
        Some(before) if now - member.turns_at < TAKES_TURNS => {
            let mut both = vec![before.address.clone(), member.address.clone()];
            both.sort();
            both
        }
        _ => Vec::new(),
    }
}

fn is_same(known: &Member, report: &Report) -> bool {
    known.address == report.address
        && known.labels == report.labels
        && known.version == report.version
        && known.believes == report.believes
        && known.authority == report.authority
        && known.instance == report.instance
}

fn read(asked: wire::ReportRequest, peer: Option<&Peer>) -> Result<Report> {
    let labels: BTreeMap<String, String> = asked.labels.into_iter().collect();
    labels::check(&labels).map_err(|error| Error::invalid("labels", error.to_string()))?;
    let printable = asked.version.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    if asked.version.len() > LONGEST_VERSION || !printable {
        let reason = format!("at most {LONGEST_VERSION} printable characters");
        return Err(Error::invalid("version", reason));
    }
    let is_plain = asked.instance.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if asked.instance.len() > LONGEST_INSTANCE || !is_plain {
        let reason = format!("at most {LONGEST_INSTANCE} letters and digits");
        return Err(Error::invalid("instance", reason));
    }
    let address = match (asked.address.as_str(), peer) {
        ("", Some(Peer::Ip(ip))) => {
            let port = u16::try_from(asked.port).ok().filter(|port| *port != 0);
            let port = port.ok_or_else(|| Error::invalid("port", "must be 1 to 65535"))?;
            std::net::SocketAddr::new(ip.to_canonical(), port).to_string()
        }
        ("", _) => return Err(Error::invalid("address", "needed: the call comes from no address")),
        (given, _) => check_address(given)?.to_owned(),
    };
    let believes = asked.authorities;
    if believes.len() > MOST_AUTHORITIES || believes.iter().any(|one| !is_sha256(one)) {
        let reason = format!("at most {MOST_AUTHORITIES} SHA-256 digests, hexadecimal");
        return Err(Error::invalid("authorities", reason));
    }
    let wire::ReportRequest { version, instance, .. } = asked;
    Ok(Report { address, labels, version, believes, authority: String::new(), instance })
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn check_address(address: &str) -> Result<&str> {
    let sound = address.rsplit_once(':').is_some_and(|(host, port)| {
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        pki::is_server_name(host) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    match sound {
        true => Ok(address),
        false => Err(Error::invalid("address", format!("{address:?} is not host:port"))),
    }
}

pub(crate) fn check_names(names: &[String]) -> Result<()> {
    if names.len() > MOST_NAMES {
        return Err(Error::invalid("names", format!("at most {MOST_NAMES}")));
    }
    match names.iter().find(|name| !pki::is_server_name(name)) {
        None => Ok(()),
        Some(wrong) => {
            Err(Error::invalid("names", format!("{wrong:?} is neither a DNS name nor an address")))
        }
    }
}

/// The address that a call came from; empty for a unix socket.
pub(crate) fn address_of(peer: Option<&Peer>) -> String {
    match peer {
        Some(Peer::Ip(ip)) => ip.to_canonical().to_string(),
        _ => String::new(),
    }
}

/// Under which names and addresses the machine may serve.
pub(crate) fn certificate_names(
    machine: &Machine,
    given: &[String],
    joined_from: &str,
) -> Vec<String> {
    let mut names = given.to_vec();
    if let Machine::Node { name } | Machine::Dme { name } = machine {
        names.extend(LOOPBACK.map(str::to_owned));
        if !joined_from.is_empty() {
            names.push(joined_from.to_owned());
        }
        if pki::is_server_name(name) {
            names.push(name.clone());
        }
    }
    names.sort();
    names.dedup();
    names
}

/// Within the transaction that gives a machine its first certificate.
pub(crate) async fn remember(
    tx: &Transaction,
    token: &JoinToken,
    joined_from: &str,
    now: Timestamp,
) -> Result<()> {
    let now = now.as_millisecond();
    let known = tx.get::<Member>(&token.machine).await?;
    let mut member = known.unwrap_or_else(|| new_member(&token.machine, now));
    member.names.clone_from(&token.names);
    member.joined_from = joined_from.to_owned();
    member.joined_at = now;
    // It has a new key. Who renews with the old one is found out once more.
    member.copy_suspected_at = 0;
    Ok(tx.put(&member)?)
}
