//! Ends of connections: one side closes first, and the other learns of it.

use std::io::ErrorKind;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::common::*;

/// A client and a target that have spoken, joined by a balancer.
async fn joined() -> (Bed, TcpStream, TcpStream) {
    let bed = Bed::new();
    let (listener, address) = by_hand().await;
    bed.tcp(&[address]).await;
    let mut client = bed.connect(1000).await;
    client.write_all(b"hello").await.unwrap();
    let mut target = next_client(&listener).await;
    assert_eq!(read_some(&mut target, 5).await, "hello");
    // Nobody else is served: checks would only pile up.
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
        }
    });
    (bed, client, target)
}

/// Half of it first, from either side, then the other half.
#[tokio::test]
async fn each_half_closes_by_itself() {
    for client_first in [true, false] {
        let (bed, mut client, mut target) = joined().await;
        let (first, second) =
            if client_first { (&mut client, &mut target) } else { (&mut target, &mut client) };
        first.shutdown().await.unwrap();
        assert_eq!(soon(second.read(&mut [0])).await.unwrap(), 0);
        let late = noise(7, 1 << 20);
        let send = async {
            second.write_all(&late).await.unwrap();
            second.shutdown().await.unwrap();
        };
        let (_, came) = soon(futures::future::join(send, read_all(first))).await;
        assert!(came.unwrap() == late, "client first: {client_first}");
        bed.until_empty("it").await;
    }
}

#[tokio::test]
async fn both_halves_at_once() {
    let (bed, mut client, mut target) = joined().await;
    client.shutdown().await.unwrap();
    target.shutdown().await.unwrap();
    assert_eq!(read_all(&mut client).await.unwrap(), b"");
    assert_eq!(read_all(&mut target).await.unwrap(), b"");
    bed.until_empty("it").await;
}

/// Closed as a whole with nothing left to read: an end, not a reset.
#[tokio::test]
async fn a_side_that_is_gone_ends_the_other() {
    for client_first in [true, false] {
        let (bed, client, target) = joined().await;
        let (first, mut second) = if client_first { (client, target) } else { (target, client) };
        drop(first);
        assert_eq!(read_all(&mut second).await.unwrap(), b"");
        // Nobody hears this any more, and sooner or later that is said.
        let wrote = async { while second.write_all(&[0; 4096]).await.is_ok() {} };
        soon(wrote).await;
        drop(second);
        bed.until_empty("it").await;
    }
}

#[tokio::test]
async fn a_reset_is_passed_on() {
    for client_first in [true, false] {
        let (bed, client, target) = joined().await;
        let (first, mut second) = if client_first { (client, target) } else { (target, client) };
        first.set_zero_linger().unwrap();
        drop(first);
        let error = read_all(&mut second).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "client first: {client_first}");
        bed.until_empty("it").await;
    }
}

/// A client hears what a target said before it died.
#[tokio::test]
async fn a_target_that_dies_is_heard_out() {
    let (bed, mut client, mut target) = joined().await;
    target.write_all(b"last words").await.unwrap();
    assert_eq!(read_some(&mut client, 10).await, "last words");
    target.set_zero_linger().unwrap();
    drop(target);
    assert_eq!(read_all(&mut client).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    bed.until_empty("it").await;
}

/// In the middle of bulk both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_dies_in_bulk_ends_it() {
    let (bed, client, target) = joined().await;
    let (mut read, mut write) = client.into_split();
    let sending = tokio::spawn(async move {
        let block = noise(1, 1 << 20);
        while write.write_all(&block).await.is_ok() {}
    });
    let receiving = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 20];
        while read.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    });
    let (mut from, mut to) = target.into_split();
    let mut echoed = 0;
    let mut buffer = vec![0; 1 << 16];
    while echoed < 20 << 20 {
        let count = soon(from.read(&mut buffer)).await.unwrap();
        soon(to.write_all(&buffer[..count])).await.unwrap();
        echoed += count;
    }
    drop((from, to));
    soon(sending).await.unwrap();
    soon(receiving).await.unwrap();
    bed.until_empty("it").await;
    assert!(bed.seen("it").bytes_out >= 10 << 20);
}

/// A client that wants no more while it is still told something.
#[tokio::test]
async fn a_client_that_leaves_early_ends_the_target() {
    let (bed, client, target) = joined().await;
    let (_from, mut to) = target.into_split();
    let sending = tokio::spawn(async move { while to.write_all(&[0; 65536]).await.is_ok() {} });
    drop(client);
    soon(sending).await.unwrap();
    bed.until_empty("it").await;
}
