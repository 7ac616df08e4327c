//! Conversion between our types and those of etcd.

use bytes::Bytes;
use etcd_client as api;

use crate::types::prefix_end;
use crate::{
    Compare, CompareOp, Error, Event, KeyRange, KeyValue, LeaseId, Op, OpResult, RangeReply,
    RangeRequest, Result, Revision, Txn, TxnReply,
};

/// The part of the keyspace that is ours.
#[derive(Debug)]
pub(super) struct Namespace {
    prefix: Vec<u8>,
}

/// A key, or with an end all keys from it to before the end.
pub(super) struct Span {
    pub(super) key: Vec<u8>,
    pub(super) end: Option<Vec<u8>>,
}

pub(super) fn revision(number: i64) -> Revision {
    Revision::try_from(number).unwrap_or(0)
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn header_revision(header: Option<&api::ResponseHeader>) -> Revision {
    header.map_or(0, |header| revision(header.revision()))
}

impl Namespace {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.as_bytes().to_vec() }
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    pub(super) fn span(&self, range: &KeyRange) -> Span {
        if let KeyRange::Key(key) = range {
            return Span { key: self.key(key), end: None };
        }
        let (from, to) = range.bounds();
        // A prefix of UTF-8 text always has an end.
        let last = || prefix_end(&self.prefix).unwrap_or_default().to_vec();
        let end = to.map_or_else(last, |to| self.key(&to));
        Span { key: self.key(&from), end: Some(end) }
    }

    fn own(&self, key: &[u8]) -> Bytes {
        Bytes::copy_from_slice(key.strip_prefix(&self.prefix[..]).unwrap_or(key))
    }

    pub(super) fn key_value(&self, kv: api::KeyValue) -> KeyValue {
        let (create_revision, mod_revision) =
            (revision(kv.create_revision()), revision(kv.mod_revision()));
        let version = revision(kv.version());
        let lease = (kv.lease() != 0).then_some(LeaseId(kv.lease()));
        let (key, value) = kv.into_key_value();
        let (key, value) = (self.own(&key), value.into());
        KeyValue { key, value, create_revision, mod_revision, version, lease }
    }

    pub(super) fn event(&self, event: &api::Event) -> Option<Event> {
        let kv = event.kv()?;
        Some(match event.event_type() {
            api::EventType::Put => Event::Put(self.key_value(kv.clone())),
            api::EventType::Delete => {
                Event::Delete { key: self.own(kv.key()), mod_revision: revision(kv.mod_revision()) }
            }
        })
    }

    pub(super) fn get(&self, request: &RangeRequest) -> (Vec<u8>, api::GetOptions) {
        let span = self.span(&request.range);
        let mut options = api::GetOptions::new().with_limit(signed(request.limit as u64));
        if let Some(end) = span.end {
            options = options.with_range(end);
        }
        if let Some(at) = request.at_revision {
            options = options.with_revision(signed(at));
        }
        if request.keys_only {
            options = options.with_keys_only();
        }
        if request.descending {
            options = options.with_sort(api::SortTarget::Key, api::SortOrder::Descend);
        }
        (span.key, options)
    }

    pub(super) fn range_reply(&self, mut reply: api::GetResponse) -> RangeReply {
        RangeReply {
            more: reply.more(),
            count: revision(reply.count()),
            revision: header_revision(reply.header()),
            items: reply.take_kvs().into_iter().map(|kv| self.key_value(kv)).collect(),
        }
    }

    fn compare(&self, compare: &Compare) -> api::Compare {
        let key = self.key(compare.key());
        match compare {
            Compare::Exists(_) => api::Compare::version(key, api::CompareOp::Greater, 0),
            Compare::Missing(_) => api::Compare::version(key, api::CompareOp::Equal, 0),
            Compare::ModRevision(_, op, given) => {
                api::Compare::mod_revision(key, compare_op(*op), signed(*given))
            }
            Compare::CreateRevision(_, op, given) => {
                api::Compare::create_revision(key, compare_op(*op), signed(*given))
            }
            Compare::Version(_, op, given) => {
                api::Compare::version(key, compare_op(*op), signed(*given))
            }
            Compare::Value(_, op, given) => {
                api::Compare::value(key, compare_op(*op), given.to_vec())
            }
        }
    }

    fn op(&self, op: &Op) -> api::TxnOp {
        match op {
            Op::Put { key, value, lease } => {
                let options = lease.map(|lease| api::PutOptions::new().with_lease(lease.0));
                api::TxnOp::put(self.key(key), value.to_vec(), options)
            }
            Op::Delete(range) => {
                let span = self.span(range);
                let options = span.end.map(|end| api::DeleteOptions::new().with_range(end));
                api::TxnOp::delete(span.key, options)
            }
            Op::Get(request) => {
                let (key, options) = self.get(request);
                api::TxnOp::get(key, Some(options))
            }
        }
    }

    pub(super) fn txn(&self, txn: &Txn) -> api::Txn {
        let ops = |ops: &[Op]| ops.iter().map(|op| self.op(op)).collect::<Vec<_>>();
        let compares: Vec<_> = txn.compares.iter().map(|compare| self.compare(compare)).collect();
        api::Txn::new().when(compares).and_then(ops(&txn.then)).or_else(ops(&txn.otherwise))
    }

    pub(super) fn txn_reply(&self, reply: &api::TxnResponse) -> Result<TxnReply> {
        let result = |response| {
            Ok(match response {
                api::TxnOpResponse::Put(_) => OpResult::Put,
                api::TxnOpResponse::Delete(reply) => OpResult::Delete(revision(reply.deleted())),
                api::TxnOpResponse::Get(reply) => OpResult::Get(self.range_reply(reply)),
                api::TxnOpResponse::Txn(_) => {
                    return Err(Error::internal("etcd answered with a nested transaction"));
                }
            })
        };
        Ok(TxnReply {
            succeeded: reply.succeeded(),
            revision: header_revision(reply.header()),
            results: reply.op_responses().into_iter().map(result).collect::<Result<_>>()?,
        })
    }
}

fn compare_op(op: CompareOp) -> api::CompareOp {
    match op {
        CompareOp::Equal => api::CompareOp::Equal,
        CompareOp::NotEqual => api::CompareOp::NotEqual,
        CompareOp::Less => api::CompareOp::Less,
        CompareOp::Greater => api::CompareOp::Greater,
    }
}
