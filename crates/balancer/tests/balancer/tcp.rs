use std::{io::ErrorKind, time::Duration};

use selvage_balancer::{Limits, Options};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::common::*;

/// Sends and receives at once, and compares.
async fn exchange(mut stream: TcpStream, seed: u64, size: usize) {
    let sent = noise(seed, size);
    let (mut read, mut write) = stream.split();
    let mut came = Vec::new();
    let send = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let (_, received) = soon(futures::future::join(send, read.read_to_end(&mut came))).await;
    received.unwrap();
    assert!(came == sent, "{size} bytes of {seed} came back as {} others", came.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_keep_their_bytes_apart() {
    let bed = Bed::new();
    let targets = [echo().await, echo().await];
    bed.tcp(&[targets[0].address, targets[1].address]).await;
    let sizes = |seed: u64| match seed % 4 {
        0 => rand::random_range(0..64),
        1 => rand::random_range(0..20_000),
        2 => rand::random_range(0..300_000),
        _ => rand::random_range(0..3_000_000),
    };
    let all: Vec<(u64, usize)> = (0..200).map(|seed| (seed, sizes(seed))).collect();
    let sum: u64 = all.iter().map(|(_, size)| *size as u64).sum();
    let mut tasks = Vec::new();
    for (seed, size) in all {
        tasks.push(tokio::spawn(exchange(bed.connect(1000).await, seed, size)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    bed.until_empty("it").await;
    let seen = bed.seen("it");
    assert_eq!((seen.total, seen.bytes_in, seen.bytes_out, seen.errors), (200, sum, sum, 0));
    assert!(seen.targets.iter().all(|target| target.total >= 50), "{seen:?}");
}

#[tokio::test]
async fn those_with_fewer_connections_get_the_next() {
    let bed = Bed::new();
    let targets = [named("a").await, named("b").await, named("c").await];
    bed.tcp(&targets.each_ref().map(|target| target.address)).await;
    let mut held = Vec::new();
    for _ in 0..9 {
        let mut stream = bed.connect(1000).await;
        let name = read_some(&mut stream, 1).await;
        held.push((name, stream));
    }
    let counts =
        |bed: &Bed| bed.seen("it").targets.iter().map(|t| t.connections).collect::<Vec<_>>();
    assert_eq!(counts(&bed), [3, 3, 3]);
    held.retain(|(name, _)| name != "b");
    until("b has none", || counts(&bed) == [3, 0, 3]).await;
    for _ in 0..3 {
        let mut stream = bed.connect(1000).await;
        assert_eq!(read_some(&mut stream, 1).await, "b");
        held.push(("b".into(), stream));
    }
}

#[tokio::test]
async fn a_target_that_refuses_is_passed_over() {
    // No check comes between.
    let mut options = options();
    options.health.every = Duration::from_secs(3600);
    let bed = Bed::with(options);
    let (alive, dead) = (named("a").await, nobody().await);
    bed.tcp(&[dead, alive.address]).await;
    for _ in 0..10 {
        let mut stream = bed.connect(1000).await;
        assert_eq!(read_some(&mut stream, 1).await, "a");
    }
    assert_eq!(bed.seen("it").errors, 0);
    until("it is known", || bed.seen("it").targets[0].health.is_unhealthy()).await;
}

#[tokio::test]
async fn without_a_target_clients_are_reset() {
    let bed = Bed::new();
    bed.tcp(&[nobody().await, nobody().await]).await;
    for _ in 0..5 {
        let mut stream = bed.connect(1000).await;
        assert_eq!(read_all(&mut stream).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    until("all are counted", || bed.seen("it").errors == 5).await;
    until("it is unhealthy", || bed.balancer.status("it").unwrap().health.is_unhealthy()).await;
}

#[tokio::test]
async fn there_is_room_for_so_many() {
    let options = options();
    let limits = Limits { connections: 2, ..options.limits.clone() };
    let bed = Bed::with(Options { limits, ..options });
    let target = named("a").await;
    bed.tcp(&[target.address]).await;
    let mut first = bed.connect(1000).await;
    read_some(&mut first, 1).await;
    let mut second = bed.connect(1000).await;
    read_some(&mut second, 1).await;
    let mut third = bed.connect(1000).await;
    assert_eq!(read_all(&mut third).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(bed.seen("it").errors, 1);
    drop(first);
    until("there is room", || bed.seen("it").connections == 1).await;
    let mut fourth = bed.connect(1000).await;
    assert_eq!(read_some(&mut fourth, 1).await, "a");
}

#[tokio::test]
async fn silent_connections_end_and_busy_ones_do_not() {
    let options = options();
    let limits = Limits { tcp_idle: Duration::from_millis(200), ..options.limits.clone() };
    let bed = Bed::with(Options { limits, ..options });
    let target = echo().await;
    bed.tcp(&[target.address]).await;
    let mut busy = bed.connect(1000).await;
    let mut silent = bed.connect(1000).await;
    let chat = tokio::spawn(async move {
        loop {
            busy.write_all(b"x").await?;
            busy.read_exact(&mut [0]).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        #[allow(unreachable_code)]
        Ok::<(), std::io::Error>(())
    });
    assert_eq!(read_all(&mut silent).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(!chat.is_finished());
    assert_eq!(bed.seen("it").connections, 1);
    chat.abort();
}

#[tokio::test]
async fn a_target_that_does_not_read_stops_the_client() {
    let bed = Bed::new();
    let (listener, address) = by_hand().await;
    bed.tcp(&[address]).await;
    let mut client = bed.connect(1000).await;
    client.write_all(b"x").await.unwrap();
    let mut target = next_client(&listener).await;
    let block = noise(1, 1 << 20);
    let mut sent = 1;
    // All buffers on the way together hold a few megabytes.
    let full = async {
        loop {
            sent += client.write(&block).await.unwrap();
            assert!(sent < 256 << 20, "somebody keeps all of it");
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(500), full).await;
    let read = tokio::spawn(async move {
        let mut count = 0;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match target.read(&mut buffer).await.unwrap() {
                0 => return count,
                some => count += some,
            }
        }
    });
    client.shutdown().await.unwrap();
    assert_eq!(soon(read).await.unwrap(), sent);
}
