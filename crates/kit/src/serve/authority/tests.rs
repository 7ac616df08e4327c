#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::{BufMut, Bytes};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::io::StreamReader;

use super::{hpack::put_literal, *};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.put_uint(payload.len() as u64, 3);
    frame.put_slice(&[kind, flags]);
    frame.put_u32(stream);
    frame.put_slice(payload);
    frame
}

fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE.to_vec(), frames.concat()].concat()
}

/// POST to `/`, with an authority that is to be learnt.
fn learning(authority: &[u8]) -> Vec<u8> {
    [&[0x83, 0x86, 0x84, 0x41, u8::try_from(authority.len()).unwrap()], authority].concat()
}

fn plain(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = BytesMut::new();
    for (name, value) in fields {
        put_literal(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block.to_vec()
}

fn request(authority: &str) -> Vec<u8> {
    plain(&[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", authority)])
}

async fn through(stream: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    Lenient::new(stream).read_to_end(&mut output).await.map(|_| output)
}

async fn assert_becomes(sent: &[Vec<u8>], expected: &[Vec<u8>]) {
    let output = through(connection(sent).as_slice()).await.unwrap();
    assert_eq!(Bytes::from(output), Bytes::from(connection(expected)));
}

async fn assert_refused(sent: &[Vec<u8>], why: &str) {
    let error = through(connection(sent).as_slice()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test]
async fn names_that_are_none_become_localhost() {
    for authority in ["/run/topolvm/lvmd.sock", "%2Frun%2Flvmd.sock", "", "a b", "\u{fc}"] {
        let block = learning(authority.as_bytes());
        assert_becomes(
            &[frame(HEADERS, END_HEADERS, 1, &block)],
            &[frame(HEADERS, END_HEADERS, 1, &request("localhost"))],
        )
        .await;
    }
}

#[tokio::test]
async fn names_that_are_some_stay() {
    for authority in ["localhost", "edge.example:8443", "[::1]:80", "10.0.0.1"] {
        assert_becomes(
            &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &learning(authority.as_bytes()))],
            &[frame(HEADERS, END_HEADERS | END_STREAM, 1, &request(authority))],
        )
        .await;
    }
}

#[tokio::test]
async fn what_was_learnt_is_understood_later() {
    let (again, trailers) = ([0x83, 0x86, 0x84, 0xbe], [0x40, 1, b'x', 1, b'y']);
    let expected = request("localhost");
    assert_becomes(
        &[
            frame(HEADERS, END_HEADERS, 1, &learning(b"/run/lvmd.sock")),
            frame(HEADERS, END_HEADERS, 3, &again),
            frame(DATA, 0, 3, b"body"),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, &trailers),
            frame(HEADERS, END_HEADERS, 5, &[0x83, 0x86, 0x84, 0xbf, 0xbe]),
        ],
        &[
            frame(HEADERS, END_HEADERS, 1, &expected),
            frame(HEADERS, END_HEADERS, 3, &expected),
            frame(DATA, 0, 3, b"body"),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, &plain(&[("x", "y")])),
            frame(HEADERS, END_HEADERS, 5, &[expected.clone(), plain(&[("x", "y")])].concat()),
        ],
    )
    .await;
}

#[tokio::test]
async fn padding_goes_and_priority_stays() {
    let (block, expected) = (learning(b""), request("localhost"));
    let padded = [&[3], block.as_slice(), &[0; 3]].concat();
    let priority = [0x80, 0, 0, 0, 16];
    let both = [&[2], priority.as_slice(), &block, &[0; 2]].concat();
    assert_becomes(
        &[
            frame(HEADERS, END_HEADERS | PADDED, 1, &padded),
            frame(HEADERS, END_HEADERS | PRIORITY, 3, &[&priority, block.as_slice()].concat()),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 5, &both),
        ],
        &[
            frame(HEADERS, END_HEADERS, 1, &expected),
            frame(HEADERS, END_HEADERS | PRIORITY, 3, &[&priority, expected.as_slice()].concat()),
            frame(HEADERS, END_HEADERS | PRIORITY, 5, &[&priority, expected.as_slice()].concat()),
        ],
    )
    .await;
    for (flags, payload) in
        [(PADDED, [].as_slice()), (PADDED, &[2, 0x82]), (PRIORITY, &[0; 4]), (PADDED, &[1])]
    {
        let short = frame(HEADERS, END_HEADERS | flags, 1, payload);
        assert_refused(&[short], "shorter than its padding or priority").await;
    }
}

/// A connection with a bit of everything, and what becomes of it.
fn everything() -> (Vec<u8>, Vec<u8>) {
    let block = learning(b"/run/lvmd.sock");
    let (head, rest) = block.split_at(2);
    let (middle, tail) = rest.split_at(7);
    let expected = request("localhost");
    let data = frame(DATA, 0, 1, &[7; 300]);
    let ping = frame(PING, 0, 0, b"12345678");
    let sent = [
        frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(HEADERS, END_STREAM | PADDED, 1, &[&[1], head, &[0]].concat()),
        frame(CONTINUATION, 0, 1, middle),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, tail),
        data.clone(),
        frame(HEADERS, END_HEADERS, 3, &[0x83, 0x86, 0x84, 0xbe]),
        ping.clone(),
    ];
    let becomes = [
        frame(4, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &expected),
        data,
        frame(HEADERS, END_HEADERS, 3, &expected),
        ping,
    ];
    (connection(&sent), connection(&becomes))
}

