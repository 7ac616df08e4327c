//! From a packet to its reply.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hickory_proto::{
    op::{Edns, Header, HeaderCounts, Message, MessageType, Metadata, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RecordType},
    serialize::binary::{BinDecodable, BinDecoder},
};

use crate::{
    directory::{Directory, Zones},
    telemetry::Counts,
    zone::{Lookup, Zone},
};

/// Largest answer by UDP: what passes everywhere without being taken apart,
/// <https://www.dnsflagday.net/2020/>.
const UDP_LIMIT: u16 = 1232;
/// Largest answer to somebody who says nothing about that.
const PLAIN_LIMIT: u16 = 512;
/// Largest message by TCP.
const TCP_LIMIT: usize = u16::MAX as usize;

/// Transport of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// Reply to a packet.
pub(crate) enum Reply {
    /// Nothing: this was no question.
    Silence,
    /// One message.
    Message(Vec<u8>),
    /// A whole zone, in answer to this.
    Transfer { zone: Arc<Zone>, metadata: Metadata, query: Query },
}

/// Answers questions about the zones of a directory.
pub(crate) struct Responder {
    directory: Arc<Directory>,
    /// Addresses that may have whole zones.
    secondaries: Vec<IpAddr>,
    pub(crate) counts: Arc<Counts>,
}

/// A question that was understood.
struct Question {
    metadata: Metadata,
    query: Query,
    edns: Option<Edns>,
}

impl Responder {
    pub(crate) fn new(directory: Arc<Directory>, secondaries: &[SocketAddr]) -> Self {
        let secondaries = secondaries.iter().map(SocketAddr::ip).collect();
        Self { directory, secondaries, counts: Arc::default() }
    }

    /// Answers a packet.
    pub(crate) fn reply(&self, packet: &[u8], transport: Transport, peer: IpAddr) -> Reply {
        let question = match read(packet) {
            Ok(question) => question,
            Err(None) => return Reply::Silence,
            Err(Some(error)) => return self.send(error, transport, PLAIN_LIMIT),
        };
        if let RecordType::AXFR | RecordType::IXFR = question.query.query_type()
            && let Some(zone) = self.transferred(&question, transport, peer)
        {
            self.counts.count(ResponseCode::NoError);
            return Reply::Transfer { zone, metadata: question.metadata, query: question.query };
        }
        let limit = question
            .edns
            .as_ref()
            .map_or(PLAIN_LIMIT, |edns| edns.max_payload().clamp(PLAIN_LIMIT, UDP_LIMIT));
        self.send(self.answer(question), transport, limit)
    }

    /// Answers a packet with nothing but the advice to come by TCP, where its
    /// sender cannot be somebody else.
    pub(crate) fn come_by_tcp(&self, packet: &[u8]) -> Reply {
        match read(packet) {
            Ok(question) => {
                let mut message = question.response(ResponseCode::NoError);
                message.metadata.truncation = true;
                self.send(message, Transport::Udp, PLAIN_LIMIT)
            }
            Err(_) => Reply::Silence,
        }
    }

    /// The zone that a secondary asked for, if it may have it.
    fn transferred(
        &self,
        question: &Question,
        transport: Transport,
        peer: IpAddr,
    ) -> Option<Arc<Zone>> {
        let is_known = self.secondaries.contains(&peer.to_canonical());
        if transport != Transport::Tcp || !is_known || question.refused().is_some() {
            return None;
        }
        let zones = self.directory.zones()?;
        let asked = question.query.name();
        zones.iter().find(|zone| zone.origin == *asked).cloned()
    }

    fn answer(&self, question: Question) -> Message {
        if let Some(code) = question.refused() {
            return question.response(code);
        }
        let name = question.query.name();
        if !self.directory.origins().iter().any(|origin| origin.zone_of(name)) {
            return question.response(ResponseCode::Refused);
        }
        match (question.query.query_type(), self.directory.zones()) {
            (RecordType::AXFR | RecordType::IXFR, _) => question.response(ResponseCode::Refused),
            (_, None) => question.response(ResponseCode::ServFail),
            (_, Some(zones)) => find(&question, &zones, name),
        }
    }

    /// Encodes a message, and cuts it to what may be sent.
    fn send(&self, mut message: Message, transport: Transport, limit: u16) -> Reply {
        self.counts.count(message.metadata.response_code);
        let limit = match transport {
            Transport::Udp => usize::from(limit),
            Transport::Tcp => TCP_LIMIT,
        };
        let fits = |message: &Message| message.to_vec().ok().filter(|it| it.len() <= limit);
        if let Some(bytes) = fits(&message) {
            return Reply::Message(bytes);
        }
        // What was not asked for is the first to go.
        message.additionals.clear();
        let bytes = fits(&message).or_else(|| fits(&message.truncate()));
        bytes.map_or(Reply::Silence, Reply::Message)
    }
}

