//! `edgeproto.Notice` as it is sent and received here: the same bytes, with
//! the object left as bytes that all peers share.

use bytes::Bytes;

/// The protocol version we speak.
pub const VERSION: u32 = 1;

/// Largest notice that is sent; gRPC's habitual limit of what a peer takes.
pub(crate) const MAX_NOTICE: usize = 4 * 1024 * 1024;

/// Prefix of a type name in an `Any`.
pub(crate) const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

/// Action of a notice: `edgeproto.NoticeAction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Action {
    /// Unknown to the original; we use it to carry a revision, or as a
    /// heartbeat.
    None = 0,
    /// The object is now as given.
    Update = 1,
    /// The object is gone.
    Delete = 2,
    /// Opening of either side.
    Version = 3,
    /// All has been sent once.
    SendAllEnd = 4,
}

/// The object of a notice: `google.protobuf.Any`. The type is bytes so that
/// no peer can end a stream with a name that is not UTF-8.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Payload {
    /// Type URL.
    #[prost(bytes = "bytes", tag = "1")]
    pub type_url: Bytes,
    /// The object, encoded.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

impl Payload {
    /// Returns true if it is not about any object.
    pub fn is_empty(&self) -> bool {
        self.type_url.is_empty() && self.value.is_empty()
    }

    /// The type's full name: what follows the last slash. `None` without one.
    pub fn type_name(&self) -> Option<&str> {
        std::str::from_utf8(&self.type_url).ok()?.rsplit_once('/').map(|(_, name)| name)
    }
}

/// One notice. Field by field `edgeproto.Notice`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Frame {
    /// Action of the notice.
    #[prost(enumeration = "Action", tag = "1")]
    pub action: i32,
    /// Version of the protocol, with [`Action::Version`].
    #[prost(uint32, tag = "2")]
    pub version: u32,
    /// The object. The original always writes this field, also when empty,
    /// and so do we.
    #[prost(message, optional, tag = "3")]
    pub any: Option<Payload>,
    /// Types that the sender wants, with [`Action::Version`].
    #[prost(string, repeated, tag = "4")]
    pub want_objs: Vec<String>,
    /// True to get only objects of its own cloudlets, with [`Action::Version`].
    #[prost(bool, tag = "5")]
    pub filter_cloudlet_key: bool,
    /// Ours, see the contract.
    #[prost(int64, repeated, tag = "100")]
    pub last_revision: Vec<i64>,
    /// Ours, see the contract.
    #[prost(int64, tag = "101")]
    pub revision: i64,
    /// Ours, see the contract.
    #[prost(uint64, tag = "102")]
    pub epoch: u64,
    /// Ours, see the contract.
    #[prost(uint64, tag = "104")]
    pub scope: u64,
    /// Ours, see the contract.
    #[prost(uint32, repeated, tag = "105")]
    pub resumed: Vec<u32>,
    /// Ours, see the contract.
    #[prost(bool, tag = "106")]
    pub heartbeats: bool,
    /// Ours, see the contract.
    #[prost(uint32, tag = "107")]
    pub heartbeat_ms: u32,
}

impl Frame {
    /// A notice without an object.
    pub fn bare(action: Action) -> Self {
        Self { action: action.into(), any: Some(Payload::default()), ..Self::default() }
    }

    /// A notice about an object.
    pub fn about(action: Action, type_url: Bytes, value: Bytes) -> Self {
        let any = Some(Payload { type_url, value });
        Self { action: action.into(), any, ..Self::default() }
    }

    /// The object, also when the field was left out.
    pub(crate) fn take_payload(&mut self) -> Payload {
        self.any.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use prost::Message;
    use selvage_api::edgeproto::Notice;

    use super::*;

    fn same_bytes(frame: &Frame, notice: &Notice, golden: &[u8]) {
        assert_eq!(frame.encode_to_vec(), golden);
        assert_eq!(notice.encode_to_vec(), golden);
        assert_eq!(&Frame::decode(golden).unwrap(), frame);
        assert_eq!(&Notice::decode(golden).unwrap(), notice);
    }

    #[test]
    fn the_end_of_send_all_is_four_bytes() {
        let frame = Frame::bare(Action::SendAllEnd);
        let notice =
            Notice { action: 4, any: Some(prost_types::Any::default()), ..Notice::default() };
        same_bytes(&frame, &notice, &[0x08, 0x04, 0x1a, 0x00]);
    }

    #[test]
    fn the_opening_of_a_match_engine() {
        let want = vec!["edgeproto.App".to_owned(), "edgeproto.AppInst".to_owned()];
        let frame = Frame { version: 1, want_objs: want.clone(), ..Frame::bare(Action::Version) };
        let notice = Notice {
            action: 3,
            version: 1,
            any: Some(prost_types::Any::default()),
            want_objs: want,
            ..Notice::default()
        };
        let golden = b"\x08\x03\x10\x01\x1a\x00\x22\x0dedgeproto.App\x22\x11edgeproto.AppInst";
        same_bytes(&frame, &notice, golden);
    }

    #[test]
    fn extensions_are_those_of_the_contract() {
        let frame = Frame {
            last_revision: vec![0, 7],
            revision: 9,
            epoch: 11,
            scope: 13,
            resumed: vec![0, 2],
            heartbeats: true,
            heartbeat_ms: 4500,
            filter_cloudlet_key: true,
            ..Frame::about(
                Action::Update,
                Bytes::from_static(b"type.googleapis.com/edgeproto.App"),
                Bytes::from_static(b"\x12\x00"),
            )
        };
        let notice = Notice::decode(frame.encode_to_vec().as_slice()).unwrap();
        assert_eq!(notice.last_revision, [0, 7]);
        assert_eq!((notice.revision, notice.epoch, notice.scope), (9, 11, 13));
        assert_eq!(notice.resumed, [0, 2]);
        assert_eq!((notice.heartbeats, notice.heartbeat_ms), (true, 4500));
        assert!(notice.filter_cloudlet_key);
        assert_eq!(notice.any.as_ref().unwrap().type_url, "type.googleapis.com/edgeproto.App");
        assert_eq!(notice.encode_to_vec(), frame.encode_to_vec());
    }

    #[test]
    fn an_absent_object_and_an_empty_one_are_the_same() {
        for bytes in [&b"\x08\x04"[..], b"\x08\x04\x1a\x00"] {
            assert!(Frame::decode(bytes).unwrap().take_payload().is_empty());
        }
    }

    #[test]
    fn the_type_is_what_follows_the_last_slash() {
        let name = |url: &'static [u8]| {
            Payload { type_url: Bytes::from_static(url), value: Bytes::new() }
                .type_name()
                .map(str::to_owned)
        };
        assert_eq!(name(b"type.googleapis.com/edgeproto.App").as_deref(), Some("edgeproto.App"));
        assert_eq!(name(b"http://x/y/edgeproto.App").as_deref(), Some("edgeproto.App"));
        assert_eq!(name(b"edgeproto.App"), None);
        assert_eq!(name(b"\xff\xfe/edgeproto.App"), None);
    }
}
