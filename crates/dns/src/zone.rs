//! A zone at one moment: never changed, only replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use hickory_proto::rr::{
    Name, RData, Record, RecordType,
    rdata::{HINFO, NS, SOA, SRV},
};

/// Seconds that a secondary waits before it looks again, unless it is told,
const REFRESH: i32 = 300;
/// before it tries again when nobody answered,
const RETRY: i32 = 60;
/// and until it stops to answer: instances move.
const EXPIRE: i32 = 3600;

/// Data of a record, ordered so that two zones can be compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Datum {
    Ns(Name),
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Srv { priority: u16, port: u16, target: Name },
}

impl Datum {
    fn record_type(&self) -> RecordType {
        match self {
            Self::Ns(_) => RecordType::NS,
            Self::A(_) => RecordType::A,
            Self::Aaaa(_) => RecordType::AAAA,
            Self::Srv { .. } => RecordType::SRV,
        }
    }

    fn rdata(&self) -> RData {
        match self {
            Self::Ns(name) => RData::NS(NS(name.clone())),
            Self::A(ip) => RData::A((*ip).into()),
            Self::Aaaa(ip) => RData::AAAA((*ip).into()),
            Self::Srv { priority, port, target } => {
                RData::SRV(SRV::new(*priority, 0, *port, target.clone()))
            }
        }
    }
}

impl From<IpAddr> for Datum {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::A(ip),
            IpAddr::V6(ip) => Self::Aaaa(ip),
        }
    }
}

/// Names of a zone with what is known of each. A name that others are below has
/// an entry too, be it an empty one: it exists.
pub(crate) type Names = BTreeMap<Name, BTreeSet<Datum>>;

/// Adds data of a name, and the names between it and the zone's own.
pub(crate) fn add(names: &mut Names, origin: &Name, name: &Name, datum: Datum) {
    names.entry(name.clone()).or_default().insert(datum);
    let mut above = name.base_name();
    while above.num_labels() > origin.num_labels() && !names.contains_key(&above) {
        names.insert(above.clone(), BTreeSet::new());
        above = above.base_name();
    }
}

/// Outcome of a question.
#[derive(Debug, PartialEq)]
pub(crate) enum Lookup {
    /// These records, and those that who asks will want next.
    Records { answers: Vec<Record>, additionals: Vec<Record> },
    /// The name is there, nothing of that type is.
    NoData,
    /// There is no such name.
    NoName,
}

/// A zone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Zone {
    pub(crate) origin: Name,
    primary: Name,
    serial: u32,
    ttl: u32,
    names: Names,
}

impl Zone {
    /// A zone with these names; the first of its name servers is the primary.
    pub(crate) fn new(origin: Name, ttl: u32, servers: &[Name], mut names: Names) -> Self {
        for server in servers {
            add(&mut names, &origin, &origin, Datum::Ns(server.clone()));
        }
        names.entry(origin.clone()).or_default();
        let primary = servers.first().unwrap_or(&origin).clone();
        Self { origin, primary, serial: 0, ttl, names }
    }

    /// The zone with the number of this version of it.
    pub(crate) fn numbered(self, serial: u32) -> Self {
        Self { serial, ..self }
    }