impl Question {
    /// The code of a question that is not answered, whatever it is about.
    fn refused(&self) -> Option<ResponseCode> {
        if self.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return Some(ResponseCode::BADVERS);
        }
        (self.query.query_class() != DNSClass::IN).then_some(ResponseCode::Refused)
    }

    fn response(&self, code: ResponseCode) -> Message {
        let mut message = Message::response(self.metadata.id, self.metadata.op_code);
        message.metadata = Metadata::response_from_request(&self.metadata);
        message.metadata.response_code = code;
        message.add_query(self.query.clone());
        if self.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(UDP_LIMIT);
            message.set_edns(edns);
        }
        message
    }
}

/// Reads a packet; what to say to one that is no good, if anything.
fn read(packet: &[u8]) -> Result<Question, Option<Message>> {
    let header = Header::read(&mut BinDecoder::new(packet)).map_err(|_| None)?;
    let Metadata { id, op_code, message_type, .. } = header.metadata;
    if message_type != MessageType::Query {
        // Two servers must not be made to answer each other for ever.
        return Err(None);
    }
    let error = |code| Some(Message::error_msg(id, op_code, code));
    if op_code != OpCode::Query {
        return Err(error(ResponseCode::NotImp));
    }
    // Checked before room is made for as many as there are said to be. A
    // question for an incremental transfer has a record; EDNS and a signature
    // are two.
    let HeaderCounts { queries, answers, authorities, additionals, .. } = header.counts;
    if queries != 1 || answers != 0 || authorities > 1 || additionals > 2 {
        return Err(error(ResponseCode::FormErr));
    }
    let mut message = Message::from_vec(packet).map_err(|_| error(ResponseCode::FormErr))?;
    let query = message.queries.pop().ok_or_else(|| error(ResponseCode::FormErr))?;
    Ok(Question { metadata: header.metadata, query, edns: message.edns })
}

