//! Whole zones, for secondaries: RFC 5936.

use hickory_proto::{
    op::{Message, Metadata, Query},
    rr::Record,
};

use crate::zone::Zone;

/// Records in one message. The longest that there can be, with names of 255
/// octets and a target of as many, fit into what TCP takes.
const RECORDS: usize = 100;

/// Messages of a transfer: the SOA, all records, the SOA again.
pub(crate) fn messages(
    zone: &Zone,
    metadata: &Metadata,
    query: &Query,
) -> impl Iterator<Item = Message> {
    let mut response = Metadata::response_from_request(metadata);
    response.authoritative = true;
    let mut records = [zone.soa()].into_iter().chain(zone.records()).chain([zone.soa()]).peekable();
    std::iter::from_fn(move || {
        records.peek()?;
        let some: Vec<Record> = records.by_ref().take(RECORDS).collect();
        let mut message = Message::response(response.id, response.op_code);
        message.metadata = response;
        message.add_query(query.clone());
        message.add_answers(some);
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hickory_proto::rr::RecordType;

    use super::*;
    use crate::{
        directory::tests::{directory, instance},
        zone::tests::name,
    };

    #[test]
    fn a_large_zone_comes_in_several_messages_between_two_soas() {
        let directory = directory();
        for index in 0..120 {
            let app = format!("app{index}");
            let uri = format!("{app}.here.op.edge.example");
            directory.instances.put(instance(&app, &uri, "10.1.0.1")).unwrap();
        }
        directory.publish();
        let zones = directory.zones().unwrap();
        let zone = zones.iter().next().unwrap();
        let query = Query::query(name("edge.example"), RecordType::AXFR);
        let asked = Message::query();
        let messages: Vec<Message> = messages(zone, &asked.metadata, &query).collect();
        assert!(messages.len() > 3, "{}", messages.len());
        let records: Vec<&Record> = messages.iter().flat_map(|message| &message.answers).collect();
        let is_soa = |record: &Record| record.record_type() == RecordType::SOA;
        assert!(is_soa(records[0]) && is_soa(records[records.len() - 1]));
        assert_eq!(records.iter().filter(|record| is_soa(record)).count(), 2);
        // NS and its address; of each instance two addresses and four services.
        assert_eq!(records.len(), 2 + 2 + 120 * 6);
        for message in messages {
            assert_eq!(message.metadata.id, asked.metadata.id);
            assert!(message.to_vec().unwrap().len() <= usize::from(u16::MAX));
        }
    }
}