    /// Number of this version.
    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// Returns true if it says the same as another, whatever their numbers are.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        self.primary == other.primary && self.ttl == other.ttl && self.names == other.names
    }

    /// Number of names that something is known of.
    pub(crate) fn name_count(&self) -> usize {
        self.names.values().filter(|data| !data.is_empty()).count()
    }

    /// The zone's SOA record.
    pub(crate) fn soa(&self) -> Record {
        let mailbox = self.origin.prepend_label("hostmaster");
        let mailbox = mailbox.unwrap_or_else(|_| self.origin.clone());
        let primary = self.primary.clone();
        let soa = SOA::new(primary, mailbox, self.serial, REFRESH, RETRY, EXPIRE, self.ttl);
        Record::from_rdata(self.origin.clone(), self.ttl, RData::SOA(soa))
    }

    /// All records but the SOA.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        self.names.iter().flat_map(|(name, data)| data.iter().map(|datum| self.record(name, datum)))
    }

    /// Answers a question about a name of the zone.
    pub(crate) fn find(&self, name: &Name, wanted: RecordType) -> Lookup {
        let Some(data) = self.names.get(name) else { return Lookup::NoName };
        let is_origin = *name == self.origin;
        let answers: Vec<Record> = match wanted {
            RecordType::SOA if is_origin => vec![self.soa()],
            // All there is would be a weapon against somebody else: RFC 8482.
            RecordType::ANY if !data.is_empty() || is_origin => vec![self.unspecific(name)],
            wanted => {
                let matching = data.iter().filter(|datum| datum.record_type() == wanted);
                matching.map(|datum| self.record(name, datum)).collect()
            }
        };
        if answers.is_empty() {
            return Lookup::NoData;
        }
        let additionals = self.addresses_of_targets(&answers);
        Lookup::Records { answers, additionals }
    }

    /// Names with the records of instances: without the zone's own and those of
    /// its name servers.
    pub(crate) fn of_instances(&self) -> Names {
        let of_servers: BTreeSet<&Name> = self
            .names
            .values()
            .flatten()
            .filter_map(|datum| match datum {
                Datum::Ns(server) => Some(server),
                _ => None,
            })
            .collect();
        let is_theirs = |name: &Name| *name != self.origin && !of_servers.contains(name);
        let named = self.names.iter().filter(|(name, data)| is_theirs(name) && !data.is_empty());
        named.map(|(name, data)| (name.clone(), data.clone())).collect()
    }

    pub(crate) fn record(&self, name: &Name, datum: &Datum) -> Record {
        Record::from_rdata(name.clone(), self.ttl, datum.rdata())
    }

    fn unspecific(&self, name: &Name) -> Record {
        let hinfo = HINFO::new("RFC8482".into(), String::new());
        Record::from_rdata(name.clone(), self.ttl, RData::HINFO(hinfo))
    }

    fn addresses_of_targets(&self, answers: &[Record]) -> Vec<Record> {
        let targets: BTreeSet<&Name> = answers
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(srv) => Some(&srv.target),
                RData::NS(server) => Some(&server.0),
                _ => None,
            })
            .collect();
        let of_target = |target: &Name| {
            let (name, data) = self.names.get_key_value(target)?;
            let addresses = data.iter().filter(|it| matches!(it, Datum::A(_) | Datum::Aaaa(_)));
            Some(addresses.map(|datum| self.record(name, datum)).collect::<Vec<_>>())
        };
        targets.into_iter().filter_map(of_target).flatten().collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    pub(crate) fn name(text: &str) -> Name {
        Name::from_ascii(format!("{text}.")).unwrap()
    }

    /// A zone with one instance at two addresses.
    pub(crate) fn zone() -> Zone {
        let origin = name("edge.example");
        let app = name("app.here.op.edge.example");
        let mut names = Names::new();
        for ip in ["10.0.0.1", "10.0.0.2", "2001:db8::1"] {
            add(&mut names, &origin, &app, ip.parse::<IpAddr>().unwrap().into());
        }
        let srv = Datum::Srv { priority: 0, port: 80, target: app.clone() };
        add(&mut names, &origin, &name("_acmeapp10._tcp.app.here.op.edge.example"), srv);
        Zone::new(origin.clone(), 10, &[name("ns.edge.example")], names).numbered(7)
    }

    fn found(text: &str, wanted: RecordType) -> (Vec<String>, usize) {
        match zone().find(&name(text), wanted) {
            Lookup::Records { answers, additionals } => {
                (answers.iter().map(|it| it.data.to_string()).collect(), additionals.len())
            }
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn addresses_are_found_by_type_and_in_any_case() {
        let app = "app.here.op.edge.example";
        assert_eq!(found(app, RecordType::A).0, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(found("APP.Here.op.EDGE.example", RecordType::AAAA).0, ["2001:db8::1"]);
    }

    #[test]
    fn a_service_comes_with_the_addresses_of_its_target() {
        let asked = "_acmeapp10._tcp.app.here.op.edge.example";
        let expected = (vec!["0 0 80 app.here.op.edge.example.".to_owned()], 3);
        assert_eq!(found(asked, RecordType::SRV), expected);
    }

    #[test]
    fn names_between_exist_and_others_do_not() {
        for between in ["here.op.edge.example", "op.edge.example", "_tcp.app.here.op.edge.example"]
        {
            assert_eq!(zone().find(&name(between), RecordType::A), Lookup::NoData, "{between}");
            assert_eq!(zone().find(&name(between), RecordType::ANY), Lookup::NoData, "{between}");
        }
        assert_eq!(zone().find(&name("edge.example"), RecordType::A), Lookup::NoData);
        for missing in ["x.edge.example", "x.app.here.op.edge.example"] {
            assert_eq!(zone().find(&name(missing), RecordType::A), Lookup::NoName, "{missing}");
            assert_eq!(zone().find(&name(missing), RecordType::ANY), Lookup::NoName, "{missing}");
        }
    }

    #[test]
    fn a_question_for_anything_gets_little() {
        assert_eq!(found("app.here.op.edge.example", RecordType::ANY).0.len(), 1);
    }

    #[test]
    fn the_zone_tells_of_itself() {
        let soa = found("edge.example", RecordType::SOA).0;
        let expected = "ns.edge.example. hostmaster.edge.example. 7 300 60 3600 10";
        assert_eq!(soa, [expected]);
        assert_eq!(found("edge.example", RecordType::NS).0, ["ns.edge.example."]);
    }

    #[test]
    fn versions_with_the_same_names_are_the_same() {
        assert!(zone().says_the_same(&zone().numbered(9)));
        let mut other = zone();
        other.names.remove(&name("_acmeapp10._tcp.app.here.op.edge.example"));
        assert!(!zone().says_the_same(&other));
    }
}