fn find(question: &Question, zones: &Zones, name: &Name) -> Message {
    let Some(zone) = zones.of(name) else { return question.response(ResponseCode::Refused) };
    let found = zone.find(name, question.query.query_type());
    let code = match found {
        Lookup::NoName => ResponseCode::NXDomain,
        Lookup::NoData | Lookup::Records { .. } => ResponseCode::NoError,
    };
    let mut message = question.response(code);
    message.metadata.authoritative = true;
    match found {
        Lookup::Records { answers, additionals } => {
            // As it was asked for: whoever mixes large and small letters
            // recognises an answer by them.
            let asked = |mut record: hickory_proto::rr::Record| {
                record.name = name.clone();
                record
            };
            message.add_answers(answers.into_iter().map(asked));
            message.add_additionals(additionals);
        }
        Lookup::NoData | Lookup::NoName => {
            message.add_authority(zone.soa());
        }
    }
    message
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use proptest::prelude::*;

    use super::*;
    use crate::{
        directory::tests::{directory, instance},
        zone::tests::name,
    };

    const STRANGER: [u8; 4] = [198, 51, 100, 7];
    const SECONDARY: [u8; 4] = [198, 51, 100, 53];

    /// A server with one instance, and one that has many addresses.
    fn responder() -> Responder {
        let directory = directory();
        directory.instances.put(instance("web", "web.here.op.edge.example", "10.1.0.1")).unwrap();
        for index in 0..100 {
            let many = instance(
                &format!("a{index}"),
                "many.here.op.edge.example",
                &format!("10.2.0.{index}"),
            );
            directory.instances.put(many).unwrap();
        }
        directory.publish();
        Responder::new(directory, &[(SECONDARY, 53).into()])
    }

    fn question(asked: &str, wanted: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name(asked), wanted));
        message
    }

    fn asked(responder: &Responder, packet: &[u8], transport: Transport) -> Option<Message> {
        match responder.reply(packet, transport, STRANGER.into()) {
            Reply::Silence => None,
            Reply::Message(bytes) => Some(Message::from_vec(&bytes).unwrap()),
            Reply::Transfer { .. } => panic!("a stranger got a zone"),
        }
    }

    fn ask(message: &Message) -> Message {
        asked(&responder(), &message.to_vec().unwrap(), Transport::Udp).unwrap()
    }

    fn code(message: &Message) -> ResponseCode {
        ask(message).metadata.response_code
    }

    #[test]
    fn an_answer_is_authoritative_and_offers_no_recursion() {
        let asked = question("WEB.here.op.edge.example", RecordType::A);
        let answer = ask(&asked);
        let metadata = answer.metadata;
        assert_eq!(metadata.id, asked.metadata.id);
        assert!(metadata.authoritative && metadata.recursion_desired);
        assert!(!metadata.recursion_available && !metadata.truncation);
        assert_eq!(answer.answers[0].to_string(), "WEB.here.op.edge.example. 10 IN A 10.1.0.1");
        assert_eq!(answer.queries, asked.queries, "letter for letter");
    }

    #[test]
    fn what_is_not_there_is_denied_with_the_soa() {
        for (name, wanted, expected) in [
            ("no.here.op.edge.example", RecordType::A, ResponseCode::NXDomain),
            ("web.here.op.edge.example", RecordType::TXT, ResponseCode::NoError),
            ("op.edge.example", RecordType::A, ResponseCode::NoError),
        ] {
            let answer = ask(&question(name, wanted));
            assert_eq!(answer.metadata.response_code, expected, "{name}");
            assert!(answer.metadata.authoritative && answer.answers.is_empty(), "{name}");
            assert_eq!(answer.authorities[0].record_type(), RecordType::SOA, "{name}");
        }
    }

    #[test]
    fn other_zones_classes_and_whole_zones_are_refused() {
        for other in ["example", "edge.example.org", "xedge.example", "google.com"] {
            let answer = ask(&question(other, RecordType::A));
            assert_eq!(answer.metadata.response_code, ResponseCode::Refused, "{other}");
            assert!(!answer.metadata.authoritative && answer.authorities.is_empty());
        }
        let mut chaos = question("version.bind", RecordType::TXT);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(code(&chaos), ResponseCode::Refused);
        for whole in [RecordType::AXFR, RecordType::IXFR] {
            let packet = question("edge.example", whole).to_vec().unwrap();
            for transport in [Transport::Udp, Transport::Tcp] {
                let answer = asked(&responder(), &packet, transport).unwrap();
                assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
            }
        }
    }

    #[test]
    fn a_secondary_gets_a_whole_zone_by_tcp_alone() {
        let packet = question("edge.example", RecordType::AXFR).to_vec().unwrap();
        let of = |transport| responder().reply(&packet, transport, SECONDARY.into());
        assert!(matches!(of(Transport::Tcp), Reply::Transfer { .. }));
        let Reply::Message(answer) = of(Transport::Udp) else { panic!("by UDP") };
        assert_eq!(
            Message::from_vec(&answer).unwrap().metadata.response_code,
            ResponseCode::Refused
        );
        // What is no zone of ours is refused to secondaries, too.
        let packet = question("op.edge.example", RecordType::AXFR).to_vec().unwrap();
        assert!(matches!(
            responder().reply(&packet, Transport::Tcp, SECONDARY.into()),
            Reply::Message(_)
        ));
    }

    #[test]
    fn a_long_answer_is_cut_by_udp_and_whole_by_tcp() {
        let mut asked_for = question("many.here.op.edge.example", RecordType::A);
        let packet = asked_for.to_vec().unwrap();
        let Reply::Message(bytes) = responder().reply(&packet, Transport::Udp, STRANGER.into())
        else {
            panic!("silence")
        };
        assert!(bytes.len() <= usize::from(PLAIN_LIMIT), "{}", bytes.len());
        let cut = Message::from_vec(&bytes).unwrap();
        assert!(cut.metadata.truncation && cut.answers.is_empty());
        let whole = asked(&responder(), &packet, Transport::Tcp).unwrap();
        assert_eq!(whole.answers.len(), 100);
        assert!(!whole.metadata.truncation);
        // However much a client says it can take.
        let mut edns = Edns::new();
        edns.set_max_payload(65_000);
        asked_for.set_edns(edns);
        let packet = asked_for.to_vec().unwrap();
        let Reply::Message(bytes) = responder().reply(&packet, Transport::Udp, STRANGER.into())
        else {
            panic!("silence")
        };
        assert!(bytes.len() <= usize::from(UDP_LIMIT), "{}", bytes.len());
        assert!(Message::from_vec(&bytes).unwrap().metadata.truncation);
    }

    #[test]
    fn a_question_for_anything_is_not_worth_forging() {
        let asked = question("many.here.op.edge.example", RecordType::ANY);
        let packet = asked.to_vec().unwrap();
        let Reply::Message(bytes) = responder().reply(&packet, Transport::Udp, STRANGER.into())
        else {
            panic!("silence")
        };
        assert!(bytes.len() < packet.len() + 40, "{} for {}", bytes.len(), packet.len());
    }

    #[test]
    fn another_version_of_edns_is_refused() {
        let mut newer = question("web.here.op.edge.example", RecordType::A);
        let mut edns = Edns::new();
        edns.set_version(1);
        newer.set_edns(edns);
        // The number has two names.
        assert_eq!(u16::from(code(&newer)), u16::from(ResponseCode::BADVERS));
    }

    #[test]
    fn what_is_no_question_gets_no_answer() {
        let responder = responder();
        let of = |packet: &[u8]| asked(&responder, packet, Transport::Udp);
        assert!(of(&[]).is_none());
        assert!(of(&[0; 11]).is_none());
        let mut answer = question("web.here.op.edge.example", RecordType::A);
        answer.metadata.message_type = MessageType::Response;
        assert!(of(&answer.to_vec().unwrap()).is_none(), "two servers would talk for ever");
    }

    #[test]
    fn bad_packets_are_named_bad_and_cost_nothing() {
        let responder = responder();
        let of = |packet: &[u8]| {
            asked(&responder, packet, Transport::Udp).unwrap().metadata.response_code
        };
        let good = question("web.here.op.edge.example", RecordType::A).to_vec().unwrap();
        assert_eq!(of(&good[..good.len() - 3]), ResponseCode::FormErr, "cut off");
        let changed = |at: usize, value: u8| {
            let mut packet = good.clone();
            packet[at] = value;
            packet
        };
        assert_eq!(of(&changed(4, 0xff)), ResponseCode::FormErr, "65,281 questions");
        assert_eq!(of(&changed(6, 0xff)), ResponseCode::FormErr, "answers in a question");
        assert_eq!(of(&changed(11, 200)), ResponseCode::FormErr, "200 additional records");
        assert_eq!(of(&changed(5, 0)), ResponseCode::FormErr, "no question");
        // A pointer to itself where the name is.
        let mut looped = good[..12].to_vec();
        looped.extend([0xc0, 12, 0, 1, 0, 1]);
        assert_eq!(of(&looped), ResponseCode::FormErr, "a name that never ends");
        for op_code in [OpCode::Update, OpCode::Notify, OpCode::Status] {
            let mut other = question("edge.example", RecordType::SOA);
            other.metadata.op_code = op_code;
            assert_eq!(of(&other.to_vec().unwrap()), ResponseCode::NotImp, "{op_code}");
        }
    }

    #[test]
    fn nothing_is_denied_before_everything_is_known() {
        let directory = directory();
        let responder = Responder::new(Arc::clone(&directory), &[]);
        let packet = question("web.here.op.edge.example", RecordType::A).to_vec().unwrap();
        let of = || asked(&responder, &packet, Transport::Udp).unwrap().metadata.response_code;
        assert_eq!(of(), ResponseCode::ServFail);
        directory.publish();
        assert_eq!(of(), ResponseCode::NXDomain);
    }

    #[test]
    fn who_asks_too_often_is_sent_to_tcp() {
        let packet = question("many.here.op.edge.example", RecordType::A).to_vec().unwrap();
        let Reply::Message(bytes) = responder().come_by_tcp(&packet) else { panic!("silence") };
        assert!(bytes.len() <= packet.len(), "no larger than what was sent");
        assert!(Message::from_vec(&bytes).unwrap().metadata.truncation);
        assert!(matches!(responder().come_by_tcp(&[0; 12]), Reply::Silence));
    }

    proptest! {
        #[test]
        fn no_packet_breaks_it(packet in proptest::collection::vec(any::<u8>(), 0..600)) {
            let responder = Responder::new(directory(), &[]);
            let _ = responder.reply(&packet, Transport::Udp, STRANGER.into());
            let _ = responder.come_by_tcp(&packet);
        }

        #[test]
        fn no_damage_to_a_question_breaks_it(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            keep in any::<prop::sample::Index>(),
        ) {
            let mut asked = question("web.here.op.edge.example", RecordType::SRV);
            asked.set_edns(Edns::new());
            let mut packet = asked.to_vec().unwrap();
            for (at, value) in damage {
                let at = at.index(packet.len());
                packet[at] = value;
            }
            packet.truncate(keep.index(packet.len()) + 1);
            let responder = Responder::new(directory(), &[]);
            let _ = responder.reply(&packet, Transport::Tcp, STRANGER.into());
        }
    }
}
