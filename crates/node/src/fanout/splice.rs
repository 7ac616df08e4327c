//! Puts the name of a node into its reply without decoding it.
//!
//! A reply is `{1: message}*` and a message takes `{1: metadata}` anywhere, so
//! joining replies is joining bytes: the length of each message is written
//! anew, its bytes are passed on as they are, and the metadata follows.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding;
use selvage_api::common::Metadata;

/// Tag of field 1 with a length, which is `messages` in a reply and `metadata`
/// in a message.
const FIELD_ONE: u64 = 10;

/// The bytes of a reply are not a list of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unexpected message format")]
pub(super) struct Malformed;

/// `{1: {1: hostname, 2: error}}`, to be appended to a message.
pub(super) fn metadata(hostname: &str, error: &str) -> Bytes {
    let metadata = Metadata { hostname: hostname.to_owned(), error: error.to_owned() };
    let mut bytes = BytesMut::new();
    encoding::message::encode(1, &metadata, &mut bytes);
    bytes.freeze()
}

/// The reply of a node that has none: one message with nothing but metadata.
pub(super) fn bare(metadata: &Bytes) -> Vec<Bytes> {
    vec![head(metadata.len()), metadata.clone()]
}

/// The reply with the metadata in each of its messages. A reply without
/// messages becomes one with a bare message: the node did answer.
pub(super) fn reply(mut reply: Bytes, metadata: &Bytes) -> Result<Vec<Bytes>, Malformed> {
    if reply.is_empty() {
        return Ok(bare(metadata));
    }
    let mut spliced = Vec::with_capacity(3);
    while reply.has_remaining() {
        let tag = encoding::decode_varint(&mut reply).map_err(|_| Malformed)?;
        let length = encoding::decode_varint(&mut reply).map_err(|_| Malformed)?;
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        if tag != FIELD_ONE || length > reply.remaining() {
            return Err(Malformed);
        }
        spliced.push(head(length + metadata.len()));
        spliced.push(reply.split_to(length));
        spliced.push(metadata.clone());
    }
    Ok(spliced)
}

fn head(length: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(11);
    encoding::encode_varint(FIELD_ONE, &mut head);
    encoding::encode_varint(length as u64, &mut head);
    head.freeze()
}

/// The head of a gRPC message with so many bytes.
pub(super) fn frame_head(length: usize) -> Option<Bytes> {
    let mut head = BytesMut::with_capacity(5);
    head.put_u8(0);
    head.put_u32(u32::try_from(length).ok()?);
    Some(head.freeze())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use prost::Message;
    use selvage_api::os::{MemInfo, Memory, MemoryResponse};

    use super::*;

    fn joined(pieces: &[Vec<Bytes>]) -> Vec<u8> {
        pieces.iter().flatten().flatten().copied().collect()
    }

    #[test]
    fn the_bytes_are_those_that_clients_of_the_original_expect() {
        let answered =
            reply(Bytes::from_static(&[0x0a, 4, 0x12, 2, 8, 5]), &metadata("10.5.0.2", ""))
                .unwrap();
        let failed = bare(&metadata("10.5.0.3", "rpc error: code = Unavailable desc = x"));
        let mut golden =
            hexed("0a1012020805 0a0a0a0831302e352e302e32 0a340a320a0831302e352e302e331226");
        golden.extend(b"rpc error: code = Unavailable desc = x");
        assert_eq!(joined(&[answered, failed]), golden);
    }

    fn hexed(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
        let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
        digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    #[test]
    fn a_reply_without_messages_still_says_who_answered() {
        let spliced = joined(&[reply(Bytes::new(), &metadata("a", "")).unwrap()]);
        let read = MemoryResponse::decode(spliced.as_slice()).unwrap();
        assert_eq!(read.messages.len(), 1);
        assert_eq!(read.messages[0].metadata.as_ref().unwrap().hostname, "a");
    }

    #[test]
    fn what_is_no_list_of_messages_is_not_passed_on() {
        for wrong in [&[0x12, 1, 0][..], &[0x0a, 5, 0], &[0x0a], &[0xff; 11], &[8, 1]] {
            assert_eq!(reply(Bytes::copy_from_slice(wrong), &metadata("a", "")), Err(Malformed));
        }
    }

    fn named(mut memory: Memory, hostname: &str) -> Memory {
        let metadata = memory.metadata.get_or_insert_default();
        metadata.hostname = hostname.to_owned();
        memory
    }

    fn any_memory() -> impl Strategy<Value = Memory> {
        let error = proptest::option::of("[a-z ]{1,200}");
        (any::<u64>(), any::<u64>(), error).prop_map(|(memtotal, memfree, error)| Memory {
            metadata: error.map(|error| Metadata { hostname: String::new(), error }),
            meminfo: Some(MemInfo { memtotal, memfree, ..Default::default() }),
        })
    }

    proptest! {
        #[test]
        fn joining_bytes_is_joining_messages(
            nodes in proptest::collection::vec(
                ("\\PC{1,300}", proptest::collection::vec(any_memory(), 1..4)), 1..6)
        ) {
            let mut pieces = Vec::new();
            let mut expected = Vec::new();
            for (hostname, messages) in nodes {
                let bytes = MemoryResponse { messages: messages.clone() }.encode_to_vec();
                pieces.push(reply(bytes.into(), &metadata(&hostname, "")).unwrap());
                expected.extend(messages.into_iter().map(|memory| named(memory, &hostname)));
            }
            let read = MemoryResponse::decode(joined(&pieces).as_slice()).unwrap();
            prop_assert_eq!(read.messages, expected);
        }

        #[test]
        fn any_bytes_are_spliced_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = reply(bytes.into(), &metadata("a", ""));
        }
    }
}
