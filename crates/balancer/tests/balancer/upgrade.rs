use std::{io::ErrorKind, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::common::*;

const ASK: &[u8] = b"GET /a/chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

async fn head(stream: &mut TcpStream) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head += &read_some(stream, 1).await;
    }
    head
}

/// A chat that both sides agreed on.
async fn agreed(bed: &Bed) -> (TcpStream, TcpStream) {
    let (listener, address) = by_hand().await;
    bed.publish("it", vec![prefixed(80, "a", &[address])]).await;
    let mut client = bed.connect(80).await;
    client.write_all(ASK).await.unwrap();
    let mut target = next_client(&listener).await;
    let asked = head(&mut target).await;
    assert!(asked.starts_with("GET /chat HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("connection: upgrade\r\n"), "{asked}");
    assert!(asked.contains("upgrade: websocket\r\n"), "{asked}");
    assert!(asked.contains("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), "{asked}");
    target
        .write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nearly",
        )
        .await
        .unwrap();
    let answer = head(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{answer}");
    assert!(answer.contains("upgrade: websocket\r\n"), "{answer}");
    assert!(answer.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
    assert_eq!(read_some(&mut client, 5).await, "early");
    (client, target)
}

#[tokio::test]
async fn bytes_pass_both_ways_after_an_upgrade() {
    let bed = Bed::new();
    let (mut client, mut target) = agreed(&bed).await;
    for turn in 0..10_u8 {
        client.write_all(&[turn; 1000]).await.unwrap();
        assert_eq!(read_some(&mut target, 1000).await.as_bytes(), [turn; 1000]);
        target.write_all(&[turn; 500]).await.unwrap();
        assert_eq!(read_some(&mut client, 500).await.as_bytes(), [turn; 500]);
    }
    assert_eq!(bed.seen("it").connections, 1);
    client.shutdown().await.unwrap();
    assert_eq!(soon(target.read(&mut [0])).await.unwrap(), 0);
    target.write_all(b"bye").await.unwrap();
    drop(target);
    assert_eq!(read_all(&mut client).await.unwrap(), b"bye");
    bed.until_empty("it").await;
    let seen = bed.seen("it");
    assert_eq!((seen.bytes_in, seen.bytes_out), (10_000, 5_008));
}

#[tokio::test]
async fn withdrawing_cuts_upgraded_connections() {
    let mut options = options();
    options.limits.drain = Duration::from_millis(50);
    let bed = Bed::with(options);
    let (mut client, mut target) = agreed(&bed).await;
    soon(bed.balancer.withdraw("it")).await;
    for stream in [&mut client, &mut target] {
        let ended = read_all(stream).await;
        assert!(ended.is_ok() || ended.unwrap_err().kind() == ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn a_target_may_refuse_to_upgrade() {
    let bed = Bed::new();
    let (listener, address) = by_hand().await;
    bed.publish("it", vec![prefixed(80, "a", &[address])]).await;
    let mut client = bed.connect(80).await;
    client.write_all(ASK).await.unwrap();
    let mut target = next_client(&listener).await;
    head(&mut target).await;
    target.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 403 Forbidden\r\n"));
    assert_eq!(read_some(&mut client, 2).await, "no");
    bed.until_empty("it").await;
}

/// Nobody asked for it.
#[tokio::test]
async fn a_target_does_not_upgrade_by_itself() {
    let bed = Bed::new();
    let (listener, address) = by_hand().await;
    bed.publish("it", vec![prefixed(80, "a", &[address])]).await;
    let mut client = bed.connect(80).await;
    let ask = b"GET /a/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    client.write_all(ask).await.unwrap();
    let mut target = next_client(&listener).await;
    assert!(!head(&mut target).await.contains("upgrade"));
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n";
    target.write_all(answer).await.unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    bed.until_empty("it").await;
}
