//! Input of strangers for the fuzzer. Not for anything else.

use bytes::BytesMut;

use super::{frames::Frames, hpack::Decoder};

/// Largest header of the fuzzer.
const LIMIT: usize = 16 * 1024;

/// Reads what a client sends on a connection of HTTP/2, in pieces of any size.
pub fn connection(bytes: &[u8]) {
    let (first, rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
    let mut frames = Frames::new();
    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    for piece in rest.chunks(usize::from(first) + 1) {
        input.extend_from_slice(piece);
        if frames.advance(&mut input, &mut output).is_err() {
            return;
        }
        output.clear();
    }
}

/// Reads a block of compressed headers.
pub fn headers(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    for block in bytes.split(|byte| *byte == 0xff) {
        match decoder.decode(block, LIMIT) {
            Ok(fields) => assert!(fields.iter().map(|field| field.size()).sum::<usize>() <= LIMIT),
            Err(_) => return,
        }
    }
}