#[tokio::test]
async fn it_does_not_matter_where_reads_are_split() {
    let (sent, expected) = everything();
    for at in 0..=sent.len() {
        let (before, after) = sent.split_at(at);
        let split = AsyncReadExt::chain(before, after);
        assert_eq!(through(split).await.unwrap(), expected, "split at {at}");
    }
    let bytes = sent.iter().map(|byte| io::Result::Ok(Bytes::copy_from_slice(&[*byte])));
    let one_by_one = StreamReader::new(futures::stream::iter(bytes));
    assert_eq!(through(one_by_one).await.unwrap(), expected);
}

#[tokio::test]
async fn small_reads_get_all_of_it() {
    let (sent, expected) = everything();
    let mut stream = Lenient::new(sent.as_slice());
    let mut output = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        output.push(byte);
    }
    assert_eq!(output, expected);
}

#[tokio::test]
async fn a_header_that_grows_over_a_frame_is_continued() {
    let value = "v".repeat(3000);
    // A literal that is to be learnt differs from one that is not in a bit.
    let mut learn = plain(&[("x", &value)]);
    learn[0] = 0x40;
    let expected = plain(&[("x", value.as_str()); 20]);
    let (first, rest) = expected.split_at(16_384 - 5);
    let (second, rest) = rest.split_at(16_384);
    let (third, fourth) = rest.split_at(16_384);
    let priority = [0, 0, 0, 0, 1];
    assert_becomes(
        &[
            frame(HEADERS, END_HEADERS, 1, &learn),
            frame(HEADERS, END_HEADERS | PRIORITY, 3, &[priority.as_slice(), &[0xbe; 20]].concat()),
            frame(PING, 0, 0, b"12345678"),
        ],
        &[
            frame(HEADERS, END_HEADERS, 1, &plain(&[("x", &value)])),
            frame(HEADERS, PRIORITY, 3, &[&priority, first].concat()),
            frame(CONTINUATION, 0, 3, second),
            frame(CONTINUATION, 0, 3, third),
            frame(CONTINUATION, END_HEADERS, 3, fourth),
            frame(PING, 0, 0, b"12345678"),
        ],
    )
    .await;
}

#[tokio::test]
async fn headers_without_an_end_are_refused() {
    let piece = plain(&[("x", &"v".repeat(15_000))]);
    let mut sent = vec![frame(HEADERS, 0, 1, &piece)];
    sent.extend(vec![frame(CONTINUATION, 0, 1, &piece); 4]);
    assert_refused(&sent, "longer than 65536 bytes").await;

    let mut sent = vec![frame(HEADERS, 0, 1, &[])];
    sent.extend(vec![frame(CONTINUATION, 0, 1, &[]); 10_000]);
    assert_refused(&sent, "longer than 65536 bytes").await;
}

#[tokio::test]
async fn headers_that_are_interrupted_or_cannot_be_read_are_refused() {
    let begun = frame(HEADERS, 0, 1, &[0x82]);
    for other in [
        frame(PING, 0, 0, b"12345678"),
        frame(HEADERS, END_HEADERS, 1, &[0x82]),
        frame(CONTINUATION, END_HEADERS, 3, &[0x82]),
        frame(CONTINUATION, END_HEADERS, 1, &[0; 16_385]),
    ] {
        assert_refused(&[begun.clone(), other], "interrupted").await;
    }
    assert_refused(&[frame(HEADERS, END_HEADERS, 1, &[0x80])], "names a field").await;
}

#[tokio::test]
async fn what_http_refuses_by_itself_is_left_to_it() {
    let sent = [
        frame(CONTINUATION, END_HEADERS, 1, &[0x80]),
        frame(HEADERS, END_HEADERS, 1, &[0; 16_385]),
        frame(0xfe, 0xff, 1, b"unknown"),
    ];
    assert_becomes(&sent, &sent).await;
}

#[tokio::test]
async fn the_server_is_not_touched() {
    let (mut client, server) = tokio::io::duplex(1024);
    let mut server = Lenient::new(server);
    let reply = frame(HEADERS, END_HEADERS, 1, &learning(b"/not/a/name"));
    server.write_all(&reply).await.unwrap();
    server.shutdown().await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, reply);
}

/// Frames as a client may send them, that are right as frames if not else.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => Just(HEADERS), 2 => Just(CONTINUATION), 1 => any::<u8>()];
    let payload = prop::collection::vec(any::<u8>(), 0..120);
    (kind, any::<u8>(), 0_u32..4, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

fn run(bytes: &[u8], chunk: usize) -> Result<(), TestCaseError> {
    let mut frames = Frames::new();
    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    for piece in bytes.chunks(chunk) {
        input.extend_from_slice(piece);
        loop {
            output.clear();
            if frames.advance(&mut input, &mut output).is_err() {
                return Ok(());
            }
            prop_assert!(output.len() <= 2 * MAX_FRAME + 64 * 1024 + 64);
            if output.is_empty() {
                break;
            }
        }
        prop_assert!(input.len() < MAX_FRAME);
    }
    Ok(())
}

proptest! {
    #[test]
    fn garbage_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        chunk in 1_usize..400,
    ) {
        run(&connection(&[bytes]), chunk)?;
    }

    #[test]
    fn frames_of_garbage_never_panic(
        frames in prop::collection::vec(any_frame(), 0..20),
        chunk in 1_usize..400,
    ) {
        run(&connection(&frames), chunk)?;
    }
}
